#!/usr/bin/env bash
# Builds packages twice and compares them byte by byte:
#
#     packaging/reproduce.sh [deb|rpm|static|sbom|chart]...        default: deb rpm sbom
#
# Both builds are of the last commit. They differ in folder, time, dates of the sources (40 days),
# umask, time zone and language. The exit code is 0 only if all files have the same bytes. Needs the
# tools of build.sh. Each build compiles everything: two builds of the default take 20 minutes on
# two cores.
set -euo pipefail
cd "$(dirname "$0")/.."

parts=("$@")
[ $# -gt 0 ] || parts=(deb rpm sbom)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
first=$work/one second=$work/another/folder
git clone -q . "$first"
git clone -q . "$second"
git -C "$second" ls-files -z | (cd "$second" && xargs -0 touch --date '40 days ago')
unset CARGO_TARGET_DIR SOURCE_DATE_EPOCH

(cd "$first" && umask 022 && TZ=UTC LC_ALL=C packaging/build.sh "${parts[@]}")
(cd "$second" && umask 027 && TZ=Asia/Kathmandu LC_ALL=C.UTF-8 packaging/build.sh "${parts[@]}")

if diff "$first/target/dist/SHA256SUMS" "$second/target/dist/SHA256SUMS"; then
    echo "the same bytes twice: $(wc -l <"$first/target/dist/SHA256SUMS") files"
    exit
fi
echo 'packaging/reproduce.sh: the files named above differ; kept for diffoscope in' \
    "$first/target/dist and $second/target/dist" >&2
trap - EXIT
exit 1
