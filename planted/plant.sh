# Shared functions of the scripts that plant bugs. When sourced at the root of the repository, this
# script copies the tracked files to a directory in $TMPDIR, and changes to that directory. Builds
# go to target/planted.
cargo=${CARGO:-cargo}
# Longest time of a test run in seconds. A planted bug may make a test wait forever.
limit=${PLANTED_TIMEOUT:-$most_seconds}

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z | xargs -0 cp --parents -t "$copy"
export CARGO_TARGET_DIR=$PWD/target/planted RUST_BACKTRACE=0
cd "$copy"

# Runs tests, whose output goes to .log. Prints a remark if the tests did not end in time.
run_tests() {
    local status=0
    timeout "$limit" "$cargo" test "$@" >.log 2>&1 || status=$?
    if grep -q "could not compile" .log; then
        cat .log >&2
        return 1
    fi
    if [ $status -eq 124 ]; then echo "(no end within $limit s)"; fi
}

# Handles a planted $patch that does not compile: reverts it, and counts it as survived.
does_not_compile() {
    git apply --reverse "$patch"
    echo "$name does not compile" >&2
    survived=1
}

# Prints the first MOST of the names NAMES in Markdown, and the number of the others.
in_short() {
    local most=$1 names=$2 count
    count=$(grep -c . <<<"$names" || true)
    head -"$most" <<<"$names" | sed 's/.\+/`&`/' | paste -sd, | sed 's/,/, /g' | tr -d '\n'
    if [ "$count" -gt "$most" ]; then echo -n " and $((count - most)) more"; fi
}

# Prints after how many of COUNT seeds the simulator found the bug, and which kind of error it
# reported. Prints nothing if the simulator did not find the bug. Passes further arguments to the
# simulator.
seeds_until_found() {
    local count=$1
    shift
    "$cargo" build -q -p sim 2>.log || { cat .log >&2; return 1; }
    "$CARGO_TARGET_DIR/debug/sim" sweep --first --count "$count" "$@" >.out 2>.log || true
    local what='^seed ([0-9]+): at [0-9.]+: (b"[^"]*": )?([^:,]*)[:,].*' found
    found=$(sed -nE "s/$what/\1 \3/p" .out | head -1)
    if [ -n "$found" ]; then echo "$((${found%% *} + 1)): ${found#* }"; fi
}
