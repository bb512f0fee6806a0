#!/usr/bin/env python3
"""Holds the layers: which file may include what. Run from anywhere; prints each breach and exits 1.

layering.py checks the tree; layering.py --self-test plants breaches in a folder of its own and must find each.

proto includes nobody. kernels sees the public status and types only. client sees proto. server sees proto and
kernels; inside it core < store < device < rpc < net < main, and a file includes only its own layer and lower
ones. Each foreign library has one door.
"""
import pathlib
import re
import sys
import tempfile

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)

# Which of our own paths each top folder may include.
FOLDERS = {
    "proto": ("proto/", "kvarn/status.h", "kvarn/types.h"),
    "kernels": ("kernels/", "kvarn/status.h", "kvarn/types.h"),
    "client": ("client/", "proto/", "kvarn/"),
    "server": ("server/", "kernels/kernels.h", "kernels/tile.h", "kernels/cuda/", "proto/", "kvarn/status.h", "kvarn/types.h"),
}
RANK = {"core": 0, "store": 1, "device": 2, "rpc": 3, "net": 4, "main.c": 5}

# Foreign headers and the files that may include them.
DOORS = {
    r".*\.pb-c\.h|protobuf-c/.*": r"proto/codec.*",
    r"openssl/.*": r"proto/blockkey\.c|server/store/seal\.c",
    r"isa-l.*": r"kernels/digest\.c",
    r"immintrin\.h": r"kernels/.*_(avx2|avx512)\.[ch]|kernels/\w*vec(256|512)?\.h",
    r"cpuid\.h": r"kernels/dispatch\.c",
    r"uv\.h": r"server/core/loop\.[ch]|server/net/.*|server/main\.c",
    r"yaml\.h": r"server/core/config.*\.c",
    r"jansson\.h": r"client/(ctl|demo)/.*",
    r"argp\.h": r"client/ctl/.*|client/demo/.*|server/core/config.*\.c|server/device/worker_main\.c",
    r"(cuda_(fp16|bf16|runtime)|mma)\.h": r"kernels/cuda/.*\.cuh?",
    r"dlfcn\.h": r"client/spawn_daemon\.c|server/device/cuda_driver\.c",
    r"math\.h": r"client/demo/.*|client/ctl/.*|server/core/metrics\.c|server/rpc/query\.c|server/device/cuda_selftest\.c|kernels/(attend|merge|selftest).*",
}
LIBC = re.compile(
    r"(assert|ctype|dirent|endian|errno|fcntl|float|getopt|inttypes|limits|locale|netdb|poll|pthread|sched|signal|spawn|stdalign"
    r"|stdarg|stdatomic|stdbool|stddef|stdint|stdio|stdlib|stdnoreturn|string|strings|syslog|time|unistd|pwd)\.h"
    r"|(arpa|net|netinet|sys|linux)/\w+\.h"
)


def breaches(path: pathlib.Path, root: pathlib.Path):
    name = path.relative_to(root).as_posix()
    top = name.split("/")[0]
    for style, header in INCLUDE.findall(path.read_text()):
        if style == '"' and (path.parent / header).is_file():
            header = (path.parent / header).resolve().relative_to(root.resolve()).as_posix()
        if LIBC.fullmatch(header):
            continue
        door = next((d for h, d in DOORS.items() if re.fullmatch(h, header)), None)
        if door is not None:
            if not re.fullmatch(door, name):
                yield f"{name}: includes <{header}>, whose door is {door}"
            continue
        if not any(header == p or (p.endswith("/") and header.startswith(p)) for p in FOLDERS[top]):
            yield f"{name}: '{header}' is not below {top}, nor a foreign header with a door"
            continue
        if top == "server" and header.startswith("server/"):
            mine, theirs = (RANK.get(p.split("/")[1]) for p in (name, header))
            if mine is None or theirs is None:
                yield f"{name}: unknown folder of the server (own or '{header}')"
            elif theirs > mine:
                yield f"{name}: '{header}' is a higher layer"
        if top == "client" and header.startswith("client/"):
            inner = header.split("/")[1]
            if inner in ("ctl", "demo") and not name.startswith(f"client/{inner}/"):
                yield f"{name}: the library must not include '{header}'"


def check(root: pathlib.Path):
    files = [p for top in FOLDERS for p in sorted((root / top).rglob("*.*"))
             if p.suffix in (".c", ".h", ".cu", ".cuh")]
    return files, [line for path in files for line in breaches(path, root)]


# One planted breach per rule: file, the include line it holds.
PLANTED = {
    "proto/frame.c": '"server/core/log.h"',
    "kernels/attend_ref.c": "<kvarn/client.h>",
    "client/session.c": '"server/rpc/request.h"',
    "client/client.c": '"client/ctl/table.h"',
    "server/store/pool.c": '"server/device/device.h"',
    "server/rpc/stats.c": "<uv.h>",
    "proto/wire.c": '"kvarn.pb-c.h"',
    "server/main.c": "<cuda.h>",
}


def self_test() -> int:
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, include in PLANTED.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(f"#include <stdint.h>\n#include {include}\n")
        found = {line.split(":")[0] for line in check(root)[1]}
    missed = set(PLANTED) - found
    print(f"layering: missed {sorted(missed)}" if missed else f"layering: all {len(PLANTED)} planted breaches found")
    return 1 if missed else 0


def main() -> int:
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    files, found = check(pathlib.Path(__file__).resolve().parents[2])
    if len(files) < 10:
        found.append(f"layering: only {len(files)} source files found: wrong root?")
    print("\n".join(found) or f"layering: {len(files)} files, no breach")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
