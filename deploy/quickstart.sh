#!/usr/bin/env bash
# Installs what is missing, builds, starts a kvarnd of its own and runs the main job on a real capture: one
# process compresses a KV cache into it, another finds it by key and decodes over it, layer by layer. Ends with
# a table. Safe to run again; leaves no process and no file outside build/. Under 5 minutes on 2 cores.
#
#   deploy/quickstart.sh                    the published form and the tight one at G = 128
#   deploy/quickstart.sh PRESET...          only these, e.g. kvarn_k2v2_g64; PRESET+k leaves keys as they come
#   KVARN_TRANSPORT=tcp deploy/quickstart.sh   over TCP loopback (port 17070, or KVARN_PORT) instead of a Unix socket
#   KVARN_CAPTURE=FILE deploy/quickstart.sh    on a capture of your own model (tests/data/README.md has the format)
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1-}" in
-h | --help)
    sed -n '2,9p' "$0" | sed 's/^# \{0,1\}//'
    exit 0
    ;;
-*)
    echo "quickstart: unknown option '$1'; see --help" >&2
    exit 2
    ;;
esac
presets=("$@")
if [ ${#presets[@]} -eq 0 ]; then
    presets=(kvarn_k2v2_g128 tight_k2v2_g128 tight_k2v2_g128+k kvarn_k4v2_g128 tight_k4v2_g128
        kvarn_k4v4_g128 tight_k4v4_g128)
fi
transport=${KVARN_TRANSPORT-unix}
if [ "$transport" != unix ] && [ "$transport" != tcp ]; then
    echo "quickstart: KVARN_TRANSPORT is '$transport': unix or tcp" >&2
    exit 2
fi
for preset in "${presets[@]}"; do
    if ! grep -q "\"${preset%+k}\"" proto/types.c; then
        echo "quickstart: no preset '$preset'; there are $(grep -o '"[a-z]*_k[0-9]v[0-9]_g[0-9]*"' proto/types.c |
            tr -d '"' | tr '\n' ' ')" >&2
        exit 2
    fi
done
captures=(tests/data/capture_smollm2_135m.safetensors tests/data/capture_gemma3_270m.safetensors)
[ -z "${KVARN_CAPTURE-}" ] || captures=("$KVARN_CAPTURE")
for capture in "${captures[@]}"; do
    if [ ! -r "$capture" ]; then
        echo "quickstart: cannot read the capture $capture" >&2
        exit 2
    fi
done

say() {
    printf '\n== %s\n' "$*"
}

say "1/4 dependencies"
deploy/install-deps.sh

say "2/4 build (release) into build/"
mkdir -p build
cuda=AUTO # GPU kernels take minutes to compile; without a GPU nothing here needs them
[ -e /dev/nvidiactl ] || cuda=OFF
cmake --preset release -DKVARN_TESTS=OFF -DKVARN_CUDA=$cuda >build/configure.log 2>&1 || {
    cat build/configure.log >&2
    exit 1
}
grep -o 'kvarnd: .*' build/configure.log # what is built, and what is left out
# One line that counts up on a terminal; its last state elsewhere.
if [ -t 1 ]; then
    cmake --build build -j "$(nproc)" | while IFS= read -r line; do printf '\r\033[K%.100s' "$line"; done
    echo
else
    cmake --build build -j "$(nproc)" | tail -n 1
fi
bin=build/bin

say "3/4 start kvarnd"
work=$(mktemp -d "${TMPDIR:-/tmp}/kvarn-quickstart.XXXXXX")
daemon=
cleanup() {
    if [ -n "$daemon" ] && kill "$daemon" 2>/dev/null; then
        wait "$daemon" || true
    fi
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

address=unix:$work/kvarnd.sock
[ "$transport" = unix ] || address=tcp://127.0.0.1:${KVARN_PORT-17070}
listen=${address/tcp:\/\//tcp:}
# kvarnd writes one byte to the descriptor when it serves; an end without a byte means that it could not start.
mkfifo "$work/ready"
"$bin/kvarnd" --listen "$listen" --pool host:512MiB --ready-fd 3 3>"$work/ready" 2>"$work/kvarnd.log" &
daemon=$!
if ! read -rn 1 <"$work/ready"; then
    cat "$work/kvarnd.log" >&2
    exit 1
fi
"$bin/kvarnctl" --address "$address" describe

say "4/4 prefill and decode"
total=$((${#presets[@]} * ${#captures[@]}))
done_count=0
for capture in "${captures[@]}"; do
    report=$work/$(basename "$capture" .safetensors).jsonl
    for preset in "${presets[@]}"; do
        done_count=$((done_count + 1))
        echo "[$done_count/$total] $preset, $(basename "$capture")"
        options=(-a "$address" -c "$capture" -p "${preset%+k}" -r "$report")
        [ "$preset" = "${preset%+k}" ] || options+=(--k-rotated)
        "$bin/kvarn-demo" prefill "${options[@]}" 2>&1
        "$bin/kvarn-demo" decode "${options[@]}" 2>&1
    done
done
for capture in "${captures[@]}"; do
    "$bin/kvarn-demo" table -r "$work/$(basename "$capture" .safetensors).jsonl"
done
"$bin/kvarnctl" --address "$address" verify >/dev/null
echo
echo "Every block verified against its checksum. The programs are in build/bin. Next: README.md, section \"Use it\"."
