#!/usr/bin/env bash
# Plants one classic storage bug after the other and shows which tests catch it. The proof that the
# engine's tests can fail. Exits with 1 if a bug survives or no longer compiles.
#
#   planted/run.sh                  all bugs; prints a table in Markdown
#   planted/run.sh 07 12            those only
#   planted/run.sh --check          only whether every patch still applies, those of
#                                   testing/torture/releases too
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
    caught=$(failing_tests) || { does_not_compile; continue; }
    git apply --reverse "$patch"
    by=$(in_short 3 "$caught")
    if [ -z "$caught" ]; then
        survived=1
        by="**nothing**"
    fi
    echo "| $(head -1 "$patch" | sed 's/\.$//') | $by |"
done
exit $survived
