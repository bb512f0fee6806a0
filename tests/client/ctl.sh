#!/bin/sh
# usage: ctl.sh KVARNCTL KVARND: every command of kvarnctl against a real daemon, in every format, and its exit codes.
set -u
ctl=$1 kvarnd=$2
work=$(mktemp -d)
failed=0 daemon=
cleanup() {
    [ -z "$daemon" ] || kill -KILL "$daemon" 2>/dev/null
    rm -rf "$work"
}
trap cleanup EXIT
export KVARN_ADDRESS="unix:$work/s"

# expect CODE ARGUMENTS...: runs kvarnctl; its output is in $work/out and $work/err.
expect() {
    code=$1
    shift
    "$ctl" "$@" >"$work/out" 2>"$work/err"
    got=$?
    if [ "$got" -ne "$code" ]; then
        echo "FAIL: kvarnctl $*: exit code $got, not $code"
        cat "$work/out" "$work/err"
        failed=1
    fi
}
# says TEXT: it is in the last output; errors TEXT: or in the last error.
says() {
    grep -q -- "$1" "$work/out" || { echo "FAIL: '$1' is not in:"; cat "$work/out"; failed=1; }
}
errors() {
    grep -q -- "$1" "$work/err" || { echo "FAIL: '$1' is not in:"; cat "$work/err"; failed=1; }
}
# json FILTER: the last output is JSON of schema 1 and FILTER (Python, document d) is true.
json() {
    python3 -c "import json,sys; d=json.load(open(sys.argv[1])); assert d['schema']==1; assert $1, d" "$work/out" ||
        { echo "FAIL: $1"; failed=1; }
}

expect 2
expect 2 nonsense
expect 2 -o xml ping
expect 2 ping --no-such-option
expect 2 ping surplus
expect 2 bench --op nothing
expect 2 -a nonsense ping
errors 'use unix:'
expect 2 -t 0 ping
errors 'more than 0'
expect 0 --help
says 'Examples'
expect 0 help bench
says '--op attend'
says 'evicts'
expect 0 --version
says kvarnctl
expect 3 ping
errors 'start kvarnd'
! grep -q PEER_LOST "$work/err" || { echo "FAIL: no connection, and a status of one"; failed=1; }
expect 3 -a tcp://127.0.0.1:1 describe

port=$(python3 -c 'import socket; s=socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$kvarnd" --listen "unix:$work/s" --listen "tcp:127.0.0.1:$port" --pool host:128MiB --log-level error &
daemon=$!
for _ in $(seq 100); do
    "$ctl" ping -q 2>/dev/null && break
    sleep 0.05
done
expect 0 ping -c 20
says 'p99'
expect 0 ping -o json
json "d['ping']['count']==1"
expect 0 ping -c 3 -o csv
says 'p50_seconds'
expect 0 ping -q
[ ! -s "$work/out" ] || { echo "FAIL: ping -q speaks"; failed=1; }
expect 0 describe
says 'kvarnd'
expect 0 describe -o json
json "d['daemon']['protocol']==1 and d['spaces']==[]"
expect 0 stat -m pool
says 'kvarn_pool_capacity_bytes'
expect 4 stat -m no_such_metric
errors 'no metric'
expect 0 -a "tcp://127.0.0.1:$port" stat
errors 'its own user'
expect 4 -a "tcp://127.0.0.1:$port" stat -m pool
errors 'its own user'
expect 0 stat -i 0.05 -c 2 -o csv
says 'per_second'
expect 0 stat -o json
json "any(m['name']=='kvarn_pool_capacity_bytes' and m['value']==128<<20 for m in d['metrics'])"
expect 0 ls
says 'no spaces'
expect 0 ls -o json
json "d['spaces']==[]"
expect 0 ls -o csv
says '^space,model,.*,fingerprint$'
expect 0 verify -o csv
says '^space,model,blocks,fine,result$'
expect 0 verify
expect 4 verify --space 5

expect 2 flush
errors 'space is needed'
expect 4 flush --space 5
errors 'no such space'
expect 4 reset --space 5
expect 2 pin --space 5
expect 2 pin --space 5 --key 12
errors '64 hexadecimal'
expect 4 pin --space 5 --key "$(printf '%064d' 7)"
expect 2 persist --space 5
expect 4 persist --space 5 --key "$(printf '%064d' 7)"
expect 2 erase
errors 'say --yes'
expect 0 erase --yes
expect 0 events --snapshot
[ ! -s "$work/out" ] || { echo "FAIL: an empty daemon stores something"; failed=1; }

shape="--layers 2 --kv-heads 2 --q-heads 4 --dim 64 --context 256 --requests 20 --warmup 2"
for op in ping compress decompress attend lookup import; do
    # shellcheck disable=SC2086
    expect 0 bench --op $op $shape --clients 2 -o json
    json "d['bench']['op']=='$op' and d['bench']['requests']==20 and d['bench']['failed']==0 and d['bench']['p99_seconds']>0"
done
# shellcheck disable=SC2086
expect 0 bench --op attend $shape
says 'throughput'
# shellcheck disable=SC2086
expect 0 bench --op lookup $shape --context 200
errors '200 is rounded up to 256'
expect 1 bench --op compress --dim 100
errors 'head_dim'
expect 5 bench --op attend --context 262144
errors 'the context needs .* MiB, the pool has 128.0 MiB'
# empty: nothing of the measurements is left, one moment from now at the latest
empty() {
    expect 0 ls -o json
    json "all(s['tile_blocks']==0 and s['exact_blocks']==0 for s in d['spaces'])"
}
empty
# calls without an answer in time, which the daemon carries out later
"$ctl" -t 0.03 bench --op compress --layers 8 --context 2048 --requests 5 >"$work/out" 2>&1
empty
for op in compress attend; do # ^C while it runs, and while it warms up
    for phase in "--time 100" "--warmup 100000000"; do
        # shellcheck disable=SC2086
        "$ctl" bench --op $op $shape --requests 100000000 $phase >"$work/out" 2>"$work/err" &
        running=$!
        sleep 0.5
        kill -TERM $running
        wait $running
        [ $? -eq 130 ] || { echo "FAIL: an interrupted bench does not end with 130"; failed=1; }
        empty
    done
done
expect 0 ls -o csv
says 'kvarnctl-bench'
expect 0 describe -o csv
errors 'kvarnctl ls -o csv'
expect 0 ls -o json
json "d['spaces'][0]['bytes']==0 and len(d['spaces'][0]['fingerprint'])==64"
expect 0 verify -o json
json "d['spaces'][0]['result']=='OK'"
space=$(python3 -c "import json; print(json.load(open('$work/out'))['spaces'][0]['space'])")
expect 4 pin --space "$space" --key "$(printf '%064d' 7)"
errors 'not stored'
expect 1 persist --space "$space" --key "$(printf '%064d' 7)"
errors 'no disk; start it with --disk'
expect 0 flush --space "$space" -o json
json "d['flush']['dropped']==0"
"$ctl" -t 10 events -c 4 -o json >"$work/events" 2>&1 & # tells what the bench stores
following=$!
sleep 0.3
# shellcheck disable=SC2086
expect 0 bench --op compress $shape
wait $following || { echo "FAIL: events"; cat "$work/events"; failed=1; }
grep -q '"event":"stored"' "$work/events" || { echo "FAIL: no event"; cat "$work/events"; failed=1; }
expect 0 reset --space "$space"
says 'spaces_reset'
expect 4 flush --space "$space"
errors 'was reset'
expect 0 -a spawn: describe
says 'kvarnd'

"$ctl" ping -c 100000000 -i 0.01 >"$work/out" 2>&1 &
pinging=$!
sleep 0.3
kill -TERM $pinging # as ^C; a shell's background job ignores SIGINT
wait $pinging
[ $? -eq 130 ] || { echo "FAIL: an interrupted ping does not end with 130"; failed=1; }
says 'round trips'

kill -STOP $daemon
expect 3 -t 0.2 ping
errors 'HELLO'
kill -CONT $daemon

expect 0 drain
wait $daemon
[ $? -eq 0 ] || { echo "FAIL: the drained daemon does not end with 0"; failed=1; }
daemon=
expect 3 ping
[ $failed -eq 0 ] && echo "every command as expected"
exit $failed
