#!/bin/bash
# The part of packaging/test.sh that runs in a Debian root of its own: checks settings, data and
# the running node at installation, upgrade and removal of the package. packaging/stand-in.sh
# replaces systemctl.
set -euo pipefail

deb=$(ls /packages/kvorum_*.deb)
later=/packages/later.deb
killed=/packages/killed.deb
unit=/lib/systemd/system/kvorum.service
data=/var/lib/kvorum
settings=/etc/kvorum/kvorum.toml
said=/tmp/said

fail() {
    echo "FAILED: $*" >&2
    [ ! -s "$said" ] || sed 's/^/  said: /' "$said" >&2
    [ ! -s /run/node.log ] || sed 's/^/  node: /' /run/node.log >&2
    exit 1
}

# is WHAT FOUND EXPECTED: fails unless FOUND equals EXPECTED.
is() { [ "$2" = "$3" ] || fail "$1 is '$2', not '$3'"; }

says() { grep -q -- "$1" "$said" || fail "nobody said: $1"; }

poll() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$deadline" ] || fail "this did not happen: $*"
        sleep 0.05
    done
}

step() { echo "  $*"; }

node() { cat /run/node.pid; }

value() { kvorum get "$1"; }

enabled() { [ -L /etc/systemd/system/multi-user.target.wants/kvorum.service ]; }

dpkg_says() { dpkg "$@" >"$said" 2>&1; }

purge_everything() {
    systemctl stop kvorum.service
    KVORUM_PURGE_DATA=yes dpkg_says --purge kvorum || fail purge
    rm -rf "$data" /etc/kvorum
    : >/run/node.log
}

installs() {
    step 'installs: a node serves on loopback, as its own user'
    dpkg_says -i "$deb" || fail 'dpkg -i'
    enabled || fail 'the service is not enabled'
    is "the data's owner and mode" "$(stat -c '%U:%G %a' $data)" 'kvorum:kvorum 700'
    is "the node's user" "$(stat -c %U "/proc/$(node)")" kvorum
    kvorum put greeting hello
    is 'what is stored' "$(value greeting)" hello
    kvorum status >"$said"
    says 'is alone: its disk has the only copy'
    says 'kvorum cluster plan --add NAME'
    kvorum serve --check --config "$settings" >"$said"
    says 'anybody on this machine'
    kvorum --version >"$said"
    says 'store format'
    for page in kvorum kvorum-serve kvorum-cluster-plan; do
        gzip -t "/usr/share/man/man1/$page.1.gz" || fail "man $page"
    done
    bash -n /usr/share/bash-completion/completions/kvorum
    links_lead_to_files /usr/share/doc/kvorum/docs
}

# links_lead_to_files DIRECTORY: fails if a page links to a file that is not installed.
links_lead_to_files() {
    local page target count=0
    # The root has no /dev/fd for a process substitution.
    grep -roP '\]\(\K(?![a-z]+:|#)[^)#\s]+' "$1" >/tmp/links
    while IFS=: read -r page target; do
        [ -e "$(dirname "$page")/$target" ] || fail "$page: the link to $target leads to no file"
        count=$((count + 1))
    done </tmp/links
    [ "$count" -gt 50 ] || fail "only $count links in $1"
}

upgrades_and_goes_back() {
    step 'upgrades: settings and data stay, the node is restarted in order'
    local before
    before=$(node)
    sed -i 's/^#deadline = .*/deadline = "2s"/' "$settings"
    dpkg_says --force-confold -i "$later" || fail 'dpkg -i of the later version'
    [ "$(node)" != "$before" ] || fail 'the old node still runs'
    grep -q ' stopped' /run/node.log || fail 'the old node was not stopped in order'
    is 'what is stored' "$(value greeting)" hello
    grep -q '^deadline = "2s"' "$settings" || fail 'the settings were replaced'
    step 'goes back: the same'
    dpkg_says --force-confold -i "$deb" || fail 'dpkg -i of the earlier version'
    is 'what is stored' "$(value greeting)" hello
    step 'upgrades what is disabled: it stays stopped'
    systemctl stop kvorum.service
    /bin/systemctl --root=/ disable kvorum.service 2>"$said"
    dpkg_says --force-confold -i "$later" || fail 'dpkg -i of the later version'
    ! systemctl is-active kvorum.service || fail 'the upgrade started a node that was disabled'
    /bin/systemctl --root=/ enable kvorum.service 2>"$said"
    dpkg_says --force-confold -i "$deb" || fail 'dpkg -i of the earlier version'
    is 'what is stored' "$(value greeting)" hello
}

goes() {
    step 'removal keeps settings and data, and says where'
    dpkg_says --remove kvorum || fail 'dpkg --remove'
    says "the data stays in $data"
    [ -f "$settings" ] || fail 'the settings are gone'
    ! systemctl is-active kvorum.service || fail 'the node still runs'
    dpkg_says -i "$deb" || fail 'dpkg -i again'
    is 'what is stored' "$(value greeting)" hello
    step 'purge removes the settings of the package, and keeps data and keys'
    echo secret >/etc/kvorum/secret
    dpkg_says --purge kvorum || fail 'dpkg --purge'
    says "the data stays in $data"
    says 'stay in /etc/kvorum'
    [ ! -e "$settings" ] || fail 'the settings are still there'
    [ -f "$data/STORE" ] && [ -f /etc/kvorum/secret ] || fail 'more was removed'
    ! enabled || fail 'the service is still enabled'
    dpkg_says -i "$deb" || fail 'dpkg -i after a purge'
    is 'what is stored' "$(value greeting)" hello
    step 'purge removes the data too if that is asked for'
    KVORUM_PURGE_DATA=yes dpkg_says --purge kvorum || fail 'dpkg --purge'
    [ ! -e "$data" ] || fail 'the data is still there'
    rm -rf /etc/kvorum
}

beside_a_node_started_by_hand() {
    step 'a node started by hand holds the port: it goes on, and is not displaced'
    dpkg-deb --fsys-tarfile "$deb" | tar -C /tmp -xf - ./usr/bin/kvorum
    /tmp/usr/bin/kvorum serve --data /tmp/by-hand >/tmp/by-hand.out 2>&1 &
    local pid=$!
    poll 20 /tmp/usr/bin/kvorum put whose by-hand
    dpkg_says -i "$deb" || fail 'dpkg -i'
    says 'another process listens on port 8080'
    says 'systemctl enable --now kvorum'
    ! enabled || fail 'the service is enabled'
    is 'who serves' "$(value whose)" by-hand
    kill "$pid" && wait "$pid"
    systemctl start kvorum.service || fail 'it does not start after that'
    purge_everything
}

with_data_of_another() {
    step "a data directory of another user's is left to him"
    install -d -o games -g games -m 700 "$data"
    dpkg_says -i "$deb" || fail 'dpkg -i'
    says "$data belongs to games, not to kvorum"
    is "the data's owner" "$(stat -c %U $data)" games
    ! enabled || fail 'the service is enabled'
    systemctl start kvorum.service || fail 'it does not start after what the message said'
    purge_everything
}

with_settings_of_a_later_version() {
    step 'a setting that it does not know is named, and nothing is served'
    dpkg_says -i "$deb" || fail 'dpkg -i'
    echo 'of-a-later-version = 1' >>"$settings"
    dpkg_says --force-confold -i "$later" || fail 'the upgrade fails with the node'
    says 'its node did not start'
    grep -q 'of-a-later-version' /run/node.log || fail 'the setting is not named'
    purge_everything
}

# fills FILE: writes into FILE until its file system is full.
fills() { ! dd if=/dev/zero of="$1" bs=4096 status=none 2>/dev/null || fail "$1 filled nothing"; }

with_a_full_var() {
    step '/var is full: the installation fails in words, and succeeds once there is space'
    cp -a /var /var.kept
    mount -t tmpfs -o size="$(($(du -sm /var | cut -f1) + 64))m",mode=755 tmpfs /var
    cp -a /var.kept/. /var/
    fills /var/ballast
    ! dpkg_says -i "$deb" || fail 'dpkg -i succeeds on a full /var'
    says 'No space left on device'
    [ ! -e "$data/STORE" ] || fail 'a node has begun to write'
    rm /var/ballast
    dpkg_says --configure -a || fail 'dpkg --configure -a'
    dpkg_says -i "$deb" || fail 'dpkg -i with space'
    kvorum put greeting hello
    is 'what is stored' "$(value greeting)" hello
    step '/var is full during an upgrade: settings and data stay'
    fills /var/ballast
    ! dpkg_says --force-confold -i "$later" || fail 'the upgrade succeeds on a full /var'
    says 'No space left on device'
    rm /var/ballast
    dpkg_says --configure -a || fail 'dpkg --configure -a'
    dpkg_says --force-confold -i "$later" || fail 'the upgrade with space'
    is 'what is stored' "$(value greeting)" hello
    purge_everything
    umount /var && rm -rf /var.kept
    step 'the data directory is full: the package is installed, and the node says what is missing'
    mkdir -p /mnt/small "$data"
    mount -t tmpfs -o size=64m tmpfs /mnt/small
    install -d -o kvorum -m 700 /mnt/small/data
    mount --bind /mnt/small/data "$data"
    fills /mnt/small/ballast
    dpkg_says -i "$deb" || fail 'the installation fails with the node'
    says 'its node did not start'
    grep -q 'No space left on device' /run/node.log || fail 'the cause is not named'
    rm /mnt/small/ballast
    systemctl start kvorum.service || fail 'it does not start once there is space'
    kvorum put greeting hello
    systemctl stop kvorum.service
    umount "$data" /mnt/small
    purge_everything
}

# test_kills SCRIPT: runs go_SCRIPT repeatedly. SCRIPT is killed at its first command, then at its
# second, and so on, until SCRIPT reaches its end. After each kill, `dpkg --configure -a` and
# another go_SCRIPT must complete the work.
test_kills() {
    local at=0
    while :; do
        at=$((at + 1))
        "before_$1"
        echo "$at" >/kill-at
        if "go_$1" >"$said" 2>&1; then break; fi
        rm /kill-at
        dpkg_says --configure -a || fail "after $1 was killed at its command $at: --configure -a"
        "go_$1" >"$said" 2>&1 || fail "after $1 was killed at its command $at: again"
        "after_$1" || fail "after $1 was killed at its command $at: not as it should be"
        [ "$at" -lt 100 ] || fail "$1 has no end"
    done
    rm /kill-at
    "after_$1"
    [ "$at" -gt 3 ] || fail "$1 was killed at $((at - 1)) commands only"
    step "killed at each of $((at - 1)) commands of $1, and mended by dpkg --configure -a"
}

fresh() {
    rm -f /kill-at
    purge_everything
}
before_postinst() { fresh; }
go_postinst() { dpkg -i "$killed"; }
after_postinst() { enabled && kvorum put k v && [ "$(dpkg-query -Wf '${Status}' kvorum)" = \
    'install ok installed' ]; }

installed() {
    fresh
    dpkg_says -i "$killed" && kvorum put k v
}
before_prerm() { installed; }
go_prerm() { dpkg --remove kvorum; }
after_prerm() { [ -f "$data/STORE" ] && [ ! -e /usr/bin/kvorum ] && [ -f "$settings" ]; }

before_postrm() { installed; dpkg_says --remove kvorum; }
go_postrm() { dpkg --purge kvorum; }
after_postrm() { [ -f "$data/STORE" ] && [ ! -e "$settings" ] && ! enabled; }

# Package scripts take this directory as the sign that systemd runs.
mkdir -p /run/systemd/system
installs
upgrades_and_goes_back
goes
beside_a_node_started_by_hand
with_data_of_another
with_settings_of_a_later_version
with_a_full_var
for script in postinst prerm postrm; do test_kills "$script"; done
fresh
# Prints the number of function names in a flame graph of the node.
names() {
    rm -rf /tmp/profile
    kvorum profile http://127.0.0.1:8080 -e alloc -d 2 -o folded --out /tmp/profile >"$said" 2>&1 &
    local pid=$!
    while kill -0 "$pid" 2>/dev/null; do kvorum scan >/dev/null; done
    wait "$pid" || fail 'kvorum profile'
    cat /tmp/profile/* | tr ' ;' '\n' | sort -u | grep -c '::'
}

step 'kvorum-bench and the debug symbols install beside it; with these, more functions have names'
dpkg_says -i "$deb" /packages/kvorum-bench_*.deb || fail 'dpkg -i'
without=$(names)
dpkg_says -i /packages/kvorum-dbgsym_*.deb || fail 'dpkg -i of the debug symbols'
with=$(names)
[ "$with" -gt "$without" ] || fail "$with names with debug symbols, $without without"
step "$without functions by name without the debug symbols, $with with them"
kvorum-bench --version
systemctl stop kvorum.service
