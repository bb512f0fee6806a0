#!/usr/bin/env bash
# Every figure that the README states, measured beside its baseline in one run: ratios on this machine.
#
#   tests/bench/run.sh                     all, about a minute; a table
#   tests/bench/run.sh --only NAME         programs whose name contains NAME: kernels, attend, rpc, store, evict
#   tests/bench/run.sh --json FILE         also keeps the rows, one JSON object per line
#   tests/bench/run.sh --quick             shorter, rougher
# Exit code 1 when a row does not reach what it should.
set -euo pipefail
cd "$(dirname "$0")/../.."

only=
json=
args=()
while [ $# -gt 0 ]; do
    case "$1" in
    --only) only=${2:?--only needs a name}; shift ;;
    --json) json=${2:?--json needs a file}; shift ;;
    --quick) args+=(--quick) ;;
    -h | --help) sed -n '2,9p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
    *) echo "bench: unknown option '$1'; see --help" >&2; exit 2 ;;
    esac
    shift
done

deploy/install-deps.sh --tests
cmake --preset release -DKVARN_TESTS=ON >/dev/null
cmake --build --preset release -j "$(nproc)" >/dev/null
KVARN_COMMIT=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
export KVARN_COMMIT
rows=$(mktemp)
trap 'rm -f "$rows"' EXIT

ran=0
for program in build/bench/bench_*; do
    case "$(basename "$program")" in
    *"$only"*) ;;
    *) continue ;;
    esac
    echo "-- $(basename "$program")" >&2
    "$program" ${args[@]+"${args[@]}"} >>"$rows"
    ran=$((ran + 1))
done
if [ "$ran" -eq 0 ]; then
    echo "bench: no program matches '$only'" >&2
    exit 2
fi
[ -z "$json" ] || cp "$rows" "$json"
python3 tests/bench/table.py "$rows"
