#!/bin/bash
# Replaces systemctl in the roots of packaging/test.sh, where no systemd runs, for the one unit and
# the subcommands that the package's scripts and the pages use. Starts the unit's ExecStart as the
# unit's user and waits, as Type=notify says, until the node reports READY=1; stops it by SIGTERM.
set -euo pipefail

unit=/lib/systemd/system/kvorum.service
# Deadline of a start and of a stop, in seconds.
patience=30

value() { sed -n "s/^$1=//p" "$unit"; }

pid() { cat /run/node.pid 2>/dev/null; }

runs() { pid >/dev/null && kill -0 "$(pid)" 2>/dev/null; }

# Makes the data directory and its owner right, as StateDirectory= does.
own_data() {
    local data
    data=/var/lib/$(value StateDirectory)
    mkdir -p "$data"
    [ "$(stat -c %U "$data")" = "$(value User)" ] ||
        chown -R "$(value User):$(value Group)" "$data"
    chmod "$(value StateDirectoryMode)" "$data"
}

# A Perl program that starts the node. Its exit code is 0 when the node is ready, and 1 when the
# node has ended or the deadline has passed.
notified='
    use Socket;
    my ($path, $patience, @command) = @ARGV;
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
    alarm $patience;
    while (1) {
        recv($socket, my $told, 4096, 0) // next;
        exit 0 if $told =~ /^READY=1$/m;
    }'

start() {
    ! runs || return 0
    own_data
    # $(value ExecStart) is several words.
    perl -e "$notified" /run/notify "$patience" setsid setpriv --reuid "$(value User)" \
        --regid "$(value Group)" --clear-groups --no-new-privs $(value ExecStart)
}

stop() {
    local deadline=$((SECONDS + patience))
    runs || return 0
    kill "$(pid)"
    while runs; do
        [ "$SECONDS" -lt "$deadline" ] || return 1
        sleep 0.05
    done
    rm /run/node.pid
}

link=/etc/systemd/system/multi-user.target.wants/kvorum.service
# deb-systemd-helper changes files only, which needs no running systemd.
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
