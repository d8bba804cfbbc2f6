#!/usr/bin/env bash
# Builds kvorum and this benchmark in release mode, and runs the benchmark with the given arguments
# (see docs/results/benchmarks.md). Environment:
#   ETCD       path of an etcd binary (default: built from etcd's sources on the first run)
#   CASSANDRA  directory that bench/cluster/cassandra/build.sh printed (default: no Cassandra)
#   CARGO      path of cargo (default: cargo)
set -euo pipefail
cd "$(dirname "$0")/.."
"${CARGO:-cargo}" build --release --quiet -p kvorum -p bench-cluster \
    ${CASSANDRA:+--features bench-cluster/cassandra}
case " $* " in
*' --no-etcd '* | *' --help '* | *' -h '*) ;;
*)
    if [ -z "${ETCD:-}" ]; then
        # If the build fails, the benchmark uses an installed etcd, or none, and reports which.
        ETCD=$(bench/cluster/etcd/build.sh) || ETCD=
    fi
    ;;
esac
export ETCD="${ETCD:-}"
exec target/release/bench-cluster "$@"
