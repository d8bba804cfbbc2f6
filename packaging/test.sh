#!/usr/bin/env bash
# Tests the packages of packaging/build.sh. Needs root, and Debian:
#
#     packaging/test.sh [deb|page|binary|static|static-aarch64|image|rpm|chart]   default: all
#
#   deb     installed, used, upgraded, downgraded, removed and purged, in a Debian root of its own
#           with a network of its own; faults, and a kill at every command of every script
#   page    the commands of docs/operate/install.md: three Debian roots become a TLS cluster
#   binary  its list of crates; the flame graph of a packaged node has function names
#   static  serves in a root without any other file; static-aarch64: the same, by qemu
#   image   its configuration; serves as its own user on a read-only root, in a chroot
#   rpm     both packages: installed, used and removed in a Debian root, by rpm
#   chart   linted and rendered with each file of packaging/chart/ci/, decoded strictly, and played
#           as processes (test-chart.py). KVORUM names another server (default: target/package/),
#           HELM another helm (default: helm)
#
# The Debian root is made once, by mmdebstrap, and kept in target/package/.
set -euo pipefail
cd "$(dirname "$0")/.."

stage=$PWD/target/package
dist=$PWD/target/dist
work=$(mktemp -d)
# Processes that this script has started. They are killed at its end, even if a test fails.
pids=()
clean() {
    local pid
    for pid in "${pids[@]}"; do kill -9 "$pid" 2>/dev/null || true; done
    rm -rf --one-file-system "$work"
}
trap clean EXIT

fail() {
    echo "packaging/test.sh: $*" >&2
    exit 1
}

need() {
    command -v "$1" >/dev/null || fail "$1 is missing. To install it: apt-get install ${2:-$1}"
}

# poll SECONDS COMMAND...: repeats COMMAND until it succeeds. Fails after SECONDS.
poll() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$deadline" ] || fail "this did not happen: $*"
        sleep 0.05
    done
}

# one PATTERN: prints the file that matches PATTERN. Fails unless exactly one file matches.
one() {
    local found=($1)
    [ ${#found[@]} -eq 1 ] && [ -f "${found[0]}" ] ||
        fail "$1: there is not one such file. To build it: packaging/build.sh"
    echo "${found[0]}"
}

# debian ROOT: unpacks Debian into ROOT.
debian() {
    local base=$stage/debian-root.tar
    need mmdebstrap
    need unshare util-linux
    [ -s "$base" ] || mmdebstrap --quiet --variant=minbase \
        --include=systemd,init-system-helpers,openssl bookworm "$base"
    mkdir -p "$1"
    tar -C "$1" --exclude='./dev/*' -xf "$base"
}

test_page() {
    local name deb
    deb=$(one "$dist/kvorum_*.deb")
    for name in a b c; do debian "$work/$name"; done
    unshare --mount --pid --net --fork --kill-child --mount-proc packaging/test-page.sh "$deb" \
        "$work/a" "$work/b" "$work/c"
}

test_deb() {
    local root=$work/root deb
    deb=$(one "$dist/kvorum_*.deb")
    debian "$root"
    mkdir -p "$root/packages"
    install -m 755 packaging/stand-in.sh "$root/usr/local/bin/systemctl"
    cp "$deb" "$(one "$dist/kvorum-bench_*.deb")" "$(one "$dist/kvorum-dbgsym_*.deb")" \
        "$root/packages/"
    variants "$deb" "$root/packages"
    cp packaging/test-inside.sh "$root/"
    unshare --mount --pid --net --fork --kill-child packaging/enter.sh "$root" \
        /bin/bash /test-inside.sh
}

# variants DEB TO: repacks DEB as TO/later.deb, a later version with another settings file, and as
# TO/killed.deb, whose scripts are killed at the command whose number is in /kill-at.
variants() {
    local at=$work/variant script
    rm -rf "$at" && dpkg-deb -R "$1" "$at"
    sed -i 's/^Version: .*/Version: 0.1.1-1/' "$at/DEBIAN/control"
    echo '# A line of the later version.' >>"$at/etc/kvorum/kvorum.toml"
    dpkg-deb --root-owner-group --build "$at" "$2/later.deb" >/dev/null
    rm -rf "$at" && dpkg-deb -R "$1" "$at"
    for script in postinst prerm postrm; do
        { cat <<'END'; tail -n +2 "$at/DEBIAN/$script"; } >"$work/script"
#!/bin/bash
set -T
commands=0
trap '((++commands == $(cat /kill-at 2>/dev/null || echo 0))) && kill -9 $$' DEBUG
END
        install -m 755 "$work/script" "$at/DEBIAN/$script"
    done
    dpkg-deb --root-owner-group --build "$at" "$2/killed.deb" >/dev/null
}

# node COMMAND...: starts a node on a free port, and sets pid and url.
node() {
    # The URL must come from this node's log, not from an earlier node's.
    : >"$work/out"
    "$@" >"$work/out" 2>"$work/log" &
    pid=$!
    pids+=("$pid")
    poll 30 grep -q ' listening on ' "$work/out"
    url=$(sed -n 's/.* listening on \([^,]*\),.*/\1/p' "$work/out")
}

# Prints the number of linked crates, by the list that `cargo auditable` has stored in a program.
# Fails if the list lacks rustls.
print_crate_count() {
    objcopy -O binary --only-section=.dep-v0 --set-section-flags .dep-v0=alloc "$1" "$work/deps"
    python3 - "$work/deps" <<'END' || fail "$1 does not say which crates it is made of"
import json, sys, zlib
packages = json.loads(zlib.decompress(open(sys.argv[1], "rb").read()))["packages"]
print(f"made of {len(packages)} crates, by its own list")
sys.exit(not any(package["name"] == "rustls" for package in packages))
END
}

test_binary() {
    local kvorum=$stage/kvorum writer
    [ -x "$kvorum" ] || fail "$kvorum is missing. To build it: packaging/build.sh deb"
    ! readelf -S "$kvorum" | grep -q '\.debug_info' || fail "$kvorum has debug information inside"
    "$kvorum" --version
    "$kvorum" --version | grep -q 'store format' || fail '--version names no formats'
    print_crate_count "$kvorum"
    node "$kvorum" serve --listen 127.0.0.1:0 --data "$work/data"
    (while :; do "$kvorum" scan --url "$url" || exit; done) >/dev/null 2>&1 &
    writer=$!
    pids+=("$writer")
    "$kvorum" profile "$url" -e cpu,alloc -d 3 -o folded --out "$work" >"$work/profile" 2>&1 ||
        fail "kvorum profile: $(cat "$work/profile")"
    kill "$writer"
    cat "$work"/*.folded | tr ';' '\n' | sed 's/ [0-9]*$//' | sort -u >"$work/names"
    local named nameless
    named=$(grep -c '^\(<\?kvorum\|<\?lsm\|<\?node\|<\?hyper\|<\?tokio\)' "$work/names" || true)
    nameless=$(grep -c '^\[kvorum+0x' "$work/names" || true)
    echo "its own flame graphs: $named functions by name, $nameless without"
    [ "$named" -ge 20 ] || fail "few functions have names: $(head -50 "$work/names")"
    [ "$nameless" -eq 0 ] || fail "functions without names: $(grep '+0x' "$work/names")"
    kill "$pid"
    poll 20 gone "$pid"
}

gone() { ! kill -0 "$1" 2>/dev/null; }

test_static() { serves_on_an_empty_root "$(uname -m)"; }

test_static-aarch64() {
    need qemu-aarch64-static qemu-user-static
    serves_on_an_empty_root aarch64 qemu-aarch64-static
}

# serves_on_an_empty_root MACHINE [EMULATOR]: tests the static program for MACHINE in a root without
# any other file.
serves_on_an_empty_root() {
    local name root=$work/empty-$1 run=(/kvorum)
    name=$(one "$dist/kvorum-*-$1-linux-musl.tar.xz")
    mkdir -p "$root/data"
    tar -C "$work" -xf "$name"
    cp "$work/$(basename "$name" .tar.xz)/kvorum" "$root/"
    ! readelf -l "$root/kvorum" | grep -q INTERP || fail 'the static program wants a loader'
    if [ $# -gt 1 ]; then
        cp "$(command -v "$2")" "$root/emulator"
        run=(/emulator /kvorum)
    fi
    # The root has nothing else: no libraries, no /proc, no /dev, no certificates.
    node chroot "$root" "${run[@]}" serve --listen 127.0.0.1:0 --data /data
    chroot "$root" "${run[@]}" put --url "$url" greeting hello ||
        fail "it does not serve: $(cat "$work/log")"
    [ "$(chroot "$root" "${run[@]}" get --url "$url" greeting)" = hello ] ||
        fail 'it does not serve what was stored'
    chroot "$root" "${run[@]}" status --url "$url"
    kill "$pid"
    poll 20 gone "$pid"
}

# expect_setting WORDS: checks that the image's configuration contains WORDS.
expect_setting() { grep -qF "$1" "$work/settings" || fail "the image is not set to $1"; }

test_image() {
    need skopeo
    local archive root=$work/image
    archive=$(one "$dist/kvorum-*-image.tar")
    mkdir -p "$root" "$work/archive"
    skopeo inspect --config "docker-archive:$archive" | tr -d ' \n' >"$work/settings"
    expect_setting '"User":"10001:10001"'
    expect_setting '"Entrypoint":["/usr/bin/kvorum"]'
    tar -C "$work/archive" -xf "$archive"
    cat "$work"/archive/*.json | tr -d ' \n' >"$work/settings"
    expect_setting '"Healthcheck":{"Test":["CMD","/usr/bin/kvorum","status","--ready"]'
    find "$work/archive" -name '*.tar' ! -type l -exec tar -C "$root" -xpf {} \;
    [ "$(stat -c '%u %a' "$root/var" "$root/var/lib/kvorum" | paste -sd,)" = '0 755,10001 700' ] ||
        fail 'directories of the image belong to somebody else'
    [ "$(find "$root" -type f)" = "$root/usr/bin/kvorum" ] || fail 'the image has more in it'
    # The node runs on a read-only root, with a volume for the data.
    cat >"$work/run-image" <<'END'
mount --bind "$1" "$1" && mount -o remount,bind,ro "$1"
mount -t tmpfs -o uid=10001,gid=10001,mode=700 tmpfs "$1/var/lib/kvorum"
exec chroot --userspec=10001:10001 "$1" /usr/bin/kvorum serve --listen 127.0.0.1:0 \
    --data /var/lib/kvorum
END
    node unshare --mount sh -e "$work/run-image" "$root"
    "$root/usr/bin/kvorum" status --url "$url" || fail "it does not serve: $(cat "$work/log")"
    kill "$pid"
    poll 20 gone "$pid"
}

test_rpm() {
    need rpm
    local package bench root=$work/rpm
    package=$(one "$dist/kvorum-[0-9]*.rpm")
    bench=$(one "$dist/kvorum-bench-[0-9]*.rpm")
    rpm -K --nosignature "$package" "$bench"
    # The package's scripts run in the root. The package's dependencies have other names in Debian,
    # hence --nodeps.
    debian "$root"
    unshare --mount sh -c 'mount -t proc proc "$1/proc" && rpm --root "$1" --nodeps -i "$2" "$3"' \
        sh "$root" "$package" "$bench"
    [ "$(chroot "$root" stat -c '%U %a' /var/lib/kvorum)" = 'kvorum 700' ] ||
        fail 'the data directory is missing, or not for the user kvorum alone'
    chroot "$root" kvorum --version >/dev/null
    node chroot "$root" kvorum serve --listen 127.0.0.1:0 --data /var/lib/kvorum
    chroot "$root" kvorum-bench load -d 1s -R 100 "$url/v0/entity?id={key}" >"$work/said" 2>&1 ||
        fail "kvorum-bench of the package: $(cat "$work/said")"
    kill "$pid"
    poll 20 gone "$pid"
    touch "$root/var/lib/kvorum/STORE"
    echo 'deadline = "2s"' >>"$root/etc/kvorum/kvorum.toml"
    rpm --root "$root" -e kvorum-bench
    [ ! -e "$root/usr/bin/kvorum-bench" ] || fail 'kvorum-bench is still there'
    rpm --root "$root" -e kvorum >"$work/said" 2>&1
    grep -q 'the data stays in /var/lib/kvorum' "$work/said" || fail 'it does not say where data is'
    [ -e "$root/var/lib/kvorum/STORE" ] || fail 'the data is gone'
    [ -e "$root/etc/kvorum/kvorum.toml.rpmsave" ] || fail 'the settings are gone'
    [ ! -e "$root/usr/bin/kvorum" ] || fail 'the program is still there'
}

test_chart() {
    local chart values helm=${HELM:-helm} kvorum=${KVORUM:-$stage/kvorum}
    local render=("$helm" template kvorum --kube-version 1.30.0 --namespace db)
    chart=$(one "$dist/kvorum-chart-*.tgz")
    command -v "$helm" >/dev/null ||
        fail "$helm is missing. To install it: go install helm.sh/helm/v3/cmd/helm@v3.22.0"
    need go golang
    need unshare util-linux
    need ip iproute2
    need busybox busybox-static
    need readelf binutils
    [ -x "$kvorum" ] || fail "$kvorum is missing. To build it: packaging/build.sh deb"
    (cd packaging/chart/test && test -z "$(gofmt -l .)" && go vet . && go build -o "$work/decode" .)
    for values in packaging/chart/ci/*.yaml; do
        "$helm" lint --strict --quiet -f "$values" "$chart"
        "${render[@]}" -f "$values" "$chart" >"$work/rendered"
        echo "$values: $("$work/decode" <"$work/rendered")"
        sed 's/minReadySeconds:/minReadySecond:/' "$work/rendered" >"$work/misspelled"
        ! "$work/decode" <"$work/misspelled" 2>/dev/null || fail 'a misspelled field is not found'
    done
    # Checks that the chart refuses to render these values.
    values=packaging/chart/ci/minimal.yaml
    while read -r set; do
        ! "${render[@]}" -f "$values" --set "$set" "$chart" >"$work/rendered" 2>&1 ||
            fail "the chart takes $set"
    done <<'END'
nodes=0
nodes=2
founders=2
secret.name=
settings.join=http://a:8080
resources.limits.memory=100Mi
tls.mode=secret
tls.mode=cert-manager
unknown=1
END
    unshare --mount --net --pid --fork --kill-child --mount-proc \
        python3 packaging/test-chart.py "$chart" "$(command -v "$helm")" "$work/decode" "$kvorum"
}

[ "$(id -u)" -eq 0 ] || fail 'it takes root: it makes roots and namespaces of its own'
wanted=("$@")
[ $# -gt 0 ] || wanted=(binary deb page static static-aarch64 image rpm chart)
for part in "${wanted[@]}"; do
    case $part in
        deb | page | binary | static | static-aarch64 | image | rpm | chart) ;;
        *) fail "$part is none of deb, page, binary, static, static-aarch64, image, rpm, chart" ;;
    esac
    echo "==> $part"
    begun=$SECONDS
    "test_$part"
    echo "==> $part: ok after $((SECONDS - begun)) s"
done
