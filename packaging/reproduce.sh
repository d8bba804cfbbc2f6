#!/usr/bin/env bash
# Builds packages twice and compares them byte by byte:
#
#     packaging/reproduce.sh [deb|rpm|static|sbom|chart]...        default: deb rpm sbom
#
# Both builds are of the last commit. They differ in folder, date (40 days), umask, time zone and
# language. The exit code is 0 only if all files have the same bytes. Needs what build.sh needs, and
# faketime. Each build compiles everything: two builds of the default take 30 minutes on two cores.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v faketime >/dev/null || {
    echo 'packaging/reproduce.sh: faketime is missing. To install it: apt-get install faketime' >&2
    exit 1
}
parts=("$@")
[ $# -gt 0 ] || parts=(deb rpm sbom)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
first=$work/one second=$work/another/folder
git clone -q . "$first"
git clone -q . "$second"
unset CARGO_TARGET_DIR SOURCE_DATE_EPOCH

(cd "$first" && umask 022 && TZ=UTC LC_ALL=C packaging/build.sh "${parts[@]}")
(cd "$second" && umask 027 && TZ=Asia/Kathmandu LC_ALL=C.UTF-8 \
    faketime -f +40d packaging/build.sh "${parts[@]}")

if diff "$first/target/dist/SHA256SUMS" "$second/target/dist/SHA256SUMS"; then
    echo "the same bytes twice: $(wc -l <"$first/target/dist/SHA256SUMS") files"
    exit
fi
echo 'packaging/reproduce.sh: the files named above differ; kept for diffoscope in' \
    "$first/target/dist and $second/target/dist" >&2
trap - EXIT
exit 1
