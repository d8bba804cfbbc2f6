#!/usr/bin/env bash
# Builds all programs to measure with one profile, then measures them: see
# docs/results/benchmarks.md. The first run builds RocksDB from its sources; DB_BENCH is the path of
# another db_bench. CARGO is another cargo (default: cargo).
set -euo pipefail
cd "$(dirname "$0")/.."
"${CARGO:-cargo}" build --release --quiet -p bench-engine
if [ -z "${DB_BENCH:-}" ]; then
    # If the build fails, the other engines are measured, and the report says why.
    DB_BENCH=$(bench/engine/rocksdb/build.sh) || DB_BENCH=
fi
export DB_BENCH
exec target/release/bench-engine "$@"
