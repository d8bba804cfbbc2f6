#!/usr/bin/env bash
# Plants bugs one after the other into crates/server, the code between protocol and engine. Prints
# which tests of crates/server catch each bug, and after how many seeds the simulator finds it. The
# exit code is 1 if a bug survives both or no longer compiles.
#
#   planted/runtime.sh              all bugs; prints a table in Markdown
#   planted/runtime.sh 07 12        only the bugs with these numbers
#   planted/runtime.sh --briefly    runs the simulation only for bugs that no test has caught
set -euo pipefail
cd "$(dirname "$0")/.."
briefly=
if [ "${1:-}" = --briefly ]; then
    briefly=1
    shift
fi
# Maximum number of seeds that the simulator runs for a bug.
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
    caught=$(failing_tests) || { reject_patch; continue; }
    found=
    if [ -z "$briefly" ] || [ -z "$caught" ]; then found=$(seeds_until_found "$seeds"); fi
    git apply --reverse "$patch"
    by=$(list_names 2 "$caught")
    if [ -z "$caught$found" ]; then
        survived=1
        by="**nothing**"
    fi
    echo "| $(head -1 "$patch" | sed 's/\.$//') | $by | ${found:--} |"
done
exit $survived
