#!/usr/bin/env bash
# Builds the packages, into target/dist/ with SHA256SUMS:
#
#     packaging/build.sh [deb|rpm|static|static-aarch64|image|sbom|chart|all]     default: all
#
#   binaries ─▶ target/package/ ─┬─▶ deb, rpm          (glibc of this machine or later)
#   (auditable)  names kept,     ├─▶ static            (musl, one tarball) ─▶ image
#                lines beside    ├─▶ static-aarch64    (the same, cross-compiled by zig)
#                                └─▶ sbom              (CycloneDX)
#   packaging/chart/ ───────────────▶ chart            (Helm, no binary in it)
#
# Installs no tools: prints the name of each missing tool, with the command that installs it.
# Reproducible archives need the commit's time, from git or as SOURCE_DATE_EPOCH. CARGO names
# another cargo (default: cargo), CARGO_TARGET_DIR another build directory, HELM another helm
# (default: helm).
set -euo pipefail
# The umask determines the modes of files in the packages.
umask 022
cd "$(dirname "$0")/.."

cargo=${CARGO:-cargo}
helm=${HELM:-helm}
# cargo would pass CARGO on to its subcommands, which run cargo themselves.
unset CARGO
root=$PWD
built=${CARGO_TARGET_DIR:-$root/target}
stage=$root/target/package
dist=$root/target/dist
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
machine=$(uname -m)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH CARGO_INCREMENTAL=0

# Messages about missing tools, a line for each.
missing=

# need PROGRAM COMMAND...: records a message if PROGRAM is missing. COMMAND installs PROGRAM.
need() {
    local program=$1
    shift
    command -v "$program" >/dev/null || report_missing "$program is missing. To install it: $*"
}

report_missing() {
    [[ $missing == *"$1"* ]] || missing+="packaging/build.sh: $1"$'\n'
}

# need_library TARGET: records a message if Rust's library for TARGET is missing.
need_library() {
    need rustc 'see https://rustup.rs'
    test -d "$(rustc --print target-libdir --target "$1" 2>/dev/null)" ||
        report_missing "Rust's library for $1 is missing. To install it: rustup target add $1"
}

needs_of() {
    if [ "$1" = chart ]; then
        need "$helm" go install helm.sh/helm/v3/cmd/helm@v3.22.0
        return
    fi
    need python3 apt-get install python3
    need objcopy apt-get install binutils
    need cargo-auditable cargo install --locked cargo-auditable
    case $1 in
        deb)
            need cargo-deb cargo install --locked cargo-deb
            need dpkg-deb apt-get install dpkg
            need dpkg-shlibdeps apt-get install dpkg-dev
            ;;
        rpm) need cargo-generate-rpm cargo install --locked cargo-generate-rpm ;;
        static | image)
            [ "$1" = static ] || need buildah apt-get install buildah
            need musl-gcc apt-get install musl-tools
            need_library "$machine-unknown-linux-musl"
            ;;
        static-aarch64)
            need cargo-zigbuild pip install cargo-zigbuild ziglang
            need aarch64-linux-gnu-objcopy apt-get install binutils-aarch64-linux-gnu
            need_library aarch64-unknown-linux-musl
            ;;
        sbom) need cargo-cyclonedx cargo install --locked cargo-cyclonedx ;;
    esac
}

# Keeps paths of this machine out of the programs.
registry=${CARGO_HOME:-$HOME/.cargo}/registry/src
export CFLAGS="${CFLAGS:-} -ffile-prefix-map=$registry=/registry -ffile-prefix-map=$built=/target"
remapped() {
    echo "build.rustflags = ['--remap-path-prefix=$root=/kvorum'," \
        "'--remap-path-prefix=$registry=/registry']"
}

# compile PACKAGE PANIC [TARGET]: builds the binary of PACKAGE with panic strategy PANIC (abort or
# unwind), and prints the binary's path.
compile() {
    local package=$1 panic=$2 target=${3:-} build=build
    local words=(--locked --profile packaged --config "$(remapped)")
    words+=(--config "profile.packaged.panic = '$panic'" -p "$package" --bin "$package")
    [ -z "$target" ] || words+=(--target "$target")
    # zig has a C compiler, a linker and a libc for another architecture.
    [[ -z $target || $target == "$machine"-* ]] || build=zigbuild
    "$cargo" auditable "$build" "${words[@]}" >&2
    echo "$built/${target:+$target/}packaged/$package"
}

# split BINARY TO [PREFIX]: writes the program to TO, with function names, which its own profiles
# and panics need. Writes line numbers and inlined functions to TO.debug. PREFIX is the prefix of
# the names of the binutils for the program's architecture.
split() {
    local prefix=${3:-}
    "${prefix}objcopy" --only-keep-debug --compress-debug-sections "$1" "$2.debug"
    # Profiles need no names of data.
    "${prefix}nm" --format=posix "$1" | awk '$2 ~ /^[bBdDrR]$/ { print $1 }' >"$2.unnamed"
    "${prefix}objcopy" --strip-debug --strip-symbols="$2.unnamed" \
        --add-gnu-debuglink="$2.debug" "$1" "$2"
    rm "$2.unnamed"
    chmod 755 "$2"
}

staged=
stage_binaries() {
    [ -z "$staged" ] || return 0
    staged=yes
    mkdir -p "$stage"
    # kvorum-bench must unwind, because Lua's errors pass through its stack frames.
    local server kit
    server=$(compile kvorum abort)
    kit=$(compile kvorum-bench unwind)
    split "$server" "$stage/kvorum"
    split "$kit" "$stage/kvorum-bench"
    gzip -9n <CHANGELOG.md >"$stage/changelog.gz"
    packaging/copyright.py kvorum >"$stage/copyright"
    packaging/copyright.py kvorum-bench >"$stage/copyright-bench"
    packaging/docs.py "$stage/doc"
    check_size "$stage/kvorum" 15
    check_size "$stage/kvorum-bench" 8
}

# check_size FILE MB: fails if FILE has more than MB megabytes.
check_size() {
    local size
    size=$(stat -c %s "$1")
    echo "$(basename "$1"): $size bytes"
    [ "$size" -le $(($2 * 1000000)) ] && return
    echo "packaging/build.sh: $1 has $size bytes, more than $2 MB: what grew is shown by" \
        "'nm --size-sort -S $1 | tail'" >&2
    exit 1
}

build_deb() {
    stage_binaries
    local package
    for package in kvorum kvorum-bench; do
        cargo-deb deb --no-build --no-strip -p "$package" -o "$dist/"
    done
    dbgsym
}

# Packs the debug symbols. Profiles, debuggers and perf need them to name inlined functions.
dbgsym() {
    local at=$stage/dbgsym id arch
    id=$(readelf -n "$stage/kvorum" | sed -n 's/.*Build ID: //p')
    arch=$(dpkg --print-architecture)
    rm -rf "$at"
    install -D -m 644 "$stage/kvorum.debug" "$at/usr/lib/debug/.build-id/${id:0:2}/${id:2}.debug"
    mkdir -p "$at/DEBIAN" "$at/usr/share/doc"
    ln -s kvorum "$at/usr/share/doc/kvorum-dbgsym"
    cat >"$at/DEBIAN/control" <<END
Package: kvorum-dbgsym
Source: kvorum
Version: $version-1
Architecture: $arch
Maintainer: The kvorum authors <maintainers@kvorum.invalid>
Depends: kvorum (= $version-1)
Section: debug
Priority: optional
Auto-Built-Package: debug-symbols
Build-Ids: $id
Description: debug symbols for kvorum
END
    dpkg-deb --root-owner-group --build "$at" "$dist/kvorum-dbgsym_$version-1_$arch.deb"
}

build_rpm() {
    stage_binaries
    rm -rf "$stage/man" && cp -r packaging/man "$stage/"
    gzip -9nr "$stage/man"
    # cargo-generate-rpm keeps file times before SOURCE_DATE_EPOCH. These times differ between
    # copies of the sources.
    find packaging deploy docs "$stage" -type f -exec touch --date "@$SOURCE_DATE_EPOCH" {} +
    local package
    for package in . crates/kvorum-bench; do
        cargo-generate-rpm -p "$package" -o "$dist/" --auto-req builtin
    done
}

build_static() { tarball "$machine"; }

build_static-aarch64() { tarball aarch64 aarch64-linux-gnu-; }

# tarball MACHINE [PREFIX]: packs the static program for a machine; PREFIX as in split.
tarball() {
    local name=kvorum-$version-$1-linux-musl target=$1-unknown-linux-musl
    local at=$stage/$name server
    rm -rf "$at" && mkdir -p "$at"
    server=$(compile kvorum abort "$target")
    split "$server" "$at/kvorum" "${2:-}"
    mv "$at/kvorum.debug" "$stage/kvorum-$target.debug"
    check_size "$at/kvorum" 15
    packaging/copyright.py kvorum "$target" >"$at/copyright"
    cp -r packaging/man/kvorum "$at/man"
    cp -r packaging/completions/kvorum "$at/completions"
    cp packaging/kvorum.toml deploy/systemd/kvorum.service CHANGELOG.md LICENSE-APACHE LICENSE-MIT \
        "$at/"
    packaging/docs.py "$stage/doc" && cp -r "$stage/doc/." "$at/"
    tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" \
        --mode=u=rwX,go=rX -C "$stage" -c "$name" | xz -9 -T1 >"$dist/$name.tar.xz"
}

# Builds an image that contains only the static program: no shell, and a user without a name.
build_image() {
    local at=$stage/image static=$stage/kvorum-$version-$machine-linux-musl/kvorum container
    [ -x "$static" ] || build_static
    rm -rf "$at" && mkdir -p "$at/empty" "$at/own" && mkdir -m 700 "$at/own/kvorum"
    image() { buildah --storage-driver vfs --root "$at/images" --runroot "$at/run" "$@"; }
    container=$(image from --format docker scratch)
    image copy --quiet "$container" "$static" /usr/bin/kvorum
    image copy --quiet "$container" "$at/empty" /var/lib
    image copy --quiet --chown 10001:10001 "$container" "$at/own" /var/lib
    image config --user 10001:10001 --entrypoint '["/usr/bin/kvorum"]' --cmd serve --port 8080 \
        --env KVORUM_LISTEN=0.0.0.0:8080 --env KVORUM_DATA=/var/lib/kvorum --stop-signal SIGTERM \
        --volume /var/lib/kvorum --healthcheck 'CMD /usr/bin/kvorum status --ready' \
        --healthcheck-interval 10s --healthcheck-timeout 5s --healthcheck-start-period 30s \
        --label org.opencontainers.image.version="$version" "$container"
    rm -f "$dist/kvorum-$version-image.tar"
    image commit --quiet --format docker --timestamp "$SOURCE_DATE_EPOCH" "$container" \
        "docker-archive:$dist/kvorum-$version-image.tar:kvorum:$version"
    check_size "$dist/kvorum-$version-image.tar" 20
}

# Writes the programs' dependencies for the target of the build, without the dependencies of tests.
# cargo-cyclonedx writes one file beside the manifest of each package of the workspace; two of these
# files are used.
build_sbom() {
    local package file
    cargo-cyclonedx cyclonedx --format json --target "$machine-unknown-linux-gnu" \
        --spec-version 1.5 --describe binaries --quiet
    for package in . crates/kvorum-bench; do
        for file in "$package"/kvorum*_bin.cdx.json; do
            sed "s#path+file://$root#path+file:///kvorum#g" "$file" \
                >"$dist/$(basename "$file" _bin.cdx.json)-$version.cdx.json"
        done
    done
    find . -path ./target -prune -o -name '*_bin.cdx.json' -exec rm {} +
}

# Helm checks the chart and selects its files. `tar` packs them again, so that the archive is
# reproducible.
build_chart() {
    local at=$stage/chart packed
    rm -rf "$at" && mkdir -p "$at"
    grep -qxF "version: $version" packaging/chart/Chart.yaml &&
        grep -qxF "appVersion: $version" packaging/chart/Chart.yaml || {
        echo "packaging/build.sh: packaging/chart/Chart.yaml has another version than $version" >&2
        exit 1
    }
    "$helm" lint --strict --quiet -f packaging/chart/ci/minimal.yaml packaging/chart
    "$helm" package --destination "$at" packaging/chart >/dev/null
    packed=$at/kvorum-$version.tgz
    tar -C "$at" -xzmf "$packed"
    tar --sort=name --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
        --mtime="@$SOURCE_DATE_EPOCH" -C "$at" -c kvorum |
        gzip -9n >"$dist/kvorum-chart-$version.tgz"
}

main() {
    local wanted=("${@:-all}") part
    [ "${wanted[0]}" != all ] || wanted=(deb rpm static static-aarch64 image sbom chart)
    for part in "${wanted[@]}"; do
        case $part in
            deb | rpm | static | static-aarch64 | image | sbom | chart) needs_of "$part" ;;
            *)
                echo "packaging/build.sh: $part is none of deb, rpm, static," \
                    "static-aarch64, image, sbom, chart, all" >&2
                exit 2
                ;;
        esac
    done
    [ -z "$missing" ] || { printf '%s' "$missing" >&2 && exit 1; }
    mkdir -p "$dist" "$stage"
    for part in "${wanted[@]}"; do
        echo "==> $part"
        "build_$part"
    done
    (cd "$dist" && find . -maxdepth 1 -type f ! -name SHA256SUMS -printf '%P\n' | sort |
        xargs sha256sum >SHA256SUMS)
    cat "$dist/SHA256SUMS"
}

main "$@"
