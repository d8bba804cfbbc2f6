# Brings the cluster's members in line with the StatefulSet, by kvorum's own commands:
#
#     members join     makes asking nodes members; gives new disks of quorum members their votes
#     members drain    nodes with an ordinal of NODES and above hand over their keys and leave
#
# Each step first queries the present state, so the script may be restarted at any time. Kubernetes
# ends the script at the job's deadline.
set -u

# Maximum time that a drained pod stays in the services, in seconds: two probes, and the update of
# the endpoints.
PAUSE=5
# Number of successive attempts without an answer of any founder after which `drain` gives up. An
# attempt takes a second or more.
MAX_ATTEMPTS=30

# Prints a message, unless it equals the last message.
last=
say() {
    [ "$last" = "$*" ] || echo "members: $*"
    last=$*
}

# Sets url and layout from the first founder that answers. A plan must be applied at the node that
# made the plan.
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

# change FLAGS...: plans and applies a change. Returns 0 if done, 1 if not yet possible, 2 if
# nothing changes.
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
    # A plan that adds no nodes still gives seats to quorum members, and stores the URLs of a new
    # cluster.
    change $wanted
    [ $? -eq 2 ] || return 1
    # The exit code is 0 only if all nodes are up.
    status=$(kvorum status --url "$url" 2>&1) || {
        say "waits for nodes that are down"
        return 1
    }
    echo "$status"
}

# Removes nodes one at a time, the highest ordinal first, so that a client of a removed node finds
# another node.
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

failed_attempts=0
while :; do
    if ask; then
        failed_attempts=0
        is_settled && "$1" && exit 0
    else
        say "no founder answers: $layout"
        failed_attempts=$((failed_attempts + 1))
        if [ "$1" = drain ] && [ "$failed_attempts" -ge "$MAX_ATTEMPTS" ]; then
            say "nothing is changed, for keys can't be moved. To change a cluster that does not" \
                "run: helm upgrade --no-hooks, with the same number of nodes"
            exit 1
        fi
    fi
    sleep 1
done
