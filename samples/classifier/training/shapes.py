"""Images to learn from: ten classes of shapes and patterns, 32 x 32 pixels of 8-bit red, green and blue, with noise."""

import numpy as np

SIDE = 32
LABELS = [
    "circle",
    "square",
    "triangle",
    "cross",
    "ring",
    "horizontal-stripes",
    "vertical-stripes",
    "diagonal-stripes",
    "checkerboard",
    "dots",
]


def images(count, seed):
    """Returns `count` images (count x 32 x 32 x 3 bytes) and their classes, the same for the same seed."""
    random = np.random.Generator(np.random.PCG64(seed))
    classes = random.permutation(np.arange(count) % len(LABELS)).astype(np.uint8)
    return np.stack([_image(LABELS[number], random) for number in classes]), classes


def _image(label, random):
    """Returns an image of the class of this name: foreground and background of two colours that differ, dimmed along one axis, and noise."""
    foreground, background = _colours(random)
    y, x = np.mgrid[0:SIDE, 0:SIDE].astype(np.float64)
    share = _mask(label, x, y, random)[:, :, None]
    pixels = foreground * share + background * (1 - share)
    angle, strength = random.uniform(0, 2 * np.pi), random.uniform(0, 0.3)
    light = 1 + strength * ((x - 16) * np.cos(angle) + (y - 16) * np.sin(angle)) / 16
    pixels = pixels * light[:, :, None] + random.normal(0, random.uniform(4, 22), pixels.shape)
    return np.clip(np.round(pixels), 0, 255).astype(np.uint8)


def _colours(random):
    while True:
        one, other = random.uniform(0, 255, 3), random.uniform(0, 255, 3)
        if np.abs(one - other).sum() > 140:
            return one, other


def _mask(label, x, y, random):
    """Returns how much of each pixel is foreground, from 0 to 1."""
    if label.endswith("-stripes") or label in ("checkerboard", "dots"):
        return _pattern(label, x, y, random)
    size = random.uniform(6.5, 12.5)
    x, y = x - random.uniform(11, 20), y - random.uniform(11, 20)
    angle = random.uniform(-0.3, 0.3)
    x, y = x * np.cos(angle) - y * np.sin(angle), x * np.sin(angle) + y * np.cos(angle)
    if label == "circle":
        return _inside(size - np.hypot(x, y))
    if label == "square":
        return _inside(0.9 * size - np.maximum(np.abs(x), np.abs(y)))
    if label == "triangle":
        return _inside(np.minimum(0.8 * size - y, 0.45 * (y + size) - np.abs(x) * 0.9))
    if label == "ring":
        return _inside(random.uniform(0.18, 0.26) * size - np.abs(np.hypot(x, y) - 0.75 * size))
    width = random.uniform(0.22, 0.36) * size
    bars = np.maximum(width - np.abs(x), width - np.abs(y))
    return _inside(np.minimum(bars, size - np.maximum(np.abs(x), np.abs(y))))


def _pattern(label, x, y, random):
    period = random.uniform(5, 11)
    tilt = random.uniform(-0.12, 0.12)
    x, y = x - tilt * y + random.uniform(0, period), y + tilt * x + random.uniform(0, period)
    wave_x, wave_y = (np.sin(2 * np.pi * axis / period) for axis in (x, y))
    if label == "horizontal-stripes":
        return _inside(2 * wave_y)
    if label == "vertical-stripes":
        return _inside(2 * wave_x)
    if label == "diagonal-stripes":
        turn = random.choice([-1, 1])
        return _inside(2 * np.sin(2 * np.pi * (x + turn * y) / (1.4 * period)))
    if label == "checkerboard":
        return _inside(4 * wave_x * wave_y)
    return _inside(3 * (np.minimum(wave_x, wave_y) - random.uniform(0.1, 0.3)))


def _inside(distance):
    return np.clip(distance + 0.5, 0, 1)
