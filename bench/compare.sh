#!/usr/bin/env bash
# Measures how often the verdict of `kvorum bench compare` is right: on two equal servers, and on
# two servers of which one spends 10 % more CPU time per request.
#
#     bench/compare.sh [SETS [ROUNDS]]       default: 40 6
#
# There are three servers: A and "A again" spend 50 µs of CPU time per request, and the slower one
# spends 55 µs. A set has ROUNDS rounds. In each round, each server has one run of 1.5 s; the order
# of the servers rotates. After each set, A is compared with the two others. Prints how often the
# verdict on "A again" was "no difference" (aim: 95 %), and how often the verdict on the slower
# server was "B differs" (aim: 90 %). 40 sets take half an hour.
# Environment: KVORUM and HELLO are the binaries, with kvorum-bench beside KVORUM (default: release
# builds, made here). OUT is the file for the verdicts (default: target/compare.txt). CARGO is the
# path of another cargo. The server runs on CPU 0, the client on CPU 1.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."
sets=${1:-40} rounds=${2:-6} out=${OUT:-target/compare.txt} micros=50 more=5 rate=8000
if [ -z "${KVORUM:-}" ] || [ -z "${HELLO:-}" ]; then
    "${CARGO:-cargo}" build --release --quiet -p kvorum -p kvorum-bench -p hyper-hello
    KVORUM=$PWD/target/release/kvorum HELLO=$PWD/target/release/hyper-hello
fi
work=$(mktemp -d)
started=()
trap 'kill "${started[@]}" 2>/dev/null || true; rm -rf "$work"' EXIT
declare -A port=([a]=18971 [again]=18972 [slower]=18973)
for side in a again slower; do
    [ $side = slower ] && burnt=$((micros + more)) || burnt=$micros
    taskset -c 0 "$HELLO" "127.0.0.1:${port[$side]}" "$burnt" &
    started+=($!)
    curl -sf --retry 50 --retry-connrefused --retry-delay 1 "http://127.0.0.1:${port[$side]}/" \
        >/dev/null
done

# run SIDE NUMBER: loads the server SIDE for one run, and stores the run as number NUMBER.
run() {
    taskset -c 1 "$KVORUM" bench load -t1 -c8 -R$rate -d1500ms --warmup 300ms --keys uniform \
        --out "$work/$1/$2" "http://127.0.0.1:${port[$1]}" >/dev/null
}

mkdir -p "$(dirname "$out")"
: >"$out"
same=0 found=0
for ((set = 1; set <= sets; set++)); do
    rm -rf "${work:?}"/*
    for ((round = 0; round < rounds; round++)); do
        sides=(a again slower)
        for ((turn = 0; turn < 3; turn++)); do
            run "${sides[$(((turn + round) % 3))]}" "$round"
        done
    done
    for other in again slower; do
        verdict=$("$KVORUM" bench compare "$work/a" "$work/$other" | tail -1)
        echo "$set a $other: $verdict" | tee -a "$out"
        case "$other $verdict" in
        "again verdict: no difference"*) same=$((same + 1)) ;;
        "slower verdict: B differs"*) found=$((found + 1)) ;;
        esac
    done
done
echo "A and A: no difference in $same of $sets. A and A + 10 %: found in $found of $sets." |
    tee -a "$out"
