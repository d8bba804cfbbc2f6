#!/usr/bin/env bash
# Plants one classic storage bug after the other and shows which tests catch it. The proof that the
# engine's tests can fail. Exits with 1 if a bug survives.
#
#   planted/run.sh                  all bugs; prints a table in Markdown
#   planted/run.sh 07 12            those only
#   planted/run.sh --check          only whether every patch still applies
#
# Works on a copy of the tracked files in $TMPDIR; builds into target/planted.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
cargo=${CARGO:-cargo}
# A bug may make a test wait for ever: that is caught too.
limit=${PLANTED_TIMEOUT:-600}

if [ "${1:-}" = --check ]; then
    for patch in planted/*.patch planted/protocol/*.patch planted/runtime/*.patch; do
        git apply --check "$patch" || { echo "$patch no longer applies" >&2; exit 1; }
    done
    exit 0
fi

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z | xargs -0 cp --parents -t "$copy"
export CARGO_TARGET_DIR=$root/target/planted RUST_BACKTRACE=0
cd "$copy"

# Runs the tests; prints the names of those that failed.
failures() {
    local status=0
    timeout "$limit" "$cargo" test -p lsm --no-fail-fast -- --skip planted >.log 2>&1 || status=$?
    if grep -q "could not compile" .log; then
        cat .log >&2
        return 1
    fi
    sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' .log | sort -u
    if [ $status -eq 124 ]; then echo "(no end within $limit s)"; fi
}

echo "| planted bug | caught by |"
echo "|---|---|"
survived=0
for patch in planted/*.patch; do
    name=$(basename "$patch" .patch)
    if [ $# -gt 0 ] && [[ " $* " != *" ${name%%-*} "* ]]; then continue; fi
    git apply "$patch"
    caught=$(failures) || { echo "$name does not compile" >&2; exit 1; }
    git apply --reverse "$patch"
    count=$(grep -c . <<<"$caught" || true)
    if [ "$count" -eq 0 ]; then
        survived=1
        by="**nothing**"
    else
        by=$(head -3 <<<"$caught" | sed 's/.*/`&`/' | paste -sd, | sed 's/,/, /g')
        if [ "$count" -gt 3 ]; then by="$by and $((count - 3)) more"; fi
    fi
    echo "| $(head -1 "$patch" | sed 's/\.$//') | $by |"
done
exit $survived
