#!/usr/bin/env bash
# Builds this benchmark in release mode, and runs it with the given arguments (see
# docs/results/benchmarks.md). Environment:
#   DB_BENCH  path of a db_bench binary (default: built from RocksDB's sources on the first run)
#   CARGO     path of cargo (default: cargo)
set -euo pipefail
cd "$(dirname "$0")/.."
"${CARGO:-cargo}" build --release --quiet -p bench-engine
if [ -z "${DB_BENCH:-}" ]; then
    # If the build fails, the benchmark measures only the other engines, and reports the reason.
    DB_BENCH=$(bench/engine/rocksdb/build.sh) || DB_BENCH=
fi
export DB_BENCH
exec target/release/bench-engine "$@"
