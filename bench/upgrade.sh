#!/usr/bin/env bash
# Upgrades the nodes of a cluster from an earlier commit to this tree, one after another, under load
# (the row "upgrade" of docs/results/reliability.md). Builds both versions; takes a few minutes.
#
#     bench/upgrade.sh COMMIT
#
# COMMIT is the commit of the nodes before the upgrade, with the formats of 0.1.0 or later.
set -euo pipefail
cd "$(dirname "$0")/.."
commit=${1:?name the commit that the nodes run at first}
root=$PWD
tree=$(mktemp -d)
trap 'git worktree remove --force "$tree"' EXIT
git worktree add --quiet --detach "$tree" "$commit"
(cd "$tree" && CARGO_TARGET_DIR="$root/target/earlier" cargo build --release --locked --bin kvorum)
cargo run --release --locked -p torture -- upgrade --earlier "$PWD/target/earlier/release/kvorum"
