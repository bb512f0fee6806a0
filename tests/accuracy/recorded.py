"""Recorded keys, values and queries, and every error that a method makes on them.

Two captures of real models and, for the head dimension that neither has, the synthetic
tiles of the golden files (tests/data/README.md).
"""
from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np

import measures
from paths import ROOT

DATA = ROOT / "tests" / "data"
sys.path.insert(0, str(DATA))
import st_file  # noqa: E402

SINK = 128


@dataclass
class Layer:
    """One layer: keys and values [heads, tokens, D], the queries of given positions."""

    k: np.ndarray
    v: np.ndarray
    q: np.ndarray                    # [query heads, queries, D]
    position: np.ndarray             # of each query, which sees the keys up to it
    scale: float
    first: int                       # tokens before it are exact

    def stored(self, group: int) -> slice:
        """Tokens of the complete tiles that the first query finds stored."""
        end = (int(self.position[0]) + 1) // group * group
        return slice(self.first, end)


def capture(name: str) -> list[Layer]:
    data, meta = st_file.read(DATA / f"capture_{name}.safetensors")
    position = int(meta["first_query_position"]) + np.arange(len(data["layer.0.q"]))
    return [Layer(*(data[f"layer.{i}.{x}"].astype(np.float32).swapaxes(0, 1) for x in "kvq"),
                  position, float(meta["softmax_scale"]), SINK)
            for i in range(len(meta["layers"].split(",")))]


def golden(dim: int) -> list[Layer]:
    """The plain and the hard tile, one after the other, with the queries made for them."""
    data, _ = st_file.read(DATA / f"golden_d{dim}_g128.safetensors")
    k, v = (np.concatenate([data[f"{case}.{x}"] for case in ("plain", "hard")])[None]
            .astype(np.float32) for x in "kv")
    q = data["attn.q"][None].astype(np.float32)
    return [Layer(k, v, q, np.full(q.shape[1], k.shape[1] - 1), float(data["attn.scale"][0]), 0)]


def sources() -> dict[str, list[Layer]]:
    return {"smollm2_d64": capture("smollm2_135m"), "gemma3_d256": capture("gemma3_270m"),
            "golden_d128": golden(128)}


def logits(layer: Layer, k: np.ndarray) -> np.ndarray:
    """[query heads, queries, tokens], -inf where a query does not see."""
    ratio = len(layer.q) // len(k)
    s = layer.q @ np.repeat(k, ratio, axis=0).swapaxes(1, 2) * layer.scale
    hidden = np.arange(k.shape[1]) > layer.position[:, None]
    return np.where(hidden, -np.inf, s)


def attend(s: np.ndarray, v: np.ndarray) -> np.ndarray:
    p = np.exp(s - s.max(axis=2, keepdims=True))
    return p / p.sum(axis=2, keepdims=True) @ np.repeat(v, len(s) // len(v), axis=0)


def through(method, layer: Layer) -> tuple[np.ndarray, np.ndarray, slice]:
    """Keys and values as a reader finds them, and which tokens are stored."""
    part, group = layer.stored(method.group), method.group
    k, v = layer.k.copy(), layer.v.copy()
    tiles = (-1, group, k.shape[2])
    got = method.roundtrip(k[:, part].reshape(tiles), v[:, part].reshape(tiles))
    for x, rows in zip((k, v), got):
        x[:, part] = rows.reshape(x[:, part].shape)
    return k, v, part


def errors(method, layers: list[Layer]) -> dict[str, float]:
    """Every measure over all layers and heads; each is the better the smaller."""
    attention, logit, norm, magnitude, total, length2, v_error, v_length2 = ([] for _ in range(8))
    for layer in layers:
        k, v, part = through(method, layer)
        exact, near = logits(layer, layer.k), logits(layer, k)
        want, got = attend(exact, layer.v), attend(near, v)
        attention.append(measures.attention_error(np.square(got - want).sum(axis=(1, 2)),
                                                  np.square(want).sum(axis=(1, 2))))
        gap = near[:, :, part] - exact[:, :, part]
        logit.append(gap.std(axis=2).mean(axis=1))        # a common shift is no error
        rows, hats = layer.k[:, part], k[:, part]
        parts = measures.magnitude_direction(rows, hats)
        norm.append(measures.k_norm_error(rows, hats).ravel())
        magnitude.append(parts[0].ravel())
        total.append((parts[0] + parts[1]).ravel())
        length2.append(np.square(rows.astype(np.float64)).sum())
        v_error.append(np.square(layer.v[:, part].astype(np.float64) - v[:, part]).sum())
        v_length2.append(np.square(layer.v[:, part].astype(np.float64)).sum())
    norm, magnitude, total = (np.concatenate(x) for x in (norm, magnitude, total))
    return {"attention": float(np.concatenate(attention).mean()),
            "logit": float(np.concatenate(logit).mean()),
            "k_mse": float(total.sum() / sum(length2)),
            "k_magnitude": float(magnitude.sum() / sum(length2)),
            "k_worst": float(np.sort(total)[-max(1, len(total) // 100):].sum() / sum(length2)),
            "k_norm": float(norm.mean()), "k_norm_p99": float(measures.p99(norm)),
            "v_mse": float(sum(v_error) / sum(v_length2))}
