#!/usr/bin/env bash
# Repeats the load tests of the *seeds* (five published reports on JVM stores) against kvorum. Each
# procedure that their authors performed by hand is one command. docs/guide/measuring.md explains
# the commands.
#
#     bench/seeds.sh 000|001|002|003|004 ...
#
# Writes run directories and a report, SEED.html, into OUT (default: target/seeds). Environment:
#   DURATION  seconds of each run, in place of the seed's (000: 180, 001: 120, 002: 60, 004: 30)
#   TRIAL     seconds of each trial of a search (default: 10)
#   SYNC      sync mode of the nodes (default: interval; the seeds' stores had no log at all)
#   PROFILE   kinds of events that the nodes profile (default: cpu,alloc,lock,wall)
#   KVORUM    the binary, called kvorum, with kvorum-bench beside it (default: release builds, made
#             here)
# A single node runs on CPU 0, and its client on CPU 1. Three nodes and their client share all CPUs.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -z "${KVORUM:-}" ]; then
    "${CARGO:-cargo}" build --release --quiet -p kvorum -p kvorum-bench
    KVORUM=$PWD/target/release/kvorum
fi
# Adds kvorum to PATH, so that run directories record the commands as a person would type them.
PATH=$(dirname "$KVORUM"):$PATH
out=${OUT:-target/seeds} scripts=crates/load/tests/scripts
sync=${SYNC:-interval} profile=${PROFILE:-cpu,alloc,lock,wall} trial=${TRIAL:-10}
port=${PORT:-8080}
url=http://127.0.0.1:$port
node="taskset -c 0 kvorum serve --listen 127.0.0.1:$port --sync $sync --loops 1 --data {data}"
started=() data=$(mktemp -d)
mkdir -p "$out"

stop() {
    local pid
    for pid in "${started[@]}"; do kill "$pid" 2>/dev/null && wait "$pid" || true; done
    started=()
}
trap 'stop; rm -rf "$data"' EXIT

# start NODES FLAGS...: starts NODES nodes with empty stores on the ports from $port on, and waits
# until all serve.
start() {
    local count=$1 urls= i pin=()
    shift
    rm -rf "${data:?}"/*
    for ((i = 0; i < count; i++)); do urls+=${urls:+,}http://127.0.0.1:$((port + i)); done
    [ "$count" = 1 ] && pin=(taskset -c 0)
    for ((i = 0; i < count; i++)); do
        "${pin[@]}" kvorum serve --listen "127.0.0.1:$((port + i))" --data "$data/$i" \
            --sync "$sync" --cluster "$urls" "$@" >"$data/$i.log" 2>&1 &
        started+=($!)
    done
    for ((i = 0; i < count; i++)); do
        curl -sf --retry 50 --retry-connrefused --retry-delay 1 \
            "http://127.0.0.1:$((port + i))/readyz" >/dev/null
    done
}

# run NAME COMMAND...: prints the command so that it can be pasted into a shell, runs it, and stores
# its run directory as $out/NAME and its output as $out/NAME.txt.
run() {
    local command=("${@:2}" --out "$out/$1") word shown=
    for word in "${command[@]}"; do
        [[ $word == *[!A-Za-z0-9_.,:/=%-]* ]] && word="'$word'"
        shown+=" $word"
    done
    rm -rf "${out:?}/$1"
    echo "\$$shown" | tee "$out/$1.txt"
    "${command[@]}" 2>&1 | tee -a "$out/$1.txt"
}

# report SEED DIR...: makes one page of the runs in each DIR and of the runs in the seed's own
# report, so that charts show the curves of both. (The report of 004 contains no runs.)
report() {
    local seed=$1 theirs=("crates/load/tests/seeds/$1-"*.txt) dirs=("${@:2}")
    if [ "$seed" != 004 ]; then
        rm -rf "${out:?}/$seed-theirs"
        kvorum bench import "${theirs[@]}" -o "$out/$seed-theirs" >"$out/$seed-theirs.txt"
        dirs+=("$out/$seed-theirs")
    fi
    kvorum bench report "${dirs[@]}" --title "Seed $seed again" -o "$out/$seed.html"
}

client="taskset -c 1 kvorum bench"
for seed in "$@"; do
    case $seed in
    000) # sharding: 40 k/s of PUTs and 2.5 k/s of GETs at one of three nodes, one copy of each key
        start 3 --replicas 1
        declare -A rate=([put]=40000 [get]=2500)
        for method in put get; do
            run 000-$method kvorum bench load -t4 -c64 -R${rate[$method]} -d"${DURATION:-180}" \
                -s $scripts/$method.lua --latency --profile "$profile" "$url"
        done
        stop
        report 000 "$out/000-put" "$out/000-get"
        ;;
    001) # one connection, 10 k/s
        start 1 --loops 1
        for method in put get; do
            run 001-$method $client load -c 1 -t 1 -d "${DURATION:-120}" -R 10000 -L \
                -s $scripts/$method.lua --profile "$profile" "$url"
        done
        stop
        report 001 "$out/001-put" "$out/001-get"
        ;;
    002) # replication: 10 k/s at each of three nodes, 2 of 3 must answer
        start 3
        urls=("$url" "http://127.0.0.1:$((port + 1))" "http://127.0.0.1:$((port + 2))")
        for method in put get; do
            run 002-$method kvorum bench load -t2 -c128 -R10000 -d"${DURATION:-60}" -L \
                -s $scripts/$method.lua --target-mode each --profile "$profile" "${urls[@]}"
        done
        stop
        report 002 "$out/002-put" "$out/002-get"
        ;;
    003) # threads and queues: the breaking point for each number of event loops and queue length
        run 003 kvorum bench search -t2 -c64 --mix put=100 --also get=100 --prepare keys \
            -d "$trial" --server "${node/--loops 1 /}" --restart \
            --sweep loops=1,2 --sweep queue=16,1024 "$url"
        report 003 "$out/003"
        ;;
    004) # the breaking point by search, and four runs below it, cold and hot
        # get.lua reads one key after another, so as many keys are prepared as a trial can read.
        run 004-search $client search -t1 -c1 -s $scripts/put.lua --also $scripts/get.lua \
            --prepare $scripts/put.lua:$((trial * 60000)) -d "$trial" --server "$node" --restart \
            --profile "$profile" "$url"
        run 004-coldhot $client coldhot -t1 -c1 --put-rate 10000 --get-rate 10000 \
            -d "${DURATION:-30}" --server "$node" --profile "$profile" "$url"
        report 004 "$out/004-search" "$out/004-coldhot"
        ;;
    *)
        echo "seeds.sh: there is no seed $seed: 000 001 002 003 004" >&2
        exit 2
        ;;
    esac
done
