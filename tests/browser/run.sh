#!/usr/bin/env bash
# Runs the browser tests (Playwright with Debian's Chromium). Installs missing programs: Chromium
# by apt if run as root, Playwright by npm from package-lock.json.
#
#     tests/browser/run.sh [PLAYWRIGHT'S ARGUMENTS]      report.spec.js, -g 'dark', --headed ...
#     UPDATE_SCREENSHOTS=1 tests/browser/run.sh          also writes docs/images/*.png
#
# KVORUM names the binary, with kvorum-bench beside it (default: debug builds, which this script
# makes); CHROMIUM names the browser, CARGO cargo.
set -euo pipefail
cd "$(dirname "$0")"
export PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD=1 NO_COLOR=1
# Node.js prints a warning in each process if both NO_COLOR and FORCE_COLOR are set.
unset FORCE_COLOR

fail() {
    echo "run.sh: $1" >&2
    exit 1
}

command -v npm >/dev/null || fail "npm is missing: install Node.js 20 or newer"
if [ ! -x "${CHROMIUM:-/usr/bin/chromium}" ]; then
    [ -z "${CHROMIUM:-}" ] || fail "there is no $CHROMIUM, which CHROMIUM names"
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null ||
        fail "Chromium is missing: install Debian's 'chromium', or name one by CHROMIUM=PATH"
    apt-get update -q
    apt-get install -qy --no-install-recommends chromium fonts-dejavu-core
fi
# npm records the installed packages in this file: if it is newer than the lock file, nothing is
# missing.
if [ ! node_modules/.package-lock.json -nt package-lock.json ]; then
    npm ci
fi
if [ -z "${KVORUM:-}" ]; then
    (cd ../.. && "${CARGO:-cargo}" build --locked -p kvorum -p kvorum-bench)
fi
exec npx --no-install playwright test "$@"
