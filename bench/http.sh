#!/usr/bin/env bash
# Builds all programs to measure with one profile, then measures them: see
# docs/results/benchmarks.md. CARGO is another cargo (default: cargo).
set -euo pipefail
cd "$(dirname "$0")/.."
"${CARGO:-cargo}" build --release --quiet -p kvorum -p hyper-hello -p bench-http
exec target/release/bench-http "$@"
