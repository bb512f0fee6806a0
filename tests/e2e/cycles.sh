#!/usr/bin/env bash
# Ends kvarnd 1,000 times by SIGKILL and 500 times by a power cut, and looks for every block that it acknowledged as
# persistent; then the same with a daemon that forgets to sync, which must lose some. About 3 minutes. tests/run.sh
# does a tenth of it.
#
#   tests/e2e/cycles.sh [BUILD] [SEED]      BUILD: build by default
set -euo pipefail
cd "$(dirname "$0")/../.."

build=${1-build}
seed=${2-$(date +%s)}
echo "seed $seed"
"$build/tests/disk_cycles" "$build/bin" kill 1000 "$seed"
"$build/tests/disk_cycles" "$build/bin" cut 500 "$seed"
"$build/tests/disk_cycles" "$build/bin" cut 100 "$seed" sealed
"$build/tests/disk_cycles" "$build/bin" forgets 50 "$seed"
