#!/bin/busybox sh
# First process of the guest, in the initial RAM disk: mounts the root file system and the host's directory, and goes over to start.sh there, which is
# the checked-out one. Each program costs more to start than busybox, which is static: under emulation a tenth of a second.
# xtask writes /modules: the files to load, in order.
export PATH=/bin
busybox mount -t devtmpfs devtmpfs /dev
while read -r module; do
    busybox insmod "/$module" || echo "pmof-testbed: cannot load $module"
done </modules
busybox mount -t ext4 -o noatime /dev/vda /root || echo "pmof-testbed: cannot mount the root file system"
busybox mount -t devtmpfs devtmpfs /root/dev
busybox mount -t proc proc /root/proc
busybox mount -t sysfs sysfs /root/sys
busybox mkdir -p /root/dev/pts /root/dev/shm /root/host
busybox mount -t devpts devpts /root/dev/pts
for directory in dev/shm run tmp; do busybox mount -t tmpfs tmpfs "/root/$directory"; done
busybox ln -sf /proc/self/fd /root/dev/fd
echo "pmof-testbed: init"
busybox mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,cache=loose host /root/host
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin HOME=/root LANG=C.UTF-8 TERM="${TERM:-linux}"
exec /bin/busybox switch_root /root /bin/bash /host/guest/start.sh
