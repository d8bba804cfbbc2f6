#!/usr/bin/env bash
# Plants one bug after the other into crates/server, between protocol and engine, and shows which of
# its tests catch it, and after how many seeds the simulator does. Exits with 1 if a bug survives
# both or no longer compiles.
#
#   planted/runtime.sh              all bugs; prints a table in Markdown
#   planted/runtime.sh 07 12        those only
#   planted/runtime.sh --briefly    asks the simulation only about what no test has caught
set -euo pipefail
cd "$(dirname "$0")/.."
briefly=
if [ "${1:-}" = --briefly ]; then
    briefly=1
    shift
fi
# Seeds that the simulator goes through at most.
seeds=${PLANTED_SEEDS:-60}
most_seconds=300
. planted/plant.sh

failing_tests() {
    run_tests -q -p server --no-fail-fast || return 1
    sed -nE 's/^    (.*::.*)$/\1/p' .log | sort -u
}

echo "| planted bug | caught by the tests | seeds until the simulation found it |"
echo "|---|---|---|"
survived=0
for patch in planted/runtime/*.patch; do
    name=$(basename "$patch" .patch)
    if [ $# -gt 0 ] && [[ " $* " != *" ${name%%-*} "* ]]; then continue; fi
    git apply "$patch"
    caught=$(failing_tests) || { does_not_compile; continue; }
    found=
    if [ -z "$briefly" ] || [ -z "$caught" ]; then found=$(seeds_until_found "$seeds"); fi
    git apply --reverse "$patch"
    by=$(in_short 2 "$caught")
    if [ -z "$caught$found" ]; then
        survived=1
        by="**nothing**"
    fi
    echo "| $(head -1 "$patch" | sed 's/\.$//') | $by | ${found:--} |"
done
exit $survived
