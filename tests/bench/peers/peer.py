"""What the peers share: torch if it is there, times by graph replay as tests/gpu/support/time.c takes them, rows in
the form of tests/bench/row.h on stdout."""
import json
import os
import statistics
import sys

try:
    import torch
except ImportError:
    torch = None

SKIPPED = 77

# batch, query heads, kv heads, dim, context: the shapes of the attend rows
ATTEND_SHAPES = [(16, 32, 8, 128, 16384), (64, 32, 8, 128, 16384), (16, 64, 8, 128, 32768), (1, 32, 8, 128, 32768)]


def shape_text(batch, q_heads, kv_heads, dim, context):
    return f"B={batch} Hq={q_heads} Hkv={kv_heads} D={dim} {context // 1024}k"


def need_gpu():
    """Ends the program when there is nothing to measure with."""
    if torch is None or not torch.cuda.is_available():
        print(f"skipped: {'torch is not installed' if torch is None else 'torch sees no GPU'}", file=sys.stderr)
        sys.exit(SKIPPED)


def row(name, value, unit):
    fields = {"name": name, "value": float(f"{value:.6g}"), "unit": unit, "baseline": None, "ratio": None,
              "reach": None, "ok": True, "machine": torch.cuda.get_device_name(),
              "commit": os.environ.get("KVARN_COMMIT", "")}
    print(json.dumps(fields, separators=(",", ":")), flush=True)


def rotations(size):
    """Copies of an input of `size` bytes that take turns, so that none is found in the L2 cache."""
    return min(16, -(-3 * torch.cuda.get_device_properties(0).L2_cache_size // size))


def time_us(work, rounds, replays=51):
    """Median microseconds of work(round), over replays of a graph of all rounds."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            work(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(rounds):
            work(i)
    times = []
    for i in range(3 + replays):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        if i >= 3:
            times.append(1e3 * begin.elapsed_time(end) / rounds)
    return statistics.median(times)
