#!/usr/bin/env python3
"""Every source file has the test file of its name; the exceptions are listed here, each with the tests that cover it.

A file is tested by tests/<top folder>/test_<name>.c or .sh. The table below names other files for sources that are
tested through a seam (all variants of a kernel by one test; one rpc file per operation by the rpc tests). An entry
for a source that is gone, or that has its own test by now, fails too, so that the table stays true. Of two sources
of one name the test of that name belongs to one; the other stands in the table.
"""
import fnmatch
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

# source pattern -> test files that cover it
COVERED = {
    # one protocol call each, against a pretended daemon
    "client/attend.c": ["tests/client/test_client.c", "tests/client/test_arguments.c"],
    "client/blocks.c": ["tests/client/test_client.c", "tests/client/test_arguments.c", "tests/client/test_session.c"],
    "client/call.c": ["tests/client/test_session.c", "tests/client/test_client.c"],
    "client/compress.c": ["tests/client/test_rows.c", "tests/client/test_client.c", "tests/client/test_arguments.c"],
    "client/control.c": ["tests/client/test_client.c", "tests/client/test_daemon.c"],
    "client/events.c": ["tests/client/test_daemon.c"],
    "client/export.c": ["tests/client/test_client.c", "tests/client/test_arguments.c"],
    "client/operation.c": ["tests/client/test_client.c", "tests/client/test_arguments.c"],
    "client/sequences.c": ["tests/client/test_client.c", "tests/client/test_rows.c", "tests/client/test_arguments.c"],
    # programs, from their command lines
    "client/ctl/*.c": ["tests/client/ctl.sh"],
    "client/demo/*.c": ["tests/client/demo.sh"],
    # variants of one kernel
    "kernels/attend_*.c": ["tests/kernels/test_attend.c", "tests/kernels/test_attend_split.c"],
    "kernels/convert_ref.c": ["tests/kernels/test_convert.c"],
    "kernels/compress_*.c": ["tests/kernels/test_compress.c", "tests/kernels/test_golden.c"],
    "kernels/decompress_*.c": ["tests/kernels/test_decompress.c", "tests/kernels/test_golden.c"],
    # what a worker does with a job, and the two ends of its process
    "server/device/bounds.c": ["tests/server/test_exec.c", "tests/server/test_exec_bad.c"],
    # a GPU's worker, over the stand-in driver
    "kernels/cuda/compress_plan.c": ["tests/server/test_cuda_executor.c"],
    "server/device/cuda_exec_*.c": ["tests/server/test_cuda_executor.c", "tests/server/test_cuda_attend.c",
                                    "tests/server/test_cuda_bad.c"],
    "server/device/cuda_attend_run.c": ["tests/server/test_cuda_attend.c"],
    "server/device/cuda_gpu.c": ["tests/server/test_cuda_worker.c", "tests/server/test_cuda_executor.c"],
    "server/device/cuda_kernels.c": ["tests/server/test_cuda_worker.c", "tests/server/test_cuda_executor.c"],
    "server/device/cuda_pool.c": ["tests/server/test_cuda_worker.c"],
    "server/device/cuda_selftest.c": ["tests/server/test_cuda_worker.c"],
    "server/device/cuda_wave.c": ["tests/server/test_cuda_executor.c"],
    "server/device/exec_*.c": ["tests/server/test_executor.c", "tests/server/test_exec_bad.c"],
    "server/device/device_memory.c": ["tests/server/test_device.c", "tests/server/test_process.c"],
    "server/device/launch.c": ["tests/server/test_process.c"],
    "server/device/worker*.c": ["tests/server/test_device.c", "tests/server/test_process.c", "tests/e2e/test_faults.c"],
    "server/core/files_uring.c": ["tests/server/test_files.c"],
    "server/net/drain.c": ["tests/server/test_front.c"],
    "server/main.c": ["tests/server/test_front.c"],
    # one operation each, through the service
    "server/rpc/attend.c": ["tests/server/test_rpc_blocks.c", "tests/server/test_rpc_refusals.c"],
    "server/rpc/*compress.c": ["tests/server/test_rpc_blocks.c", "tests/server/test_rpc_refusals.c"],
    "server/store/events.c": ["tests/server/test_event_ring.c", "tests/server/test_events.c"],
    "server/rpc/export.c": ["tests/server/test_rpc_blocks.c", "tests/server/test_rpc_refusals.c"],
    "server/rpc/erase.c": ["tests/server/test_tier.c"],
    "server/rpc/persist.c": ["tests/server/test_tier.c"],
    "server/rpc/tier_*.c": ["tests/server/test_tier.c"],
    "server/store/disk_index.c": ["tests/server/test_disk.c"],
    "server/store/disk_keys.c": ["tests/server/test_seal.c", "tests/server/test_tier.c"],
    "server/store/disk_room.c": ["tests/server/test_disk.c"],
    "server/store/disk_file.c": ["tests/server/test_disk_dir.c", "tests/server/test_disk_epochs.c"],
    "server/rpc/lookup.c": ["tests/server/test_rpc_blocks.c"],
    "server/rpc/seq_*.c": ["tests/server/test_rpc_sequences.c", "tests/server/test_turns.c"],
    "server/rpc/drain.c": ["tests/server/test_service.c"],
    "server/rpc/hello.c": ["tests/server/test_service.c"],
    "server/rpc/ping.c": ["tests/server/test_service.c", "tests/client/test_daemon.c"],
    "server/rpc/release.c": ["tests/server/test_rpc_blocks.c"],
    "server/rpc/space.c": ["tests/server/test_service.c", "tests/server/test_rpc_blocks.c"],
    "server/rpc/stats.c": ["tests/server/test_service.c"],
    "server/rpc/request.c": ["tests/server/test_service.c"],
    "server/rpc/work.c": ["tests/server/test_service.c", "tests/server/test_rpc_random.c"],
}


def main() -> int:
    sources = sorted(p.relative_to(ROOT).as_posix() for top in ("proto", "kernels", "server", "client")
                     for p in (ROOT / top).rglob("*.c"))
    wrong, used, owned = [], set(), {}
    for source in sources:
        top, name = source.split("/")[0], pathlib.Path(source).stem
        own = [f"tests/{top}/test_{name}.c", f"tests/{top}/test_{name}.sh"]
        entries = [pattern for pattern in COVERED if fnmatch.fnmatch(source, pattern)]
        namesakes = [other for other in sources if other.startswith(f"{top}/") and other.endswith(f"/{name}.c")]
        has_own = any((ROOT / path).is_file() for path in own)
        if has_own and (not entries or len(namesakes) == 1):
            if own[0] in owned:
                wrong.append(f"{source}: {own[0]} is the test of {owned[own[0]]}; name its own in the table")
            owned[own[0]] = source
        elif entries:
            used.update(entries)
        else:
            wrong.append(f"{source}: no {own[0]}, and not in the table of {pathlib.Path(__file__).name}")
    for pattern, tests in COVERED.items():
        if pattern not in used:
            wrong.append(f"'{pattern}': matches no source that lacks a test of its own")
        wrong += [f"'{pattern}': {test} does not exist" for test in tests if not (ROOT / test).is_file()]
    print("\n".join(wrong) or f"mirror: {len(sources)} sources, each with its tests")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
