#!/usr/bin/env bash
# Installs what is missing, builds, starts a kvarnd of its own and runs the main job on a real capture: one
# process compresses a KV cache into it, another finds it by key and decodes over it, layer by layer. Ends with
# a table. Safe to run again; leaves no process and no file outside build/. Under 5 minutes on 2 cores.
#
#   deploy/quickstart.sh                    all presets at G = 128 that ship
#   deploy/quickstart.sh PRESET...          only these, e.g. kvarn_k2v2_g64
#   KVARN_TRANSPORT=tcp deploy/quickstart.sh   over TCP loopback instead of a Unix socket
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
    presets=(kvarn_k2v2_g128 scalefree_k2v2_g128 kvarn_k4v2_g128 scalefree_k4v2_g128
        kvarn_k4v4_g128 scalefree_k4v4_g128)
fi
captures=(tests/data/capture_*.safetensors)
[ -z "${KVARN_CAPTURE-}" ] || captures=("$KVARN_CAPTURE")

say() {
    printf '\n== %s\n' "$*"
}

say "1/4 dependencies"
deploy/install-deps.sh

say "2/4 build (release)"
cmake --preset release -DKVARN_TESTS=OFF -B build/quickstart >build-quickstart.log 2>&1 || {
    cat build-quickstart.log >&2
    exit 1
}
rm -f build-quickstart.log
cmake --build build/quickstart -j "$(nproc)"
bin=build/quickstart/bin

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
[ "${KVARN_TRANSPORT-unix}" = tcp ] && address=tcp://127.0.0.1:${KVARN_PORT-17070}
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
        "$bin/kvarn-demo" prefill -a "$address" -c "$capture" -p "$preset" -r "$report"
        "$bin/kvarn-demo" decode -a "$address" -c "$capture" -p "$preset" -r "$report"
    done
done
for capture in "${captures[@]}"; do
    "$bin/kvarn-demo" table -r "$work/$(basename "$capture" .safetensors).jsonl"
done
"$bin/kvarnctl" --address "$address" verify >/dev/null
echo
echo "Every block verified against its checksum. Next: README.md, section \"Use it\"."
