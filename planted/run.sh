#!/usr/bin/env bash
# Plants classic storage bugs one after the other, and prints which tests catch each bug: the proof
# that the engine's tests can fail. The exit code is 1 if a bug survives or no longer compiles.
#
#   planted/run.sh                  all bugs; prints a table in Markdown
#   planted/run.sh 07 12            only the bugs with these numbers
#   planted/run.sh --check          only checks that every patch still applies, including the
#                                   patches of testing/torture/releases
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "${1:-}" = --check ]; then
    for patch in planted/*.patch planted/protocol/*.patch planted/runtime/*.patch; do
        git apply --check "$patch" || { echo "$patch no longer applies" >&2; exit 1; }
    done
    # The second of these patches applies on top of the first one.
    cat testing/torture/releases/*.patch | git apply --check ||
        { echo "testing/torture/releases/*.patch no longer apply" >&2; exit 1; }
    exit 0
fi

most_seconds=600
. planted/plant.sh

failing_tests() {
    run_tests -p lsm -p record --no-fail-fast -- --skip planted || return 1
    sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' .log | sort -u
}

echo "| planted bug | caught by |"
echo "|---|---|"
survived=0
for patch in planted/*.patch; do
    name=$(basename "$patch" .patch)
    if [ $# -gt 0 ] && [[ " $* " != *" ${name%%-*} "* ]]; then continue; fi
    git apply "$patch"
    caught=$(failing_tests) || { reject_patch; continue; }
    git apply --reverse "$patch"
    by=$(list_names 3 "$caught")
    if [ -z "$caught" ]; then
        survived=1
        by="**nothing**"
    fi
    echo "| $(head -1 "$patch" | sed 's/\.$//') | $by |"
done
exit $survived
