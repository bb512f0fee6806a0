"""Methods of storing complete tiles, as reference code in numpy.

A method maps tiles of keys (after RoPE) and values, float32 [tiles, G, dim], to what a
reader gets back, and states every byte that it stores.  kvarnd's own presets are methods
too (kvarnd_cache.py); they run through the daemon.
"""
from __future__ import annotations

from typing import Protocol

import numpy as np

GROUP = 128                          # tokens of a tile


class Method(Protocol):
    name: str
    label: str
    group: int                       # tokens of a tile

    def bytes_per_token(self, dim: int) -> float:
        """Bytes of K and V of one kv head per token of a complete tile, all included."""

    def roundtrip(self, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tiles [tiles, group, dim] as a reader gets them back, float32."""


def round_to_levels(x: np.ndarray, bits: int) -> np.ndarray:
    """Asymmetric rounding to nearest over the last axis, step and minimum in fp16."""
    top = 2 ** bits - 1
    low = x.min(axis=-1, keepdims=True).astype(np.float16).astype(np.float32)
    step = ((x.max(axis=-1, keepdims=True) - low) / top).astype(np.float16).astype(np.float32)
    codes = np.clip(np.rint((x - low) / np.where(step > 0, step, 1)), 0, top)
    return codes * step + low


def in_groups(x: np.ndarray, size: int, bits: int) -> np.ndarray:
    """round_to_levels over groups of `size` along the last axis."""
    return round_to_levels(x.reshape(*x.shape[:-1], -1, size), bits).reshape(x.shape)


class Rtn:
    """Plain rounding to nearest: one step and minimum per token for keys and for values."""

    group = GROUP

    def __init__(self, bits_k: int, bits_v: int):
        self.bits_k, self.bits_v = bits_k, bits_v
        self.name, self.label = f"rtn_k{bits_k}v{bits_v}", f"RTN K{bits_k}V{bits_v}"

    def bytes_per_token(self, dim: int) -> float:
        return dim * (self.bits_k + self.bits_v) / 8 + 8

    def roundtrip(self, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return round_to_levels(k, self.bits_k), round_to_levels(v, self.bits_v)


class Kivi:
    """Keys per channel over `size` tokens, values per token over `size` channels."""

    group = GROUP

    def __init__(self, bits_k: int, bits_v: int, size: int):
        self.bits_k, self.bits_v, self.size = bits_k, bits_v, size
        self.name = f"kivi_k{bits_k}v{bits_v}_g{size}"
        self.label = f"KIVI K{bits_k}V{bits_v} g{size}"

    def bytes_per_token(self, dim: int) -> float:
        scales = 4 * dim / self.size + 4 * dim / min(self.size, dim)
        return dim * (self.bits_k + self.bits_v) / 8 + scales

    def roundtrip(self, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        turned = np.ascontiguousarray(k.swapaxes(1, 2))
        k_hat = in_groups(turned, self.size, self.bits_k).swapaxes(1, 2)
        return k_hat, in_groups(v, min(self.size, v.shape[-1]), self.bits_v)


METHODS: dict[str, Method] = {method.name: method for method in (
    Kivi(2, 2, 128), Kivi(2, 2, 32), Kivi(4, 2, 128), Rtn(2, 2), Rtn(4, 2))}
