#!/usr/bin/env bash
# What it costs that a node can be looked into while nobody does: this binary beside one built
# without frame pointers, and without the question at each allocation and each wait.
#
#     bench/off.sh [ROUNDS]                  default: 12, at most 40
#
# Three nodes on CPU 0, of which the client on CPU 1 loads one at a time: with, without, and with
# again, to show what the method itself can't tell apart. ROUNDS runs of 2 s a node, closed loop, 32
# connections, of PUTs and of GETs; the last lines are what `kvorum compare` says of each pair.
# Environment: KVORUM, the binary (default: a release build, made here); BARE, the one without
# (default: built here into target/hookless); CARGO.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."
rounds=${1:-12} cargo=${CARGO:-cargo}
if [ -z "${KVORUM:-}" ]; then
    "$cargo" build --release --quiet --bin kvorum
    KVORUM=$PWD/target/release/kvorum
fi
if [ -z "${BARE:-}" ]; then
    # In place of the flags of .cargo/config.toml.
    RUSTFLAGS='--cfg hookless' "$cargo" build --release --quiet --bin kvorum \
        --target-dir target/hookless
    BARE=$PWD/target/hookless/release/kvorum
fi
work=$(mktemp -d)
started=()
trap 'kill "${started[@]}" 2>/dev/null || true; rm -rf "$work"' EXIT
sides=(with without again)
declare -A port=([with]=18981 [without]=18982 [again]=18983)

# load SIDE DIR FLAGS...: one run against a side.
load() {
    taskset -c 1 "$KVORUM" load -t1 -c32 --keys uniform --key-count 100k --value-len 100 \
        "${@:3}" --out "$2" "http://127.0.0.1:${port[$1]}" >/dev/null
}

for side in "${sides[@]}"; do
    [ "$side" = without ] && binary=$BARE || binary=$KVORUM
    taskset -c 0 "$binary" serve --listen "127.0.0.1:${port[$side]}" --data "$work/data/$side" \
        --loops 1 --sync interval >"$work/$side.log" 2>&1 &
    started+=($!)
    curl -sf --retry 50 --retry-connrefused --retry-delay 1 \
        "http://127.0.0.1:${port[$side]}/readyz" >/dev/null
    load "$side" "$work/fill/$side" --mix put=100 -R20k -d8s
done
for method in put get; do
    for ((round = 0; round < rounds; round++)); do
        echo "$method: round $((round + 1)) of $rounds" >&2
        for ((turn = 0; turn < ${#sides[@]}; turn++)); do
            side=${sides[$(((turn + round) % ${#sides[@]}))]}
            load "$side" "$work/$method/$side/$round" --mix "$method=100" --closed -d2s \
                --warmup 200ms
        done
    done
done
for method in put get; do
    for other in without again; do
        printf '\n%s: A is with, B is %s\n' "$method" "$other"
        "$KVORUM" compare "$work/$method/with" "$work/$method/$other"
    done
done
