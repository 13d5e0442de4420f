#!/usr/bin/env python3
"""Trains the classifier on images that it makes, and writes the model and images for its tests.

    OPENBLAS_NUM_THREADS=1 python3 train.py FOLDER

writes FOLDER/cifar.onnx and FOLDER/held-out.bin: of each image its class, one byte, and its pixels, 3072 bytes. Needs numpy alone. The same
machine writes the same files each time; another processor may round differently.
"""

import pathlib
import sys
import time

import numpy as np

import network
import onnx_file
import shapes

TRAINING, HELD_OUT, COMMITTED = 8000, 1000, 40
EPOCHS, BATCH = 10, 50


def main(folder):
    began = time.monotonic()
    pixels, classes = shapes.images(TRAINING, seed=1)
    held_out, held_out_classes = shapes.images(HELD_OUT, seed=2)
    weights = network.new(seed=3)
    order = np.random.Generator(np.random.PCG64(4))
    moments = [(np.zeros_like(weight), np.zeros_like(weight)) for weight in weights]
    step, steps = 0, EPOCHS * TRAINING // BATCH
    for epoch in range(EPOCHS):
        losses = []
        for batch in order.permutation(TRAINING).reshape(-1, BATCH):
            scores, trail = network.forward(weights, pixels[batch])
            shares = softmax(scores)
            truth = classes[batch]
            losses.append(-np.log(shares[np.arange(BATCH), truth] + 1e-9).mean())
            shares[np.arange(BATCH), truth] -= 1
            gradients = network.backward(weights, trail, shares / np.float32(BATCH))
            step += 1
            update(weights, moments, gradients, step, rate=1.5e-3 * (1 - step / (steps + 1)))
        share = accuracy(weights, held_out, held_out_classes)
        print(f"epoch {epoch + 1}: loss {np.mean(losses):.3f}, right {share:.1%} of held-out images, {time.monotonic() - began:.0f} s", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cifar.onnx").write_bytes(onnx_file.model(weights))
    kept = zip(held_out[:COMMITTED], held_out_classes)
    (folder / "held-out.bin").write_bytes(b"".join(bytes([number]) + image.tobytes() for image, number in kept))


def update(weights, moments, gradients, step, rate):
    """One step of Adam (Kingma and Ba, 2015)."""
    for weight, (mean, square), gradient in zip(weights, moments, gradients):
        mean += 0.1 * (gradient - mean)
        square += 0.001 * (gradient * gradient - square)
        weight -= rate * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)


def softmax(scores):
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def accuracy(weights, pixels, classes):
    guesses = [network.forward(weights, part)[0].argmax(1) for part in np.array_split(pixels, 20)]
    return (np.concatenate(guesses) == classes).mean()


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
