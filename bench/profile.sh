#!/usr/bin/env bash
# What a recording costs: throughput at a fixed rate and latencies of PUT and GET against one node,
# with nothing recorded (A), each event, all four at once, and nothing again (A, for the noise).
#
#     bench/profile.sh [RATE [SECONDS [ROUNDS]]]       default: 15000 20 3
#
# RATE should be about 70 % of the breaking point (kvorum search). The client is pinned to the last
# CPU. One line a run: method, what was recorded, requests a second, p50, p99, p99.9 in ms, CPU
# seconds of the node.
# CARGO names another cargo (default: cargo). PORT is where the node listens (default: 18990).
set -euo pipefail
cd "$(dirname "$0")/.."
rate=${1:-15000} seconds=${2:-20} rounds=${3:-3} port=${PORT:-18990}
"${CARGO:-cargo}" build --release --quiet -p kvorum
kvorum=$PWD/target/release/kvorum
work=$(mktemp -d)
node=
trap '[ -z "$node" ] || kill "$node" 2>/dev/null; rm -rf "$work"' EXIT
url=http://127.0.0.1:$port
"$kvorum" serve --listen "127.0.0.1:$port" --data "$work/data" >/dev/null 2>"$work/log" &
node=$!
until curl -sf "$url/readyz" >/dev/null; do
    kill -0 "$node" || { cat "$work/log" >&2; exit 1; }
done

cpu() { awk '{ print $14 + $15 }' "/proc/$node/stat"; }

# one METHOD EVENTS
one() {
    local before recorder= dir=$work/run
    rm -rf "$dir"
    if [ "$2" != none ]; then
        "$kvorum" profile "$url" -e "$2" -d "$((seconds + 1))" -o folded --out "$work" >/dev/null &
        recorder=$!
    fi
    before=$(cpu)
    taskset -c "$(($(nproc) - 1))" "$kvorum" load -t1 -c32 -R "$rate" -d "${seconds}s" \
        --mix "$1=100" --keys uniform --key-count 100k --out "$dir" "$url" >/dev/null
    printf "%-4s %-20s" "$1" "$2"
    python3 - "$dir/run.json" "$((($(cpu) - before)))" <<'PY'
import json, sys
run = json.load(open(sys.argv[1]))
all_methods = [l for l in run["latency"] if l["from"] == "intended" and not l["method"]]
spectrum = all_methods[0]["spectrum"]
at = lambda q: next(p["value"] for p in spectrum if p["quantile"] >= q)
print(f'{run["throughput"]:9.0f}/s  p50 {at(.5):7.2f}  p99 {at(.99):7.2f}  p99.9 {at(.999):7.2f}'
      f'  CPU {int(sys.argv[2]) / 100:6.2f} s')
PY
    [ -z "$recorder" ] || wait "$recorder"
}

# Something to read, and a node that has run for a while.
taskset -c "$(($(nproc) - 1))" "$kvorum" load -t1 -c32 -R "$rate" -d 10s --mix put=100 \
    --keys seq --key-count 100k --out "$work/fill" "$url" >/dev/null
for method in put get; do
    for _ in $(seq "$rounds"); do
        for events in none cpu alloc lock wall cpu,alloc,lock,wall none; do
            one "$method" "$events"
        done
    done
done
