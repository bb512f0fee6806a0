"""Methods that rotate vectors to a known distribution and code them by fixed tables.

TurboQuant-MSE (arXiv 2504.19874): a token's length in fp16, and its direction, randomly
rotated, coordinate by coordinate with the Lloyd-Max levels of a coordinate of a random unit
vector.  The rotation is a Hadamard matrix behind fixed random signs.  Nothing here is the
paper's second stage (QJL), nor the vLLM form, whose values are coded by plain rounding.

NSNQuant (arXiv 2505.18231): tokens brought to length sqrt(dim), the tile's mean of each
channel taken off, tokens brought to that length again, a Hadamard rotation, and 8
coordinates at a time coded by one table: at 2 bits 8 signs and one of 256 vectors of
magnitudes, at 1 bit one of 256 vectors.  Different from the published form: keys are coded
after RoPE (as all methods here), tiles are of 128 tokens, both scales and the mean are
fp16 (there they are quantised once more, to 4 bits), the table comes from k-means alone
(there tuned further), and the second scale is the one by which a token keeps its length.
"""
from __future__ import annotations

from functools import lru_cache
from threading import Lock

import numpy as np

from variants import F32, GROUP, fp16, hadamard

TINY = F32(1e-12)
GRID = 200_001                       # points of a coordinate's density
SAMPLES, ROUNDS, PART, ENTRIES = 1 << 17, 30, 8, 256
TILES = 64                           # coded at a time, which bounds memory
TABLES = Lock()                      # one thread makes a table, others wait for it


def length(x: np.ndarray) -> np.ndarray:
    return np.sqrt(np.square(x).sum(axis=-1, keepdims=True))


@lru_cache(maxsize=None)
def levels(dim: int, bits: int) -> np.ndarray:
    """Lloyd-Max levels of a coordinate of a uniformly random unit vector, ascending."""
    x = np.linspace(-1, 1, GRID)
    weight = (1 - x * x) ** ((dim - 3) / 2)
    mass = np.concatenate([[0], np.cumsum(weight)])
    moment = np.concatenate([[0], np.cumsum(weight * x)])
    count = 2 ** bits
    share = mass[-1] * (np.arange(count) + 0.5) / count
    level = x[np.searchsorted(mass, share) - 1]
    for _ in range(5000):
        edge = np.searchsorted(x, (level[1:] + level[:-1]) / 2)
        edge = np.concatenate([[0], edge, [GRID]])
        new = np.diff(moment[edge]) / np.diff(mass[edge])
        if np.abs(new - level).max() < 1e-9:
            break
        level = new
    return ((level - level[::-1]) / 2).astype(F32)   # symmetric to the last bit


@lru_cache(maxsize=None)
def rotation(dim: int) -> np.ndarray:
    """Orthogonal: fixed random signs, then a Hadamard matrix."""
    return np.random.default_rng(dim).choice([F32(-1), F32(1)], (dim, 1)) * hadamard(dim)


@lru_cache(maxsize=None)
def codebook(magnitudes: bool) -> np.ndarray:
    """Vectors [256, 8] by k-means over standard normal samples, or over their magnitudes."""
    rng = np.random.default_rng(8)
    x = rng.standard_normal((SAMPLES, PART)).astype(F32)
    x = np.abs(x) if magnitudes else x
    book = x[:ENTRIES].copy()
    for _ in range(ROUNDS):
        owner = nearest(x, book)
        count = np.bincount(owner, minlength=ENTRIES)
        total = np.stack([np.bincount(owner, x[:, i], ENTRIES) for i in range(PART)], axis=1)
        found = count > 0
        book[found] = (total[found] / count[found, None]).astype(F32)
    return book


def nearest(x: np.ndarray, book: np.ndarray) -> np.ndarray:
    """Entry of least distance for each row of x."""
    return (x @ book.T - np.square(book).sum(axis=1) / 2).argmax(axis=1)


def in_parts(code, x: np.ndarray) -> np.ndarray:
    """code(tiles) over all tiles, TILES at a time."""
    return np.concatenate([code(x[at:at + TILES]) for at in range(0, len(x), TILES)])


class TurboQuant:
    """keep_norm: the stored length is chosen so that a reader's vector has the true one."""

    group = GROUP

    def __init__(self, bits_k: int, bits_v: int, keep_norm: bool = False):
        self.bits_k, self.bits_v, self.keep_norm = bits_k, bits_v, keep_norm
        self.name = f"turboquant{'_norm' if keep_norm else ''}_k{bits_k}v{bits_v}"
        kept = ", norm kept" if keep_norm else ""
        self.label = f"TurboQuant-MSE K{bits_k}V{bits_v}{kept}"

    def bytes_per_token(self, dim: int) -> float:
        return dim * (self.bits_k + self.bits_v) / 8 + 4

    def roundtrip(self, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return tuple(in_parts(lambda x, b=bits: self._stored(x, b), rows)
                     for rows, bits in ((k, self.bits_k), (v, self.bits_v)))

    def _stored(self, x: np.ndarray, bits: int) -> np.ndarray:
        with TABLES:
            table, turn = levels(x.shape[-1], bits), rotation(x.shape[-1])
        norm = length(x)
        unit = x / np.maximum(norm, TINY) @ turn
        near = table[np.searchsorted((table[1:] + table[:-1]) / 2, unit)]
        if self.keep_norm:
            norm = norm / length(near)
        return fp16(norm) * near @ turn.T


class NsnQuant:
    group = GROUP

    def __init__(self, bits: int):
        self.bits = bits
        self.name, self.label = f"nsnquant_k{bits}v{bits}", f"NSNQuant {bits} bit"

    def bytes_per_token(self, dim: int) -> float:
        return 2 * (dim * self.bits / 8 + 4 + 2 * dim / GROUP)

    def roundtrip(self, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return in_parts(self._stored, k), in_parts(self._stored, v)

    def _stored(self, x: np.ndarray) -> np.ndarray:
        dim = x.shape[-1]
        root, h = F32(np.sqrt(dim)), hadamard(dim)
        first = fp16(np.maximum(length(x) / root, TINY))
        unit = x / np.maximum(first, TINY)
        mean = fp16(unit.mean(axis=1, keepdims=True))
        rest = unit - mean
        second = length(rest)        # the first scale makes up for its own rounding here
        flat = (rest * (root / np.maximum(second, TINY)) @ h).reshape(-1, PART)
        with TABLES:
            book = codebook(self.bits == 2)
        if self.bits == 2:
            near = np.copysign(book[nearest(np.abs(flat), book)], flat)
        else:
            near = book[nearest(flat, book)]
        near = near.reshape(x.shape)
        second = fp16(second / np.maximum(length(near), TINY))
        return first * (second * near @ h + mean)
