#!/usr/bin/env bash
# Plants one classic protocol bug after the other and has the simulator look for it, from number 24
# on also the tests of crates/cluster and crates/node. The proof that they can fail. Exits with 1 if
# a bug survives.
#
#   planted/protocol.sh             all bugs; prints two tables in Markdown
#   planted/protocol.sh 07 12       those only
#
# Works on a copy of the tracked files in $TMPDIR; builds into target/planted.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
cargo=${CARGO:-cargo}
# Seeds that a bug may hide from: before this number, and from it on.
first_with_tests=24
seeds=${PLANTED_SEEDS:-1000}
seeds_with_tests=${PLANTED_SEEDS:-60}
# Seconds that the tests may take.
limit=${PLANTED_TIMEOUT:-300}

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z | xargs -0 cp --parents -t "$copy"
export CARGO_TARGET_DIR=$root/target/planted
cd "$copy"

# Names the tests that fail, and the scripts.
failing_tests() {
    local tests=(-p cluster -p node --lib --test scripts --no-fail-fast)
    timeout "$limit" "$cargo" test -q "${tests[@]}" >.log 2>&1 || true
    if grep -q "could not compile" .log; then
        cat .log >&2
        return 1
    fi
    sed -nE 's/^(.*[^a-z_])?([a-z_]+\.txt)(, line [0-9]+:|: > .*)$/\2/p' .log | sort -u
    sed -nE 's/^    ([a-z_]+::.*)$/\1/p' .log | sort -u
}

# Says after how many seeds, of so many at most, the simulator finds it, and as what; nothing if it
# does not.
seeds_until_found() {
    "$cargo" build -q -p sim 2>.log || { cat .log >&2; return 1; }
    "$CARGO_TARGET_DIR/debug/sim" sweep --first --count "$1" >.out 2>.log || true
    local found
    found=$(sed -nE 's/^seed ([0-9]+): at [0-9.]+: ([^:]*):.*/\1 \2/p' .out | head -1)
    if [ -n "$found" ]; then
        echo "$((${found%% *} + 1)) | ${found#* }"
    fi
}

survived=0 printed=
header() {
    if [ "$printed" != "$1" ]; then printf '%s\n%s\n' "$2" "$3"; fi
    printed=$1
}
for patch in planted/protocol/*.patch; do
    name=$(basename "$patch" .patch)
    number=${name%%-*}
    if [ $# -gt 0 ] && [[ " $* " != *" $number "* ]]; then continue; fi
    bug=$(head -1 "$patch" | sed 's/\.$//')
    git apply "$patch"
    if [ "$number" -lt "$first_with_tests" ]; then
        found=$(seeds_until_found "$seeds")
        git apply --reverse "$patch"
        header seeds "| planted bug | seeds until it was found | as |" "|---|---|---|"
        if [ -z "$found" ]; then survived=1; fi
        echo "| $bug | ${found:-**not found in $seeds** |} |"
        continue
    fi
    caught=$(failing_tests) || { echo "$name does not compile" >&2; exit 1; }
    found=$(seeds_until_found "$seeds_with_tests")
    git apply --reverse "$patch"
    header tests "| planted bug | caught by the tests of crates/cluster and crates/node | seeds \
until the simulation found it |" "|---|---|---|"
    count=$(grep -c . <<<"$caught" || true)
    by=$(head -2 <<<"$caught" | sed 's/.\+/`&`/' | paste -sd, | sed 's/,/, /g')
    if [ "$count" -gt 2 ]; then by="$by and $((count - 2)) more"; fi
    if [ -z "$caught$found" ]; then
        survived=1
        by="**nothing**"
    fi
    echo "| $bug | $by | $(sed 's/ | /: /' <<<"${found:--}") |"
done
exit $survived
