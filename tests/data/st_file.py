"""Minimal safetensors writer and reader shared by the scripts in this directory.

The format is a little-endian u64 header length, a JSON header and the raw data.
Tensors are laid out by falling element size so that every one is aligned to its
element size, and the header is padded with spaces to a multiple of eight bytes.
"""
from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np

DTYPES = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2"),
          "I32": np.dtype("<i4"), "U8": np.dtype("u1")}


class BF16(np.ndarray):
    """A u16 array whose elements are bfloat16 bit patterns."""


def to_bf16(x: np.ndarray) -> BF16:
    """Round finite float32 values to bfloat16, ties to even."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return bits.astype(np.uint16).view(BF16)


def from_bf16(x: np.ndarray) -> np.ndarray:
    """Widen bfloat16 bit patterns to float32; exact."""
    wide = np.asarray(x, dtype=np.uint16).astype(np.uint32) << 16
    return wide.view(np.float32)


def _dtype_name(x: np.ndarray) -> str:
    if isinstance(x, BF16):
        return "BF16"
    for name, dtype in DTYPES.items():
        if x.dtype == dtype and name != "BF16":
            return name
    raise TypeError(f"no safetensors name for dtype {x.dtype}")


def write(path: Path, tensors: dict[str, np.ndarray], metadata: dict[str, str]) -> None:
    """Write all tensors; equal input gives equal bytes."""
    header: dict[str, object] = {"__metadata__": metadata}
    order = sorted(tensors, key=lambda n: -tensors[n].dtype.itemsize)
    offset = 0
    for name in order:
        x = tensors[name]
        header[name] = {"dtype": _dtype_name(x), "shape": list(x.shape),
                        "data_offsets": [offset, offset + x.nbytes]}
        offset += x.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)))
        f.write(text)
        for name in order:
            f.write(np.ascontiguousarray(tensors[name]).tobytes())


def read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Read a file made by write(); BF16 tensors come back as BF16 arrays."""
    raw = path.read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8:8 + length])
    metadata = header.pop("__metadata__", {})
    data = raw[8 + length:]
    tensors = {}
    for name, info in header.items():
        first, last = info["data_offsets"]
        x = np.frombuffer(data[first:last], DTYPES[info["dtype"]]).reshape(info["shape"])
        tensors[name] = x.view(BF16) if info["dtype"] == "BF16" else x
    return tensors, metadata
