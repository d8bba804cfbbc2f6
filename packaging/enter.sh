#!/bin/bash
# enter.sh ROOT COMMAND...: runs the command in a chroot of ROOT with /proc and the devices that
# programs expect. Mounts in the namespaces of the caller.
set -euo pipefail
root=$1
shift
mount --make-rprivate /
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/run"
for device in null zero full random urandom tty; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
ip link set lo up
path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
exec chroot "$root" /usr/bin/env -i PATH="$path" HOME=/ LC_ALL=C.UTF-8 \
    DEBIAN_FRONTEND=noninteractive "$@"
