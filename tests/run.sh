#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test that needs no GPU. 5 to 9 minutes on 2 cores.
#
#   tests/run.sh            everything: gcc release, clang, address+undefined and thread sanitizers, lint
#   tests/run.sh --quick    gcc release only
set -euo pipefail
cd "$(dirname "$0")/.."

quick=
case "${1-}" in
'') ;;
--quick) quick=1 ;;
-h | --help)
    sed -n '2,5p' "$0" | sed 's/^# \{0,1\}//'
    exit 0
    ;;
*)
    echo "run.sh: unknown option '$1'; see --help" >&2
    exit 2
    ;;
esac

jobs=$(nproc)
logs=build/logs
mkdir -p "$logs"
started=$SECONDS
passed=0
failed=0

# step NAME COMMAND...: runs it, shows its output only when it fails, and keeps the count.
step() {
    local name=$1 log begin=$SECONDS
    shift
    log=$logs/$(tr -c 'a-z0-9\n' '-' <<<"$name").log
    printf '%-44s ' "$name"
    if "$@" >"$log" 2>&1; then
        printf 'ok    %4d s\n' $((SECONDS - begin))
        passed=$((passed + 1))
    else
        printf 'FAIL  %4d s\n' $((SECONDS - begin))
        tail -n 60 "$log"
        failed=$((failed + 1))
        return 1
    fi
}

build() {
    cmake --preset "$1" -DKVARN_TESTS=ON && cmake --build --preset "$1" -j "$jobs"
}

# suite PRESET [ctest arguments]: the tests of one build; every test counts by itself.
suite() {
    local preset=$1 log=$logs/ctest-$1.log begin=$SECONDS
    shift
    printf '%-44s ' "tests ($preset)"
    ctest --preset "$preset" -j "$jobs" "$@" >"$log" 2>&1 || true
    local total bad skipped
    total=$(sed -n 's/.*tests passed, .* out of \([0-9]*\).*/\1/p' "$log")
    bad=$(sed -n 's/.*tests passed, \([0-9]*\) tests failed.*/\1/p' "$log")
    if [ -z "$total" ] || [ "$total" -eq 0 ]; then
        printf 'FAIL  no test ran\n'
        tail -n 40 "$log"
        failed=$((failed + 1))
        return 0
    fi
    # ctest takes what left itself out (kernels of a GPU where none are built) for passed; here it is neither
    skipped=$(grep -c '\*\*\*Skipped' "$log" || true)
    passed=$((passed + total - bad - skipped))
    failed=$((failed + bad))
    if [ "$bad" -eq 0 ]; then
        printf 'ok    %4d s  %d tests, %d skipped\n' $((SECONDS - begin)) $((total - skipped)) "$skipped"
    else
        printf 'FAIL  %4d s  %d of %d tests\n' $((SECONDS - begin)) "$bad" "$total"
        grep -B 60 -A 20 -E '\*\*\*Failed|\*\*\*Timeout|\*\*\*Exception' "$log" | tail -n 120
    fi
}

deploy/install-deps.sh --tests
step "build (gcc, release)" build release && suite release || true
if [ -z "$quick" ]; then
    step "format and lint" tests/lint.sh build || true
    step "build (clang)" build clang && suite clang -L fast || true
    step "build (gcc, address and undefined)" build asan-ubsan && suite asan-ubsan || true
    step "build (gcc, thread)" build tsan && suite tsan -L threads || true
fi

echo
echo "took $((SECONDS - started)) s"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
