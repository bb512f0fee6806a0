"""Tiles and sequences in a running kvarnd, over the shared libkvarn-client by ctypes.

`KvarndMethod` is a method of the harness whose tiles COMPRESS stores and DECOMPRESS gives
back (rounded to fp16, as any client of that call gets them).  `Sequence` is the cache of
one sequence in the daemon: rows go in token by token, kvarnd seals tiles when they fill
up and answers attention over them.
"""
from __future__ import annotations

import ctypes as c
import os
from pathlib import Path
from threading import Lock

import numpy as np

from paths import ROOT, Missing

F16, F32 = 1, 3
AT_END = 2 ** 64 - 1
KEY_BYTES = 32
PLAIN_K = "_plain_k"
TILES_PER_CALL = 512


def fields(text: str) -> list[tuple[str, type]]:
    """ctypes fields from 'name:code' words."""
    codes = {"z": c.c_size_t, "u": c.c_uint32, "U": c.c_uint64, "i": c.c_int, "f": c.c_float,
             "p": c.c_void_p, "s": c.c_char_p, "b": c.c_uint8, "h": c.c_uint16,
             "k": c.c_uint8 * KEY_BYTES}
    return [(name, codes[code]) for name, code in (word.split(":") for word in text.split())]


# As in client/kvarn/client.h and kvarn/types.h, field by field.
class Preset(c.Structure):
    _fields_ = fields("name:s bits_k:b bits_v:b group:h balance:b range:b")


class ConnectOptions(c.Structure):
    _fields_ = fields("size:z connect_timeout_ms:u deadline_ms:u name:s kvarnd_path:s "
                      "spawn_pool:s")


class SpaceOptions(c.Structure):
    _fields_ = fields("size:z deadline_ms:u model:s revision:s adapter:s rope:s layers:u "
                      "kv_heads:u head_dim:u dtype:i preset:s iterations:u v_rotated:i "
                      "key_algorithm:s layer_begin:u layer_count:u head_begin:u head_count:u "
                      "space:U fingerprint:k group:u sink_tokens:u record_bytes:U "
                      "tile_block_bytes:U exact_block_bytes:U device:s k_rotated:i")


class CompressArgs(c.Structure):
    _fields_ = fields("size:z deadline_ms:u space:U keys:p kinds:p count:z k:p v:p strides:p "
                      "results:p stored:z")


class DecompressArgs(c.Structure):
    _fields_ = fields("size:z deadline_ms:u space:U keys:p count:z layer_begin:u layer_count:u "
                      "k:p v:p results:p matched:z")


class BlocksArgs(c.Structure):
    _fields_ = fields("size:z deadline_ms:u space:U keys:p count:z lease_ms:u all:i results:p "
                      "matched:z lease:U cursor:U total:U limit:u unpin:i group:U ranks:u")


class Query(c.Structure):
    _fields_ = fields("q_heads:u q_dtype:i out_dtype:i scale:f soft_cap:f window:u full:i "
                      "deterministic:i")


class Seq(c.Structure):
    _fields_ = fields("sequence:U position:U q_tokens:u tokens:u keys:u blocks:u committed:U "
                      "status:i expected:u")


class SeqArgs(c.Structure):
    _fields_ = [*fields("size:z deadline_ms:u space:U seqs:p count:z keys:p key_count:z "
                        "layer_begin:u layer_count:u k:p v:p strides:p"),
                ("query", Query), *fields("q:p out:p lse:p")]


class Connection:
    """A client of a kvarnd: of the one at `address`, or of a private one of the build.

    A private daemon sits at the other end of a socket pair and ends with this process.
    """

    def __init__(self, build: Path = ROOT / "build", address: str = "spawn:",
                 pool: str = "host:1GiB"):
        library, daemon = build / "lib" / "libkvarn-client.so", build / "bin" / "kvarnd"
        for path in (library, daemon):
            if not path.exists():
                raise Missing(f"{path} is not there; build it (cmake --preset release && cmake "
                              "--build build), or name another build with --build")
        self.lib = c.CDLL(str(library))
        for name in ("kvarn_client_error", "kvarn_version"):
            getattr(self.lib, name).restype = c.c_char_p
        self.lib.kvarn_preset_at.restype = c.POINTER(Preset)
        self.lib.kvarn_preset_at.argtypes = [c.c_size_t]
        self.lib.kvarn_record_bytes.restype = c.c_size_t
        self.lib.kvarn_record_bytes.argtypes = [c.c_void_p, c.c_uint32]
        self.client, self.lock, self.made = c.c_void_p(), Lock(), 0
        options = ConnectOptions(size=c.sizeof(ConnectOptions), deadline_ms=120_000,
                                 kvarnd_path=os.fsencode(daemon), spawn_pool=pool.encode())
        self._check(self.lib.kvarn_connect(c.byref(self.client), address.encode(),
                                           c.byref(options)), "connect")

    def _check(self, status: int, what: str) -> None:
        if status:
            text = self.lib.kvarn_client_error(self.client).decode()
            raise RuntimeError(f"kvarnd, {what}: {text} (status {status})")

    def call(self, name: str, args: c.Structure) -> None:
        """One blocking call; raises with the daemon's sentence when it fails."""
        args.size = c.sizeof(args)
        self._check(getattr(self.lib, f"kvarn_{name}")(self.client, c.byref(args)), name)

    def close(self) -> None:
        self.lib.kvarn_close(c.byref(self.client))

    def presets(self) -> list[Preset]:
        found = []
        while entry := self.lib.kvarn_preset_at(len(found)):
            found.append(entry.contents)
        return found

    def record_bytes(self, preset: Preset, dim: int) -> int:
        return self.lib.kvarn_record_bytes(c.byref(preset), dim)

    def open_space(self, layers: int, heads: int, dim: int, preset: str,
                   k_rotated: bool = False) -> SpaceOptions:
        space = SpaceOptions(model=b"accuracy", layers=layers, kv_heads=heads, head_dim=dim,
                             dtype=F16, preset=preset.encode(), k_rotated=k_rotated)
        self.call("open_space", space)
        return space

    def new_keys(self, count: int) -> c.Array:
        """Names that no block has had before."""
        names = b"".join(i.to_bytes(KEY_BYTES, "little")
                         for i in range(self.made, self.made + count))
        self.made += count
        return c.create_string_buffer(names, len(names))


def address(x: np.ndarray) -> int:
    return x.ctypes.data


class KvarndMethod:
    """A preset of kvarnd as a method: complete tiles through COMPRESS and DECOMPRESS.

    A name that ends in PLAIN_K is the preset before it in a space with k_rotated: K as it
    comes.
    """

    def __init__(self, name: str, connection: Connection):
        known = {preset.name.decode(): preset for preset in connection.presets()}
        preset = name.removesuffix(PLAIN_K)
        if preset not in known:
            raise Missing(f"kvarnd has no preset {preset}; it has {', '.join(known)}")
        self.name, self.plain_k = name, name != preset
        self.label = f"{preset}, K not rotated" if self.plain_k else preset
        self.preset, self.connection = known[preset], connection
        self.group = self.preset.group
        self.spaces: dict[int, int] = {}

    def bytes_per_token(self, dim: int) -> float:
        return self.connection.record_bytes(self.preset, dim) / self.group

    def roundtrip(self, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tiles [tiles, group, dim] as kvarnd gives them back, float32."""
        if k.shape[1] != self.group:
            raise ValueError(f"{self.name} has tiles of {self.group} tokens, not {k.shape[1]}")
        with self.connection.lock:
            parts = [self._part(k[at:at + TILES_PER_CALL], v[at:at + TILES_PER_CALL])
                     for at in range(0, len(k), TILES_PER_CALL)]
        return (np.concatenate([part[0] for part in parts]),
                np.concatenate([part[1] for part in parts]))

    def _part(self, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Each tile is a block of a space of one layer and one head."""
        dim, connection = k.shape[2], self.connection
        if dim not in self.spaces:
            self.spaces[dim] = connection.open_space(1, 1, dim, self.preset.name.decode(),
                                                     self.plain_k).space
        space, keys = self.spaces[dim], connection.new_keys(len(k))
        rows = [np.ascontiguousarray(x, np.float16) for x in (k, v)]
        got = [np.empty_like(x) for x in rows]
        named = {"space": space, "keys": c.addressof(keys), "count": len(k)}
        connection.call("compress", CompressArgs(**named, k=address(rows[0]), v=address(rows[1])))
        connection.call("decompress", DecompressArgs(**named, k=address(got[0]), v=address(got[1])))
        connection.call("drop", BlocksArgs(**named))
        return got[0].astype(np.float32), got[1].astype(np.float32)


class Sequence:
    """A sequence that lives in kvarnd; the layers that slide stay here, exact."""

    def __init__(self, connection: Connection, preset: str, engine, exact):
        """exact: a cache.Cache of the same engine, which answers the sliding layers."""
        self.connection, self.engine, self.exact = connection, engine, exact
        self.layers = engine.cached_layers()
        s = engine.shape
        self.space = connection.open_space(len(self.layers), s.kv_heads, s.dim, preset)
        self.seq, self.used = Seq(), 0
        self._call("sequence_open")

    def _call(self, name: str, **more) -> None:
        args = SeqArgs(space=self.space.space, seqs=c.addressof(self.seq), count=1, **more)
        with self.connection.lock:
            self.connection.call(name, args)

    def attend(self, layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Rows [T, heads, D] of T new tokens; the attention output of their queries."""
        if layer not in self.layers:
            return self.exact.attend(layer, q, k, v)
        half = [np.ascontiguousarray(x, np.float16) for x in (k, v)]
        q = np.ascontiguousarray(q, np.float32)
        out = np.empty_like(q)
        self.seq.position, self.seq.q_tokens, self.seq.tokens = AT_END, len(q), len(q)
        self._call("sequence_attend", layer_begin=self.layers.index(layer), k=address(half[0]),
                   v=address(half[1]), q=address(q), out=address(out),
                   query=Query(q_heads=q.shape[1], q_dtype=F32, out_dtype=F32))
        return out

    def commit(self, count: int) -> None:
        """Blocks that fill up are sealed; without keys they stay this sequence's own."""
        self.seq.tokens, self.seq.keys = count, 0
        self._call("sequence_commit")
        self.used += count
        self.exact.commit(count)

    def release(self) -> None:
        self._call("sequence_release")
