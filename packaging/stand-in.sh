#!/bin/bash
# Replaces systemctl in the chroots of packaging/test.sh, where no systemd runs. Supports only the
# kvorum unit, and the subcommands that the package's scripts and the documents use. Starts
# ExecStart as the unit's user, and waits until the node reports READY=1, as Type=notify requires.
# Stops the node by SIGTERM.
set -euo pipefail

unit=/lib/systemd/system/kvorum.service
# Deadline of a start and of a stop, in seconds.
timeout=30

unit_value() { sed -n "s/^$1=//p" "$unit"; }

pid() { cat /run/node.pid 2>/dev/null; }

runs() { pid >/dev/null && kill -0 "$(pid)" 2>/dev/null; }

# Creates the data directory, and sets its owner and mode, as StateDirectory= does.
create_data_directory() {
    local data
    data=/var/lib/$(unit_value StateDirectory)
    mkdir -p "$data"
    [ "$(stat -c %U "$data")" = "$(unit_value User)" ] ||
        chown -R "$(unit_value User):$(unit_value Group)" "$data"
    chmod "$(unit_value StateDirectoryMode)" "$data"
}

# A Perl program that starts the node. Its exit code is 0 when the node is ready, and 1 when the
# node has ended or the deadline has passed.
start_program='
    use Socket;
    my ($path, $timeout, @command) = @ARGV;
    unlink $path;
    socket(my $socket, PF_UNIX, SOCK_DGRAM, 0) or die $!;
    bind($socket, sockaddr_un($path)) or die $!;
    chmod 0777, $path;
    $SIG{CHLD} = $SIG{ALRM} = sub { exit 1 };
    my $pid = fork // die $!;
    if (!$pid) {
        $ENV{NOTIFY_SOCKET} = $path;
        open STDIN, "<", "/dev/null";
        open STDOUT, ">>", "/run/node.log";
        open STDERR, ">&", STDOUT;
        exec @command or die $!;
    }
    open my $file, ">", "/run/node.pid" or die $!;
    print $file "$pid\n";
    close $file;
    alarm $timeout;
    while (1) {
        recv($socket, my $message, 4096, 0) // next;
        exit 0 if $message =~ /^READY=1$/m;
    }'

start() {
    ! runs || return 0
    create_data_directory
    # $(unit_value ExecStart) is not quoted, because it has several words.
    perl -e "$start_program" /run/notify "$timeout" setsid setpriv --reuid "$(unit_value User)" \
        --regid "$(unit_value Group)" --clear-groups --no-new-privs $(unit_value ExecStart)
}

stop() {
    local deadline=$((SECONDS + timeout))
    runs || return 0
    kill "$(pid)"
    while runs; do
        [ "$SECONDS" -lt "$deadline" ] || return 1
        sleep 0.05
    done
    rm /run/node.pid
}

link=/etc/systemd/system/multi-user.target.wants/kvorum.service
# With --root (from deb-systemd-helper) the real systemctl only changes files, and needs no running
# systemd.
[[ $1 != --root=* ]] || exec /bin/systemctl "$@"
while [[ ${1:-} == -* ]]; do shift; done
case $1 in
    is-enabled)
        if [ -L "$link" ]; then echo enabled; else echo disabled && exit 1; fi
        ;;
    is-active) runs ;;
    start) start ;;
    stop) stop ;;
    restart) stop && start ;;
    reload) kill -HUP "$(pid)" ;;
    daemon-reload) ;;
    *)
        echo "packaging/stand-in.sh does not know: $*" >&2
        exit 1
        ;;
esac
