#!/usr/bin/env bash
# Upgrades nodes of an earlier commit to this tree's, one after the other, under load (the row
# "upgrade" of docs/reliability.md). Builds both; a few minutes.
#
#     bench/upgrade.sh [COMMIT]
#
# COMMIT: what the nodes run at first; by default the last one that speaks version 8 of the peer
# protocol.
set -euo pipefail
cd "$(dirname "$0")/.."
commit=${1:-1ac6d089b521}
root=$PWD
tree=$(mktemp -d)
trap 'git worktree remove --force "$tree"' EXIT
git worktree add --quiet --detach "$tree" "$commit"
(cd "$tree" && CARGO_TARGET_DIR="$root/target/earlier" cargo build --release --locked --bin kvorum)
cargo run --release --locked -p torture -- upgrade --earlier "$PWD/target/earlier/release/kvorum"
