"""Caches in memory: what attention sees of a sequence whose complete tiles a method stores."""
from __future__ import annotations

import math
from typing import Callable

import numpy as np

from attention import SINK, attention

# layer, q [B, Hq, D], attention output [B, Hq, D]
Watch = Callable[[int, np.ndarray, np.ndarray], None]
# layers, first token, k, v and what became of them, all [layers, heads, tokens, D]
Sealed = Callable[[list[int], int, np.ndarray, np.ndarray, np.ndarray, np.ndarray], None]


class Cache:
    """Exact rows, which a method replaces tile by tile as tiles become complete.

    Tiles are aligned to multiples of the method's group.  The sink and the unfinished
    tile stay exact, and so do layers that see a sliding window only: kvarnd stores the
    layers of `engine.cached_layers()`.  method None: everything stays exact.  A method with
    a `share` below 1 keeps the sink and that share of the complete tiles, the newest.
    """

    def __init__(self, engine, context: int, method=None,
                 watch: Watch | None = None, sealed: Sealed | None = None):
        s = engine.shape
        self.engine, self.method, self.watch, self.sealed = engine, method, watch, sealed
        self.k = np.zeros((s.layers, s.kv_heads, context, s.dim), np.float32)
        self.v = np.zeros_like(self.k)
        self.used = 0
        self.group = getattr(method, "group", SINK)
        self.sealed_to = SINK

    def _kept(self) -> int:
        """First tile that is still there: a method may keep only the newest share of them."""
        tiles = (self.sealed_to - SINK) // self.group
        gone = tiles - math.ceil(tiles * getattr(self.method, "share", 1))
        return SINK + gone * self.group

    def _rows(self, layer: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """K and V that the block's queries see, its own rows up to end included."""
        window, kept = self.engine.window(layer), self._kept()
        if window:
            first = max(0, self.used - window + 1)
            return self.k[layer, :, first:end], self.v[layer, :, first:end]
        if kept == SINK:
            return self.k[layer, :, :end], self.v[layer, :, :end]
        return tuple(np.concatenate([x[layer, :, :SINK], x[layer, :, kept:end]], axis=1)
                     for x in (self.k, self.v))

    def _see(self, layer: int, q: np.ndarray) -> np.ndarray:
        """Attention of the block's queries over all rows up to them."""
        k, v = self._rows(layer, self.used + len(q))
        out = attention(q, k, v, self.engine.window(layer))
        if self.watch:
            self.watch(layer, q, out)
        return out

    def attend(self, layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        rows = slice(self.used, self.used + len(q))
        self.k[layer, :, rows] = k.astype(np.float16).swapaxes(0, 1)
        self.v[layer, :, rows] = v.astype(np.float16).swapaxes(0, 1)
        return self._see(layer, q)

    def commit(self, count: int) -> None:
        self.used += count
        end = self.used // self.group * self.group
        if self.method is not None and end > self.sealed_to:
            self._seal(self.sealed_to, end)
            self.sealed_to = end

    def _seal(self, first: int, end: int) -> None:
        layers = self.engine.cached_layers()
        k, v = self.k[layers, :, first:end], self.v[layers, :, first:end]
        tiles = (-1, self.group, k.shape[-1])
        k_hat, v_hat = self.method.roundtrip(k.reshape(tiles), v.reshape(tiles))
        k_hat, v_hat = k_hat.reshape(k.shape), v_hat.reshape(v.shape)
        if self.sealed:
            self.sealed(layers, first, k, v, k_hat, v_hat)
        self.k[layers, :, first:end], self.v[layers, :, first:end] = k_hat, v_hat


class StaticCache(Cache):
    """K and V of another, exact cache: queries see its tiles as the method stores them.

    Only the queries are this lane's own, so no error travels from token to token.
    """

    def __init__(self, clean: Cache, context: int, method, watch: Watch | None = None,
                 sealed: Sealed | None = None):
        super().__init__(clean.engine, context, method, watch, sealed)
        self.clean = clean

    def attend(self, layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        rows = slice(self.used, self.used + len(q))
        self.k[layer, :, rows] = self.clean.k[layer, :, rows]
        self.v[layer, :, rows] = self.clean.v[layer, :, rows]
        return self._see(layer, q)
