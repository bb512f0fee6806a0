"""Result rows of a run: means by position, with intervals, and errors by layer and head."""
from __future__ import annotations

import numpy as np

import measures
from attention import SINK
from regimes import Run, Track
from results import Row

BIN = 256                            # positions


class Rows:
    """Makes the rows of one method of a run."""

    def __init__(self, run: Run, track: Track, text: str, regime: str):
        self.run, self.track = run, track
        method, engine = track.method, run.engine
        self.fixed = {"model": run.model.spec.name, "text": text, "regime": regime,
                      "method": method.name,
                      "bytes_per_token": float(method.bytes_per_token(engine.shape.dim))}
        self.first = SINK + getattr(method, "group", SINK)   # sees the first tile

    def row(self, span: tuple[int, int], measure: str, found, n: int, **more) -> Row:
        value, lo, hi = found if isinstance(found, tuple) else (float(found), None, None)
        return Row(**self.fixed, position_bin=span, measure=measure, value=value, lo=lo, hi=hi,
                   n=n, **more)

    def spans(self, first: int) -> list[tuple[int, int]]:
        """All positions from first on, then bin by bin."""
        length = self.run.length
        edges = [first, *range(first // BIN * BIN + BIN, length, BIN), length]
        bins = list(zip(edges, edges[1:]))
        return [(first, length), *(bins if len(bins) > 1 else [])]

    def predictions(self, span: tuple[int, int]) -> list[Row]:
        part, n = slice(*span), span[1] - span[0]
        kl = self.track.positions("kl")[part]
        ratio = self.track.positions("nll")[part] - np.concatenate(self.run.nll)[part]
        ratio = tuple(float(np.exp(x)) for x in measures.interval(ratio))
        return [self.row(span, "kl", measures.interval(kl), n),
                self.row(span, "kl_p99", measures.interval(kl, measures.p99), n),
                self.row(span, "top1", measures.interval(self.track.positions("top1")[part]), n),
                self.row(span, "perplexity_ratio", ratio, n)]

    def attention(self, span: tuple[int, int], block: int) -> list[Row]:
        """Of the blocks that lie in the span; over everything also by layer and head."""
        part = slice(span[0] // block, -(-span[1] // block))
        layers = self.run.engine.cached_layers()
        error2 = np.sum(self.track.error2[part], axis=0)[layers]
        norm2 = np.sum(self.track.norm2[part], axis=0)[layers]
        by_head, n = measures.attention_error(error2, norm2), span[1] - span[0]
        rows = [self.row(span, "attention_error", by_head.mean(), n)]
        if span == self.spans(self.first)[0]:
            rows += [self.row(span, "attention_error", by_head[i, head], n, layer=layer, head=head)
                     for i, layer in enumerate(layers) for head in range(by_head.shape[1])]
        return rows

    def keys(self) -> list[Row]:
        tiles = self.track.tiles
        norm, drift, magnitude, direction = (
            np.concatenate([getattr(t, name) for t in tiles], axis=1)
            for name in ("norm", "drift", "magnitude", "direction"))
        rows = []
        for first, end in self.spans(SINK):
            part = slice(first - SINK, end - SINK)
            if not (n := norm[:, part].shape[1]):
                continue
            span, parts = (first, first + n), (magnitude[:, part], direction[:, part])
            rows += [
                self.row(span, "k_norm_error", measures.interval(norm[:, part].mean(axis=0)), n),
                self.row(span, "k_norm_error_p99", measures.p99(norm[:, part].ravel()), n),
                self.row(span, "k_norm_drift", measures.interval(drift[:, part].mean(axis=0)), n),
                self.row(span, "magnitude_share", measures.worst_share(*parts, 1.0), n),
                self.row(span, "magnitude_share_worst", measures.worst_share(*parts), n)]
        return rows

    def all(self, block: int) -> list[Row]:
        rows = [row for span in self.spans(self.first) for row in self.predictions(span)]
        rows += [row for span in self.spans(self.first) for row in self.attention(span, block)]
        return rows + (self.keys() if self.track.tiles else [])

    def free(self, own_ref: list[int], own_nll: np.ndarray) -> list[Row]:
        """Where the method's samples leave the fp16 model's, and its own continuation."""
        first, length = self.first, self.run.length
        picks = self.track.positions("picks")[first - 1:length]
        other = np.flatnonzero(picks != np.array(own_ref[first:first + len(picks)]))
        step = int(other[0]) if other.size else len(picks)
        span = (first, length)
        own = tuple(float(np.exp(x)) for x in measures.interval(own_nll[first - 1:]))
        return [self.row(span, "divergence_step", step, len(picks)),
                self.row(span, "own_perplexity", own, length - first + 1)]
