#!/usr/bin/env bash
# Builds kvorum, hyper-hello and this benchmark in release mode, and runs the benchmark with the
# given arguments (see docs/results/benchmarks.md). CARGO is the path of another cargo (default:
# cargo).
set -euo pipefail
cd "$(dirname "$0")/.."
"${CARGO:-cargo}" build --release --quiet -p kvorum -p hyper-hello -p bench-http
exec target/release/bench-http "$@"
