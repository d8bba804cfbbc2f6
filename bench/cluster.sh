#!/usr/bin/env bash
# Builds everything that is measured with one profile, then measures it: see
# docs/results/benchmarks.md. etcd is built from its sources at the first run; ETCD names another
# etcd. CASSANDRA names what bench/cluster/cassandra/build.sh fetches; without it there is none.
# CARGO names another cargo (default: cargo).
set -euo pipefail
cd "$(dirname "$0")/.."
"${CARGO:-cargo}" build --release --quiet -p kvorum -p bench-cluster \
    ${CASSANDRA:+--features bench-cluster/cassandra}
case " $* " in
*' --no-etcd '* | *' --help '* | *' -h '*) ;;
*)
    if [ -z "${ETCD:-}" ]; then
        # Without it an etcd that is installed is measured, or none, and the report says which.
        ETCD=$(bench/cluster/etcd/build.sh) || ETCD=
    fi
    ;;
esac
export ETCD="${ETCD:-}"
exec target/release/bench-cluster "$@"
