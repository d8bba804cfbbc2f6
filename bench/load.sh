#!/usr/bin/env bash
# Builds the benchmark of the load generator in release mode, and runs it with the given arguments
# (see docs/guide/measuring-kit.md). CARGO is the path of another cargo (default: cargo).
set -euo pipefail
cd "$(dirname "$0")/.."
"${CARGO:-cargo}" build --release --quiet -p hyper-hello -p bench-load
exec target/release/bench-load "$@"
