#!/bin/sh
# usage: symbols.sh LIBRARY EXPECTED: what the shared library exports is the committed list, no more and no less.
set -eu
exported=$(nm -D --defined-only "$1" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | LC_ALL=C sort)
if [ "$exported" != "$(LC_ALL=C sort "$2")" ]; then
    echo "exported symbols differ from $2 (< expected, > exported):"
    printf '%s\n' "$exported" | diff "$2" - || true
    exit 1
fi
echo "$(printf '%s\n' "$exported" | wc -l) symbols, as expected"
