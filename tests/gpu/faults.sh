#!/usr/bin/env bash
# The fault drill on a real GPU: kvarnd under load, then an illegal address, SIGKILL of the worker, a kernel that
# never ends; how long until it serves again, and whether anything was lost or wrong. About 80 s.
#
#   tests/gpu/faults.sh                20 of each
#   tests/gpu/faults.sh --rounds N     N of each
#   tests/gpu/faults.sh --mps          once under MPS of its own, to see how that ends: not all of it ends well
#   tests/gpu/faults.sh --json         rows as well
# KVARN_BUILD=FOLDER takes the programs of a build made elsewhere (FOLDER/bin and FOLDER/gpu). Exit code 1 when a
# block was lost, an answer wrong or the daemon did not come back, 77 when there is no GPU to use.
set -euo pipefail
cd "$(dirname "$0")/../.."

rounds=20
mps=
json=
while [ $# -gt 0 ]; do
    case "$1" in
    --rounds) rounds=${2:?--rounds needs a number}; shift ;;
    --mps) mps=1 ;;
    --json) json=--json ;;
    -h | --help) sed -n '2,10p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
    *) echo "faults: unknown option '$1'; see --help" >&2; exit 2 ;;
    esac
    shift
done
if [ -z "${KVARN_BUILD-}" ]; then
    cmake --preset release -DKVARN_TESTS=ON -DKVARN_CUDA=ON >/dev/null
    cmake --build --preset release -j "$(nproc)" --target kvarnd kvarn-worker drill_gpu bad_cuda >/dev/null
    KVARN_BUILD=build
fi
if [ ! -e /dev/nvidiactl ]; then
    echo "skipped: no NVIDIA driver is loaded"
    exit 77
fi
build=$(cd "$KVARN_BUILD" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export KVARN_CUDA_DRIVER=$build/gpu/bad_cuda.so KVARN_BAD_CUDA=$work/trigger
drill=("$build/gpu/drill_gpu" --bin "$build/bin" --pool cuda:0:4GiB)

if [ -z "$mps" ]; then
    "${drill[@]}" --rounds "$rounds" $json 2>"$work/log" || { tail -n 20 "$work/log" >&2; exit 1; }
    exit 0
fi

# MPS: one server for all processes that find its pipe. Each fault meets a fresh one; a second daemon beside the
# first tells whether a bystander notices.
command -v nvidia-cuda-mps-control >/dev/null || { echo "skipped: no nvidia-cuda-mps-control"; exit 77; }
for fault in kill illegal hang; do
    export CUDA_MPS_PIPE_DIRECTORY=$work/mps-$fault CUDA_MPS_LOG_DIRECTORY=$work/mps-$fault
    mkdir -p "$CUDA_MPS_PIPE_DIRECTORY"
    nvidia-cuda-mps-control -d
    KVARN_BAD_CUDA=$work/never timeout -k 2 20 "${drill[@]}" --faults none --seconds 6 >"$work/beside" 2>&1 &
    beside=$!
    echo "== under MPS: $fault"
    timeout -k 2 20 "${drill[@]}" --faults "$fault" --deadline 4000 2>"$work/log" || grep -v worker_ready "$work/log" | tail -n 4
    servers=$(timeout 5 nvidia-cuda-mps-control <<<get_server_list || true)
    wait "$beside" || true
    echo "-- beside it"
    tail -n 3 "$work/beside"
    timeout 5 nvidia-cuda-mps-control <<<"quit -t 1" >/dev/null 2>&1 || true
    # a server whose client left an endless kernel does not end by itself
    for server in $servers; do kill -9 "$server" 2>/dev/null || true; done
done
