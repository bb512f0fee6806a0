#!/usr/bin/env bash
# Accuracy of methods of storing a KV cache on real models; see README.md. Installs its Python packages into
# .cache/accuracy/venv, builds kvarnd when it is not there, and fetches models and texts once.
#
#   tests/accuracy/run.sh            the short form, under an hour on 2 cores
#   tests/accuracy/run.sh --smoke    one minute
#   tests/accuracy/run.sh --full     longer texts, all regimes on each
#   tests/accuracy/run.sh --help     all options
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
venv=${KVARN_ACCURACY_VENV:-$root/.cache/accuracy/venv}

if [ ! -x "$venv/bin/python" ]; then
    python3 -m venv "$venv"
fi
if ! "$venv/bin/python" -c 'import numpy, gguf, tokenizers, matplotlib' 2>/dev/null; then
    "$venv/bin/pip" install -q --disable-pip-version-check -r "$here/requirements.txt"
fi
if [[ " $* " != *" --build"* && ! -x $root/build/bin/kvarnd ]]; then
    cmake -S "$root" --preset release >/dev/null
    cmake --build "$root/build" -j "$(nproc)" --target kvarnd kvarn-worker kvarn-client >/dev/null
fi
export OPENBLAS_NUM_THREADS=1
exec "$venv/bin/python" "$here/run.py" "$@"
