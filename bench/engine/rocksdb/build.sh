#!/usr/bin/env bash
# Builds RocksDB's db_bench in release mode if this version is not built yet, and prints its path.
# The sources come with the crate librocksdb-sys; Cargo.lock beside this script pins its version.
# Needs Debian's `cmake g++ make libgflags-dev liblz4-dev`; takes about half an hour of CPU time.
# CARGO is the path of another cargo. JOBS is the number of parallel compilers (default: one for
# each CPU).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cargo=${CARGO:-cargo}
"$cargo" fetch --quiet --locked --manifest-path "$here/Cargo.toml" >&2
manifest=$("$cargo" metadata --locked --format-version 1 --manifest-path "$here/Cargo.toml" |
    grep -o '"manifest_path":"[^"]*/librocksdb-sys-[^"]*/Cargo.toml"' | cut -d'"' -f4)
crate=$(dirname "$manifest")
version=${crate##*+}
build=${CARGO_TARGET_DIR:-$here/../../../target}/rocksdb-$version
if [ ! -x "$build/db_bench" ]; then
    echo "building db_bench of RocksDB $version, once, in $build" >&2
    # Built like RocksDB's releases: optimized for this machine, without assertions. Compiler
    # warnings about its sources are not errors, because they depend on the compiler's version.
    cmake -S "$crate/rocksdb" -B "$build" -DCMAKE_BUILD_TYPE=Release -DWITH_LZ4=ON \
        -DWITH_GFLAGS=ON -DWITH_LIBURING=OFF -DWITH_TESTS=OFF -DWITH_TOOLS=OFF \
        -DWITH_CORE_TOOLS=OFF -DROCKSDB_BUILD_SHARED=OFF -DFAIL_ON_WARNINGS=OFF >&2
    nice -n 19 cmake --build "$build" --target db_bench -j"${JOBS:-$(nproc)}" >&2
fi
printf '%s\n' "$build/db_bench"
