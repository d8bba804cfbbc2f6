#!/usr/bin/env bash
# Measures the cost of the profiling hooks in a node while no profile is being recorded: compares
# this binary with a binary that has no frame pointers, and no check at each allocation and each
# wait.
#
#     bench/off.sh [ROUNDS]                  default: 40
#
# Three nodes run on CPU 0: "with" hooks, "without" hooks, and with hooks "again". The difference
# between "again" and "with" is the noise of the method. The client, on CPU 1, loads one node at a
# time in a closed loop on 32 connections. ROUNDS rounds of PUTs precede ROUNDS rounds of GETs. In
# each round, each node has one run of 1 s. 40 rounds take six minutes. A machine that slows down
# slows all runs of a round, so each figure is divided by the figure of "with" in the same round.
# Prints the median ratio and its 95 % confidence interval (order statistics, by the binomial
# distribution).
# Environment: KVORUM is the binary with hooks, with kvorum-bench beside it (default: release
# builds, made here). BARE is the binary without hooks (default: built here into target/hookless).
# CARGO is the path of another cargo.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."
rounds=${1:-40} cargo=${CARGO:-cargo}
if [ -z "${KVORUM:-}" ]; then
    "$cargo" build --release --quiet -p kvorum -p kvorum-bench
    KVORUM=$PWD/target/release/kvorum
fi
if [ -z "${BARE:-}" ]; then
    # RUSTFLAGS replaces the flags of .cargo/config.toml, which force frame pointers.
    RUSTFLAGS='--cfg hookless' "$cargo" build --release --quiet --bin kvorum \
        --target-dir target/hookless
    BARE=$PWD/target/hookless/release/kvorum
fi
work=$(mktemp -d)
started=()
trap 'kill "${started[@]}" 2>/dev/null || true; rm -rf "$work"' EXIT
sides=(with without again)
declare -A port=([with]=18981 [without]=18982 [again]=18983)

# load SIDE DIR FLAGS...: loads the node SIDE for one run with these flags, and stores the run in
# DIR.
load() {
    taskset -c 1 "$KVORUM" bench load -t1 -c32 --key-count 100k --value-len 100 "${@:3}" \
        --out "$2" "http://127.0.0.1:${port[$1]}" >/dev/null
}

for side in "${sides[@]}"; do
    [ "$side" = without ] && binary=$BARE || binary=$KVORUM
    taskset -c 0 "$binary" serve --listen "127.0.0.1:${port[$side]}" --data "$work/data/$side" \
        --loops 1 --sync interval >"$work/$side.log" 2>&1 &
    started+=($!)
    curl -sf --retry 50 --retry-connrefused --retry-delay 1 \
        "http://127.0.0.1:${port[$side]}/readyz" >/dev/null
    load "$side" "$work/fill/$side" --mix put=100 --keys seq -R20k -d6s
done
for method in put get; do
    for ((round = 0; round < rounds; round++)); do
        echo "$method: round $((round + 1)) of $rounds" >&2
        for ((turn = 0; turn < ${#sides[@]}; turn++)); do
            side=${sides[$(((turn + round) % ${#sides[@]}))]}
            load "$side" "$work/$method/$side/$round" --mix "$method=100" --keys uniform \
                --closed -d1s --warmup 100ms
        done
    done
done
python3 - "$work" "$rounds" <<'END'
import json, math, statistics, sys

work, rounds = sys.argv[1], int(sys.argv[2])


def figure(method, side, number, of):
    with open("%s/%s/%s/%d/run.json" % (work, method, side, number)) as file:
        return of(json.load(file))


def cpu(run):
    return 1e6 * run["servers"][0]["cpu_s"] / run["counts"]["answered"]


def interval(values):
    tail, rank = 0.0, 0
    while tail + math.comb(rounds, rank) * 0.5**rounds <= 0.025:
        tail += math.comb(rounds, rank) * 0.5**rounds
        rank += 1
    values = sorted(values)
    return "%.3f (%.3f–%.3f)" % (statistics.median(values), values[max(rank - 1, 0)],
                                 values[-max(rank, 1)])


print("| | beside \"with\" | CPU a request | throughput |\n|---|---|---:|---:|")
for method in ("put", "get"):
    for side in ("without", "again"):
        cells = [interval([figure(method, side, n, of) / figure(method, "with", n, of)
                          for n in range(rounds)])
                for of in (cpu, lambda run: run["throughput"])]
        print("| %s | %s | %s | %s |" % (method.upper(), side, *cells))
END
