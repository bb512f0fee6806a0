#!/usr/bin/env bash
# On a machine with a GPU: measures the copy ceiling, checks every kernel against the reference, then prints the
# benchmark table, each row with its share of the ceiling and with what else is installed there beside it. Under 8
# minutes.
#
#   tests/gpu/run.sh                  builds what is needed, then all of it
#   tests/gpu/run.sh --json FILE      also keeps the rows, one JSON object per line
#   tests/gpu/run.sh --only NAME      only programs whose name contains NAME: attend, compress, decompress, ...
#   tests/gpu/run.sh --quick          shorter, rougher, and no peers
#   tests/gpu/run.sh --sanitize       the checks under compute-sanitizer (memcheck, racecheck, initcheck) on small
#                                     shapes instead, no benchmarks
# KVARN_BUILD=FOLDER takes the programs of a build made elsewhere (FOLDER/gpu; they need a driver and the C library).
# Exit code 1 when a check fails or a row does not reach what it should, 77 when there is no GPU to use.
set -euo pipefail
shopt -s nullglob
cd "$(dirname "$0")/../.."

only=
json=
quick=
sanitize=
while [ $# -gt 0 ]; do
    case "$1" in
    --only) only=${2:?--only needs a name}; shift ;;
    --json) json=${2:?--json needs a file}; shift ;;
    --quick) quick=--quick ;;
    --sanitize) sanitize=1 ;;
    -h | --help) sed -n '2,14p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
    *) echo "gpu: unknown option '$1'; see --help" >&2; exit 2 ;;
    esac
    shift
done

if [ -z "${KVARN_BUILD-}" ]; then
    deploy/install-deps.sh --tests
    command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ] || deploy/install-deps.sh --cuda
    cmake --preset release -DKVARN_TESTS=ON -DKVARN_CUDA=ON >/dev/null
    cmake --build --preset release -j "$(nproc)" --target gpu_programs >/dev/null
    KVARN_BUILD=build
fi
programs=$KVARN_BUILD/gpu
if [ ! -x "$programs/bench_copy_gpu" ]; then
    echo "gpu: no programs in $programs" >&2
    exit 2
fi
KVARN_COMMIT=${KVARN_COMMIT:-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)}
export KVARN_COMMIT

started=$SECONDS
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# wanted PROGRAM: whether --only takes it
wanted() {
    case "$(basename "$1")" in
    *"$only"*) [ -x "$1" ] || [ "${1%.py}" != "$1" ] ;;
    *) return 1 ;;
    esac
}

# step NAME COMMAND...: one line for people; output only when it fails, or why it was skipped.
step() {
    local name=$1 log=$work/log begin=$SECONDS code=0
    shift
    printf '%-44s ' "$name"
    timeout -k 5 120 "$@" >"$log" 2>&1 || code=$?
    case $code in
    0)
        printf 'ok    %4d s\n' $((SECONDS - begin))
        grep 'not checked' "$log" || true # what a program had to leave out is told
        ;;
    77) printf 'skipped: %s\n' "$(sed -n 's/^skipped: //p' "$log" | head -n 1)" ;;
    *)
        printf 'FAIL  %4d s  (exit code %d)\n' $((SECONDS - begin)) "$code"
        tail -n 40 "$log"
        failed=$((failed + 1))
        ;;
    esac
}

sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
if [ -n "$sanitize" ]; then
    [ -x "$sanitizer" ] || { echo "gpu: no compute-sanitizer here" >&2; exit 2; }
    # A kernel is looked for in one image after the other, and what does not hold it says so: no error.
    # Under initcheck fresh memory stays as it comes, so that it sees what nobody wrote.
    for program in "$programs"/test_*_gpu; do
        wanted "$program" || continue
        for tool in memcheck racecheck initcheck; do
            [ "$tool" = initcheck ] && export KVARN_NO_POISON=1 || unset KVARN_NO_POISON
            step "$(basename "$program") $tool" "$sanitizer" --tool "$tool" --error-exitcode 9 \
                --report-api-errors no "$program" --small
        done
    done
    echo "took $((SECONDS - started)) s, $failed failed"
    [ "$failed" -eq 0 ]
    exit
fi

code=0
"$programs/bench_copy_gpu" >"$work/rows" || code=$?
[ "$code" -eq 0 ] || exit "$code"
KVARN_COPY_GBS=$(sed -n '1s/.*"value":\([0-9.e+]*\),.*/\1/p' "$work/rows")
export KVARN_COPY_GBS
printf '%s\ncopy on the device: %s GB/s read + write\n\n' \
    "$(sed -n '1s/.*"machine":"\([^"]*\)".*/\1/p' "$work/rows")" "$KVARN_COPY_GBS"

for program in "$programs"/test_*_gpu; do
    wanted "$program" || continue
    step "$(basename "$program")" "$program" ${quick:+--small}
done

# rows_of PROGRAM COMMAND...: its rows are kept whatever its exit code says; only a crash is a failure here
rows_of() {
    local name=$1
    shift
    step "$name" bash -c 'out=$1; shift; "$@" >"$out"' rows "$work/new" "$@"
    grep '^{' "$work/new" >>"$work/rows" || true
    rm -f "$work/new"
}

if [ -z "$quick" ]; then
    for peer in tests/bench/peers/*_*.py; do
        wanted "$peer" && rows_of "$(basename "$peer")" python3 "$peer"
    done
fi
cp "$work/rows" "$work/peers"
export KVARN_PEERS=$work/peers
for program in "$programs"/bench_*_gpu; do
    [ "$program" != "$programs/bench_copy_gpu" ] && wanted "$program" || continue
    rows_of "$(basename "$program")" "$program" $quick
done

echo
[ -z "$json" ] || cp "$work/rows" "$json"
table=0
python3 tests/bench/table.py "$work/rows" || table=1
echo "took $((SECONDS - started)) s, $failed failed"
[ "$failed" -eq 0 ] && [ "$table" -eq 0 ]
