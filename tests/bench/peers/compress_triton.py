#!/usr/bin/env python3
"""The balancing loop of KVarN (kernels/METHOD.md, section 2) alone, by a plain Triton kernel: one program a matrix, the
matrix in registers as fp32, both deviations measured twice an iteration. No rotation, no quantiser, no packing. The best
of several warp counts. Checked against float64 first. Rows on stdout; exit code 77 without torch, triton or a GPU."""
import sys

import peer
from peer import torch

try:
    import triton
    import triton.language as tl
except ImportError:
    print("skipped: triton is not installed", file=sys.stderr)
    sys.exit(peer.SKIPPED)

SIZE = 128
ITERATIONS = 8


@triton.jit
def deviation(x, axis: tl.constexpr, SIZE: tl.constexpr):
    mean = tl.sum(x, axis) / SIZE
    centred = x - tl.expand_dims(mean, axis)
    return tl.sqrt(tl.sum(centred * centred, axis) / (SIZE - 1))


@triton.jit
def spread(x):
    return tl.max(x, 0) / tl.maximum(tl.min(x, 0), 1e-8)


@triton.jit
def stepped(scale, measured):
    change = tl.minimum(tl.maximum(measured / scale, 1e-3), 1e3)
    return tl.minimum(tl.maximum(scale * change, 0.7408182), 22026.4658)


@triton.jit
def balance(matrices, columns, rows, ITERATIONS: tl.constexpr, SIZE: tl.constexpr):
    matrix = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, SIZE)
    x = tl.load(matrices + matrix * SIZE * SIZE + i[:, None] * SIZE + i[None, :]).to(tl.float32)
    sc = tl.full([SIZE], 1.0, tl.float32)
    sr = tl.full([SIZE], 1.0, tl.float32)
    col = deviation(x, 0, SIZE)
    best = spread(col) + spread(deviation(x, 1, SIZE))
    best_sc = sc
    best_sr = sr
    for _ in range(ITERATIONS):
        sc = stepped(sc, col)
        row = deviation(x / sc[None, :], 1, SIZE)
        sr = stepped(sr, row)
        col = deviation(x / sr[:, None], 0, SIZE)
        now = spread(col / sc) + spread(row / sr)
        better = now <= best
        best = tl.where(better, now, best)
        best_sc = tl.where(better, sc, best_sc)
        best_sr = tl.where(better, sr, best_sr)
    tl.store(columns + matrix * SIZE + i, best_sc)
    tl.store(rows + matrix * SIZE + i, best_sr)


def imbalance(x, sc, sr):
    x = x.double() / sc.double()[:, None, :] / sr.double()[:, :, None]
    col, row = x.std(1), x.std(2)
    return col.amax(1) / col.amin(1) + row.amax(1) / row.amin(1)


def reference(x):
    """The imbalance that the loop reaches in float64."""
    x = x.double()
    ones = torch.ones(x.shape[:2], device="cuda", dtype=torch.float64)
    sc, sr, best = ones, ones, imbalance(x, ones, ones)
    for _ in range(ITERATIONS):
        sc = (sc * (x / sr[:, :, None]).std(1).div(sc).clamp(1e-3, 1e3)).clamp(0.7408182, 22026.4658)
        sr = (sr * (x / sc[:, None, :]).std(2).div(sr).clamp(1e-3, 1e3)).clamp(0.7408182, 22026.4658)
        best = torch.minimum(best, imbalance(x, sc, sr))
    return best


def main():
    peer.need_gpu()
    for count in (576, 9216):
        rounds = peer.rotations(2 * count * SIZE * SIZE)
        loud = 1 + 8 * (torch.rand(count, 1, SIZE, device="cuda") < 0.03)
        inputs = [(torch.randn(count, SIZE, SIZE, device="cuda") * loud).half() for _ in range(rounds)]
        sc, sr = (torch.empty(count, SIZE, device="cuda") for _ in range(2))

        def work(i):
            balance[(count,)](inputs[i], sc, sr, ITERATIONS, SIZE, num_warps=warps)

        warps = 4
        work(0)
        off = (imbalance(inputs[0][:64], sc[:64], sr[:64]) / reference(inputs[0][:64]) - 1).abs().max().item()
        if not off < 0.01:
            sys.exit(f"compress_triton: imbalance is off by {off}")
        best = float("inf")
        for warps in (4, 8, 16):
            best = min(best, peer.time_us(work, rounds, 21))
        peer.row(f"triton balancing alone, {count} matrices", best, "us")


if __name__ == "__main__":
    main()
