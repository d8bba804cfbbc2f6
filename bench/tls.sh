#!/usr/bin/env bash
# Measures what TLS costs: see docs/results/benchmarks.md. Needs two CPUs and nginx (apt-get install
# nginx-light). CARGO is another cargo (default: cargo).
set -euo pipefail
cd "$(dirname "$0")/.."
"${CARGO:-cargo}" build --release --quiet -p kvorum -p bench-tls
exec target/release/bench-tls "$@"
