#!/bin/bash
# First process of namespaces of its own: gives systemd a machine in which the unit can be installed as on a real one, and becomes
# systemd, which runs probe.sh. All of the host's files lie below a layer that is gone with the namespaces; only WORK, on a disk, is shared.
# Called by `cargo xtask unit`, in the directory of the sources:
#   manager.sh WORK
set -eu
work=$1
sources=$PWD

ip link set lo up
mount --make-rprivate /
cover=/run
mount -t tmpfs tmpfs $cover
mkdir $cover/upper $cover/work $cover/root
mount -t overlay overlay -o lowerdir=/,upperdir=$cover/upper,workdir=$cover/work $cover/root
cd $cover/root
for directory in tmp var/tmp run; do mount -t tmpfs -o mode=1777 tmpfs $directory; done
mkdir -p run/lock run/systemd/system ."$work"
mount --bind "$work" ."$work"
# Pools need a disk.
mkdir -p "$work/lib"
mount --bind "$work/lib" var/lib
# So does the conformance suite, in the directory that it was built for.
mkdir -p -m 1777 "$work/tmp"
mkdir -p ".$sources/target/tmp"
mount --bind "$work/tmp" ".$sources/target/tmp"
mount -t proc proc proc
mount --rbind /dev dev
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mkdir -p run/host
pivot_root . run/host
umount -l /run/host

# Else it would start what the host has enabled, and clean up as after booting.
find /etc/systemd/system -name '*.wants' -o -name '*.requires' | xargs -r rm -rf
ln -s /dev/null /run/systemd/system/systemd-tmpfiles-setup.service
ln -s /dev/null /run/systemd/system/systemd-tmpfiles-setup-dev.service
cat >/run/systemd/system/probe.target <<END
[Unit]
Wants=systemd-journald.service probe.service
END
cat >/run/systemd/system/probe.service <<END
[Unit]
DefaultDependencies=no
After=systemd-journald.service
[Service]
Type=oneshot
WorkingDirectory=$sources
ExecStart=/bin/bash $sources/testbed/systemd/probe.sh $work
StandardOutput=append:$work/output
StandardError=append:$work/output
ExecStopPost=/bin/touch $work/ended
END
export container=other
exec /lib/systemd/systemd --system --unit=probe.target --show-status=0 --log-target=journal
