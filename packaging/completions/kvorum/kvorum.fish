# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_kvorum_global_optspecs
    string join \n h/help V/version
end

function __fish_kvorum_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_kvorum_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_kvorum_using_subcommand
    set -l cmd (__fish_kvorum_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c kvorum -n "__fish_kvorum_needs_command" -s h -l help -d 'Print help'
complete -c kvorum -n "__fish_kvorum_needs_command" -s V -l version -d 'Print version'
complete -c kvorum -n "__fish_kvorum_needs_command" -f -a "serve" -d 'Run a node'
complete -c kvorum -n "__fish_kvorum_needs_command" -f -a "dev" -d 'Run a local test cluster on this machine'
complete -c kvorum -n "__fish_kvorum_needs_command" -f -a "repair-clock" -d 'Remove records with timestamps far ahead of the clock from a stopped node\'s data'
complete -c kvorum -n "__fish_kvorum_needs_command" -f -a "put" -d 'Write a value. Exit code 1 if a condition (--if-match, --if-none-match) is not met'
complete -c kvorum -n "__fish_kvorum_needs_command" -f -a "get" -d 'Read a value and print it unchanged. Exit code 1 if a key is not found'
complete -c kvorum -n "__fish_kvorum_needs_command" -f -a "del" -d 'Delete keys; succeeds also if they do not exist, unless --if-match is given'
complete -c kvorum -n "__fish_kvorum_needs_command" -f -a "add" -d 'Add to a decimal number and print the sum; a key without a value counts as 0'
complete -c kvorum -n "__fish_kvorum_needs_command" -f -a "scan" -d 'Print keys and values in order'
complete -c kvorum -n "__fish_kvorum_needs_command" -f -a "status" -d 'Show the state of every node, as the node reports it. Exit code 1 if a node is down or does not serve'
complete -c kvorum -n "__fish_kvorum_needs_command" -f -a "repair" -d 'Compare the replicas of all keys and make them equal'
complete -c kvorum -n "__fish_kvorum_needs_command" -f -a "cluster" -d 'Show the cluster\'s members and its council, and plan changes'
complete -c kvorum -n "__fish_kvorum_needs_command" -f -a "token" -d 'Create, list and revoke tokens, which authorize requests'
complete -c kvorum -n "__fish_kvorum_needs_command" -f -a "quota" -d 'Set, list and remove quotas: how much clients may store under a prefix'
complete -c kvorum -n "__fish_kvorum_needs_command" -f -a "cert" -d 'Make a CA, and certificates for nodes and clients'
complete -c kvorum -n "__fish_kvorum_needs_command" -f -a "compact" -d 'Compact the whole store of one node now'
complete -c kvorum -n "__fish_kvorum_needs_command" -f -a "profile" -d 'Record flame graphs of running nodes, and compare them'
complete -c kvorum -n "__fish_kvorum_needs_command" -f -a "bench" -d 'Measure an HTTP server: load, search, coldhot, compare, import, report'
complete -c kvorum -n "__fish_kvorum_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c kvorum -n "__fish_kvorum_using_subcommand serve" -l config -d 'TOML file with any of these settings, named like the flags. Flags override KVORUM_* variables, which override the file' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand serve" -l listen -d 'Address and port to listen on; localhost means 127.0.0.1, and port 0 any free port [default: 127.0.0.1:8080]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand serve" -l data -d 'Data directory; created if missing [default: ./kvorum-data]' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand serve" -l cluster -d 'All nodes of the cluster at its first start, including this one; the list must be the same on every node. After the first change of the cluster (members, tokens or quotas) the members stored in the data directory are used: then this list only gives the nodes\' URLs, and may be omitted. NAME is a node\'s identity, by default its URL; the URL is the node\'s address and may change. Append ";zone=ZONE" to a URL to spread replicas over zones, and ";weight=W" (1..1000, default 1) to set the node\'s share of the keys [default: this node alone]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand serve" -l advertise -d 'URL at which the other nodes reach this one; must be in --cluster if that is set [default: http://LISTEN, or https:// with TLS]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand serve" -l join -d 'URLs of some nodes of the cluster that this node asks to join if its data directory is empty: it serves no requests until a plan of `kvorum cluster plan --add NAME` has been applied. A node whose disk was replaced returns in the same way. No effect on a directory with data [default: none]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand serve" -l name -d 'Name of a node that joins a cluster or starts alone: 1 to 255 bytes without white space [default: its URL]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand serve" -l zone -d 'Zone of a node that joins a cluster or starts alone [default: none]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand serve" -l weight -d 'Weight of a node that joins a cluster or starts alone, 1..1000: its share of the keys [default: 1]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand serve" -l cluster-secret-file -d 'File with the secret that all nodes of the cluster share, 16 to 4096 bytes; KVORUM_CLUSTER_SECRET can hold the secret itself instead. Required unless all nodes listen on loopback [default: none]' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand serve" -l cluster-secret-also-file -d 'File with a second secret that this node also accepts from other nodes, while one secret replaces the other; it may be missing or empty. Both files are reloaded when they change [default: none]' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand serve" -l tls-cert -d 'Certificate of the node in PEM, followed by the intermediate certificates. With a certificate the port accepts only TLS 1.3. The files of --tls-cert, --tls-key and --tls-client-ca are reloaded when they change [default: none]' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand serve" -l tls-key -d 'Private key of --tls-cert, in PEM [default: none]' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand serve" -l tls-client-ca -d 'Certificates of CAs in PEM. With this file, each client must present a certificate that one of these CAs issued. Other nodes need no certificate, because they prove that they know the cluster\'s secret [default: none]' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand serve" -l admin-token-file -d 'File with a token that this node accepts for every request, 16 to 4096 bytes; KVORUM_ADMIN_TOKEN can hold the token itself instead. Admin requests (/admin/...) must then send a token even from loopback. `kvorum token create` creates tokens that all nodes accept [default: none]' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand serve" -l require-auth -d 'Require a token from loopback too: set it behind a proxy on this machine [default: false]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand serve" -l insecure -d 'Serve all clients that can reach the port, without TLS and without tokens; admin requests from other machines still need a token [default: false]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand serve" -l allow-host -d 'Additional host names, without port, that a node listening on loopback answers to, for example those of a proxy on this machine. IP addresses, localhost and the advertised name are always allowed [default: none]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand serve" -l allow-origin -d 'Origins whose web pages may send requests to this node and read the answers (CORS), as http://HOST:PORT or https://HOST. Their requests need the same tokens as other requests, and their admin requests always need a token [default: none]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand serve" -l max-clock-skew -d 'Maximum clock skew between nodes, in ms or s, 1ms..60s; writes with timestamps further ahead of this node\'s clock are refused [default: 500ms]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand serve" -l sync -d 'When a write is acknowledged: "always", after it is synced to disk; "interval" or "interval:MS", after it is passed to the operating system, with a sync every MS milliseconds (1..60000, default 100); "never", like "interval" but without syncs [default: always]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand serve" -l memory -d 'Memory for memtables, caches, connections and request bodies together, in KiB, MiB or GiB, at least 64MiB. The process uses at most this size plus 64MiB; the log warns if the sum exceeds the limit of its cgroup, its ulimit -v or the machine\'s memory [default: 512MiB, or half of what the system allows if that is less]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand serve" -l replicas -d 'Replicas of a key if a request does not set `from`, 1..255; limited to the number of nodes, and the same on every node. After the first change of the cluster the stored number is used: `kvorum cluster plan --replicas N` changes it [default: 3]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand serve" -l deadline -d 'Time after which a waiting request is answered with 504, in ms or s, 250ms..60s [default: 1s]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand serve" -l max-value -d 'Maximum size of a value, in B, KiB or MiB, 1B..8MiB and at most 1/64 of --memory; larger values are answered with 413 [default: 1MiB]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand serve" -l max-ttl -d 'Maximum time to live (`ttl`) of values that clients write through this node, in s, m, h or d, 1s..3650d; a longer `ttl` is answered with 400 [default: 3650d]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand serve" -l repair-interval -d 'Time between two repair rounds, in s, m, h or d, 10s..365d, or "off". A round compares the records that all nodes have written since the last round, and makes them equal; `kvorum repair` runs a round at once [default: 1h]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand serve" -l repair-full-interval -d 'Time between two full repair rounds, which compare all records and read every block, in s, m, h or d, 10s..365d. With "off" only the first round after a start is full. If this time is less than --repair-interval, or --repair-interval is off, every round is full, and this is the time between two rounds [default: 7d]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand serve" -l repair-share -d 'Percent of the time, 1..100, during which an automatic repair round works; it pauses for the rest of the time. Requested rounds do not pause [default: 5]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand serve" -l stream-rate -d 'Maximum bytes a second at which this node receives partitions that move to it, in KiB, MiB or GiB, at least 64KiB; "off" = no maximum: the node uses the CPU and disk that clients leave [default: off]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand serve" -l loops -d 'Event loops (threads that serve connections), 1..256 [default: one per available CPU]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand serve" -l read-threads -d 'Threads for reads that wait for the disk, 1..256 [default: 8]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand serve" -l queue -d 'Maximum number of reads that wait for a read thread, 1..1000000; further reads are answered with 503 [default: 1024]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand serve" -l memtable -d 'Size of a memtable, 1MiB to 1/6 of --memory; the node has up to four memtables. Larger memtables mean fewer, bigger flushes and a longer recovery [default: 1/16 of --memory]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand serve" -l connections -d 'Maximum number of client connections, 1..1000000, and at most half of the open-file limit; idle connections are closed to make room [default: 1/8 of --memory at 24KiB each, 36KiB with TLS, minus 64]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand serve" -l log -d 'Log level: off, error, warn, info, debug or trace, optionally per module as in "info,lsm=debug" [default: info]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand serve" -l log-format -d 'Log format: text, or json with one object per line [default: text]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand serve" -l check -d 'Report which clients may do what with these settings, and exit; the node may be running'
complete -c kvorum -n "__fish_kvorum_using_subcommand serve" -l greet -d 'Print on stdout where the node listens, with `--log-format json` too; for `kvorum dev`, which reads this line'
complete -c kvorum -n "__fish_kvorum_using_subcommand serve" -s h -l help -d 'Print help'
complete -c kvorum -n "__fish_kvorum_using_subcommand dev; and not __fish_seen_subcommand_from add remove help" -l nodes -d 'Number of nodes to start with, 1..16; no effect if the data directory has nodes [default: 3]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand dev; and not __fish_seen_subcommand_from add remove help" -l port -d 'Port of the first node on 127.0.0.1; the other nodes use the following ports. No effect if nodes were added or removed before [default: 8080]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand dev; and not __fish_seen_subcommand_from add remove help" -l data -d 'Data directory, with a subdirectory per node; kept after exit' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand dev; and not __fish_seen_subcommand_from add remove help" -l tls -d 'Serve over TLS, with a CA in the data directory and a certificate for this machine, both made at the first start'
complete -c kvorum -n "__fish_kvorum_using_subcommand dev; and not __fish_seen_subcommand_from add remove help" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kvorum -n "__fish_kvorum_using_subcommand dev; and not __fish_seen_subcommand_from add remove help" -a "add" -d 'Add a node to the cluster of the `kvorum dev` that runs'
complete -c kvorum -n "__fish_kvorum_using_subcommand dev; and not __fish_seen_subcommand_from add remove help" -a "remove" -d 'Remove a node from the cluster of the `kvorum dev` that runs'
complete -c kvorum -n "__fish_kvorum_using_subcommand dev; and not __fish_seen_subcommand_from add remove help" -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c kvorum -n "__fish_kvorum_using_subcommand dev; and __fish_seen_subcommand_from add" -l zone -d 'The node\'s zone: replicas of a key are placed in different ones first' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand dev; and __fish_seen_subcommand_from add" -l weight -d 'The node\'s weight, 1..1000: a node of weight 2 holds twice as many keys [default: 1]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand dev; and __fish_seen_subcommand_from add" -l data -d 'Data directory of the `kvorum dev` that runs' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand dev; and __fish_seen_subcommand_from add" -l token-file -d 'File with the token to send; the variable KVORUM_TOKEN or KVORUM_ADMIN_TOKEN can hold the token instead' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand dev; and __fish_seen_subcommand_from add" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kvorum -n "__fish_kvorum_using_subcommand dev; and __fish_seen_subcommand_from remove" -l replicas -d 'New number of replicas of a key, 1..255, in the same change; at most the number of remaining nodes' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand dev; and __fish_seen_subcommand_from remove" -l data -d 'Data directory of the `kvorum dev` that runs' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand dev; and __fish_seen_subcommand_from remove" -l token-file -d 'File with the token to send; the variable KVORUM_TOKEN or KVORUM_ADMIN_TOKEN can hold the token instead' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand dev; and __fish_seen_subcommand_from remove" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kvorum -n "__fish_kvorum_using_subcommand dev; and __fish_seen_subcommand_from help" -f -a "add" -d 'Add a node to the cluster of the `kvorum dev` that runs'
complete -c kvorum -n "__fish_kvorum_using_subcommand dev; and __fish_seen_subcommand_from help" -f -a "remove" -d 'Remove a node from the cluster of the `kvorum dev` that runs'
complete -c kvorum -n "__fish_kvorum_using_subcommand dev; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c kvorum -n "__fish_kvorum_using_subcommand repair-clock" -l data -d 'Data directory of the node, which must be stopped' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand repair-clock" -l max-clock-skew -d 'Maximum clock skew, as configured for the cluster, 1ms..60s' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand repair-clock" -l yes -d 'Remove the records that were found'
complete -c kvorum -n "__fish_kvorum_using_subcommand repair-clock" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kvorum -n "__fish_kvorum_using_subcommand put" -l file -d 'File with the value' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand put" -l if-match -d 'Write only if the value has this version, as `get --json` prints it; "*": only if there is a value. Can be given several times: one of the versions must match' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand put" -l if-none-match -d 'Write only if there is no value: "*"' -r -f -a "*\t''"
complete -c kvorum -n "__fish_kvorum_using_subcommand put" -l ttl -d 'Time to live, in s, m, h or d, as in 90s or 30d, up to the node\'s --max-ttl; after it the value counts as deleted [default: put: the value never expires; add: the value\'s expiry stays]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand put" -l idempotency-key -d 'Word of 1 to 64 bytes, a new one for each write: a write that is sent again within a day with the same word is done once; another write of the same key with this word is refused' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand put" -l ack -d 'Number of replicas that must answer, 1..from [default: a majority of from]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand put" -l from -d 'Number of replicas of the key, 1..nodes [default: the cluster\'s --replicas]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand put" -l url -d 'URL of any node of the cluster' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand put" -l token-file -d 'File with the token to send; the variable KVORUM_TOKEN or KVORUM_ADMIN_TOKEN can hold the token instead' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand put" -l ca-file -d 'Certificates of CAs, in PEM, by which nodes at https:// URLs are checked [default: those that this machine trusts]' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand put" -l client-cert -d 'Certificate to show, in PEM, to nodes that ask for one' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand put" -l client-key -d 'Its private key, in PEM' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand put" -l timeout -d 'Timeout for connecting and for each part of the response, as in 500ms or 30s; must exceed the node\'s --deadline [default: 10s; status: 15s]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand put" -l escaped -d 'Keys are escaped as `scan` prints them: \\n, \\t, \\\\, \\xNN'
complete -c kvorum -n "__fish_kvorum_using_subcommand put" -l receipt -d 'Print which replicas had acknowledged the write when it was answered'
complete -c kvorum -n "__fish_kvorum_using_subcommand put" -l json -d 'Print JSON. Keys and values that are not UTF-8 are printed in base64, as `key_base64` and `value_base64`; the node\'s errors go to stderr as JSON'
complete -c kvorum -n "__fish_kvorum_using_subcommand put" -s h -l help -d 'Print help'
complete -c kvorum -n "__fish_kvorum_using_subcommand get" -l ack -d 'Number of replicas that must answer, 1..from [default: a majority of from]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand get" -l from -d 'Number of replicas of the key, 1..nodes [default: the cluster\'s --replicas]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand get" -l url -d 'URL of any node of the cluster' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand get" -l token-file -d 'File with the token to send; the variable KVORUM_TOKEN or KVORUM_ADMIN_TOKEN can hold the token instead' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand get" -l ca-file -d 'Certificates of CAs, in PEM, by which nodes at https:// URLs are checked [default: those that this machine trusts]' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand get" -l client-cert -d 'Certificate to show, in PEM, to nodes that ask for one' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand get" -l client-key -d 'Its private key, in PEM' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand get" -l timeout -d 'Timeout for connecting and for each part of the response, as in 500ms or 30s; must exceed the node\'s --deadline [default: 10s; status: 15s]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand get" -l escaped -d 'Keys are escaped as `scan` prints them: \\n, \\t, \\\\, \\xNN'
complete -c kvorum -n "__fish_kvorum_using_subcommand get" -l json -d 'Print JSON. Keys and values that are not UTF-8 are printed in base64, as `key_base64` and `value_base64`; the node\'s errors go to stderr as JSON'
complete -c kvorum -n "__fish_kvorum_using_subcommand get" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kvorum -n "__fish_kvorum_using_subcommand del" -l if-match -d 'Write only if the value has this version, as `get --json` prints it; "*": only if there is a value. Can be given several times: one of the versions must match' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand del" -l idempotency-key -d 'Word of 1 to 64 bytes, a new one for each write: a write that is sent again within a day with the same word is done once; another write of the same key with this word is refused' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand del" -l ack -d 'Number of replicas that must answer, 1..from [default: a majority of from]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand del" -l from -d 'Number of replicas of the key, 1..nodes [default: the cluster\'s --replicas]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand del" -l url -d 'URL of any node of the cluster' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand del" -l token-file -d 'File with the token to send; the variable KVORUM_TOKEN or KVORUM_ADMIN_TOKEN can hold the token instead' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand del" -l ca-file -d 'Certificates of CAs, in PEM, by which nodes at https:// URLs are checked [default: those that this machine trusts]' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand del" -l client-cert -d 'Certificate to show, in PEM, to nodes that ask for one' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand del" -l client-key -d 'Its private key, in PEM' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand del" -l timeout -d 'Timeout for connecting and for each part of the response, as in 500ms or 30s; must exceed the node\'s --deadline [default: 10s; status: 15s]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand del" -l receipt -d 'Print which replicas had acknowledged the write when it was answered'
complete -c kvorum -n "__fish_kvorum_using_subcommand del" -l escaped -d 'Keys are escaped as `scan` prints them: \\n, \\t, \\\\, \\xNN'
complete -c kvorum -n "__fish_kvorum_using_subcommand del" -l json -d 'Print JSON. Keys and values that are not UTF-8 are printed in base64, as `key_base64` and `value_base64`; the node\'s errors go to stderr as JSON'
complete -c kvorum -n "__fish_kvorum_using_subcommand del" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kvorum -n "__fish_kvorum_using_subcommand add" -l ack -d 'Number of replicas that must answer, 1..from [default: a majority of from]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand add" -l from -d 'Number of replicas of the key, 1..nodes [default: the cluster\'s --replicas]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand add" -l ttl -d 'Time to live, in s, m, h or d, as in 90s or 30d, up to the node\'s --max-ttl; after it the value counts as deleted [default: put: the value never expires; add: the value\'s expiry stays]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand add" -l idempotency-key -d 'Word of 1 to 64 bytes, a new one for each write: a write that is sent again within a day with the same word is done once; another write of the same key with this word is refused' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand add" -l url -d 'URL of any node of the cluster' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand add" -l token-file -d 'File with the token to send; the variable KVORUM_TOKEN or KVORUM_ADMIN_TOKEN can hold the token instead' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand add" -l ca-file -d 'Certificates of CAs, in PEM, by which nodes at https:// URLs are checked [default: those that this machine trusts]' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand add" -l client-cert -d 'Certificate to show, in PEM, to nodes that ask for one' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand add" -l client-key -d 'Its private key, in PEM' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand add" -l timeout -d 'Timeout for connecting and for each part of the response, as in 500ms or 30s; must exceed the node\'s --deadline [default: 10s; status: 15s]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand add" -l escaped -d 'Keys are escaped as `scan` prints them: \\n, \\t, \\\\, \\xNN'
complete -c kvorum -n "__fish_kvorum_using_subcommand add" -l receipt -d 'Print which replicas had acknowledged the write when it was answered'
complete -c kvorum -n "__fish_kvorum_using_subcommand add" -l json -d 'Print JSON. Keys and values that are not UTF-8 are printed in base64, as `key_base64` and `value_base64`; the node\'s errors go to stderr as JSON'
complete -c kvorum -n "__fish_kvorum_using_subcommand add" -s h -l help -d 'Print help'
complete -c kvorum -n "__fish_kvorum_using_subcommand scan" -l prefix -d 'Only keys that begin with this' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand scan" -l end -d 'End of the range, exclusive [default: to the last key]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand scan" -l limit -d 'Maximum number of items, 1 or more' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand scan" -l ack -d 'Number of replicas that must answer, 1..from [default: a majority of from]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand scan" -l from -d 'Number of replicas of the key, 1..nodes [default: the cluster\'s --replicas]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand scan" -l url -d 'URL of any node of the cluster' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand scan" -l token-file -d 'File with the token to send; the variable KVORUM_TOKEN or KVORUM_ADMIN_TOKEN can hold the token instead' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand scan" -l ca-file -d 'Certificates of CAs, in PEM, by which nodes at https:// URLs are checked [default: those that this machine trusts]' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand scan" -l client-cert -d 'Certificate to show, in PEM, to nodes that ask for one' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand scan" -l client-key -d 'Its private key, in PEM' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand scan" -l timeout -d 'Timeout for connecting and for each part of the response, as in 500ms or 30s; must exceed the node\'s --deadline [default: 10s; status: 15s]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand scan" -l local -d 'Only records stored on the node itself'
complete -c kvorum -n "__fish_kvorum_using_subcommand scan" -l escaped -d 'Keys are escaped as `scan` prints them: \\n, \\t, \\\\, \\xNN'
complete -c kvorum -n "__fish_kvorum_using_subcommand scan" -l json -d 'Print JSON. Keys and values that are not UTF-8 are printed in base64, as `key_base64` and `value_base64`; the node\'s errors go to stderr as JSON'
complete -c kvorum -n "__fish_kvorum_using_subcommand scan" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kvorum -n "__fish_kvorum_using_subcommand status" -l url -d 'URL of any node of the cluster' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand status" -l token-file -d 'File with the token to send; the variable KVORUM_TOKEN or KVORUM_ADMIN_TOKEN can hold the token instead' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand status" -l ca-file -d 'Certificates of CAs, in PEM, by which nodes at https:// URLs are checked [default: those that this machine trusts]' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand status" -l client-cert -d 'Certificate to show, in PEM, to nodes that ask for one' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand status" -l client-key -d 'Its private key, in PEM' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand status" -l timeout -d 'Timeout for connecting and for each part of the response, as in 500ms or 30s; must exceed the node\'s --deadline [default: 10s; status: 15s]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand status" -l watch -d 'Refresh every second, until Ctrl-C'
complete -c kvorum -n "__fish_kvorum_using_subcommand status" -l ready -d 'Ask only whether this node itself serves, whatever the other nodes do: exit code 0 or 1, as for a container\'s health check'
complete -c kvorum -n "__fish_kvorum_using_subcommand status" -l json -d 'Print JSON. Keys and values that are not UTF-8 are printed in base64, as `key_base64` and `value_base64`; the node\'s errors go to stderr as JSON'
complete -c kvorum -n "__fish_kvorum_using_subcommand status" -s h -l help -d 'Print help'
complete -c kvorum -n "__fish_kvorum_using_subcommand repair" -l url -d 'URL of any node of the cluster' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand repair" -l token-file -d 'File with the token to send; the variable KVORUM_TOKEN or KVORUM_ADMIN_TOKEN can hold the token instead' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand repair" -l ca-file -d 'Certificates of CAs, in PEM, by which nodes at https:// URLs are checked [default: those that this machine trusts]' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand repair" -l client-cert -d 'Certificate to show, in PEM, to nodes that ask for one' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand repair" -l client-key -d 'Its private key, in PEM' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand repair" -l timeout -d 'Timeout for connecting and for each part of the response, as in 500ms or 30s; must exceed the node\'s --deadline [default: 10s; status: 15s]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand repair" -l full -d 'Compare everything and read every block, not only what was written since the last round that ended equal. Only a full round finds damage on disks. Takes as long as reading the whole store'
complete -c kvorum -n "__fish_kvorum_using_subcommand repair" -l wait -d 'Wait for the end of the round, and show its progress. Exit code 1 if not all replicas are known to hold the same'
complete -c kvorum -n "__fish_kvorum_using_subcommand repair" -l json -d 'Print JSON. Keys and values that are not UTF-8 are printed in base64, as `key_base64` and `value_base64`; the node\'s errors go to stderr as JSON'
complete -c kvorum -n "__fish_kvorum_using_subcommand repair" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and not __fish_seen_subcommand_from status plan apply abort finalize recover help" -s h -l help -d 'Print help'
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and not __fish_seen_subcommand_from status plan apply abort finalize recover help" -f -a "status" -d 'Show the members, the epoch of each member, and the council. Exit code 1 if a node is down or in another epoch'
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and not __fish_seen_subcommand_from status plan apply abort finalize recover help" -f -a "plan" -d 'Show the effects of a change of the members; changes nothing'
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and not __fish_seen_subcommand_from status plan apply abort finalize recover help" -f -a "apply" -d 'Apply a plan: the council decides it, and the keys move'
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and not __fish_seen_subcommand_from status plan apply abort finalize recover help" -f -a "abort" -d 'Go back to the previous members, as long as reads do not use the new replicas yet'
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and not __fish_seen_subcommand_from status plan apply abort finalize recover help" -f -a "finalize" -d 'End an upgrade: raise the store format of all nodes. There is no way back afterwards'
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and not __fish_seen_subcommand_from status plan apply abort finalize recover help" -f -a "recover" -d 'Let one stopped node replace a council whose majority is lost for good'
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and not __fish_seen_subcommand_from status plan apply abort finalize recover help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from status" -l url -d 'URL of any node of the cluster' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from status" -l token-file -d 'File with the token to send; the variable KVORUM_TOKEN or KVORUM_ADMIN_TOKEN can hold the token instead' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from status" -l ca-file -d 'Certificates of CAs, in PEM, by which nodes at https:// URLs are checked [default: those that this machine trusts]' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from status" -l client-cert -d 'Certificate to show, in PEM, to nodes that ask for one' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from status" -l client-key -d 'Its private key, in PEM' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from status" -l timeout -d 'Timeout for connecting and for each part of the response, as in 500ms or 30s; must exceed the node\'s --deadline [default: 10s; status: 15s]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from status" -l json -d 'Print JSON. Keys and values that are not UTF-8 are printed in base64, as `key_base64` and `value_base64`; the node\'s errors go to stderr as JSON'
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from status" -s h -l help -d 'Print help'
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from plan" -l add -d 'A node that joins: the name of one that asks to (kvorum cluster status), or, to see what would move, [NAME=]URL[;zone=Z][;weight=W]; may be given several times' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from plan" -l remove -d 'A node that hands over its keys and leaves; can be given several times' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from plan" -l remove-dead -d 'A node that is lost for good, with its disk; can be given several times' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from plan" -l weight -d 'A node\'s new weight, 1..1000; can be given several times' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from plan" -l replicas -d 'New number of replicas of a key, 1..255' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from plan" -l council -d 'The new council, which decides about later changes: 1, 3, 5 or 7 nodes [default: the current council, completed if it has too few nodes]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from plan" -l url -d 'URL of any node of the cluster' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from plan" -l token-file -d 'File with the token to send; the variable KVORUM_TOKEN or KVORUM_ADMIN_TOKEN can hold the token instead' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from plan" -l ca-file -d 'Certificates of CAs, in PEM, by which nodes at https:// URLs are checked [default: those that this machine trusts]' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from plan" -l client-cert -d 'Certificate to show, in PEM, to nodes that ask for one' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from plan" -l client-key -d 'Its private key, in PEM' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from plan" -l timeout -d 'Timeout for connecting and for each part of the response, as in 500ms or 30s; must exceed the node\'s --deadline [default: 10s; status: 15s]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from plan" -l json -d 'Print JSON. Keys and values that are not UTF-8 are printed in base64, as `key_base64` and `value_base64`; the node\'s errors go to stderr as JSON'
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from plan" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from apply" -l url -d 'URL of any node of the cluster' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from apply" -l token-file -d 'File with the token to send; the variable KVORUM_TOKEN or KVORUM_ADMIN_TOKEN can hold the token instead' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from apply" -l ca-file -d 'Certificates of CAs, in PEM, by which nodes at https:// URLs are checked [default: those that this machine trusts]' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from apply" -l client-cert -d 'Certificate to show, in PEM, to nodes that ask for one' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from apply" -l client-key -d 'Its private key, in PEM' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from apply" -l timeout -d 'Timeout for connecting and for each part of the response, as in 500ms or 30s; must exceed the node\'s --deadline [default: 10s; status: 15s]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from apply" -l wait -d 'Wait until the change is decided and all keys have moved'
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from apply" -l json -d 'Print JSON. Keys and values that are not UTF-8 are printed in base64, as `key_base64` and `value_base64`; the node\'s errors go to stderr as JSON'
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from apply" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from abort" -l url -d 'URL of any node of the cluster' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from abort" -l token-file -d 'File with the token to send; the variable KVORUM_TOKEN or KVORUM_ADMIN_TOKEN can hold the token instead' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from abort" -l ca-file -d 'Certificates of CAs, in PEM, by which nodes at https:// URLs are checked [default: those that this machine trusts]' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from abort" -l client-cert -d 'Certificate to show, in PEM, to nodes that ask for one' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from abort" -l client-key -d 'Its private key, in PEM' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from abort" -l timeout -d 'Timeout for connecting and for each part of the response, as in 500ms or 30s; must exceed the node\'s --deadline [default: 10s; status: 15s]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from abort" -l wait -d 'Wait until the council has decided it'
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from abort" -l json -d 'Print JSON. Keys and values that are not UTF-8 are printed in base64, as `key_base64` and `value_base64`; the node\'s errors go to stderr as JSON'
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from abort" -s h -l help -d 'Print help'
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from finalize" -l url -d 'URL of any node of the cluster' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from finalize" -l token-file -d 'File with the token to send; the variable KVORUM_TOKEN or KVORUM_ADMIN_TOKEN can hold the token instead' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from finalize" -l ca-file -d 'Certificates of CAs, in PEM, by which nodes at https:// URLs are checked [default: those that this machine trusts]' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from finalize" -l client-cert -d 'Certificate to show, in PEM, to nodes that ask for one' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from finalize" -l client-key -d 'Its private key, in PEM' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from finalize" -l timeout -d 'Timeout for connecting and for each part of the response, as in 500ms or 30s; must exceed the node\'s --deadline [default: 10s; status: 15s]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from finalize" -l json -d 'Print JSON. Keys and values that are not UTF-8 are printed in base64, as `key_base64` and `value_base64`; the node\'s errors go to stderr as JSON'
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from finalize" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from recover" -l data -d 'Data directory of the node, which must be stopped' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from recover" -l lost -d 'Nodes that are gone for good, with their disks' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from recover" -l without-vote -d 'Members of the council that came back with another disk, or with a copy of their directory, and therefore have no vote' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from recover" -l yes -d 'Make the change; without this flag, only show its effects'
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from recover" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from help" -f -a "status" -d 'Show the members, the epoch of each member, and the council. Exit code 1 if a node is down or in another epoch'
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from help" -f -a "plan" -d 'Show the effects of a change of the members; changes nothing'
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from help" -f -a "apply" -d 'Apply a plan: the council decides it, and the keys move'
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from help" -f -a "abort" -d 'Go back to the previous members, as long as reads do not use the new replicas yet'
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from help" -f -a "finalize" -d 'End an upgrade: raise the store format of all nodes. There is no way back afterwards'
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from help" -f -a "recover" -d 'Let one stopped node replace a council whose majority is lost for good'
complete -c kvorum -n "__fish_kvorum_using_subcommand cluster; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c kvorum -n "__fish_kvorum_using_subcommand token; and not __fish_seen_subcommand_from create list revoke help" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kvorum -n "__fish_kvorum_using_subcommand token; and not __fish_seen_subcommand_from create list revoke help" -f -a "create" -d 'Create a token and print it; it can\'t be shown again'
complete -c kvorum -n "__fish_kvorum_using_subcommand token; and not __fish_seen_subcommand_from create list revoke help" -f -a "list" -d 'List the tokens, without their texts'
complete -c kvorum -n "__fish_kvorum_using_subcommand token; and not __fish_seen_subcommand_from create list revoke help" -f -a "revoke" -d 'Revoke a token: nodes refuse it once they have learned of the revocation, within a second'
complete -c kvorum -n "__fish_kvorum_using_subcommand token; and not __fish_seen_subcommand_from create list revoke help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c kvorum -n "__fish_kvorum_using_subcommand token; and __fish_seen_subcommand_from create" -l name -d 'Name of the token: 1 to 64 bytes of visible characters' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand token; and __fish_seen_subcommand_from create" -l methods -d 'Methods that the token allows: read, write, or GET, PUT, DELETE, POST [default: read,write]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand token; and __fish_seen_subcommand_from create" -l prefix -d 'Prefix of the keys that the token allows, up to 128 bytes [default: all keys]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand token; and __fish_seen_subcommand_from create" -l for -d 'Kinds of requests that the token allows: data (keys and values), metrics (the nodes\' reports of themselves), admin (everything under /admin, also creating tokens of any kind) [default: data]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand token; and __fish_seen_subcommand_from create" -l expires -d 'Time from now after which the token expires, in s, m, h or d, as in 30d [default: never]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand token; and __fish_seen_subcommand_from create" -l rate -d 'Maximum requests a second at each node, as in 1000/s [default: no maximum]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand token; and __fish_seen_subcommand_from create" -l bytes -d 'Maximum bytes a second of bodies, in and out, at each node, as in 10MiB/s [default: no maximum]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand token; and __fish_seen_subcommand_from create" -l url -d 'URL of any node of the cluster' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand token; and __fish_seen_subcommand_from create" -l token-file -d 'File with the token to send; the variable KVORUM_TOKEN or KVORUM_ADMIN_TOKEN can hold the token instead' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand token; and __fish_seen_subcommand_from create" -l ca-file -d 'Certificates of CAs, in PEM, by which nodes at https:// URLs are checked [default: those that this machine trusts]' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand token; and __fish_seen_subcommand_from create" -l client-cert -d 'Certificate to show, in PEM, to nodes that ask for one' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand token; and __fish_seen_subcommand_from create" -l client-key -d 'Its private key, in PEM' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand token; and __fish_seen_subcommand_from create" -l timeout -d 'Timeout for connecting and for each part of the response, as in 500ms or 30s; must exceed the node\'s --deadline [default: 10s; status: 15s]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand token; and __fish_seen_subcommand_from create" -l json -d 'Print JSON. Keys and values that are not UTF-8 are printed in base64, as `key_base64` and `value_base64`; the node\'s errors go to stderr as JSON'
complete -c kvorum -n "__fish_kvorum_using_subcommand token; and __fish_seen_subcommand_from create" -s h -l help -d 'Print help'
complete -c kvorum -n "__fish_kvorum_using_subcommand token; and __fish_seen_subcommand_from list" -l url -d 'URL of any node of the cluster' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand token; and __fish_seen_subcommand_from list" -l token-file -d 'File with the token to send; the variable KVORUM_TOKEN or KVORUM_ADMIN_TOKEN can hold the token instead' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand token; and __fish_seen_subcommand_from list" -l ca-file -d 'Certificates of CAs, in PEM, by which nodes at https:// URLs are checked [default: those that this machine trusts]' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand token; and __fish_seen_subcommand_from list" -l client-cert -d 'Certificate to show, in PEM, to nodes that ask for one' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand token; and __fish_seen_subcommand_from list" -l client-key -d 'Its private key, in PEM' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand token; and __fish_seen_subcommand_from list" -l timeout -d 'Timeout for connecting and for each part of the response, as in 500ms or 30s; must exceed the node\'s --deadline [default: 10s; status: 15s]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand token; and __fish_seen_subcommand_from list" -l json -d 'Print JSON. Keys and values that are not UTF-8 are printed in base64, as `key_base64` and `value_base64`; the node\'s errors go to stderr as JSON'
complete -c kvorum -n "__fish_kvorum_using_subcommand token; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c kvorum -n "__fish_kvorum_using_subcommand token; and __fish_seen_subcommand_from revoke" -l url -d 'URL of any node of the cluster' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand token; and __fish_seen_subcommand_from revoke" -l token-file -d 'File with the token to send; the variable KVORUM_TOKEN or KVORUM_ADMIN_TOKEN can hold the token instead' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand token; and __fish_seen_subcommand_from revoke" -l ca-file -d 'Certificates of CAs, in PEM, by which nodes at https:// URLs are checked [default: those that this machine trusts]' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand token; and __fish_seen_subcommand_from revoke" -l client-cert -d 'Certificate to show, in PEM, to nodes that ask for one' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand token; and __fish_seen_subcommand_from revoke" -l client-key -d 'Its private key, in PEM' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand token; and __fish_seen_subcommand_from revoke" -l timeout -d 'Timeout for connecting and for each part of the response, as in 500ms or 30s; must exceed the node\'s --deadline [default: 10s; status: 15s]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand token; and __fish_seen_subcommand_from revoke" -l json -d 'Print JSON. Keys and values that are not UTF-8 are printed in base64, as `key_base64` and `value_base64`; the node\'s errors go to stderr as JSON'
complete -c kvorum -n "__fish_kvorum_using_subcommand token; and __fish_seen_subcommand_from revoke" -s h -l help -d 'Print help'
complete -c kvorum -n "__fish_kvorum_using_subcommand token; and __fish_seen_subcommand_from help" -f -a "create" -d 'Create a token and print it; it can\'t be shown again'
complete -c kvorum -n "__fish_kvorum_using_subcommand token; and __fish_seen_subcommand_from help" -f -a "list" -d 'List the tokens, without their texts'
complete -c kvorum -n "__fish_kvorum_using_subcommand token; and __fish_seen_subcommand_from help" -f -a "revoke" -d 'Revoke a token: nodes refuse it once they have learned of the revocation, within a second'
complete -c kvorum -n "__fish_kvorum_using_subcommand token; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c kvorum -n "__fish_kvorum_using_subcommand quota; and not __fish_seen_subcommand_from set list remove help" -s h -l help -d 'Print help'
complete -c kvorum -n "__fish_kvorum_using_subcommand quota; and not __fish_seen_subcommand_from set list remove help" -f -a "set" -d 'Set the quota of a prefix, or replace it'
complete -c kvorum -n "__fish_kvorum_using_subcommand quota; and not __fish_seen_subcommand_from set list remove help" -f -a "list" -d 'List the quotas, and the bytes stored under each, as the node estimates them'
complete -c kvorum -n "__fish_kvorum_using_subcommand quota; and not __fish_seen_subcommand_from set list remove help" -f -a "remove" -d 'Remove the quota of a prefix'
complete -c kvorum -n "__fish_kvorum_using_subcommand quota; and not __fish_seen_subcommand_from set list remove help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c kvorum -n "__fish_kvorum_using_subcommand quota; and __fish_seen_subcommand_from set" -l soft -d 'Soft limit: above it metrics and alerts warn, as in 8GiB [default: none]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand quota; and __fish_seen_subcommand_from set" -l hard -d 'Hard limit: from it on writes are refused with 507, as in 10GiB [default: none]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand quota; and __fish_seen_subcommand_from set" -l url -d 'URL of any node of the cluster' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand quota; and __fish_seen_subcommand_from set" -l token-file -d 'File with the token to send; the variable KVORUM_TOKEN or KVORUM_ADMIN_TOKEN can hold the token instead' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand quota; and __fish_seen_subcommand_from set" -l ca-file -d 'Certificates of CAs, in PEM, by which nodes at https:// URLs are checked [default: those that this machine trusts]' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand quota; and __fish_seen_subcommand_from set" -l client-cert -d 'Certificate to show, in PEM, to nodes that ask for one' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand quota; and __fish_seen_subcommand_from set" -l client-key -d 'Its private key, in PEM' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand quota; and __fish_seen_subcommand_from set" -l timeout -d 'Timeout for connecting and for each part of the response, as in 500ms or 30s; must exceed the node\'s --deadline [default: 10s; status: 15s]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand quota; and __fish_seen_subcommand_from set" -l json -d 'Print JSON. Keys and values that are not UTF-8 are printed in base64, as `key_base64` and `value_base64`; the node\'s errors go to stderr as JSON'
complete -c kvorum -n "__fish_kvorum_using_subcommand quota; and __fish_seen_subcommand_from set" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kvorum -n "__fish_kvorum_using_subcommand quota; and __fish_seen_subcommand_from list" -l url -d 'URL of any node of the cluster' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand quota; and __fish_seen_subcommand_from list" -l token-file -d 'File with the token to send; the variable KVORUM_TOKEN or KVORUM_ADMIN_TOKEN can hold the token instead' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand quota; and __fish_seen_subcommand_from list" -l ca-file -d 'Certificates of CAs, in PEM, by which nodes at https:// URLs are checked [default: those that this machine trusts]' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand quota; and __fish_seen_subcommand_from list" -l client-cert -d 'Certificate to show, in PEM, to nodes that ask for one' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand quota; and __fish_seen_subcommand_from list" -l client-key -d 'Its private key, in PEM' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand quota; and __fish_seen_subcommand_from list" -l timeout -d 'Timeout for connecting and for each part of the response, as in 500ms or 30s; must exceed the node\'s --deadline [default: 10s; status: 15s]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand quota; and __fish_seen_subcommand_from list" -l json -d 'Print JSON. Keys and values that are not UTF-8 are printed in base64, as `key_base64` and `value_base64`; the node\'s errors go to stderr as JSON'
complete -c kvorum -n "__fish_kvorum_using_subcommand quota; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c kvorum -n "__fish_kvorum_using_subcommand quota; and __fish_seen_subcommand_from remove" -l url -d 'URL of any node of the cluster' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand quota; and __fish_seen_subcommand_from remove" -l token-file -d 'File with the token to send; the variable KVORUM_TOKEN or KVORUM_ADMIN_TOKEN can hold the token instead' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand quota; and __fish_seen_subcommand_from remove" -l ca-file -d 'Certificates of CAs, in PEM, by which nodes at https:// URLs are checked [default: those that this machine trusts]' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand quota; and __fish_seen_subcommand_from remove" -l client-cert -d 'Certificate to show, in PEM, to nodes that ask for one' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand quota; and __fish_seen_subcommand_from remove" -l client-key -d 'Its private key, in PEM' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand quota; and __fish_seen_subcommand_from remove" -l timeout -d 'Timeout for connecting and for each part of the response, as in 500ms or 30s; must exceed the node\'s --deadline [default: 10s; status: 15s]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand quota; and __fish_seen_subcommand_from remove" -l json -d 'Print JSON. Keys and values that are not UTF-8 are printed in base64, as `key_base64` and `value_base64`; the node\'s errors go to stderr as JSON'
complete -c kvorum -n "__fish_kvorum_using_subcommand quota; and __fish_seen_subcommand_from remove" -s h -l help -d 'Print help'
complete -c kvorum -n "__fish_kvorum_using_subcommand quota; and __fish_seen_subcommand_from help" -f -a "set" -d 'Set the quota of a prefix, or replace it'
complete -c kvorum -n "__fish_kvorum_using_subcommand quota; and __fish_seen_subcommand_from help" -f -a "list" -d 'List the quotas, and the bytes stored under each, as the node estimates them'
complete -c kvorum -n "__fish_kvorum_using_subcommand quota; and __fish_seen_subcommand_from help" -f -a "remove" -d 'Remove the quota of a prefix'
complete -c kvorum -n "__fish_kvorum_using_subcommand quota; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c kvorum -n "__fish_kvorum_using_subcommand cert; and not __fish_seen_subcommand_from ca node client help" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kvorum -n "__fish_kvorum_using_subcommand cert; and not __fish_seen_subcommand_from ca node client help" -f -a "ca" -d 'Make a CA: ca.pem for clients, ca.key to issue certificates with'
complete -c kvorum -n "__fish_kvorum_using_subcommand cert; and not __fish_seen_subcommand_from ca node client help" -f -a "node" -d 'Issue a certificate for nodes: --tls-cert, --tls-key'
complete -c kvorum -n "__fish_kvorum_using_subcommand cert; and not __fish_seen_subcommand_from ca node client help" -f -a "client" -d 'Issue a certificate for a client of nodes with --tls-client-ca'
complete -c kvorum -n "__fish_kvorum_using_subcommand cert; and not __fish_seen_subcommand_from ca node client help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c kvorum -n "__fish_kvorum_using_subcommand cert; and __fish_seen_subcommand_from ca" -l dir -d 'Directory for ca.pem and ca.key' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand cert; and __fish_seen_subcommand_from ca" -l expires -d 'Validity of the CA, in s, m, h or d' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand cert; and __fish_seen_subcommand_from ca" -s h -l help -d 'Print help'
complete -c kvorum -n "__fish_kvorum_using_subcommand cert; and __fish_seen_subcommand_from node" -l host -d 'Names and IP addresses in the node\'s URLs; several nodes may share a certificate' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand cert; and __fish_seen_subcommand_from node" -l dir -d 'Directory with ca.pem and ca.key' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand cert; and __fish_seen_subcommand_from node" -l expires -d 'Validity of the certificate, in s, m, h or d; it ends no later than the CA\'s' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand cert; and __fish_seen_subcommand_from node" -l out -d 'File for the certificate; its key goes to the same name with .key instead of .pem [default: node.pem in --dir]' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand cert; and __fish_seen_subcommand_from node" -s h -l help -d 'Print help'
complete -c kvorum -n "__fish_kvorum_using_subcommand cert; and __fish_seen_subcommand_from client" -l name -d 'Name of the client, for people to read' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand cert; and __fish_seen_subcommand_from client" -l dir -d 'Directory with ca.pem and ca.key' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand cert; and __fish_seen_subcommand_from client" -l expires -d 'Validity of the certificate, in s, m, h or d; it ends no later than the CA\'s' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand cert; and __fish_seen_subcommand_from client" -l out -d 'File for the certificate; its key goes to the same name with .key instead of .pem [default: NAME.pem in --dir]' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand cert; and __fish_seen_subcommand_from client" -s h -l help -d 'Print help'
complete -c kvorum -n "__fish_kvorum_using_subcommand cert; and __fish_seen_subcommand_from help" -f -a "ca" -d 'Make a CA: ca.pem for clients, ca.key to issue certificates with'
complete -c kvorum -n "__fish_kvorum_using_subcommand cert; and __fish_seen_subcommand_from help" -f -a "node" -d 'Issue a certificate for nodes: --tls-cert, --tls-key'
complete -c kvorum -n "__fish_kvorum_using_subcommand cert; and __fish_seen_subcommand_from help" -f -a "client" -d 'Issue a certificate for a client of nodes with --tls-client-ca'
complete -c kvorum -n "__fish_kvorum_using_subcommand cert; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c kvorum -n "__fish_kvorum_using_subcommand compact" -l url -d 'URL of any node of the cluster' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand compact" -l token-file -d 'File with the token to send; the variable KVORUM_TOKEN or KVORUM_ADMIN_TOKEN can hold the token instead' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand compact" -l ca-file -d 'Certificates of CAs, in PEM, by which nodes at https:// URLs are checked [default: those that this machine trusts]' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand compact" -l client-cert -d 'Certificate to show, in PEM, to nodes that ask for one' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand compact" -l client-key -d 'Its private key, in PEM' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand compact" -l timeout -d 'Timeout for connecting and for each part of the response, as in 500ms or 30s; must exceed the node\'s --deadline [default: 10s; status: 15s]' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand compact" -l wait -d 'Wait for the end of the compaction, and show its progress. Exit code 1 if it failed'
complete -c kvorum -n "__fish_kvorum_using_subcommand compact" -l json -d 'Print JSON. Keys and values that are not UTF-8 are printed in base64, as `key_base64` and `value_base64`; the node\'s errors go to stderr as JSON'
complete -c kvorum -n "__fish_kvorum_using_subcommand compact" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kvorum -n "__fish_kvorum_using_subcommand profile; and not __fish_seen_subcommand_from diff shares help" -s e -l events -d 'Events: cpu (time on a CPU), alloc (bytes allocated), live (bytes still allocated at the end), lock (time waited for locks, queues and files), wall (time of all threads)' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand profile; and not __fish_seen_subcommand_from diff shares help" -s d -l duration -d 'Length of the recording in seconds, 1..300' -r
complete -c kvorum -n "__fish_kvorum_using_subcommand profile; and not __fish_seen_subcommand_from diff shares help" -s o -l output -d 'Output format: html (an interactive page), svg (a picture), folded (collapsed stacks), pprof (for `go tool pprof`)' -r -f -a "html\t''
svg\t''
folded\t''
pprof\t''"
complete -c kvorum -n "__fish_kvorum_using_subcommand profile; and not __fish_seen_subcommand_from diff shares help" -l out -d 'Directory for the files HOST-PORT-EVENT.EXT, one for each node and event' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand profile; and not __fish_seen_subcommand_from diff shares help" -l ca-file -d 'Certificates of CAs, in PEM, by which nodes at https:// URLs are checked [default: those that this machine trusts]' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand profile; and not __fish_seen_subcommand_from diff shares help" -l client-cert -d 'Certificate to show, in PEM, to nodes that ask for one' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand profile; and not __fish_seen_subcommand_from diff shares help" -l client-key -d 'Its private key, in PEM' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand profile; and not __fish_seen_subcommand_from diff shares help" -l token-file -d 'File with the token to send; the variable KVORUM_TOKEN or KVORUM_ADMIN_TOKEN can hold the token instead' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand profile; and not __fish_seen_subcommand_from diff shares help" -l idle -d 'In lock and wall, also show threads that had no work'
complete -c kvorum -n "__fish_kvorum_using_subcommand profile; and not __fish_seen_subcommand_from diff shares help" -s h -l help -d 'Print help'
complete -c kvorum -n "__fish_kvorum_using_subcommand profile; and not __fish_seen_subcommand_from diff shares help" -a "diff" -d 'Draw the difference between two recordings, as shares of each'
complete -c kvorum -n "__fish_kvorum_using_subcommand profile; and not __fish_seen_subcommand_from diff shares help" -a "shares" -d 'Print the share of each part of a node, one column for each recording'
complete -c kvorum -n "__fish_kvorum_using_subcommand profile; and not __fish_seen_subcommand_from diff shares help" -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c kvorum -n "__fish_kvorum_using_subcommand profile; and __fish_seen_subcommand_from diff" -s o -l output -d 'File for the graph: a picture if it ends in .svg, otherwise an interactive page' -r -F
complete -c kvorum -n "__fish_kvorum_using_subcommand profile; and __fish_seen_subcommand_from diff" -s h -l help -d 'Print help'
complete -c kvorum -n "__fish_kvorum_using_subcommand profile; and __fish_seen_subcommand_from shares" -s h -l help -d 'Print help'
complete -c kvorum -n "__fish_kvorum_using_subcommand profile; and __fish_seen_subcommand_from help" -f -a "diff" -d 'Draw the difference between two recordings, as shares of each'
complete -c kvorum -n "__fish_kvorum_using_subcommand profile; and __fish_seen_subcommand_from help" -f -a "shares" -d 'Print the share of each part of a node, one column for each recording'
complete -c kvorum -n "__fish_kvorum_using_subcommand profile; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c kvorum -n "__fish_kvorum_using_subcommand help; and not __fish_seen_subcommand_from serve dev repair-clock put get del add scan status repair cluster token quota cert compact profile bench help" -f -a "serve" -d 'Run a node'
complete -c kvorum -n "__fish_kvorum_using_subcommand help; and not __fish_seen_subcommand_from serve dev repair-clock put get del add scan status repair cluster token quota cert compact profile bench help" -f -a "dev" -d 'Run a local test cluster on this machine'
complete -c kvorum -n "__fish_kvorum_using_subcommand help; and not __fish_seen_subcommand_from serve dev repair-clock put get del add scan status repair cluster token quota cert compact profile bench help" -f -a "repair-clock" -d 'Remove records with timestamps far ahead of the clock from a stopped node\'s data'
complete -c kvorum -n "__fish_kvorum_using_subcommand help; and not __fish_seen_subcommand_from serve dev repair-clock put get del add scan status repair cluster token quota cert compact profile bench help" -f -a "put" -d 'Write a value. Exit code 1 if a condition (--if-match, --if-none-match) is not met'
complete -c kvorum -n "__fish_kvorum_using_subcommand help; and not __fish_seen_subcommand_from serve dev repair-clock put get del add scan status repair cluster token quota cert compact profile bench help" -f -a "get" -d 'Read a value and print it unchanged. Exit code 1 if a key is not found'
complete -c kvorum -n "__fish_kvorum_using_subcommand help; and not __fish_seen_subcommand_from serve dev repair-clock put get del add scan status repair cluster token quota cert compact profile bench help" -f -a "del" -d 'Delete keys; succeeds also if they do not exist, unless --if-match is given'
complete -c kvorum -n "__fish_kvorum_using_subcommand help; and not __fish_seen_subcommand_from serve dev repair-clock put get del add scan status repair cluster token quota cert compact profile bench help" -f -a "add" -d 'Add to a decimal number and print the sum; a key without a value counts as 0'
complete -c kvorum -n "__fish_kvorum_using_subcommand help; and not __fish_seen_subcommand_from serve dev repair-clock put get del add scan status repair cluster token quota cert compact profile bench help" -f -a "scan" -d 'Print keys and values in order'
complete -c kvorum -n "__fish_kvorum_using_subcommand help; and not __fish_seen_subcommand_from serve dev repair-clock put get del add scan status repair cluster token quota cert compact profile bench help" -f -a "status" -d 'Show the state of every node, as the node reports it. Exit code 1 if a node is down or does not serve'
complete -c kvorum -n "__fish_kvorum_using_subcommand help; and not __fish_seen_subcommand_from serve dev repair-clock put get del add scan status repair cluster token quota cert compact profile bench help" -f -a "repair" -d 'Compare the replicas of all keys and make them equal'
complete -c kvorum -n "__fish_kvorum_using_subcommand help; and not __fish_seen_subcommand_from serve dev repair-clock put get del add scan status repair cluster token quota cert compact profile bench help" -f -a "cluster" -d 'Show the cluster\'s members and its council, and plan changes'
complete -c kvorum -n "__fish_kvorum_using_subcommand help; and not __fish_seen_subcommand_from serve dev repair-clock put get del add scan status repair cluster token quota cert compact profile bench help" -f -a "token" -d 'Create, list and revoke tokens, which authorize requests'
complete -c kvorum -n "__fish_kvorum_using_subcommand help; and not __fish_seen_subcommand_from serve dev repair-clock put get del add scan status repair cluster token quota cert compact profile bench help" -f -a "quota" -d 'Set, list and remove quotas: how much clients may store under a prefix'
complete -c kvorum -n "__fish_kvorum_using_subcommand help; and not __fish_seen_subcommand_from serve dev repair-clock put get del add scan status repair cluster token quota cert compact profile bench help" -f -a "cert" -d 'Make a CA, and certificates for nodes and clients'
complete -c kvorum -n "__fish_kvorum_using_subcommand help; and not __fish_seen_subcommand_from serve dev repair-clock put get del add scan status repair cluster token quota cert compact profile bench help" -f -a "compact" -d 'Compact the whole store of one node now'
complete -c kvorum -n "__fish_kvorum_using_subcommand help; and not __fish_seen_subcommand_from serve dev repair-clock put get del add scan status repair cluster token quota cert compact profile bench help" -f -a "profile" -d 'Record flame graphs of running nodes, and compare them'
complete -c kvorum -n "__fish_kvorum_using_subcommand help; and not __fish_seen_subcommand_from serve dev repair-clock put get del add scan status repair cluster token quota cert compact profile bench help" -f -a "bench" -d 'Measure an HTTP server: load, search, coldhot, compare, import, report'
complete -c kvorum -n "__fish_kvorum_using_subcommand help; and not __fish_seen_subcommand_from serve dev repair-clock put get del add scan status repair cluster token quota cert compact profile bench help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c kvorum -n "__fish_kvorum_using_subcommand help; and __fish_seen_subcommand_from dev" -f -a "add" -d 'Add a node to the cluster of the `kvorum dev` that runs'
complete -c kvorum -n "__fish_kvorum_using_subcommand help; and __fish_seen_subcommand_from dev" -f -a "remove" -d 'Remove a node from the cluster of the `kvorum dev` that runs'
complete -c kvorum -n "__fish_kvorum_using_subcommand help; and __fish_seen_subcommand_from cluster" -f -a "status" -d 'Show the members, the epoch of each member, and the council. Exit code 1 if a node is down or in another epoch'
complete -c kvorum -n "__fish_kvorum_using_subcommand help; and __fish_seen_subcommand_from cluster" -f -a "plan" -d 'Show the effects of a change of the members; changes nothing'
complete -c kvorum -n "__fish_kvorum_using_subcommand help; and __fish_seen_subcommand_from cluster" -f -a "apply" -d 'Apply a plan: the council decides it, and the keys move'
complete -c kvorum -n "__fish_kvorum_using_subcommand help; and __fish_seen_subcommand_from cluster" -f -a "abort" -d 'Go back to the previous members, as long as reads do not use the new replicas yet'
complete -c kvorum -n "__fish_kvorum_using_subcommand help; and __fish_seen_subcommand_from cluster" -f -a "finalize" -d 'End an upgrade: raise the store format of all nodes. There is no way back afterwards'
complete -c kvorum -n "__fish_kvorum_using_subcommand help; and __fish_seen_subcommand_from cluster" -f -a "recover" -d 'Let one stopped node replace a council whose majority is lost for good'
complete -c kvorum -n "__fish_kvorum_using_subcommand help; and __fish_seen_subcommand_from token" -f -a "create" -d 'Create a token and print it; it can\'t be shown again'
complete -c kvorum -n "__fish_kvorum_using_subcommand help; and __fish_seen_subcommand_from token" -f -a "list" -d 'List the tokens, without their texts'
complete -c kvorum -n "__fish_kvorum_using_subcommand help; and __fish_seen_subcommand_from token" -f -a "revoke" -d 'Revoke a token: nodes refuse it once they have learned of the revocation, within a second'
complete -c kvorum -n "__fish_kvorum_using_subcommand help; and __fish_seen_subcommand_from quota" -f -a "set" -d 'Set the quota of a prefix, or replace it'
complete -c kvorum -n "__fish_kvorum_using_subcommand help; and __fish_seen_subcommand_from quota" -f -a "list" -d 'List the quotas, and the bytes stored under each, as the node estimates them'
complete -c kvorum -n "__fish_kvorum_using_subcommand help; and __fish_seen_subcommand_from quota" -f -a "remove" -d 'Remove the quota of a prefix'
complete -c kvorum -n "__fish_kvorum_using_subcommand help; and __fish_seen_subcommand_from cert" -f -a "ca" -d 'Make a CA: ca.pem for clients, ca.key to issue certificates with'
complete -c kvorum -n "__fish_kvorum_using_subcommand help; and __fish_seen_subcommand_from cert" -f -a "node" -d 'Issue a certificate for nodes: --tls-cert, --tls-key'
complete -c kvorum -n "__fish_kvorum_using_subcommand help; and __fish_seen_subcommand_from cert" -f -a "client" -d 'Issue a certificate for a client of nodes with --tls-client-ca'
complete -c kvorum -n "__fish_kvorum_using_subcommand help; and __fish_seen_subcommand_from profile" -f -a "diff" -d 'Draw the difference between two recordings, as shares of each'
complete -c kvorum -n "__fish_kvorum_using_subcommand help; and __fish_seen_subcommand_from profile" -f -a "shares" -d 'Print the share of each part of a node, one column for each recording'
