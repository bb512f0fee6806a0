#!/bin/sh
# usage: demo.sh KVARN-DEMO KVARND DATA: the quickstart's three commands against a real daemon. What they measured must
# be possible, and better than plain rounding; what is missing must be named.
set -u
demo=$1 kvarnd=$2 capture=$3/capture_smollm2_135m.safetensors
work=$(mktemp -d)
failed=0 daemon=
cleanup() {
    [ -z "$daemon" ] || kill -KILL "$daemon" 2>/dev/null
    rm -rf "$work"
}
trap cleanup EXIT
address=unix:$work/s

# expect CODE TEXT ARGUMENTS...: runs kvarn-demo; TEXT is in what it says.
expect() {
    code=$1 text=$2
    shift 2
    "$demo" "$@" >"$work/out" 2>&1
    got=$?
    if [ "$got" -ne "$code" ] || ! grep -q -- "$text" "$work/out"; then
        echo "FAIL: kvarn-demo $*: exit code $got, not $code, or no '$text' in:"
        cat "$work/out"
        failed=1
    fi
}

expect 2 'which of prefill'
expect 2 'not prefill' nonsense
expect 2 'not prefill' table table
expect 2 'capture FILE is needed' prefill
expect 2 'a number from 1' prefill -c "$capture" -i 0
expect 2 'a number from 1' prefill -c "$capture" -i 2x
expect 0 'kvarn-demo' --version
expect 1 "no preset 'best'; the presets are kvarn_k2v2_g128" prefill -c "$capture" -p best
expect 1 'kvarn-demo: /no/such/capture: No such file' prefill -c /no/such/capture
expect 1 'kvarn-demo: /: not a regular file' prefill -c /
expect 1 'no safetensors file' prefill -c "$0"
expect 0 '^  kvarn-demo decode -c $CAPTURE -r out.jsonl$' --help
expect 1 'kvarn-demo: cannot connect to ' prefill -c "$capture" -a "$address"

mkfifo "$work/ready"
"$kvarnd" --listen "$address" --pool host:256MiB --log-level error --ready-fd 3 3>"$work/ready" &
daemon=$!
read -r _ <"$work/ready"
expect 1 'kvarnd knows 0 of them' decode -c "$capture" -a "$address"
for preset in kvarn_k2v2_g128 kvarn_k4v2_g128; do
    expect 0 'blocks of' prefill -c "$capture" -a "$address" -p $preset -r "$work/report"
    expect 0 'found by key' decode -c "$capture" -a "$address" -p $preset -r "$work/report"
done
expect 0 'stored as tight_k2v2_g128+k ' prefill -c "$capture" -a "$address" -p tight_k2v2_g128 --k-rotated -r "$work/plain"
expect 0 'found by key' decode -c "$capture" -a "$address" -p tight_k2v2_g128 -k -r "$work/plain"
expect 0 'without the rotation' table -r "$work/plain"
expect 0 '\* tight_k2v2_g128+k ' table -r "$work/plain"
expect 1 'cannot write to /no/such/report' decode -c "$capture" -a "$address" -r /no/such/report
expect 0 'K4V2' table -r "$work/report"
expect 0 'lower is better' table -r "$work/report"
expect 0 '\* kvarn_k4v2_g128 ' table -r "$work/report"
width=$("$demo" table -r "$work/report" | wc -L)
[ "$width" -le 110 ] || { echo "FAIL: a line of the table has $width columns"; failed=1; }
python3 - "$work/report" <<'EOF' || failed=1
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
assert [line["stage"] for line in lines] == ["prefill", "decode"] * 2, lines
for prefill, decode in zip(lines[::2], lines[1::2]):
    group = int(prefill["preset"][-3:].lstrip("g"))
    kvarn, kivi, rtn = decode["methods"]
    rows = 4.0 * decode["layers"] * decode["kv_heads"] * decode["dim"]
    assert prefill["preset"] == decode["preset"]
    assert prefill["blocks"] == (decode["tokens"] - decode["positions"]) // group
    sink, tiles, tail = (decode["prompt_%s_tokens" % part] for part in ("sink", "tile", "tail"))
    assert sink == decode["sink_tokens"] and sink + tiles == prefill["blocks"] * group and tail < group
    assert sink + tiles + tail == decode["tokens"] - decode["positions"]
    assert prefill["input_bytes"] == decode["read_bytes"] == rows * prefill["blocks"] * group
    assert 0 < kvarn["attention_error"] < rtn["attention_error"] < 1, decode
    assert kvarn["attention_error"] < 0.3 and kvarn["norm_mean"] < rtn["norm_mean"], decode
    assert 0 < kvarn["norm_mean"] < kvarn["norm_p99"] < 0.5, decode
    assert kvarn["bytes_per_token"] < 4 * decode["dim"] / 4, decode
    assert 0 < decode["attend_p50"] <= decode["attend_p99"] and decode["ping_p50"] > 0
assert lines[3]["methods"][0]["attention_error"] < lines[1]["methods"][0]["attention_error"], "4 bits beat 2"
EOF
[ $failed -eq 0 ] && echo "prefill, decode and table as expected"
exit $failed
