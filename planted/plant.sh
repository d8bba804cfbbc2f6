# Shared parts of the scripts that plant bugs. A script sources this file at the root of the
# repository. This file copies the tracked files to $TMPDIR and makes the copy the working
# directory. Builds go to target/planted.
cargo=${CARGO:-cargo}
# Time limit of a test run, in seconds: a bug may make a test wait for ever.
limit=${PLANTED_TIMEOUT:-$most_seconds}

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z | xargs -0 cp --parents -t "$copy"
export CARGO_TARGET_DIR=$PWD/target/planted RUST_BACKTRACE=0
cd "$copy"

# Runs tests with their output in .log. Prints a note if they reach the time limit. Fails if they do
# not compile.
run_tests() {
    local status=0
    timeout "$limit" "$cargo" test "$@" >.log 2>&1 || status=$?
    if grep -q "could not compile" .log; then
        cat .log >&2
        return 1
    fi
    if [ $status -eq 124 ]; then echo "(no end within $limit s)"; fi
}

# Handles a $patch that does not compile: reverts it, and counts its bug as one that survived.
reject_patch() {
    git apply --reverse "$patch"
    echo "$name does not compile" >&2
    survived=1
}

# list_names MOST NAMES: prints the first MOST names in Markdown, and the number of further names.
list_names() {
    local most=$1 names=$2 count
    count=$(grep -c . <<<"$names" || true)
    head -"$most" <<<"$names" | sed 's/.\+/`&`/' | paste -sd, | sed 's/,/, /g' | tr -d '\n'
    if [ "$count" -gt "$most" ]; then echo -n " and $((count - most)) more"; fi
}

# seeds_until_found COUNT ARGUMENT...: runs the simulator, with the arguments, on at most COUNT
# seeds. Prints the number of seeds until the first error, and the error's kind. Prints nothing
# without an error.
seeds_until_found() {
    local count=$1
    shift
    "$cargo" build -q -p sim 2>.log || { cat .log >&2; return 1; }
    "$CARGO_TARGET_DIR/debug/sim" sweep --first --count "$count" "$@" >.out 2>.log || true
    local what='^seed ([0-9]+): at [0-9.]+: (b"[^"]*": )?([^:,]*)[:,].*' found
    found=$(sed -nE "s/$what/\1 \3/p" .out | head -1)
    if [ -n "$found" ]; then echo "$((${found%% *} + 1)): ${found#* }"; fi
}
