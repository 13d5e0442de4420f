"""The network: three convolutions of 5 x 5, each with a pool, and one matrix (Lai, Suda and Chandra, "CMSIS-NN: Efficient Neural Network
Kernels for Arm Cortex-M CPUs", table I). Its forward and backward steps with numpy alone, for batches in the order image, row, column,
channel."""

import numpy as np

CHANNELS = [3, 32, 16, 32]
CLASSES = 10


def new(seed):
    """Returns the weights before any training: pairs of a matrix and an offset for each convolution, and for the last step."""
    random = np.random.Generator(np.random.PCG64(seed))
    weights = []
    for before, after in zip(CHANNELS, CHANNELS[1:]):
        inputs = 25 * before
        weights += [random.normal(0, np.sqrt(2 / inputs), (inputs, after)), np.zeros(after)]
    weights += [random.normal(0, np.sqrt(1 / 512), (512, CLASSES)), np.zeros(CLASSES)]
    return [weight.astype(np.float32) for weight in weights]


def prepared(pixels):
    """Returns the input of the first convolution for images in bytes."""
    return pixels.astype(np.float32) / np.float32(255) - np.float32(0.5)


def forward(weights, pixels):
    """Returns the scores before the softmax, and what `backward` needs."""
    first, trail_first = _convolve(prepared(pixels), weights[0], weights[1])
    pooled, trail_max = _max_pool(first)
    first = np.maximum(pooled, 0)
    second, trail_second = _convolve(first, weights[2], weights[3])
    second = np.maximum(second, 0)
    second_pooled = _mean_pool(second)
    third, trail_third = _convolve(second_pooled, weights[4], weights[5])
    third = np.maximum(third, 0)
    flat = _mean_pool(third).reshape(len(pixels), -1)
    scores = flat @ weights[6] + weights[7]
    return scores, (trail_first, trail_max, first, trail_second, second, trail_third, third, flat)


def backward(weights, trail, by_scores):
    """Returns the gradient by each weight, from that by the scores."""
    trail_first, trail_max, first, trail_second, second, trail_third, third, flat = trail
    by = [None] * 8
    by[6], by[7] = flat.T @ by_scores, by_scores.sum(0)
    by_third = _mean_pool_back((by_scores @ weights[6].T).reshape(-1, 4, 4, 32), third.shape) * (third > 0)
    by[4], by[5], by_pooled = _convolve_back(by_third, trail_third, weights[4])
    by_second = _mean_pool_back(by_pooled, second.shape) * (second > 0)
    by[2], by[3], by_first = _convolve_back(by_second, trail_second, weights[2])
    by_conv = _max_pool_back(by_first * (first > 0), trail_max)
    by[0], by[1], _ = _convolve_back(by_conv, trail_first, None)
    return by


def _convolve(x, matrix, offset):
    padded = np.pad(x, ((0, 0), (2, 2), (2, 2), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (5, 5), axis=(1, 2))
    columns = windows.transpose(0, 1, 2, 4, 5, 3).reshape(-1, matrix.shape[0])
    return (columns @ matrix + offset).reshape(*x.shape[:3], -1), (columns, x.shape)


def _convolve_back(by_y, trail, matrix):
    """`matrix` is none where the gradient by the input is not needed."""
    columns, shape = trail
    by_y = by_y.reshape(len(columns), -1)
    by_matrix, by_offset = columns.T @ by_y, by_y.sum(0)
    if matrix is None:
        return by_matrix, by_offset, None
    count, height, width, channels = shape
    by_columns = (by_y @ matrix.T).reshape(count, height, width, 5, 5, channels)
    by_x = np.zeros((count, height + 4, width + 4, channels), np.float32)
    for row in range(5):
        for column in range(5):
            by_x[:, row : row + height, column : column + width] += by_columns[:, :, :, row, column]
    return by_matrix, by_offset, by_x[:, 2:-2, 2:-2]


# Pools have windows of 3 x 3 at every second pixel. The last window of a row has two pixels, as the image ends there.
def _windows(x, fill):
    """Yields for each of the nine places of a window the pixels there."""
    padded = np.pad(x, ((0, 0), (0, 1), (0, 1), (0, 0)), constant_values=fill)
    height, width = x.shape[1], x.shape[2]
    for row in range(3):
        for column in range(3):
            yield row, column, padded[:, row : row + height - 1 : 2, column : column + width - 1 : 2]


def _max_pool(x):
    best = np.max(np.stack([pixels for _, _, pixels in _windows(x, -np.inf)]), 0)
    return best, (x, best)


def _max_pool_back(by_y, trail):
    x, best = trail
    by_x = np.zeros((x.shape[0], x.shape[1] + 1, x.shape[2] + 1, x.shape[3]), np.float32)
    left = np.ones_like(best, bool)
    for row, column, pixels in _windows(x, -np.inf):
        chosen = left & (pixels == best)
        left &= ~chosen
        by_x[:, row : row + x.shape[1] - 1 : 2, column : column + x.shape[2] - 1 : 2] += by_y * chosen
    return by_x[:, :-1, :-1]


def _pixels_in_windows(side):
    count = np.full(side // 2, 3, np.float32)
    count[-1] = 2
    return np.outer(count, count)[None, :, :, None]


def _mean_pool(x):
    return sum(pixels for _, _, pixels in _windows(x, 0)) / _pixels_in_windows(x.shape[1])


def _mean_pool_back(by_y, shape):
    by_y = by_y / _pixels_in_windows(shape[1])
    by_x = np.zeros((shape[0], shape[1] + 1, shape[2] + 1, shape[3]), np.float32)
    for row in range(3):
        for column in range(3):
            by_x[:, row : row + shape[1] - 1 : 2, column : column + shape[2] - 1 : 2] += by_y
    return by_x[:, :-1, :-1]
