# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_kvorum_bench_global_optspecs
    string join \n h/help V/version
end

function __fish_kvorum_bench_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_kvorum_bench_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_kvorum_bench_using_subcommand
    set -l cmd (__fish_kvorum_bench_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c kvorum-bench -n "__fish_kvorum_bench_needs_command" -s h -l help -d 'Print help'
complete -c kvorum-bench -n "__fish_kvorum_bench_needs_command" -s V -l version -d 'Print version'
complete -c kvorum-bench -n "__fish_kvorum_bench_needs_command" -f -a "load" -d 'Send load to any HTTP server, like wrk2, and report latencies'
complete -c kvorum-bench -n "__fish_kvorum_bench_needs_command" -f -a "search" -d 'Find the highest rate that an HTTP server sustains'
complete -c kvorum-bench -n "__fish_kvorum_bench_needs_command" -f -a "coldhot" -d 'Compare a freshly started server with a warm one, for PUT and GET'
complete -c kvorum-bench -n "__fish_kvorum_bench_needs_command" -f -a "compare" -d 'Compare two runs, or two sets of repeats, and tell differences from noise'
complete -c kvorum-bench -n "__fish_kvorum_bench_needs_command" -f -a "import" -d 'Convert outputs of wrk2 and wrk, or pages that quote them, into run directories'
complete -c kvorum-bench -n "__fish_kvorum_bench_needs_command" -f -a "report" -d 'Write a self-contained HTML report about runs and series'
complete -c kvorum-bench -n "__fish_kvorum_bench_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand load" -s c -l connections -d 'Connections to keep open, over all threads, 1..20000, with k, M or G' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand load" -s t -l threads -d 'Threads, 1..256, at most as many as connections [default: 2, or 1 for one connection]' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand load" -s s -l script -d 'Lua script, as wrk and wrk2 take it: setup, init, request, response, delay, done' -r -F
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand load" -s H -l header -d 'Header for every request, "Name: value"; can be given several times' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand load" -l token-file -d 'File with a token that every request carries, those for the servers\' figures too: Authorization: Bearer TOKEN' -r -F
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand load" -s T -l timeout -d 'Later answers count as timeouts; they are still waited for, and their latency counts. s unless it says ms, m or h' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand load" -l target-mode -d 'What several URLs share: "spread": connections, threads and rate are dealt over them; "each": every URL gets all of them' -r -f -a "each\t'Every URL gets all'
spread\t'The URLs share the load'"
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand load" -l mix -d 'Makes requests with keys and values here, without a script: methods and their percentages, as in put=50,get=45,delete=5; together 100 [default: get=100 if any of the following is given]' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand load" -l keys -d 'Which keys: "seq", one after the other; "scattered", each once in an order far from sorted; "uniform"; "zipf", few of them often (theta 0.99); "latest:N", puts in sequence, and others among the last N put [default: uniform]' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand load" -l key-count -d 'How many different keys, 1 or more, with k, M or G [default: 200k]' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand load" -l key-len -d 'Bytes of each key, up to 1024: "k" and its number with zeros before it [default: 16]' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand load" -l value-len -d 'Bytes of each value put, up to 16 MiB; what is in it follows from --seed and the key [default: 64]' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand load" -l seed -d 'Seed of all that is random here: keys, values, mix, arrivals' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand load" -l ca-file -d 'CAs of https:// servers, in PEM [default: the file that KVORUM_CA_FILE names, else the CAs that the system trusts]' -r -F
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand load" -l client-cert -d 'Certificate to show to https:// servers that ask for one, in PEM' -r -F
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand load" -l client-key -d 'Private key of --client-cert, in PEM' -r -F
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand load" -s d -l duration -d 'Length of the run, in s, or with ms, s, m or h; up to 24h' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand load" -s R -l rate -d 'Requests a second over all connections, with k, M or G, sent by plan whatever the server does' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand load" -l warmup -d 'Sends for this long before anything is counted' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand load" -l arrival -d 'How requests lie in time: "even", as wrk2; "poisson", as from many independent users' -r -f -a "even\t'At even distances'
poisson\t'At random times, as a Poisson process'"
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand load" -l hdr-log -d 'Interval log of the latencies, one histogram a second and method, for HdrHistogram\'s tools' -r -F
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand load" -l csv -d 'Rate, errors, latencies and backlog second by second' -r -F
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand load" -l out -d 'Write everything about the run into this directory: run.json, output.txt, the script, logs of all histograms, timeline.csv, profiles. New or empty; `report` and `compare` read it' -r -F
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand load" -l profile -d 'Records flame graphs on each server during the run, where it can: cpu, alloc, lock, wall' -r -f -a "cpu\t'Time on a CPU'
alloc\t'Bytes that were allocated'
lock\t'Time waited for locks and queues'
wall\t'Time, running or not'"
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand load" -l verify -d 'Checks that each value read is the one that this command put, with the same --seed and --value-len, now or in an earlier run'
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand load" -l closed -d 'No rate: each connection sends when it has its answer, as wrk does'
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand load" -s L -l latency -d 'Print latencies in detail, from the moment that the plan said'
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand load" -s U -l u_latency -d 'Print also latencies from the moment that the request was written'
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand load" -s B -l batch_latency -d 'Count a script\'s pipelined requests as one latency, from when they were due until the last of them is answered. Changes nothing unless the script pipelines'
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand load" -l json -d 'Print run.json instead of the text'
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand load" -l strict -d 'Exit code 3 if there is a warning, or any request failed'
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand load" -s v -l version -d 'Print the version'
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand load" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand search" -s c -l connections -d 'Connections to keep open, over all threads, 1..20000, with k, M or G' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand search" -s t -l threads -d 'Threads, 1..256, at most as many as connections [default: 2, or 1 for one connection]' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand search" -s s -l script -d 'Lua script, as wrk and wrk2 take it: setup, init, request, response, delay, done' -r -F
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand search" -s H -l header -d 'Header for every request, "Name: value"; can be given several times' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand search" -l token-file -d 'File with a token that every request carries, those for the servers\' figures too: Authorization: Bearer TOKEN' -r -F
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand search" -s T -l timeout -d 'Later answers count as timeouts; they are still waited for, and their latency counts. s unless it says ms, m or h' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand search" -l target-mode -d 'What several URLs share: "spread": connections, threads and rate are dealt over them; "each": every URL gets all of them' -r -f -a "each\t'Every URL gets all'
spread\t'The URLs share the load'"
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand search" -l mix -d 'Makes requests with keys and values here, without a script: methods and their percentages, as in put=50,get=45,delete=5; together 100 [default: get=100 if any of the following is given]' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand search" -l keys -d 'Which keys: "seq", one after the other; "scattered", each once in an order far from sorted; "uniform"; "zipf", few of them often (theta 0.99); "latest:N", puts in sequence, and others among the last N put [default: uniform]' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand search" -l key-count -d 'How many different keys, 1 or more, with k, M or G [default: 200k]' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand search" -l key-len -d 'Bytes of each key, up to 1024: "k" and its number with zeros before it [default: 16]' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand search" -l value-len -d 'Bytes of each value put, up to 16 MiB; what is in it follows from --seed and the key [default: 64]' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand search" -l seed -d 'Seed of all that is random here: keys, values, mix, arrivals' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand search" -l ca-file -d 'CAs of https:// servers, in PEM [default: the file that KVORUM_CA_FILE names, else the CAs that the system trusts]' -r -F
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand search" -l client-cert -d 'Certificate to show to https:// servers that ask for one, in PEM' -r -F
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand search" -l client-key -d 'Private key of --client-cert, in PEM' -r -F
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand search" -l server -d 'Starts the server: a command line, split as a shell does, without one. {data} in it stands for a data directory that is fresh at each start, and removed after it' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand search" -l fresh -d 'Where fresh data directories are made [default: the system\'s directory for temporary files]' -r -F
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand search" -l profile -d 'Has each server record itself, where it can: cpu, alloc, lock, wall. The folded stacks are kept with the run' -r -f -a "cpu\t'Time on a CPU'
alloc\t'Bytes that were allocated'
lock\t'Time waited for locks and queues'
wall\t'Time, running or not'"
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand search" -l out -d 'Where the series is kept: an empty directory, or one to be made [default: named after the time, in the current one]' -r -F
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand search" -l slo -d 'What a trial must meet: pNN, mean and max below a time in us, ms or s, errors below a percentage. Latency counts from the intended start; without a term for errors, errors<0.1% is added' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand search" -s d -l duration -d 'Length of a trial, in s, or with ms, s, m or h; the first trials are half as long' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand search" -l warmup -d 'Sends for this long before each trial; nothing of it is counted' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand search" -l from -d 'Lowest rate, 1 request a second or more, with k, M or G [default: a hundredth of --to, or of what a closed loop brings]' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand search" -l to -d 'Highest rate, requests a second, up to 10M, with k, M or G: no trial sends more, and there is no closed loop, which would [default: twice what a closed loop brings]' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand search" -l precision -d 'How far the rate that passes and the one that fails may be apart, 0.5%..100%' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand search" -l repeats -d 'Trials at each of these two, of which a majority must agree, 1..9' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand search" -l also -d 'Search also with these requests in place of the first: a mix, as in get=100, or a script\'s file. Can be given several times' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand search" -l prepare -d 'Write data before the first trial, and again whenever they are fresh: "keys", every key of --key-count once; FILE.lua:N, N requests of a script. Nothing of it is counted' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand search" -l sweep -d 'Search once for each value of a flag of the server: loops=1,2,4 sets --loops. Given several times: for all combinations' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand search" -l verify -d 'Checks that each value read is the one that this command put, with the same --seed and --value-len, now or in an earlier run'
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand search" -l json -d 'Print series.json in the end instead of the summary'
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand search" -l restart -d 'Start the server of --server anew for each trial'
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand search" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand coldhot" -s c -l connections -d 'Connections to keep open, over all threads, 1..20000, with k, M or G' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand coldhot" -s t -l threads -d 'Threads, 1..256, at most as many as connections [default: 2, or 1 for one connection]' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand coldhot" -s s -l script -d 'Lua script, as wrk and wrk2 take it: setup, init, request, response, delay, done' -r -F
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand coldhot" -s H -l header -d 'Header for every request, "Name: value"; can be given several times' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand coldhot" -l token-file -d 'File with a token that every request carries, those for the servers\' figures too: Authorization: Bearer TOKEN' -r -F
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand coldhot" -s T -l timeout -d 'Later answers count as timeouts; they are still waited for, and their latency counts. s unless it says ms, m or h' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand coldhot" -l target-mode -d 'What several URLs share: "spread": connections, threads and rate are dealt over them; "each": every URL gets all of them' -r -f -a "each\t'Every URL gets all'
spread\t'The URLs share the load'"
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand coldhot" -l mix -d 'Makes requests with keys and values here, without a script: methods and their percentages, as in put=50,get=45,delete=5; together 100 [default: get=100 if any of the following is given]' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand coldhot" -l keys -d 'Which keys: "seq", one after the other; "scattered", each once in an order far from sorted; "uniform"; "zipf", few of them often (theta 0.99); "latest:N", puts in sequence, and others among the last N put [default: uniform]' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand coldhot" -l key-count -d 'How many different keys, 1 or more, with k, M or G [default: 200k]' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand coldhot" -l key-len -d 'Bytes of each key, up to 1024: "k" and its number with zeros before it [default: 16]' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand coldhot" -l value-len -d 'Bytes of each value put, up to 16 MiB; what is in it follows from --seed and the key [default: 64]' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand coldhot" -l seed -d 'Seed of all that is random here: keys, values, mix, arrivals' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand coldhot" -l ca-file -d 'CAs of https:// servers, in PEM [default: the file that KVORUM_CA_FILE names, else the CAs that the system trusts]' -r -F
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand coldhot" -l client-cert -d 'Certificate to show to https:// servers that ask for one, in PEM' -r -F
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand coldhot" -l client-key -d 'Private key of --client-cert, in PEM' -r -F
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand coldhot" -l server -d 'Starts the server: a command line, split as a shell does, without one. {data} in it stands for a data directory that is fresh at each start, and removed after it' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand coldhot" -l fresh -d 'Where fresh data directories are made [default: the system\'s directory for temporary files]' -r -F
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand coldhot" -l profile -d 'Has each server record itself, where it can: cpu, alloc, lock, wall. The folded stacks are kept with the run' -r -f -a "cpu\t'Time on a CPU'
alloc\t'Bytes that were allocated'
lock\t'Time waited for locks and queues'
wall\t'Time, running or not'"
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand coldhot" -l out -d 'Where the series is kept: an empty directory, or one to be made [default: named after the time, in the current one]' -r -F
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand coldhot" -l put-rate -d 'Requests a second of the runs that write, with k, M or G' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand coldhot" -l get-rate -d 'Requests a second of the runs that read, with k, M or G' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand coldhot" -l put-script -d 'Script of the runs that write, in place of keys and values made here' -r -F
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand coldhot" -l get-script -d 'Script of the runs that read' -r -F
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand coldhot" -l prepare -d 'What each store holds before: "keys", every key of --key-count once; FILE.lua:N, N requests of a script' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand coldhot" -s d -l duration -d 'Length of each run, in s, or with ms, s, m or h' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand coldhot" -l repeats -d 'How often the four runs are made, 1..20' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand coldhot" -l verify -d 'Checks that each value read is the one that this command put, with the same --seed and --value-len, now or in an earlier run'
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand coldhot" -l json -d 'Print series.json in the end instead of the summary'
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand coldhot" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand compare" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand import" -s o -l out -d 'Directory for the run directories, created if missing; none in it is overwritten' -r -F
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand import" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand report" -s o -l out -d 'File to write; one that is there is replaced' -r -F
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand report" -l title -d 'Heading of the page [default: the names of the directories]' -r
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand report" -s h -l help -d 'Print help'
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand help; and not __fish_seen_subcommand_from load search coldhot compare import report help" -f -a "load" -d 'Send load to any HTTP server, like wrk2, and report latencies'
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand help; and not __fish_seen_subcommand_from load search coldhot compare import report help" -f -a "search" -d 'Find the highest rate that an HTTP server sustains'
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand help; and not __fish_seen_subcommand_from load search coldhot compare import report help" -f -a "coldhot" -d 'Compare a freshly started server with a warm one, for PUT and GET'
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand help; and not __fish_seen_subcommand_from load search coldhot compare import report help" -f -a "compare" -d 'Compare two runs, or two sets of repeats, and tell differences from noise'
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand help; and not __fish_seen_subcommand_from load search coldhot compare import report help" -f -a "import" -d 'Convert outputs of wrk2 and wrk, or pages that quote them, into run directories'
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand help; and not __fish_seen_subcommand_from load search coldhot compare import report help" -f -a "report" -d 'Write a self-contained HTML report about runs and series'
complete -c kvorum-bench -n "__fish_kvorum_bench_using_subcommand help; and not __fish_seen_subcommand_from load search coldhot compare import report help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
