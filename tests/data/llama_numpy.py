"""Small float32 inference engine for Llama, Qwen2 and Gemma 3 models stored as GGUF.

It exists to produce real post-RoPE keys, values and queries.  Weights are dequantised
on load; the KV cache holds fp16 values, as serving engines do, so what is captured
from the cache is exactly what attention used.  Packages that only reading a file or
making a tokenizer needs are imported there.
"""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

ARCHITECTURES = ("llama", "qwen2", "gemma3")
GEMMA_GLOBAL_EVERY = 6               # the other layers attend to a sliding window
GEMMA_LOCAL_THETA = 10000.0
CONTROL_TOKEN = 3                    # GGUF token type of markers such as <|im_end|>
QWEN_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
              r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


@dataclass(frozen=True)
class Shape:
    """Dimensions read from the GGUF header."""

    layers: int
    q_heads: int
    kv_heads: int
    dim: int
    theta: float
    eps: float
    window: int                      # of sliding layers, 0 without any


def unpermute(w: np.ndarray, heads: int) -> np.ndarray:
    """Undo the row order that GGUF gives Llama q and k projections.

    Converters interleave the two halves of each head so that a rotation acts on
    neighbouring rows.  Serving engines keep the halves apart, and that order is the
    one in which the codec sees channels.
    """
    rows = w.reshape(heads, -1, 2, *w.shape[1:])
    return np.ascontiguousarray(rows.swapaxes(1, 2).reshape(w.shape))


def rotate(x: np.ndarray, angle: np.ndarray, interleaved: bool) -> np.ndarray:
    """Apply RoPE to x [T, heads, D]; angle [T, D/2]."""
    cos, sin = np.cos(angle)[:, None, :], np.sin(angle)[:, None, :]
    y = np.empty_like(x)
    half = x.shape[-1] // 2
    first = slice(0, None, 2) if interleaved else slice(0, half)
    second = slice(1, None, 2) if interleaved else slice(half, None)
    y[..., first] = x[..., first] * cos - x[..., second] * sin
    y[..., second] = x[..., second] * cos + x[..., first] * sin
    return y


def softmax(s: np.ndarray) -> np.ndarray:
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True)


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(np.float32(np.sqrt(2 / np.pi)) * (x + 0.044715 * x ** 3)))


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, first: int,
           window: int = 0) -> np.ndarray:
    """Causal attention of q [T, Hq, D], at positions first.., over k, v [N, Hkv, D]."""
    steps, q_heads, dim = q.shape
    n, kv_heads, _ = k.shape
    ratio = q_heads // kv_heads
    qg = q.reshape(steps, kv_heads, ratio, dim).transpose(1, 2, 0, 3)
    s = qg.reshape(kv_heads, ratio * steps, dim) @ k.transpose(1, 2, 0)
    s = s.reshape(kv_heads, ratio, steps, n) / np.sqrt(np.float32(dim))
    distance = first + np.arange(steps)[:, None] - np.arange(n)[None, :]
    hidden = (distance < 0) | (distance >= (window or n))
    s[..., hidden] = -np.inf
    out = softmax(s).reshape(kv_heads, ratio * steps, n) @ v.transpose(1, 0, 2)
    out = out.reshape(kv_heads, ratio, steps, dim).transpose(2, 0, 1, 3)
    return out.reshape(steps, q_heads, dim)


class Model:
    """Weights, cache and forward pass of one sequence."""

    def __init__(self, path: Path, context: int, interleaved: bool = False):
        from gguf import GGUFReader, dequantize
        reader = GGUFReader(path)
        self.meta = {key: field.contents() for key, field in reader.fields.items()}
        arch = self.meta["general.architecture"]
        if arch not in ARCHITECTURES:
            raise ValueError(f"architecture {arch} is not supported")
        heads = self.meta[f"{arch}.attention.head_count"]
        self.shape = Shape(
            layers=self.meta[f"{arch}.block_count"], q_heads=heads,
            kv_heads=self.meta[f"{arch}.attention.head_count_kv"],
            dim=self.meta.get(f"{arch}.attention.key_length",
                              self.meta[f"{arch}.embedding_length"] // heads),
            theta=self.meta[f"{arch}.rope.freq_base"],
            eps=self.meta[f"{arch}.attention.layer_norm_rms_epsilon"],
            window=self.meta.get(f"{arch}.attention.sliding_window", 0))
        self.gemma = arch == "gemma3"
        self.w = {t.name: dequantize(t.data, t.tensor_type).astype(np.float32)
                  for t in reader.tensors}
        self.interleaved = interleaved
        if arch == "llama" and not interleaved:
            for i in range(self.shape.layers):
                for part, n in (("q", heads), ("k", self.shape.kv_heads)):
                    name = f"blk.{i}.attn_{part}.weight"
                    self.w[name] = unpermute(self.w[name], n)
        room = (self.shape.layers, context, self.shape.kv_heads, self.shape.dim)
        self.k = np.zeros(room, np.float16)
        self.v = np.zeros(room, np.float16)
        self.used = 0
        self.last: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def window(self, i: int) -> int:
        """Sliding window of layer i, 0 when it sees the whole context."""
        return self.shape.window if (i + 1) % GEMMA_GLOBAL_EVERY else 0

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        """RMS norm; models that lack this norm leave x as it is."""
        if name not in self.w:
            return x
        rms = np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(self.shape.eps))
        return x / rms * self.w[name]

    def _linear(self, x: np.ndarray, name: str) -> np.ndarray:
        y = x @ self.w[name + ".weight"].T
        bias = self.w.get(name + ".bias")
        return y if bias is None else y + bias

    def _angles(self, i: int, steps: int) -> np.ndarray:
        s = self.shape
        theta = GEMMA_LOCAL_THETA if self.window(i) else s.theta
        freq = theta ** (-np.arange(0, s.dim, 2) / s.dim)
        pos = np.arange(self.used, self.used + steps)
        return (pos[:, None] * freq[None, :]).astype(np.float32)

    def _attention(self, x: np.ndarray, i: int) -> np.ndarray:
        s, steps, first = self.shape, len(x), self.used
        angle = self._angles(i, steps)
        q = self._linear(x, f"blk.{i}.attn_q").reshape(steps, s.q_heads, s.dim)
        k = self._linear(x, f"blk.{i}.attn_k").reshape(steps, s.kv_heads, s.dim)
        v = self._linear(x, f"blk.{i}.attn_v").reshape(steps, s.kv_heads, s.dim)
        q = self._norm(q, f"blk.{i}.attn_q_norm.weight")
        k = self._norm(k, f"blk.{i}.attn_k_norm.weight")
        q = rotate(q, angle, self.interleaved)
        self.k[i, first:first + steps] = rotate(k, angle, self.interleaved)
        self.v[i, first:first + steps] = v
        end = first + steps
        out = attend(q, self.k[i, :end].astype(np.float32),
                     self.v[i, :end].astype(np.float32), first, self.window(i))
        self.last[i] = (q, out)
        return self._linear(out.reshape(steps, -1), f"blk.{i}.attn_output")

    def forward(self, tokens: list[int]) -> np.ndarray:
        """Append tokens to the cache and return their logits [T, vocabulary].

        Afterwards last[layer] holds this call's queries and attention outputs.
        """
        s = self.shape
        x = self.w["token_embd.weight"][tokens]
        if self.gemma:
            x = x * np.float32(np.sqrt(x.shape[1]))
        activation = gelu if self.gemma else silu
        for i in range(s.layers):
            y = self._attention(self._norm(x, f"blk.{i}.attn_norm.weight"), i)
            x = x + self._norm(y, f"blk.{i}.post_attention_norm.weight")
            y = self._norm(x, f"blk.{i}.ffn_norm.weight")
            gate = self._linear(y, f"blk.{i}.ffn_gate")
            up = self._linear(y, f"blk.{i}.ffn_up")
            y = self._linear(activation(gate) * up, f"blk.{i}.ffn_down")
            x = x + self._norm(y, f"blk.{i}.post_ffw_norm.weight")
        self.used += len(tokens)
        head = "output" if "output.weight" in self.w else "token_embd"
        return self._linear(self._norm(x, "output_norm.weight"), head)

    def reset(self) -> None:
        self.used = 0


class ScoreTokenizer:
    """SentencePiece vocabulary: joins the adjacent pair whose union scores highest."""

    def __init__(self, meta: dict):
        self.words = meta["tokenizer.ggml.tokens"]
        self.ids = {word: i for i, word in enumerate(self.words)}
        self.scores = meta["tokenizer.ggml.scores"]
        self.start = meta["tokenizer.ggml.bos_token_id"]

    def encode(self, text: str) -> list[int]:
        parts = list(text.replace(" ", "\u2581"))
        while len(parts) > 1:
            joined = [self.ids.get(a + b) for a, b in zip(parts, parts[1:])]
            known = [i for i, token in enumerate(joined) if token is not None]
            if not known:
                break
            at = max(known, key=lambda i: self.scores[joined[i]])
            parts[at:at + 2] = [parts[at] + parts[at + 1]]
        return [self.start] + [self.ids[part] for part in parts]

    def decode(self, tokens: list[int]) -> str:
        return "".join(self.words[i] for i in tokens).replace("\u2581", " ")


class BpeTokenizer:
    """Byte-level BPE with the splitting rules that the model was trained with."""

    def __init__(self, meta: dict):
        self.inner = make_bpe(meta)

    def encode(self, text: str) -> list[int]:
        return self.inner.encode(text).ids

    def decode(self, tokens: list[int]) -> str:
        return self.inner.decode(tokens)


def make_tokenizer(meta: dict) -> ScoreTokenizer | BpeTokenizer:
    kind = ScoreTokenizer if meta["tokenizer.ggml.model"] == "llama" else BpeTokenizer
    return kind(meta)


def make_bpe(meta: dict):
    """Of the tokenizers package."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    words = meta["tokenizer.ggml.tokens"]
    merges = [tuple(m.split(" ")) for m in meta["tokenizer.ggml.merges"]]
    tok = Tokenizer(models.BPE({t: i for i, t in enumerate(words)}, merges))
    if meta["tokenizer.ggml.pre"] == "qwen2":
        split = pre_tokenizers.Split(Regex(QWEN_SPLIT), "isolated")
        last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    else:
        split = pre_tokenizers.Digits(individual_digits=True)
        last = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.pre_tokenizer = pre_tokenizers.Sequence([split, last])
    tok.decoder = decoders.ByteLevel()
    kinds = meta["tokenizer.ggml.token_type"]
    tok.add_special_tokens([t for t, kind in zip(words, kinds) if kind == CONTROL_TOKEN])
    return tok


def repeats(tokens: list[int], length: int) -> list[int]:
    """Tokens that would complete a run of `length` tokens already seen."""
    stem = tokens[len(tokens) - length + 1:]
    return [tokens[i + length - 1] for i in range(len(tokens) - length + 1)
            if tokens[i:i + length - 1] == stem]


def sample(logits: np.ndarray, rng: np.random.Generator, temperature: float,
           top_p: float) -> int:
    """Nucleus sampling of one token."""
    p = softmax(logits.astype(np.float64) / temperature)
    order = np.argsort(-p)
    mass = np.cumsum(p[order])
    keep = order[:int(np.searchsorted(mass, top_p)) + 1]
    return int(rng.choice(keep, p=p[keep] / p[keep].sum()))


def perplexity(model: Model, tokens: list[int]) -> float:
    """Teacher-forced perplexity of tokens[1:]; leaves the cache empty."""
    model.reset()
    logits = model.forward(tokens)[:-1].astype(np.float64)
    model.reset()
    top = logits.max(axis=1)
    lse = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
    picked = logits[np.arange(len(logits)), tokens[1:]]
    return float(np.exp((lse - picked).mean()))
