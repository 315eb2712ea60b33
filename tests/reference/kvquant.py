#!/usr/bin/env python3
"""KVQuant's arithmetic in float64, written from the paper (Hooper et al. 2024, arXiv 2401.18079),
and the fixture that tests/kvcache/kvquant_parity_test.cc compares with:

    python3 tests/reference/kvquant.py tests/reference/kvquant_tiny.json

Needs numpy alone; made with Python 3.11 and numpy 2.4. Numbers to quantize come from a generator
that both sides have, exact in half precision.
"""

import json
import math
import sys

import numpy as np

SLOTS, DIM = 32, 32
OUTLIERS = 0.1
NORMAL_CUT = 2.5758293035489004  # 1% of a normal distribution is beyond


class Draws:
    """Nearly normal numbers, multiples of 1/128: sums of four bytes of Knuth's 1664525 generator."""

    def __init__(self, seed):
        self.state = seed

    def one(self):
        total = -510
        for _ in range(4):
            self.state = (self.state * 1664525 + 1013904223) % 2**32
            total += self.state >> 24
        return total / 128

    def __call__(self, *shape):
        return np.array([self.one() for _ in range(math.prod(shape))]).reshape(shape)


def draw():
    """Samples, and keys and values of SLOTS slots; some channels of keys are larger."""
    draws = Draws(1)
    samples = draws(2000)
    keys = draws(SLOTS, DIM) * 2.0 ** (np.arange(DIM) % 4)
    return samples, keys, draws(SLOTS, DIM)


def half(x):
    return np.float64(np.float16(x))


def normal_levels(bits):
    """Lloyd's conditions on the density of a normal distribution cut at NORMAL_CUT, over the cut."""
    density = lambda x: math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    below = lambda x: 0.5 * (1 + math.erf(x / math.sqrt(2)))
    n = 2**bits
    levels = [NORMAL_CUT * (2 * i + 1 - n) / n for i in range(n)]
    for _ in range(20000):
        ends = [-NORMAL_CUT] + [(a + b) / 2 for a, b in zip(levels, levels[1:])] + [NORMAL_CUT]
        levels = [
            (density(a) - density(b)) / (below(b) - below(a)) for a, b in zip(ends, ends[1:])
        ]
    return [round(127 * level / NORMAL_CUT) for level in levels]


def kmeans_levels(numbers, bits):
    """One-dimensional k-means over the numbers themselves, from the normal levels on."""
    numbers = np.sort(np.asarray(numbers))
    levels = np.array(normal_levels(bits)) / 127
    for _ in range(1000):
        nearest = np.searchsorted((levels[1:] + levels[:-1]) / 2, numbers)
        moved = np.array(
            [numbers[nearest == i].mean() if (nearest == i).any() else levels[i]
             for i in range(len(levels))])
        if np.abs(moved - levels).max() < 1e-9:
            break
        levels = moved
    return [round(127 * level) for level in levels]


def rotate(rows, positions, sign):
    """RoPE by sign * position, pairs (i, i + dim / 2), base 10000."""
    rows = rows.copy()
    pairs = rows.shape[1] // 2
    angles = sign * np.outer(positions, 10000.0 ** (-np.arange(pairs) / pairs))
    x, y = rows[:, :pairs].copy(), rows[:, pairs:].copy()
    rows[:, :pairs] = x * np.cos(angles) - y * np.sin(angles)
    rows[:, pairs:] = x * np.sin(angles) + y * np.cos(angles)
    return rows


def codes_of(normalized, levels):
    return np.abs(normalized[..., None] - np.array(levels) / 127).argmin(axis=-1)


def quantize_keys(keys, positions, levels):
    """Per channel before RoPE; the numbers that are farthest from their level are kept apart."""
    rows = rotate(keys, positions, -1)
    cut = int(OUTLIERS / 2 * SLOTS)
    ordered = np.sort(rows, axis=0)
    low, high = ordered[cut], ordered[-1 - cut]
    centers, halves = (low + high) / 2, (high - low) / 2
    codes = codes_of((rows - centers) / halves, levels)
    read = centers + halves * np.array(levels)[codes] / 127
    errors = np.abs(rows - read).T.reshape(-1)  # by channel, then slot
    apart = np.sort(np.argsort(-errors, kind="stable")[: int(OUTLIERS * SLOTS * DIM)])
    read[apart % SLOTS, apart // SLOTS] = half(rows[apart % SLOTS, apart // SLOTS])
    return {
        "centers": centers.tolist(),
        "halves": halves.tolist(),
        "codes": codes.T.reshape(-1).tolist(),
        "outliers": apart.tolist(),
        "read": rotate(read, positions, 1).reshape(-1).tolist(),
    }


def quantize_values(values, levels):
    """Per token; the numbers the most deviations away from their token's mean are kept apart."""
    deviations = np.abs(values - values.mean(axis=1, keepdims=True)) / values.std(
        axis=1, keepdims=True)
    apart = np.sort(
        np.argsort(-deviations.reshape(-1), kind="stable")[: int(OUTLIERS * SLOTS * DIM)])
    mask = np.zeros(SLOTS * DIM, bool)
    mask[apart] = True
    mask = mask.reshape(SLOTS, DIM)
    low = np.where(mask, np.inf, values).min(axis=1)
    high = np.where(mask, -np.inf, values).max(axis=1)
    centers, halves = half((low + high) / 2)[:, None], half((high - low) / 2)[:, None]
    codes = codes_of((values - centers) / halves, levels)
    read = np.where(mask, values, centers + halves * np.array(levels)[codes] / 127)
    return {
        "codes": codes.reshape(-1).tolist(),
        "outliers": apart.tolist(),
        "read": read.reshape(-1).tolist(),
    }


def compact(result):
    """Codes as a string of hexadecimal digits, numbers with six digits."""
    result = dict(result, codes="".join(f"{code:x}" for code in result["codes"]))
    for key in ("centers", "halves", "read"):
        if key in result:
            result[key] = [float(f"{number:.6g}") for number in result[key]]
    return result


def main():
    samples, keys, values = draw()
    samples = samples / 4
    samples = samples[np.abs(samples) <= 1]
    positions = [100 + 7 * slot for slot in range(SLOTS)]
    fixture = {"normal_levels": [normal_levels(bits) for bits in (2, 3, 4)]}
    fixture["fitted_levels"] = [kmeans_levels(samples, bits) for bits in (2, 3, 4)]
    for bits in (2, 3, 4):
        levels = fixture["normal_levels"][bits - 2]
        of_bits = {"keys": compact(quantize_keys(keys, positions, levels)),
                   "values": compact(quantize_values(values, levels))}
        if bits != 3:  # codes and ranges say the same
            del of_bits["keys"]["read"], of_bits["values"]["read"]
        fixture[str(bits)] = of_bits
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump(fixture, file, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
