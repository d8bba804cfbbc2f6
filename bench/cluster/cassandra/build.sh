#!/usr/bin/env bash
# Fetches Cassandra and its libraries if this version is not fetched yet, and prints the directory.
# pom.xml beside this script pins the version. Needs Maven and access to its repositories; Cassandra
# itself needs Java 17 to run. Takes a minute.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
version=$(sed -n '/<artifactId>cassandra-all</{n;s/.*<version>\(.*\)<.*/\1/p}' "$here/pom.xml")
place=$(realpath -m "${CARGO_TARGET_DIR:-$here/../../../target}/cassandra-$version")
if [ ! -e "$place/lib/cassandra-all-$version.jar" ]; then
    if ! command -v mvn >/dev/null; then
        echo "Maven is not installed: Cassandra $version is not fetched" >&2
        exit 1
    fi
    echo "fetching Cassandra $version, once, into $place" >&2
    rm -rf "$place/fetched"
    nice -n 19 mvn -q -B -f "$here/pom.xml" dependency:copy-dependencies \
        -DincludeScope=runtime -DoutputDirectory="$place/fetched" >&2
    # Renamed only after the download is complete, so that an interrupted download is never used.
    rm -rf "$place/lib"
    mv "$place/fetched" "$place/lib"
fi
mkdir -p "$place/conf"
cp "$here"/{cassandra.yaml,jvm.options,modules.options,logback.xml} "$place/conf/"
printf '%s\n' "$place"
