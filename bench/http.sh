#!/usr/bin/env bash
# Builds everything that is measured with one profile, then measures it: see
# docs/results/benchmarks.md. CARGO names another cargo (default: cargo).
set -euo pipefail
cd "$(dirname "$0")/.."
"${CARGO:-cargo}" build --release --quiet -p kvorum -p hyper-hello -p bench-http
exec target/release/bench-http "$@"
