# Stacks of disks that the kernel makes, of layers and of arrays; sourced by media.sh. They need modules.
# shellcheck shell=bash disable=SC2034,SC2154 # at, reach, loop, work: media.sh

# ext4 on DEVICE at $work/on.
ext4_on() {
    format ext4 "$1"
    mounted "$1" "$work/on" "${2:-rw}" ext4
    at=$work/on reach=$(name_of "$1")
}
# A zram disk, in $zram; a brd disk, in $brd; a null disk with memory, in $null.
zram() {
    zram=/dev/zram$(cat /sys/class/zram-control/hot_add) || return
    later "echo ${zram#/dev/zram} >/sys/class/zram-control/hot_remove"
    echo 320M >"/sys/block/${zram#/dev/}/disksize"
}
brd() {
    modprobe -r brd 2>/dev/null
    modprobe brd rd_nr=1 rd_size=327680 || return
    brd=/dev/ram0
    later "modprobe -r brd"
}
# mapped NAME: a device-mapper device with the table on standard input, in $mapped.
mapped() {
    dmsetup create "$1" --table "$2" || die "dmsetup create"
    later "dmsetup remove --retry $1"
    mapped=/dev/mapper/$1
    [ -e "$mapped" ] || dmsetup mknodes
}
sectors() { blockdev --getsz "$1"; }
disk_loop() { attach "$(image "$work/$1" "$2")"; }

stack spare_disk keeps claim "spare mke2fs" "ext4 on a virtio disk"
stack_spare_disk() { ext4_on "$PMOF_DISK_SPARE"; }

stack disk_write_through loses - "spare mke2fs" "ext4 on a virtio disk whose queue is told write through"
stack_disk_write_through() { ext4_on "$PMOF_DISK_SPARE"; passes_no_flush "$PMOF_DISK_SPARE"; }

stack zram loses - "mod:zram mke2fs" "ext4 on zram"
stack_zram() { zram && ext4_on "$zram"; }

stack brd loses - "mod:brd mke2fs" "ext4 on brd"
stack_brd() { brd && ext4_on "$brd"; }

stack null_blk loses - "mod:null_blk mke2fs" "ext4 on null_blk"
stack_null_blk() {
    modprobe -r null_blk
    modprobe null_blk nr_devices=1 gb=1 memory_backed=1 || return
    later "modprobe -r null_blk"
    ext4_on /dev/nullb0
}

# The disk whose model is $1, in $scsi.
scsi_disk() {
    local tries entry
    for tries in {1..200}; do
        for entry in /sys/block/sd*; do
            grep -qs "$1" "$entry/device/model" && scsi=/dev/${entry##*/} && [ -e "$scsi" ] && return
        done
        sleep 0.02
    done
    return 1
}

stack scsi_debug loses - "mod:scsi_debug mod:sd_mod mke2fs" "ext4 on scsi_debug"
stack_scsi_debug() { debug_disk scsi_debug; }
debug_disk() {
    modprobe -r scsi_debug 2>/dev/null
    modprobe scsi_debug dev_size_mb=80 inq_product="$1" inq_vendor=ACME || return
    later "modprobe -r scsi_debug"
    scsi_disk "$1" && ext4_on "$scsi"
}

stack scsi_debug_renamed loses - "mod:scsi_debug mod:sd_mod mke2fs" "ext4 on scsi_debug that calls itself another model"
stack_scsi_debug_renamed() { debug_disk SUPERDISK; }

stack scsi_target_tmpfs loses - "mod:tcm_loop mod:target_core_file mod:sd_mod mke2fs" "ext4 on the kernel's SCSI target (tcm_loop), its file on tmpfs"
stack_scsi_target_tmpfs() {
    local core=/sys/kernel/config/target/core/fileio_0/f fabric=/sys/kernel/config/target/loopback/naa.6001405000000001
    mountpoint -q /sys/kernel/config || mount -t configfs configfs /sys/kernel/config || return
    in_memory "$work/m"
    image "$work/m/a" 80 >/dev/null
    mkdir -p $core || return
    later "rmdir $core /sys/kernel/config/target/core/fileio_0"
    echo "fd_dev_name=$work/m/a,fd_dev_size=83886080,fd_buffered_io=1" >$core/control && echo 1 >$core/enable || return
    mkdir -p $fabric/tpgt_1/lun/lun_0 || return
    later "rm $fabric/tpgt_1/lun/lun_0/f; rmdir $fabric/tpgt_1/lun/lun_0 $fabric/tpgt_1 $fabric"
    echo naa.6001405000000002 >$fabric/tpgt_1/nexus || return
    ln -s $core $fabric/tpgt_1/lun/lun_0/f || return
    scsi_disk FILEIO && ext4_on "$scsi"
}

stack nvme_fabric_tmpfs loses - "mod:nvmet mod:nvme-loop mke2fs" "ext4 on NVMe over fabrics (nvme-loop), its file on tmpfs"
stack_nvme_fabric_tmpfs() {
    local nvmet=/sys/kernel/config/nvmet tries entry
    mountpoint -q /sys/kernel/config || mount -t configfs configfs /sys/kernel/config || return
    in_memory "$work/m"
    image "$work/m/a" 80 >/dev/null
    local subsystem=$nvmet/subsystems/media
    mkdir $subsystem $subsystem/namespaces/1 $nvmet/ports/1 || return
    later "echo 0 >$subsystem/namespaces/1/enable; rm $nvmet/ports/1/subsystems/media; rmdir $nvmet/ports/1 $subsystem/namespaces/1 $subsystem"
    echo 1 >$subsystem/attr_allow_any_host
    echo 1 >$subsystem/namespaces/1/buffered_io
    echo "$work/m/a" >$subsystem/namespaces/1/device_path && echo 1 >$subsystem/namespaces/1/enable || return
    echo loop >$nvmet/ports/1/addr_trtype
    ln -s $subsystem $nvmet/ports/1/subsystems/media || return
    [ -e /dev/nvme-fabrics ] || die "no /dev/nvme-fabrics"
    echo "transport=loop,nqn=media" >/dev/nvme-fabrics || return
    for tries in {1..200}; do
        for entry in /sys/block/nvme*n1; do [ -e "/dev/${entry##*/}" ] && break 2; done
        sleep 0.02
    done
    later "for file in /sys/class/nvme/nvme*/delete_controller; do echo 1 >\$file; done"
    ext4_on "/dev/${entry##*/}"
}

stack ext4_journal_zram loses - "mod:zram spare mke2fs" "ext4 on a virtio disk, its journal on zram"
stack_ext4_journal_zram() {
    zram || return
    mke2fs -q -F -b 4096 -O journal_dev "$zram" >/dev/null || return
    format ext4 "$PMOF_DISK_SPARE" -b 4096 -J device="$zram"
    mounted "$PMOF_DISK_SPARE" "$work/on" rw ext4
    at=$work/on reach=$(name_of "$PMOF_DISK_SPARE")
}

stack fsdax keeps claim "dir:/mnt/fsdax" "ext4 with dax=always on an NVDIMM"
stack_fsdax() { at=/mnt/fsdax; }

stack fsdax_journal_memory loses - "mod:brd mke2fs dir:/mnt/fsdax" "ext4 with dax=always on an NVDIMM, its journal on brd"
stack_fsdax_journal_memory() {
    local device
    brd || return
    device=$(awk '$2 == "/mnt/fsdax" { print $1 }' /proc/self/mounts)
    umount -l /mnt/fsdax
    nsenter --mount=/proc/1/ns/mnt umount /mnt/fsdax || return
    later "umount $work/on; mke2fs -q -F -t ext4 -b 4096 $device && nsenter --mount=/proc/1/ns/mnt mount -t ext4 -o dax=always $device /mnt/fsdax"
    mke2fs -q -F -b 4096 -O journal_dev "$brd" >/dev/null || return
    mke2fs -q -F -t ext4 -b 4096 -J device="$brd" "$device" >/dev/null || return
    mounted "$device" "$work/on" rw,dax=always ext4
    at=$work/on
}

stack dm_linear keeps claim "mod:dm-mod loop dmsetup mke2fs" "ext4 on device-mapper, linear, over a loop device"
stack_dm_linear() {
    disk_loop a 64
    mapped media_linear "0 $(sectors "$loop") linear $loop 0"
    ext4_on "$mapped"
    reach=$(name_of "$loop")
}

stack dm_striped keeps claim "mod:dm-mod loop dmsetup mke2fs" "ext4 on device-mapper, striped, over two loop devices"
stack_dm_striped() {
    disk_loop a 64
    local first=$loop
    disk_loop b 64
    mapped media_striped "0 262144 striped 2 128 $first 0 $loop 0"
    ext4_on "$mapped"
    reach="$(name_of "$first") $(name_of "$loop")"
}

stack dm_zero loses - "mod:dm-zero loop dmsetup mke2fs" "ext4 on device-mapper, linear over a loop device, then zero"
stack_dm_zero() {
    disk_loop a 64
    mapped media_zero "0 131072 linear $loop 0
131072 131072 zero"
    ext4_on "$mapped"
    reach=$(name_of "$loop")
}

stack dm_write_through loses - "mod:dm-mod loop dmsetup mke2fs" "ext4 on device-mapper, linear, told write through, over a loop device"
stack_dm_write_through() { stack_dm_linear && passes_no_flush "$mapped"; }

snapshot() { # P or N
    disk_loop a 64
    local origin=$loop
    disk_loop b 64
    format ext4 "$origin"
    mapped media_snapshot "0 $(sectors "$origin") snapshot $origin $loop $1 8"
    mounted "$mapped" "$work/on" rw ext4
    at=$work/on reach=$(name_of "$loop")
}

stack dm_snapshot_transient loses - "mod:dm-snapshot loop dmsetup mke2fs" "ext4 on a snapshot with a transient store (device-mapper)"
stack_dm_snapshot_transient() { snapshot N; }

stack dm_snapshot_persistent keeps - "mod:dm-snapshot loop dmsetup mke2fs" "ext4 on a snapshot with a persistent store"
stack_dm_snapshot_persistent() { snapshot P; }

stack dm_flakey loses - "mod:dm-flakey loop dmsetup mke2fs" "ext4 on device-mapper, flakey, which drops writes now and then"
stack_dm_flakey() {
    disk_loop a 64
    mapped media_flakey "0 $(sectors "$loop") flakey $loop 0 600 60 1 drop_writes"
    ext4_on "$mapped"
    reach=$(name_of "$loop")
}

stack dm_writecache_memory loses - "mod:dm-writecache mod:brd loop dmsetup mke2fs" "ext4 on device-mapper, writecache, the cache on brd"
stack_dm_writecache_memory() {
    brd || return
    disk_loop a 64
    mapped media_writecache "0 $(sectors "$loop") writecache s $loop $brd 4096 0"
    ext4_on "$mapped"
    reach=$(name_of "$loop")
}

stack dm_crypt_plain loses - "mod:dm-crypt mod:xts loop dmsetup mke2fs" "ext4 on device-mapper, crypt, a key made up at the start"
stack_dm_crypt_plain() {
    disk_loop a 64
    mapped media_plain "0 $(sectors "$loop") crypt aes-xts-plain64 $(head -c 64 /dev/urandom | od -An -tx1 | tr -d ' \n') 0 $loop 0"
    ext4_on "$mapped"
    reach=$(name_of "$loop")
}

stack dm_crypt_luks keeps claim "mod:dm-crypt mod:xts loop cryptsetup mke2fs" "ext4 on LUKS over a loop device"
stack_dm_crypt_luks() {
    disk_loop a 96
    mkdir -p /run/cryptsetup
    echo -n secret | cryptsetup --debug luksFormat -q --type luks1 --pbkdf-force-iterations 1000 "$loop" - || return
    echo -n secret | cryptsetup open "$loop" media_luks --key-file - || return
    later "cryptsetup close media_luks"
    ext4_on /dev/mapper/media_luks
    reach=$(name_of "$loop")
}

# array NAME LEVEL OPTIONS: of devices that follow, in $array.
array() {
    local name=$1
    shift
    mdadm --create "/dev/$name" --run --quiet --metadata=1.2 --assume-clean --homehost=any "$@" >"$work/mdadm" 2>&1 || die "mdadm: $(tail -n 2 "$work/mdadm")"
    later "mdadm --stop /dev/$name"
    array=/dev/$name
}
two_loops() { disk_loop a 80; first=$loop; disk_loop b 80; second=$loop; }

stack md_raid1 keeps claim "mod:raid1 loop mdadm mke2fs" "ext4 on md, RAID 1 of two loop devices"
stack_md_raid1() {
    two_loops
    array md51 --level=1 --bitmap=none --raid-devices=2 "$first" "$second"
    ext4_on "$array"
    reach="$(name_of "$first") $(name_of "$second")"
}

stack md_raid0_memory loses - "mod:raid0 mod:brd loop mdadm mke2fs" "ext4 on md, RAID 0 of a loop device and brd"
stack_md_raid0_memory() {
    brd || return
    disk_loop a 80
    array md52 --level=0 --raid-devices=2 "$loop" "$brd"
    ext4_on "$array"
}

stack md_write_behind unknown - "mod:raid1 loop mdadm mke2fs" "ext4 on md, RAID 1, a member written behind"
stack_md_write_behind() {
    two_loops
    array md53 --level=1 --bitmap=internal --raid-devices=2 --write-behind=256 "$first" --write-mostly "$second"
    ext4_on "$array"
}

stack md_raid5 keeps claim "mod:raid456 loop mdadm mke2fs" "ext4 on md, RAID 5 of three loop devices"
stack_md_raid5() {
    two_loops
    disk_loop c 80
    array md54 --level=5 --bitmap=none --raid-devices=3 "$first" "$second" "$loop"
    ext4_on "$array"
    reach="$(name_of "$first") $(name_of "$second") $(name_of "$loop")"
}

stack md_raid5_degraded unknown - "mod:raid456 loop mdadm mke2fs" "the same, one member gone"
stack_md_raid5_degraded() { stack_md_raid5 && mdadm --quiet "$array" --fail "$first" >/dev/null 2>&1; reach=""; }

stack bcache_memory loses - "mod:bcache mod:brd loop make-bcache mke2fs" "ext4 on bcache in writeback mode, the cache on brd"
stack_bcache_memory() {
    brd || return
    disk_loop a 80
    make-bcache --writeback -C "$brd" -B "$loop" >"$work/bcache" 2>&1 || die "make-bcache: $(tail -n 2 "$work/bcache")"
    local device tries
    for device in "$brd" "$loop"; do echo "$device" >/sys/fs/bcache/register || return; done
    for tries in {1..200}; do [ -e /dev/bcache0 ] && [ -e /sys/block/bcache0/bcache/cache ] && break; sleep 0.02; done
    later "for set in /sys/fs/bcache/*-*; do echo 1 >\$set/stop; done; for tries in 1 2 3 4 5 6 7 8 9; do [ -e /sys/block/bcache0 ] || break; sleep 0.2; done"
    later "echo 1 >/sys/block/bcache0/bcache/stop"
    echo writeback >/sys/block/bcache0/bcache/cache_mode || return
    ext4_on /dev/bcache0
}

stack f2fs_half_in_memory loses - "fs:f2fs mod:brd loop mkfs.f2fs" "F2FS on a loop device and brd"
stack_f2fs_half_in_memory() {
    brd || return
    disk_loop a 128
    format f2fs "$loop" -c "$brd"
    mounted "$loop" "$work/on" rw f2fs
    at=$work/on
}

stack f2fs keeps - "fs:f2fs loop mkfs.f2fs" "F2FS on a loop device"
stack_f2fs() {
    disk_loop a 128
    format f2fs "$loop"
    mounted "$loop" "$work/on" rw f2fs
    at=$work/on
}

stack jfs loses - "fs:jfs loop mkfs.jfs" "JFS on a loop device: it sends no flush"
stack_jfs() {
    disk_loop a 64
    format jfs "$loop"
    mounted "$loop" "$work/on" rw jfs
    at=$work/on reach=$(name_of "$loop")
}

stack loop_on_9p unknown - "loop dir:/host mke2fs" "ext4 on a loop device, its file on 9p"
stack_loop_on_9p() {
    mkdir -p "/host/$$"
    later "rm -rf /host/$$"
    attach "$(image "/host/$$/a" 64)"
    ext4_on "$loop"
}
