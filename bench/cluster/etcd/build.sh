#!/usr/bin/env bash
# Builds etcd, once, and prints its path: the version that go.mod beside this script pins, without
# cgo and symbols, as etcd's own releases are built. Needs Go (go.mod has the version) and access to
# the modules that `go mod download` fetches; takes a minute or two.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
version=$(sed -n 's/^require go.etcd.io\/etcd\/server\/v3 v//p' "$here/go.mod")
program=$(realpath -m "${CARGO_TARGET_DIR:-$here/../../../target}/etcd-$version/etcd")
if [ ! -x "$program" ]; then
    if ! command -v go >/dev/null; then
        echo "Go is not installed: etcd $version is not built" >&2
        exit 1
    fi
    echo "building etcd $version, once, as $program" >&2
    CGO_ENABLED=0 nice -n 19 go build -C "$here" -trimpath -ldflags='-s -w' -mod=readonly \
        -o "$program" . >&2
fi
printf '%s\n' "$program"
