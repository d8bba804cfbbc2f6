#!/usr/bin/env bash
# Builds kvorum and the benchmark of TLS in release mode, and runs the benchmark with the given
# arguments (see docs/results/benchmarks.md). Needs two CPUs and nginx (apt-get install
# nginx-light). CARGO is the path of another cargo (default: cargo).
set -euo pipefail
cd "$(dirname "$0")/.."
"${CARGO:-cargo}" build --release --quiet -p kvorum -p bench-tls
exec target/release/bench-tls "$@"
