#!/usr/bin/env bash
# Tests upgrades before later releases exist: builds this tree, the next release and the release
# after it (testing/torture/releases/*.patch) in a copy, and runs the row "finalize" of torture.
# Three nodes are upgraded, downgraded and upgraded again under load, and are finalized. Takes some
# minutes.
#
#     testing/torture/finalize.sh [--rounds N] [--seed N]
#
# Needs strace and libfaketime. CARGO names another cargo command (default: cargo).
set -euo pipefail
cd "$(dirname "$0")/../.."
cargo=${CARGO:-cargo}
root=$PWD
built=${CARGO_TARGET_DIR:-$PWD/target}/releases
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z | xargs -0 cp --parents -t "$copy"
cd "$copy"

# Builds the copy in its current state, and keeps the binary as $1.
build() {
    CARGO_TARGET_DIR=$built "$cargo" build --quiet --locked --bin kvorum
    cp "$built/debug/kvorum" "$built/$1"
}

build earlier
git apply testing/torture/releases/1-next.patch
build next
git apply testing/torture/releases/2-after-next.patch
build later
cd "$root"
"$cargo" run --quiet --locked -p torture -- finalize --earlier "$built/earlier" \
    --binary "$built/next" --later "$built/later" "$@"
