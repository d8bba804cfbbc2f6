#!/usr/bin/env bash
# Builds everything that is measured with one profile, then measures it: see
# docs/results/benchmarks.md. RocksDB is built from its sources at the first run; DB_BENCH names
# another db_bench. CARGO names another cargo (default: cargo).
set -euo pipefail
cd "$(dirname "$0")/.."
"${CARGO:-cargo}" build --release --quiet -p bench-engine
if [ -z "${DB_BENCH:-}" ]; then
    # Without it the others are measured, and the report says why.
    DB_BENCH=$(bench/engine/rocksdb/build.sh) || DB_BENCH=
fi
export DB_BENCH
exec target/release/bench-engine "$@"
