#!/usr/bin/env bash
# Builds and runs the benchmark of the load generator: see docs/guide/measuring-kit.md. CARGO is
# another cargo (default: cargo).
set -euo pipefail
cd "$(dirname "$0")/.."
"${CARGO:-cargo}" build --release --quiet -p hyper-hello -p bench-load
exec target/release/bench-load "$@"
