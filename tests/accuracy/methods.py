"""Methods of storing complete tiles, as reference code in numpy.

A method maps tiles of keys (after RoPE) and values, float32 [tiles, G, dim], to what a
reader gets back, and states every byte that it stores: codes, and scales, zeros, means and
norms in fp16.  What all tiles of all models share (rotations, level tables, codebooks) is
not counted.  kvarnd's own presets are methods too (kvarnd_cache.py); they run through the
daemon, and the names here that end in `_ref` are its published form with other bits.
"""
from __future__ import annotations

from typing import Protocol

import numpy as np

from variants import GROUP, Encoder, Variant, hadamard
from vectors import NsnQuant, TurboQuant


class Method(Protocol):
    name: str
    label: str
    group: int                       # tokens of a tile

    def bytes_per_token(self, dim: int) -> float:
        """Bytes of K and V of one kv head per token of a complete tile, all included."""

    def roundtrip(self, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tiles [tiles, group, dim] as a reader gets them back, float32."""


def round_to_levels(x: np.ndarray, bits: int) -> np.ndarray:
    """Asymmetric rounding to nearest over the last axis.

    Codes come from the exact step and minimum; a reader has both in fp16.
    """
    top = 2 ** bits - 1
    low = x.min(axis=-1, keepdims=True)
    step = np.maximum((x.max(axis=-1, keepdims=True) - low) / top, np.float32(1e-10))
    codes = np.clip(np.rint((x - low) / step), 0, top)
    step, low = (part.astype(np.float16).astype(np.float32) for part in (step, low))
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
    """Keys per channel over `size` tokens, values per token over `size` channels.

    rotate: behind a Hadamard rotation of keys and values, which is the published KVarN
    without its balancing, and stands for QuaRot's treatment of the cache.
    """

    group = GROUP

    def __init__(self, bits_k: int, bits_v: int, size: int, rotate: bool = False):
        self.bits_k, self.bits_v, self.size, self.rotate = bits_k, bits_v, size, rotate
        self.name = f"{'hadamard_' if rotate else ''}kivi_k{bits_k}v{bits_v}_g{size}"
        self.label = f"{'Hadamard + ' if rotate else ''}KIVI K{bits_k}V{bits_v} g{size}"

    def bytes_per_token(self, dim: int) -> float:
        scales = 4 * dim / self.size + 4 * dim / min(self.size, dim)
        return dim * (self.bits_k + self.bits_v) / 8 + scales

    def roundtrip(self, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if not self.rotate:
            return self._stored(k, v)
        h = hadamard(k.shape[-1])
        k_hat, v_hat = self._stored(k @ h, v @ h)
        return k_hat @ h, v_hat @ h

    def _stored(self, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        turned = np.ascontiguousarray(k.swapaxes(1, 2))
        k_hat = in_groups(turned, self.size, self.bits_k).swapaxes(1, 2)
        return k_hat, in_groups(v, min(self.size, v.shape[-1]), self.bits_v)


def published(bits_k: int, bits_v: int) -> Variant:
    """The published KVarN with bits that are no preset of kvarnd."""
    return Variant(f"kvarn_k{bits_k}v{bits_v}_ref", f"KVarN K{bits_k}V{bits_v} (reference code)",
                   Encoder(bits_k, scale_free=False), Encoder(bits_v, scale_free=False))


METHODS: dict[str, Method] = {method.name: method for method in (
    Kivi(2, 2, 128), Kivi(2, 2, 32), Kivi(4, 2, 128), Kivi(4, 2, 32),
    Rtn(2, 2), Rtn(4, 2), Kivi(2, 2, 128, rotate=True), Kivi(4, 2, 128, rotate=True),
    TurboQuant(2, 2), TurboQuant(2, 2, keep_norm=True), TurboQuant(3, 3, keep_norm=True),
    TurboQuant(4, 2), TurboQuant(4, 2, keep_norm=True), TurboQuant(4, 4, keep_norm=True),
    NsnQuant(2), NsnQuant(1),
    published(3, 2), published(3, 3), published(2, 4), published(8, 8))}

# Of these, what the short form runs.
SHORT = ("kivi_k2v2_g128", "kivi_k2v2_g32", "kivi_k4v2_g128", "rtn_k2v2",
         "hadamard_kivi_k2v2_g128", "turboquant_k2v2", "turboquant_norm_k2v2", "turboquant_k4v2",
         "nsnquant_k2v2", "nsnquant_k1v1", "kvarn_k3v3_ref", "kvarn_k2v4_ref", "kvarn_k8v8_ref")
