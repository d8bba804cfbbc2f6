#!/usr/bin/env bash
# Plants one bug after the other into what lies between protocol and engine (crates/node), and shows
# which of its tests catch it, and after how many seeds the simulator does. Exits with 1 if a bug
# survives both.
#
#   planted/runtime.sh              all bugs; prints a table in Markdown
#   planted/runtime.sh 07 12        those only
#
# Works on a copy of the tracked files in $TMPDIR; builds into target/planted.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
cargo=${CARGO:-cargo}
# Seeds that the simulator goes through at most, and seconds that the tests may take.
seeds=${PLANTED_SEEDS:-60}
limit=${PLANTED_TIMEOUT:-300}

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z | xargs -0 cp --parents -t "$copy"
export CARGO_TARGET_DIR=$root/target/planted RUST_BACKTRACE=0
cd "$copy"

# Names the tests that fail.
failing_tests() {
    timeout "$limit" "$cargo" test -q -p node --no-fail-fast >.log 2>&1 || true
    if grep -q "could not compile" .log; then
        cat .log >&2
        return 1
    fi
    sed -nE 's/^    (.*::.*)$/\1/p' .log | sort -u
}

# Says after how many seeds the simulator finds it, and as what; nothing if it does not.
seeds_until_found() {
    "$cargo" build -q -p sim 2>.log || { cat .log >&2; return 1; }
    "$CARGO_TARGET_DIR/debug/sim" sweep --first --count "$seeds" >.out 2>.log || true
    local found
    found=$(sed -nE 's/^seed ([0-9]+): at [0-9.]+: ([^:]*):.*/\1 \2/p' .out | head -1)
    if [ -n "$found" ]; then
        echo "$((${found%% *} + 1)): ${found#* }"
    fi
}

echo "| planted bug | caught by the tests | seeds until the simulation found it |"
echo "|---|---|---|"
survived=0
for patch in planted/runtime/*.patch; do
    name=$(basename "$patch" .patch)
    if [ $# -gt 0 ] && [[ " $* " != *" ${name%%-*} "* ]]; then continue; fi
    git apply "$patch"
    caught=$(failing_tests) || { echo "$name does not compile" >&2; exit 1; }
    found=$(seeds_until_found)
    git apply --reverse "$patch"
    count=$(grep -c . <<<"$caught" || true)
    by=$(head -2 <<<"$caught" | sed 's/.\+/`&`/' | paste -sd, | sed 's/,/, /g')
    if [ "$count" -gt 2 ]; then by="$by and $((count - 2)) more"; fi
    if [ -z "$caught$found" ]; then
        survived=1
        by="**nothing**"
    fi
    echo "| $(head -1 "$patch" | sed 's/\.$//') | $by | ${found:--} |"
done
exit $survived
