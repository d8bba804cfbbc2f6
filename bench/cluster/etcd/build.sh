#!/usr/bin/env bash
# Builds etcd if this version is not built yet, and prints the path of the binary. go.mod beside
# this script pins the version. The build has no cgo and no symbols, like etcd's own releases. Needs
# the version of Go that go.mod requires, and access to the modules (`go mod download`). Takes a
# minute or two.
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
