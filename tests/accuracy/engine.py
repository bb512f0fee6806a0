"""Forward pass of a Llama, Qwen2 or Gemma 3 model in blocks, over a cache that a method fills.

One call computes a block for one or more lanes (independent sequences that share the
weights).  What attention sees is the business of a lane's cache: `cache.Cache` holds it
in memory, `kvarnd_cache.Sequence` in a daemon.  Arithmetic is float32; K and V are rounded
to fp16 before anything else sees them, as serving engines do.

Run it with OPENBLAS_NUM_THREADS=1 and lanes on threads of their own (regimes.py): the
products are small, and threads inside of them wait for each other more than they work.
"""
from __future__ import annotations

import sys
from pathlib import Path
from typing import Protocol

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "data"))
import llama_numpy  # noqa: E402


class Lane(Protocol):
    """The cache of one sequence."""

    used: int                        # tokens before the block that is being computed

    def attend(self, layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Take a block's rows [B, heads, D] of a layer; give its attention output."""

    def commit(self, count: int) -> None:
        """The block of count tokens is complete in every layer."""


class Engine:
    """Weights in the layout in which this harness multiplies by them."""

    def __init__(self, path: Path):
        self.model = llama_numpy.Model(path, 0)
        self.meta, self.shape, self.gemma = self.model.meta, self.model.shape, self.model.gemma
        self.w = self.model.w
        for i in range(self.shape.layers):
            self._join(i, ("attn_q", "attn_k", "attn_v"), "qkv")
            self._join(i, ("ffn_gate", "ffn_up"), "gate_up")

    def _join(self, i: int, parts: tuple[str, ...], name: str) -> None:
        """One product instead of several over the same input."""
        weights = [self.w.pop(f"blk.{i}.{part}.weight") for part in parts]
        self.w[f"blk.{i}.{name}"] = np.concatenate(weights)
        if f"blk.{i}.{parts[0]}.bias" in self.w:
            biases = [self.w.pop(f"blk.{i}.{part}.bias") for part in parts]
            self.w[f"blk.{i}.{name}.bias"] = np.concatenate(biases)

    def window(self, layer: int) -> int:
        """Tokens that a sliding layer sees, 0 for a layer that sees the whole context."""
        return self.model.window(layer) if self.shape.window else 0

    def cached_layers(self) -> list[int]:
        """Layers that see the whole context: the ones whose K and V a method stores."""
        return [i for i in range(self.shape.layers) if not self.window(i)]

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        weight = self.w.get(name + ".weight")
        if weight is None:
            return x
        scale = 1 / np.sqrt(np.einsum("...i,...i->...", x, x) / np.float32(x.shape[-1])
                            + np.float32(self.shape.eps))
        return x * scale[..., None] * weight

    def _rotate(self, x: np.ndarray, layer: int, first: int) -> np.ndarray:
        """RoPE of rows [B, heads, D] at positions first..; halves kept apart."""
        s = self.shape
        theta = llama_numpy.GEMMA_LOCAL_THETA if self.window(layer) else s.theta
        freq = theta ** (-np.arange(0, s.dim, 2) / s.dim)
        angle = ((first + np.arange(len(x)))[:, None] * freq[None, :]).astype(np.float32)
        return llama_numpy.rotate(x, angle, interleaved=False)

    def _attention(self, x: np.ndarray, i: int, lanes: list[Lane]) -> np.ndarray:
        s, (count, steps) = self.shape, x.shape[:2]
        rows = x.reshape(count * steps, -1) @ self.w[f"blk.{i}.qkv"].T
        rows += self.w.get(f"blk.{i}.qkv.bias", np.float32(0))
        rows = rows.reshape(count, steps, s.q_heads + 2 * s.kv_heads, s.dim)
        out = np.empty((count, steps, s.q_heads * s.dim), np.float32)
        for n, lane in enumerate(lanes):
            q, k, v = np.split(rows[n], (s.q_heads, s.q_heads + s.kv_heads), axis=1)
            q = self._norm(q, f"blk.{i}.attn_q_norm")
            k = self._norm(k, f"blk.{i}.attn_k_norm")
            q = self._rotate(q, i, lane.used)
            k = self._rotate(k, i, lane.used)
            out[n] = lane.attend(i, q, k, v).reshape(steps, -1)
        return out.reshape(count * steps, -1) @ self.w[f"blk.{i}.attn_output.weight"].T

    def forward(self, tokens: np.ndarray, lanes: list[Lane]) -> np.ndarray:
        """Append tokens [lanes, B]; give the last hidden rows [lanes, B, H], normalised."""
        count, steps = tokens.shape
        x = self.w["token_embd.weight"][tokens]
        if self.gemma:
            x = x * np.float32(np.sqrt(x.shape[-1]))
        activation = llama_numpy.gelu if self.gemma else silu
        for i in range(self.shape.layers):
            y = self._attention(self._norm(x, f"blk.{i}.attn_norm"), i, lanes)
            y = y.reshape(x.shape)
            x = x + self._norm(y, f"blk.{i}.post_attention_norm")
            y = self._norm(x, f"blk.{i}.ffn_norm").reshape(count * steps, -1)
            both = y @ self.w[f"blk.{i}.gate_up"].T
            half = both.shape[1] // 2
            y = activation(both[:, :half]) * both[:, half:]
            y = (y @ self.w[f"blk.{i}.ffn_down.weight"].T).reshape(x.shape)
            x = x + self._norm(y, f"blk.{i}.post_ffw_norm")
        for lane in lanes:
            lane.commit(steps)
        return self._norm(x, "output_norm")

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        """Logits [rows, vocabulary] of hidden rows [rows, H]."""
        head = "output.weight" if "output.weight" in self.w else "token_embd.weight"
        return hidden @ self.w[head].T

    def log_probs(self, hidden: np.ndarray) -> np.ndarray:
        """Natural-log probabilities [rows, vocabulary], float32."""
        x = self.logits(hidden)
        x -= x.max(axis=1, keepdims=True)
        x -= np.log(np.exp(x).sum(axis=1, keepdims=True, dtype=np.float64)).astype(np.float32)
        return x


def silu(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):     # exp(-x) = inf gives 0, as it should
        return x / (1 + np.exp(-x))
