#!/usr/bin/env bash
# Plants classic protocol bugs one after the other, to prove that the simulator can fail, and from
# number 24 on also the tests of crates/record, crates/protocol and crates/server. The exit code is
# 1 if a bug survives or no longer compiles.
#
#   planted/protocol.sh             all bugs; prints two tables in Markdown
#   planted/protocol.sh 07 12       only the bugs with these numbers
#   planted/protocol.sh --briefly   goes on to the next bug once one of three catches it, in this
#                                   order: the tests of crates/protocol, the tests of
#                                   crates/server, the simulation. About an hour for all bugs;
#                                   some hours without --briefly.
set -euo pipefail
cd "$(dirname "$0")/.."
briefly=
if [ "${1:-}" = --briefly ]; then
    briefly=1
    shift
fi
# Maximum number of seeds for a bug: below number $first_with_tests, and from this number on.
first_with_tests=24
seeds=${PLANTED_SEEDS:-1000}
seeds_with_tests=${PLANTED_SEEDS:-60}
# Bugs from this number on need moving keys. Their seeds have more moves, and take twice as long.
first_with_moves=91
seeds_with_moves=${PLANTED_SEEDS:-40}
most_seconds=300
. planted/plant.sh

# Prints the names of the failing tests and scripts of the given packages.
failing_tests() {
    run_tests -q "$@" --no-fail-fast || return 1
    sed -nE 's/^(.*[^a-z_])?([a-z_]+\.txt)(, line [0-9]+:|: > .*)$/\2/p' .log | sort -u
    sed -nE 's/^    ([a-z_]+::.*)$/\1/p' .log | sort -u
}

tests_that_catch() {
    if [ -z "$briefly" ]; then
        failing_tests -p record -p protocol -p server --lib --test scripts
        return
    fi
    local caught
    caught=$(failing_tests -p protocol --lib --test scripts) || return 1
    if [ -z "$caught" ]; then caught=$(failing_tests -p server --lib) || return 1; fi
    if [ "$caught" ]; then echo "$caught"; fi
}

survived=0 printed=
header() {
    if [ "$printed" != "$1" ]; then printf '%s\n%s\n' "$2" "$3"; fi
    printed=$1
}
for patch in $(printf '%s\n' planted/protocol/*.patch | sort -V); do
    name=$(basename "$patch" .patch)
    number=${name%%-*}
    if [ $# -gt 0 ] && [[ " $* " != *" $number "* ]]; then continue; fi
    bug=$(head -1 "$patch" | sed 's/\.$//')
    git apply "$patch"
    if [ "$number" -lt "$first_with_tests" ]; then
        found=$(seeds_until_found "$seeds") || { reject_patch; continue; }
        git apply --reverse "$patch"
        header seeds "| planted bug | seeds until it was found | as |" "|---|---|---|"
        if [ -z "$found" ]; then survived=1; fi
        found=${found:-**not found in $seeds**: }
        echo "| $bug | ${found%%: *} | ${found#*: } |"
        continue
    fi
    caught=$(tests_that_catch) || { reject_patch; continue; }
    if [ "$briefly" ] && [ "$caught" ]; then
        found=
    elif [ "$number" -lt "$first_with_moves" ]; then
        found=$(seeds_until_found "$seeds_with_tests")
    else
        found=$(seeds_until_found "$seeds_with_moves" --members 700)
    fi
    git apply --reverse "$patch"
    header tests "| planted bug | caught by the tests of crates/protocol and crates/server | seeds \
until the simulation found it |" "|---|---|---|"
    by=$(list_names 2 "$caught")
    if [ -z "$caught$found" ]; then
        survived=1
        by="**nothing**"
    fi
    echo "| $bug | $by | ${found:--} |"
done
exit $survived
