"""Shows that the block form of decoding is token-by-token decoding through kvarnd.

Usage: check_forms.py [--tokens 640] [--preset kvarn_k2v2_g128] [--build BUILD]

The block form runs over a cache in memory whose tiles kvarnd stored (COMPRESS and
DECOMPRESS).  The token form lives in kvarnd: one row per layer and ATTEND, one COMMIT per
token, tiles sealed by kvarnd when they fill up.  Two comparisons:

replay  both store the same rows: what is left is the rounding of DECOMPRESS to fp16 and of
        sums in another order.  Logits must agree.
free    each stores its own rows.  A difference in the last bit of a row moves a code of 2 bits
        now and then, and the next tile inherits that, as between any two correct engines; so
        the two forms must be much nearer to each other than to fp16, and equally far from it.
"""
from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")   # before numpy

import numpy as np  # noqa: E402

import measures  # noqa: E402
import texts  # noqa: E402
from attention import SINK  # noqa: E402
from cache import Cache  # noqa: E402
from kvarnd_cache import Connection, KvarndMethod, Sequence  # noqa: E402
from models import Model  # noqa: E402
from paths import ROOT, Missing  # noqa: E402

LOGITS_RMS = 0.005                   # replay: rms difference; logits spread over some 7
LOGITS_KL = 2e-6                     # replay: mean KL between the forms, nats
NEAR, EVEN = 0.1, 0.1               # free: of the KL to fp16


class Recorder(Cache):
    """Keeps the rows as they were before their tiles were stored."""

    def __init__(self, *args):
        super().__init__(*args)
        self.rows_k, self.rows_v = np.zeros_like(self.k), np.zeros_like(self.v)

    def attend(self, layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        rows = slice(self.used, self.used + len(q))
        self.rows_k[layer, :, rows] = k.swapaxes(0, 1)
        self.rows_v[layer, :, rows] = v.swapaxes(0, 1)
        return super().attend(layer, q, k, v)


class Replay(Sequence):
    """Stores the rows of a recorder in place of its own."""

    def __init__(self, recorder: Recorder, *args):
        super().__init__(*args)
        self.recorder = recorder

    def attend(self, layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        rows, source = slice(self.used, self.used + len(q)), self.recorder
        return super().attend(layer, q, source.rows_k[layer, :, rows].swapaxes(0, 1),
                              source.rows_v[layer, :, rows].swapaxes(0, 1))


def logits(model: Model, tokens: np.ndarray, lane, step: int) -> np.ndarray:
    return np.concatenate([
        model.engine.logits(model.engine.forward(tokens[None, at:at + step], [lane])[0])
        for at in range(0, len(tokens), step)])


def log_probs(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--tokens", type=int, default=640)
    ap.add_argument("--preset", default="kvarn_k2v2_g128")
    ap.add_argument("--model", default="smollm2-135m")
    ap.add_argument("--text", default="novel")
    ap.add_argument("--build", type=Path, default=ROOT / "build")
    args = ap.parse_args()
    connection, model = Connection(args.build), Model(args.model)
    method = KvarndMethod(args.preset, connection)
    tokens, engine = np.array(model.tokens(texts.load(args.text))[:args.tokens]), model.engine
    recorder = Recorder(engine, len(tokens), method)
    block = logits(model, tokens, recorder, method.group)
    exact = log_probs(logits(model, tokens, Cache(engine, len(tokens)), method.group))
    first, failed = SINK + method.group, False

    def sequence(kind, *more):
        return kind(*more, connection, args.preset, engine, Cache(engine, len(tokens)))

    replay = logits(model, tokens, sequence(Replay, recorder), 1)
    own = logits(model, tokens, sequence(Sequence), 1)
    for name, got in (("replay", replay), ("free", own)):
        between = measures.kl(log_probs(block), log_probs(got))[first:].mean()
        to_block = measures.kl(exact, log_probs(block))[first:].mean()
        to_token = measures.kl(exact, log_probs(got))[first:].mean()
        gap = np.abs(got - block)
        rms = float(np.sqrt(np.square(gap[first:]).mean()))
        print(f"{name}: {len(tokens)} tokens; logits differ by {gap[:first].max():.1e} at most "
              f"before a tile is read, then by {rms:.1e} rms (spread {block.std():.1f}), "
              f"{gap.max():.1e} at most; KL between the forms {between:.1e}, "
              f"of the block form from fp16 {to_block:.4f}, of the token form {to_token:.4f}")
        if name == "replay":
            failed |= rms > LOGITS_RMS or between > LOGITS_KL
        else:
            failed |= between > NEAR * to_block or abs(to_token / to_block - 1) > EVEN
    connection.close()
    if failed:
        sys.exit("check_forms: the block form is not the token form")


if __name__ == "__main__":
    try:
        main()
    except Missing as error:
        sys.exit(f"check_forms: {error}")
