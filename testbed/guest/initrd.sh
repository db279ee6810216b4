#!/bin/busybox sh
# First process of the initial RAM disk: brings up the disk with the root file system and goes over to it.
# xtask writes /modules: the files to load, in order.
/bin/busybox mount -t devtmpfs devtmpfs /dev
while read -r module; do
    /bin/busybox insmod "/$module" || echo "pmof-testbed: cannot load $module"
done </modules
/bin/busybox mount -t ext4 -o noatime /dev/vda /root || echo "pmof-testbed: cannot mount the root file system"
exec /bin/busybox switch_root /root /init
