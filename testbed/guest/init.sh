#!/bin/bash
# Process 1 of the guest: mounts the host's directory and hands over to its start.sh, which is the checked-out one.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin HOME=/root LANG=C.UTF-8 TERM="${TERM:-linux}"
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mountpoint -q /dev || mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm /host
mount -t devpts devpts /dev/pts
for directory in /dev/shm /run /tmp; do mount -t tmpfs tmpfs "$directory"; done
ln -sf /proc/self/fd /dev/fd
echo "pmof-testbed: init"
modprobe -a 9pnet_virtio 9p
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,cache=none host /host
exec bash /host/guest/start.sh
