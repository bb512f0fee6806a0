#!/usr/bin/env python3
"""Decode attention by torch's scaled_dot_product_attention over an uncompressed cache: the cuDNN and flash backends,
fp16 and bf16, at the shapes of the attend rows. Rows on stdout; exit code 77 without torch or a GPU."""
import sys

import peer
from peer import torch


def measure(shape, dtype, backend):
    from torch.nn.attention import sdpa_kernel

    batch, q_heads, kv_heads, dim, context = shape
    rounds = peer.rotations(2 * 2 * batch * kv_heads * context * dim)
    q = torch.randn(batch, q_heads, 1, dim, device="cuda", dtype=dtype)
    caches = [torch.randn(2, batch, kv_heads, context, dim, device="cuda", dtype=dtype) for _ in range(rounds)]

    def work(i):
        torch.nn.functional.scaled_dot_product_attention(q, caches[i][0], caches[i][1], enable_gqa=True)

    with sdpa_kernel([backend]):
        return peer.time_us(work, rounds)


def main():
    peer.need_gpu()
    from torch.nn.attention import SDPBackend

    backends = [("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION)]
    for shape in peer.ATTEND_SHAPES:
        for dtype, dtype_name in [(torch.float16, "fp16"), (torch.bfloat16, "bf16")]:
            for name, backend in backends:
                try:
                    value = measure(shape, dtype, backend)
                except RuntimeError as error: # a backend that this torch or GPU does not have
                    print(f"torch {name} {dtype_name} {peer.shape_text(*shape)}: {str(error).splitlines()[0]}",
                          file=sys.stderr)
                    continue
                peer.row(f"torch {name} {dtype_name} {peer.shape_text(*shape)}", value, "us")
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
