#!/usr/bin/env bash
# Plants one classic protocol bug after the other and has the simulator look for it. The proof that
# the simulation can fail. Exits with 1 if a bug survives.
#
#   planted/protocol.sh             all bugs; prints a table in Markdown
#   planted/protocol.sh 07 12       those only
#
# Works on a copy of the tracked files in $TMPDIR; builds into target/planted.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
cargo=${CARGO:-cargo}
# Seeds that a bug may hide from.
seeds=${PLANTED_SEEDS:-1000}

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z | xargs -0 cp --parents -t "$copy"
export CARGO_TARGET_DIR=$root/target/planted
cd "$copy"

echo "| planted bug | seeds until it was found | as |"
echo "|---|---|---|"
survived=0
for patch in planted/protocol/*.patch; do
    name=$(basename "$patch" .patch)
    if [ $# -gt 0 ] && [[ " $* " != *" ${name%%-*} "* ]]; then continue; fi
    git apply "$patch"
    "$cargo" build -q -p sim 2>.log || { cat .log "$patch" >&2; exit 1; }
    # A bug may also break an assertion: the last seed that was begun is the one.
    "$CARGO_TARGET_DIR/debug/sim" sweep --first --count "$seeds" >.out 2>.log || true
    git apply --reverse "$patch"
    # shellcheck disable=SC2016
    found=$(sed -nE 's/^seed ([0-9]+): at [0-9.]+: ([^:]*):.*/\1 \2/p' .out | head -1)
    if [ -z "$found" ] && grep -q panicked .log; then
        last=$(tr '\r' '\n' <.log | sed -nE 's/.*seed ([0-9]+):.*/\1/p' | tail -1)
        found="$((${last:--1} + 1)) a failed assertion"
    fi
    if [ -z "$found" ]; then
        survived=1
        echo "| $(head -1 "$patch" | sed 's/\.$//') | **not found in $seeds** | |"
    else
        echo "| $(head -1 "$patch" | sed 's/\.$//') | $((${found%% *} + 1)) | ${found#* } |"
    fi
done
exit $survived
