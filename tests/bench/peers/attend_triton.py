#!/usr/bin/env python3
"""Decode attention over KVarN records by a plain Triton kernel: each program takes the tiles of one kv head one after
the other, decodes a tile to fp16 and multiplies. Split along the sequence, parts joined by a second kernel. The best of
several warp and stage counts is taken. Checked against float32 attention first. Rows on stdout; exit code 77 without
torch, triton or a GPU."""
import math
import sys

import peer
from peer import torch

try:
    import triton
    import triton.language as tl
except ImportError:
    print("skipped: triton is not installed", file=sys.stderr)
    sys.exit(peer.SKIPPED)

GROUP = 128


@triton.jit
def codes(at, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BITS: tl.constexpr):
    """Packed codes [ROWS][COLUMNS] -> fp16."""
    row_bytes: tl.constexpr = COLUMNS * BITS // 8
    packed = tl.load(at + tl.arange(0, ROWS)[:, None] * row_bytes + tl.arange(0, row_bytes)[None, :])
    if BITS == 4:
        both = tl.interleave(packed & 15, packed >> 4)
    else:
        even = tl.interleave(packed & 3, (packed >> 4) & 3)
        odd = tl.interleave((packed >> 2) & 3, packed >> 6)
        both = tl.interleave(even, odd)
    return both.to(tl.float16)


@triton.jit
def attend(q, records, parts, sums, tiles, scale, ROWS: tl.constexpr, BITS_K: tl.constexpr, BITS_V: tl.constexpr,
           D: tl.constexpr, G: tl.constexpr, SPLITS: tl.constexpr):
    pair = tl.program_id(0)
    split = tl.program_id(1)
    d = tl.arange(0, D)
    g = tl.arange(0, G)
    r = tl.arange(0, 16)
    k_step: tl.constexpr = D * G * BITS_K // 8
    v_codes: tl.constexpr = k_step + 4 * D + 2 * G
    v_channel: tl.constexpr = v_codes + D * G * BITS_V // 8
    size: tl.constexpr = v_channel + 2 * D + 4 * G
    query = tl.load(q + (pair * ROWS + r[:, None]) * D + d[None, :], mask=r[:, None] < ROWS, other=0.0)
    m = tl.full([16], -1e30, tl.float32)
    total = tl.zeros([16], tl.float32)
    acc = tl.zeros([16, D], tl.float32)
    for tile in range(split * tiles // SPLITS, (split + 1) * tiles // SPLITS):
        record = records + (pair * tiles + tile).to(tl.int64) * size
        a = tl.load((record + k_step).to(tl.pointer_type(tl.float16)) + d)
        z = tl.load((record + k_step + 2 * D).to(tl.pointer_type(tl.float16)) + d)
        u = tl.load((record + k_step + 4 * D).to(tl.pointer_type(tl.float16)) + g)
        w = tl.load((record + v_channel).to(tl.pointer_type(tl.float16)) + d)
        b = tl.load((record + v_channel + 2 * D).to(tl.pointer_type(tl.float16)) + g)
        y = tl.load((record + v_channel + 2 * D + 2 * G).to(tl.pointer_type(tl.float16)) + g)
        k = codes(record, D, G, BITS_K) * a[:, None] + z[:, None]
        s = tl.dot(query, k) * (u.to(tl.float32) * scale)[None, :]
        new = tl.maximum(m, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        keep = tl.exp2(m - new)
        total = total * keep + tl.sum(p, 1)
        v = codes(record + v_codes, G, D, BITS_V) * b[:, None] + y[:, None]
        acc = acc * keep[:, None] + tl.dot(p.to(tl.float16), v) * w.to(tl.float32)[None, :]
        m = new
    at = (pair * SPLITS + split) * ROWS + r
    tl.store(parts + at[:, None] * D + d[None, :], acc / total[:, None], mask=r[:, None] < ROWS)
    tl.store(sums + at, m + tl.log2(total), mask=r < ROWS)


@triton.jit
def join(parts, sums, out, ROWS: tl.constexpr, D: tl.constexpr, SPLITS: tl.constexpr):
    pair = tl.program_id(0)
    row = tl.program_id(1)
    d = tl.arange(0, D)
    at = (pair * SPLITS + tl.arange(0, SPLITS)) * ROWS + row
    lse = tl.load(sums + at)
    weight = tl.exp2(lse - tl.max(lse, 0))
    part = tl.load(parts + at[:, None] * D + d[None, :])
    result = tl.sum(part * weight[:, None], 0) / tl.sum(weight, 0)
    tl.store(out + (pair * ROWS + row) * D + d, result.to(tl.float16))


def hadamard(dim):
    h = torch.ones(1, 1, device="cuda")
    while h.shape[0] < dim:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)], 0)
    return (h / math.sqrt(dim)).half()


def make_records(pairs, tiles, dim, bits_k, bits_v):
    """Random codes, and vectors such that decoded rows have a deviation near 1."""
    k_step = dim * GROUP * bits_k // 8
    v_codes = k_step + 4 * dim + 2 * GROUP
    v_channel = v_codes + dim * GROUP * bits_v // 8
    records = torch.randint(0, 256, (pairs, tiles, v_channel + 2 * dim + 4 * GROUP), dtype=torch.uint8, device="cuda")

    def put(at, count, middle, spread):
        values = (middle + spread * torch.rand(pairs, tiles, count, device="cuda")).half()
        records[..., at:at + 2 * count] = values.view(torch.uint8)

    top_k, top_v = 2**bits_k - 1, 2**bits_v - 1
    put(k_step, dim, 2 / top_k, 1 / top_k)
    put(k_step + 2 * dim, dim, -1.5, 0.5)
    put(k_step + 4 * dim, GROUP, 0.8, 0.4)
    put(v_channel, dim, 0.8, 0.4)
    put(v_channel + 2 * dim, GROUP, 2 / top_v, 1 / top_v)
    put(v_channel + 2 * dim + 2 * GROUP, GROUP, -1.5, 0.5)
    return records


def decode(records, dim, bits_k, bits_v):
    """[tiles][bytes] of one pair -> rotated K, V rows in float32."""
    k_step = dim * GROUP * bits_k // 8
    v_codes = k_step + 4 * dim + 2 * GROUP
    v_channel = v_codes + dim * GROUP * bits_v // 8

    def unpack(at, rows, columns, bits):
        packed = records[:, at:at + rows * columns * bits // 8].to(torch.int32).unsqueeze(-1)
        shifts = torch.arange(0, 8, bits, device="cuda", dtype=torch.int32)
        return ((packed >> shifts) & (2**bits - 1)).reshape(-1, rows, columns).float()

    def vector(at, count):
        return records[:, at:at + 2 * count].contiguous().view(torch.float16).float()

    a, z, u = vector(k_step, dim), vector(k_step + 2 * dim, dim), vector(k_step + 4 * dim, GROUP)
    w, b = vector(v_channel, dim), vector(v_channel + 2 * dim, GROUP)
    y = vector(v_channel + 2 * dim + 2 * GROUP, GROUP)
    k = (unpack(0, dim, GROUP, bits_k) * a[:, :, None] + z[:, :, None]) * u[:, None, :]
    v = (unpack(v_codes, GROUP, dim, bits_v) * b[:, :, None] + y[:, :, None]) * w[:, None, :]
    return k.transpose(1, 2).reshape(-1, dim), v.reshape(-1, dim)


class Case:
    def __init__(self, shape, bits):
        self.shape, self.bits = shape, bits
        batch, q_heads, kv_heads, self.dim, context = shape
        self.pairs, self.tiles, self.rows = batch * kv_heads, context // GROUP, q_heads // kv_heads
        record = self.dim * GROUP * sum(bits) // 8 + 6 * (self.dim + GROUP)
        self.rounds = peer.rotations(self.pairs * self.tiles * record)
        self.splits = min(64, max(1, triton.next_power_of_2(4 * 132 // self.pairs)))
        self.q = torch.randn(self.pairs, self.rows, self.dim, device="cuda").half()
        self.records = [make_records(self.pairs, self.tiles, self.dim, *bits) for _ in range(self.rounds)]
        self.h = hadamard(self.dim)
        self.parts = torch.empty(self.pairs, self.splits, self.rows, self.dim, device="cuda")
        self.sums = torch.empty(self.pairs, self.splits, self.rows, device="cuda")
        self.out = torch.empty_like(self.q)

    def work(self, i, warps, stages):
        query = torch.matmul(self.q, self.h)
        scale = math.log2(math.e) / math.sqrt(self.dim)
        attend[(self.pairs, self.splits)](query, self.records[i], self.parts, self.sums, self.tiles, scale, self.rows,
                                          *self.bits, self.dim, GROUP, self.splits, num_warps=warps, num_stages=stages)
        join[(self.pairs, self.rows)](self.parts, self.sums, self.out, self.rows, self.dim, self.splits)
        return torch.matmul(self.out, self.h)

    def check(self):
        out = self.work(0, 4, 2).float()
        for pair in {0, self.pairs - 1}:
            k, v = decode(self.records[0][pair], self.dim, *self.bits)
            query = torch.matmul(self.q[pair].double(), self.h.double())
            p = torch.softmax(query @ k.double().T / math.sqrt(self.dim), 1)
            want = (p @ v.double() @ self.h.double()).float()
            error = ((out[pair] - want).norm() / want.norm()).item()
            if not error < 1e-2:
                sys.exit(f"attend_triton: relative error {error} at {peer.shape_text(*self.shape)}")


def main():
    peer.need_gpu()
    for shape in peer.ATTEND_SHAPES:
        for bits in [(4, 2), (2, 2)]:
            case = Case(shape, bits)
            case.check()
            best = min(peer.time_us(lambda i: case.work(i, warps, stages), case.rounds, 21)
                       for warps in (4, 8) for stages in (1, 3))
            peer.row(f"triton k{bits[0]}v{bits[1]} {peer.shape_text(*shape)}", best, "us")
            del case
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
