# Brings the cluster's members in line with the StatefulSet, by kvorum's own commands:
#
#     members join     makes asking nodes members; gives new disks of quorum members their votes
#     members drain    nodes with an ordinal of NODES and above hand over their keys and leave
#
# Each step first asks for the present state, so the script may be started again at any time.
# Kubernetes ends it at the job's deadline.
set -u

# Maximum time that a drained pod stays in the services, in seconds: two probes, and the update of
# the endpoints.
PAUSE=5
# Attempts without an answer of any founder, of a second or more each, before `drain` gives up.
PATIENCE=30

# Prints a message, once as long as it does not change.
last=
say() {
    [ "$last" = "$*" ] || echo "members: $*"
    last=$*
}

# Sets url and layout from the first founder that answers. A plan belongs to the node that made it.
ask() {
    ordinal=0
    while [ "$ordinal" -lt "$FOUNDERS" ]; do
        url=$SCHEME://$NAME-$ordinal.$DOMAIN:8080
        # The exit code is ignored: a node that is down makes it nonzero.
        layout=$(kvorum cluster status --json --url "$url" 2>&1 || true)
        case $layout in *'"stage":'*) return 0 ;; esac
        ordinal=$((ordinal + 1))
    done
    return 1
}

# names FIELD: prints the names in a list of the layout, a line each.
names() {
    echo "$layout" | sed -n 's/.*"'"$1"'":\[\([^]]*\)\].*/\1/p' | grep -o '"name":"[^"]*"' |
        cut -d '"' -f 4
}

# change FLAGS...: plans and applies. 0 = done, 1 = not yet, 2 = nothing changes.
change() {
    plan=$(kvorum cluster plan --json --url "$url" "$@" 2>&1) || {
        case $plan in *'nothing changes'*) return 2 ;; esac
        say "no plan yet: $plan"
        return 1
    }
    id=$(echo "$plan" | sed -n 's/.*"plan":"\([0-9a-f]*\)".*/\1/p')
    say "plan $id $*"
    kvorum cluster apply "$id" --wait --url "$url"
}

is_settled() {
    case $layout in *'"stage":"settled"'*) return 0 ;; esac
    say "waits for a change that is under way"
    return 1
}

join() {
    wanted='' waits=''
    members=$(names nodes)
    asking=$(names joining)
    ordinal=0
    while [ "$ordinal" -lt "$NODES" ]; do
        node=$NAME-$ordinal
        ordinal=$((ordinal + 1))
        echo "$members" | grep -qxF "$node" && continue
        if echo "$asking" | grep -qxF "$node"; then
            wanted="$wanted --add $node"
        else
            waits="$waits $node"
        fi
    done
    # All nodes join in one plan, so that each key moves once.
    if [ -n "$waits" ]; then
        say "waits until these ask to join:$waits. A node that was removed before asks only with" \
            "an empty volume: delete its claim and its pod"
        return 1
    fi
    # A plan without a node to add seats quorum members, and stores the URLs of a new cluster.
    change $wanted
    [ $? -eq 2 ] || return 1
    # The exit code says whether all nodes are up.
    status=$(kvorum status --url "$url" 2>&1) || {
        say "waits for nodes that are down"
        return 1
    }
    echo "$status"
}

# Removes nodes one after the other, the last one first: a client of a node that has left finds
# another.
drain() {
    leaving=$(names nodes | sed -n "s/^$NAME-\([0-9][0-9]*\)$/\1/p" | sort -rn)
    for ordinal in $leaving; do
        [ "$ordinal" -ge "$NODES" ] || continue
        say "$NAME-$ordinal leaves"
        change --remove "$NAME-$ordinal" && sleep "$PAUSE"
        return 1
    done
    return 0
}

silent=0
while :; do
    if ask; then
        silent=0
        is_settled && "$1" && exit 0
    else
        say "no founder answers: $layout"
        silent=$((silent + 1))
        if [ "$1" = drain ] && [ "$silent" -ge "$PATIENCE" ]; then
            say "nothing is changed, for keys can't be moved. To change a cluster that does not" \
                "run: helm upgrade --no-hooks, with the same number of nodes"
            exit 1
        fi
    fi
    sleep 1
done
