#!/usr/bin/env bash
# Compares the CPU time of a GET and of a PUT with that of the floor: the build of the first commit
# of release quality. No later commit may need more CPU time than the floor. Without a fixed
# reference, small increases would add up unnoticed.
#
#     bench/guard.sh [--nodes 1|3] [ROUNDS]       default: one node, 15 rounds; about six minutes
#
# The floor is built once, into target/floor, and kept. With one node per binary, the nodes run on
# CPU 0 and the client on CPU 1; with three nodes, nodes and client share both CPUs. Nodes that are
# not being measured are suspended (SIGSTOP). In each round, each binary has three runs of 1 s in a
# closed loop on 32 connections: GETs and PUTs with --sync interval, and PUTs with --sync always. A
# figure is the user and system time of the nodes per request. A ratio is a figure divided by the
# floor's figure of the same round. Prints the median, least and greatest ratio of each kind of run.
# Exits with 1 if a median is above 1, and names the kind of run.
# Environment: KVORUM is the binary to compare, with kvorum-bench beside it (default: release
# builds, made here). FLOOR is the binary of the floor. CARGO is the path of another cargo.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."
floor_commit=5f054f2
nodes=1 cargo=${CARGO:-cargo}
if [ "${1:-}" = --nodes ]; then
    nodes=${2:?--nodes takes 1 or 3}
    shift 2
fi
rounds=${1:-15}
if [ -z "${KVORUM:-}" ]; then
    "$cargo" build --release --quiet --locked -p kvorum -p kvorum-bench
    KVORUM=$PWD/target/release/kvorum
fi
if [ -z "${FLOOR:-}" ]; then
    FLOOR=$PWD/target/floor/kvorum
    if [ ! -x "$FLOOR" ]; then
        echo "building the floor, $floor_commit: once" >&2
        tree=$PWD/target/floor/tree
        rm -rf "$tree" && git worktree prune
        git worktree add --quiet --detach "$tree" "$floor_commit"
        "$cargo" build --release --quiet --locked --manifest-path "$tree/Cargo.toml" -p kvorum \
            --target-dir "$PWD/target/floor/build"
        cp "$PWD/target/floor/build/release/kvorum" "$FLOOR"
        git worktree remove --force "$tree"
        rm -rf "$PWD/target/floor/build"
    fi
fi
work=$(mktemp -d)
started=()
finish() {
    # A suspended process handles SIGTERM only after SIGCONT.
    kill -CONT "${started[@]}" 2>/dev/null || true
    kill "${started[@]}" 2>/dev/null || true
    rm -rf "$work"
}
trap finish EXIT
case $nodes in
1) server=(taskset -c 0) client=(taskset -c 1) ;;
3) server=() client=() ;;
*)
    echo "--nodes takes 1 or 3, not $nodes" >&2
    exit 2
    ;;
esac

# Chooses free ports. All sockets stay open until the last port is chosen, so no port occurs twice.
mapfile -t ports < <(python3 - "$((nodes * 4))" <<'END'
import socket, sys
sockets = [socket.socket() for _ in range(int(sys.argv[1]))]
for one in sockets:
    one.bind(("127.0.0.1", 0))
    print(one.getsockname()[1])
END
)

# A side is a binary with a sync mode: floor.interval, now.interval, floor.always or now.always.
declare -A port pids
# start SIDE BINARY SYNC: starts the side's nodes, and waits until the first one serves.
start() {
    local side=$1 binary=$2 sync=$3 n urls=
    local own=("${ports[@]:0:nodes}")
    ports=("${ports[@]:nodes}")
    for n in "${own[@]}"; do urls+=${urls:+,}http://127.0.0.1:$n; done
    port[$side]=${own[0]} pids[$side]=
    for n in "${!own[@]}"; do
        local listed=()
        # Nodes of the floor identify one another by URL, so each is given its own URL.
        [ "$nodes" = 1 ] ||
            listed=(--cluster "$urls" --advertise "http://127.0.0.1:${own[$n]}")
        "${server[@]}" "$binary" serve --listen "127.0.0.1:${own[$n]}" --sync "$sync" \
            --data "$work/$side.$n" "${listed[@]}" >"$work/$side.$n.log" 2>&1 &
        started+=($!) pids[$side]+=" $!"
    done
    curl -sf --retry 50 --retry-all-errors --retry-delay 1 \
        "http://127.0.0.1:${port[$side]}/readyz" >/dev/null
}

# run SIDE METHOD DURATION: loads the side for DURATION, and prints the number of requests.
run() {
    rm -rf "$work/run"
    "${client[@]}" "$KVORUM" bench load -t1 -c32 --closed -d"$3" --warmup 100ms --value-len 64 \
        --key-count 100k --keys uniform --mix "$2=100" --out "$work/run" \
        "http://127.0.0.1:${port[$1]}" >"$work/run.log" 2>&1 || { cat "$work/run.log" >&2; exit 1; }
    awk '/requests in/ { print $1; exit }' "$work/run.log"
}

# spent SIDE: prints the CPU time of the side's nodes so far, in clock ticks.
spent() {
    local pid sum=0 fields
    for pid in ${pids[$1]}; do
        read -r -a fields < <(sed 's/.*) //' "/proc/$pid/stat")
        sum=$((sum + fields[11] + fields[12]))
    done
    echo "$sum"
}

# measure SIDE METHOD: loads the side for 1 s, and prints its CPU time per request in nanoseconds.
measure() {
    kill -CONT ${pids[$1]}
    local before requests
    before=$(spent "$1")
    requests=$(run "$1" "$2" 1s)
    # The CPU time of the flushes and compactions that the run causes counts too.
    sleep 0.3
    echo $((($(spent "$1") - before) * (1000000000 / $(getconf CLK_TCK)) / requests))
    kill -STOP ${pids[$1]}
}

for sync in interval always; do
    start "floor.$sync" "$FLOOR" "$sync"
    start "now.$sync" "$KVORUM" "$sync"
done
for side in "${!port[@]}"; do
    run "$side" put 8s >/dev/null
done
sleep 2
for side in "${!port[@]}"; do kill -STOP ${pids[$side]}; done
for ((round = 0; round < rounds; round++)); do
    echo "round $((round + 1)) of $rounds" >&2
    for what in "interval get" "interval put" "always put"; do
        read -r sync method <<<"$what"
        order=(floor now)
        ((round % 2)) && order=(now floor)
        for which in "${order[@]}"; do
            echo "$method $sync $which $(measure "$which.$sync" "$method")" >>"$work/figures"
        done
    done
done
python3 - "$work/figures" "$nodes" <<'END'
import collections, statistics, sys

figures = collections.defaultdict(lambda: collections.defaultdict(list))
for line in open(sys.argv[1]):
    method, sync, which, nanos = line.split()
    figures[f"{method.upper()} {sync}"][which].append(int(nanos))
above = []
print(f"CPU per request, {sys.argv[2]} node(s): ratio to the floor; microseconds")
for what, sides in figures.items():
    ratios = [now / floor for now, floor in zip(sides["now"], sides["floor"])]
    median = statistics.median(ratios)
    now, floor = (statistics.median(sides[side]) / 1000 for side in ("now", "floor"))
    spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
    print(f"{what:13} {median:.3f} ({spread}); {floor:.2f} to {now:.2f}")
    if median > 1:
        above.append(what)
if above:
    sys.exit("dearer than the floor: " + ", ".join(above))
END
