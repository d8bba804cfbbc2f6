#!/usr/bin/env bash
# Builds all programs to measure with one profile, then measures them: see
# docs/results/benchmarks.md. The first run builds etcd from its sources; ETCD is the path of
# another etcd. CASSANDRA is the directory that bench/cluster/cassandra/build.sh prints; without it,
# Cassandra is left out. CARGO is another cargo (default: cargo).
set -euo pipefail
cd "$(dirname "$0")/.."
"${CARGO:-cargo}" build --release --quiet -p kvorum -p bench-cluster \
    ${CASSANDRA:+--features bench-cluster/cassandra}
case " $* " in
*' --no-etcd '* | *' --help '* | *' -h '*) ;;
*)
    if [ -z "${ETCD:-}" ]; then
        # If the build fails, an installed etcd is measured, or none, and the report says which.
        ETCD=$(bench/cluster/etcd/build.sh) || ETCD=
    fi
    ;;
esac
export ETCD="${ETCD:-}"
exec target/release/bench-cluster "$@"
