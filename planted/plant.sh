# What the scripts have in common that plant bugs. Sourced at the root of the repository, it makes a
# copy of the tracked files in $TMPDIR and goes there; what is built goes to target/planted.
cargo=${CARGO:-cargo}
# Seconds that tests may take: a bug may make one wait for ever.
limit=${PLANTED_TIMEOUT:-$most_seconds}

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z | xargs -0 cp --parents -t "$copy"
export CARGO_TARGET_DIR=$PWD/target/planted RUST_BACKTRACE=0
cd "$copy"

# Runs tests, of which .log tells; prints if they did not end.
run_tests() {
    local status=0
    timeout "$limit" "$cargo" test "$@" >.log 2>&1 || status=$?
    if grep -q "could not compile" .log; then
        cat .log >&2
        return 1
    fi
    if [ $status -eq 124 ]; then echo "(no end within $limit s)"; fi
}

# The planted $patch does not compile: it is taken out, and counts as one that survived.
does_not_compile() {
    git apply --reverse "$patch"
    echo "$name does not compile" >&2
    survived=1
}

# Prints the first so many of some names in Markdown, and how many more there are.
in_short() {
    local most=$1 names=$2 count
    count=$(grep -c . <<<"$names" || true)
    head -"$most" <<<"$names" | sed 's/.\+/`&`/' | paste -sd, | sed 's/,/, /g' | tr -d '\n'
    if [ "$count" -gt "$most" ]; then echo -n " and $((count - most)) more"; fi
}

# Prints after how many seeds, of so many at most, the simulator finds it, and as what; nothing if
# it does not. Further words are the simulator's.
seeds_until_found() {
    local count=$1
    shift
    "$cargo" build -q -p sim 2>.log || { cat .log >&2; return 1; }
    "$CARGO_TARGET_DIR/debug/sim" sweep --first --count "$count" "$@" >.out 2>.log || true
    local what='^seed ([0-9]+): at [0-9.]+: (b"[^"]*": )?([^:,]*)[:,].*' found
    found=$(sed -nE "s/$what/\1 \3/p" .out | head -1)
    if [ -n "$found" ]; then echo "$((${found%% *} + 1)): ${found#* }"; fi
}
