#!/bin/bash
# The part of packaging/test.sh that runs exactly the commands of docs/operate/install.md. Three
# Debian chroots with the package stand for machines, each with an address of its own, and become a
# cluster with TLS.
#
#     test-page.sh DEB ROOT-A ROOT-B ROOT-C        in a network namespace of its own
set -euo pipefail
here=$(dirname "$0")
deb=$1
shift
nodes=(a b c)
declare -A root pid
output=$(mktemp)
trap 'rm -f "$output"' EXIT

fail() {
    echo "FAILED: $*" >&2
    sed 's/^/  output: /' "$output" >&2
    exit 1
}

poll() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$deadline" ] || fail "this did not happen: $*"
        sleep 0.05
    done
}

# block NUMBER: prints command block NUMBER of the page, counted from 1.
block() {
    awk -v wanted="$1" '/^```sh/ { at++; inside = 1; next } /^```/ { inside = 0 }
        inside && at == wanted' "$here/../docs/operate/install.md"
}

# on NODE COMMANDS: runs the commands on the node's machine, as a user would type them.
on() {
    nsenter -t "${pid[$1]}" -m -n -p -r -w env -i HOME=/ LC_ALL=C.UTF-8 \
        PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive \
        bash -euo pipefail -c "mkdir -p /me && cd /me && { [ ! -d secrets ] || cd secrets; }; $2" \
        >"$output" 2>&1 </dev/null || fail "on $1: $2"
}

# machine NODE ROOT NUMBER: starts a machine in ROOT, with address 10.9.0.NUMBER.
machine() {
    local node=$1 number=$3 outer
    root[$node]=$2
    mkdir -p "$2/run/systemd/system" "$2/usr/local/bin"
    printf '#!/bin/sh\nexec "$@"\n' >"$2/usr/local/bin/sudo"
    install -m 755 "$here/stand-in.sh" "$2/usr/local/bin/systemctl"
    chmod 755 "$2/usr/local/bin/sudo"
    cp "$deb" "$2/kvorum.deb"
    printf '127.0.0.1 localhost\n10.9.0.1 a.example\n10.9.0.2 b.example\n10.9.0.3 c.example\n' \
        >"$2/etc/hosts"
    unshare --net --mount --pid --fork --kill-child "$here/enter.sh" "$2" \
        bash -c 'mkdir -p /run/systemd/system && touch /ready; sleep infinity & wait' &
    outer=$!
    poll 20 test -e "$2/ready"
    pid[$node]=$(pgrep -P "$outer")
    ip link add "v$node" type veth peer name "e$node"
    ip link set "e$node" netns "${pid[$node]}"
    ip link set "v$node" master machines up
    nsenter -t "${pid[$node]}" -n ip address add "10.9.0.$number/24" dev "e$node"
    nsenter -t "${pid[$node]}" -n ip link set "e$node" up
}

both_ask_to_join() { on a "$client kvorum cluster status --token-file admin-token" && \
    [ "$(grep -c 'asks to join' "$output")" -eq 2 ]; }

ip link add machines type bridge
ip link set machines up
for number in 1 2 3; do machine "${nodes[number - 1]}" "${!number}" "$number"; done
for node in "${nodes[@]}"; do on "$node" 'dpkg -i /kvorum.deb'; done
on a "$(block 1)"
grep -q 'is alone' "$output" || fail 'status does not say how it becomes a cluster'
on a "$(block 2)"
for node in b c; do
    install -d "${root[$node]}/me/secrets/certs"
    (cd "${root[a]}/me/secrets" && cp --parents secret admin-token certs/ca.pem \
        "certs/$node.pem" "certs/$node.key" "${root[$node]}/me/secrets/")
done
for node in "${nodes[@]}"; do on "$node" "$(block 3 | sed "s/^NODE=a/NODE=$node/")"; done
on a 'sudo systemctl restart kvorum'
for node in b c; do on "$node" "$(block 4)"; done
client=$(block 5 | head -n 1)\;
poll 20 both_ask_to_join
on a "$client $(block 5 | grep ' plan ')"
plan=$(grep -o 'cluster apply [0-9a-f]*' "$output" | head -n 1)
on a "$client $(block 5 | grep ' apply ' | sed "s/PLAN/${plan##* }/")"
on a "$client $(block 5 | grep ' status ')"
cat "$output"
[ "$(grep -c '  up  ' "$output")" -eq 3 ] || fail 'not all three are up'
on a "$client kvorum get greeting --ack 3 --token-file admin-token"
[ "$(cat "$output")" = hello ] || fail 'what a stored when it was alone is not there'
on c 'sudo systemctl reload kvorum'
on a "$(block 6)"
on a 'sudo systemctl restart kvorum'
on a 'systemctl stop kvorum && mv /var/lib/kvorum /lost'
on a 'install -d -o kvorum -g kvorum -m 700 /var/lib/kvorum && systemctl start kvorum'
is_back() { on a "$client kvorum get greeting --ack 3 --token-file admin-token || true" && \
    [ "$(cat "$output")" = hello ]; }
poll 60 is_back
for node in "${nodes[@]}"; do on "$node" 'systemctl stop kvorum'; done
