# LUKS and LVM on real disks, which users who are not root can see too; sourced by media.sh.
# shellcheck shell=bash disable=SC2034,SC2154 # at, reach, mapped, work: media.sh

# udevd, in this mount namespace only; it finds what the disks hold, and everybody may read that.
with_udev() {
    local tries
    mounted udev /run/udev rw tmpfs
    /usr/lib/systemd/systemd-udevd >"$work/udevd" 2>&1 &
    later "kill $!"
    for tries in {1..200}; do [ -S /run/udev/control ] && break; sleep 0.05; done
    udevadm trigger --action=add --subsystem-match=block
    settled
}
settled() { udevadm settle --timeout=30 || die "udevadm settle"; }
wipe() { dd if=/dev/zero of="$1" bs=1M count=24 conv=fsync status=none; }

# luks DEVICE NAME OPTION...: in $mapped.
luks() {
    local device=$1 name=$2
    shift 2
    mkdir -p /run/cryptsetup
    echo -n secret | cryptsetup luksFormat -q --type luks2 --pbkdf pbkdf2 --pbkdf-force-iterations 1000 "$@" "$device" - || return
    settled
    later "wipe $device"
    echo -n secret | cryptsetup open --disable-keyring "${opened_with[@]}" "$device" "$name" --key-file - || return
    later "cryptsetup close $name"
    mapped=/dev/mapper/$name
    settled
}
opened_with=()

lvm_config='devices { use_devicesfile = 0 } activation { monitoring = 0 } backup { backup = 0 archive = 0 }
global { use_lvmpolld = 0 thin_check_executable = "" thin_dump_executable = "" thin_repair_executable = "" }'
volumes() {
    local command=$1
    shift
    "$command" --config "$lvm_config" -q -y "$@" >>"$work/lvm" 2>&1 || die "$command: $(tail -n 2 "$work/lvm")"
}
# group DEVICE...: the volume group `media`.
group() {
    volumes pvcreate -ff "$@"
    later "for device in $*; do wipe \$device; done"
    volumes vgcreate media "$@"
    later "vgchange --config '$lvm_config' -an media"
    settled
}
# volume OPTION...: the volume `data`, in $mapped.
volume() {
    volumes lvcreate -n data -Wn -Zn "$@" media
    mapped=/dev/media/data
    settled
}
disks() { reach=$(for disk; do name_of "$disk"; done); }

stack luks keeps everybody "spare udevadm mod:dm-crypt mod:xts cryptsetup mke2fs" "ext4 on LUKS2 on a virtio disk"
stack_luks() { with_udev && luks "$PMOF_DISK_SPARE" media_luks && ext4_on "$mapped" && disks "$PMOF_DISK_SPARE"; }

stack lvm_linear keeps everybody "spare udevadm mod:dm-mod lvcreate mke2fs" "ext4 on a linear LVM volume on a virtio disk"
stack_lvm_linear() { with_udev && group "$PMOF_DISK_SPARE" && volume -L 80M && ext4_on "$mapped" && disks "$PMOF_DISK_SPARE"; }

stack lvm_striped keeps everybody "spare other udevadm mod:dm-mod lvcreate mke2fs" "ext4 on a striped LVM volume on two virtio disks"
stack_lvm_striped() {
    with_udev && group "$PMOF_DISK_SPARE" "$PMOF_DISK_OTHER" && volume -L 80M -i 2 && ext4_on "$mapped" && disks "$PMOF_DISK_SPARE" "$PMOF_DISK_OTHER"
}

stack lvm_on_luks keeps everybody "spare udevadm mod:dm-crypt mod:xts cryptsetup lvcreate mke2fs" "ext4 on LVM on LUKS2 on a virtio disk"
stack_lvm_on_luks() { with_udev && luks "$PMOF_DISK_SPARE" media_luks && group "$mapped" && volume -L 80M && ext4_on "$mapped" && disks "$PMOF_DISK_SPARE"; }

stack luks_on_lvm keeps everybody "spare udevadm mod:dm-crypt mod:xts cryptsetup lvcreate mke2fs" "ext4 on LUKS2 on LVM on a virtio disk"
stack_luks_on_lvm() { with_udev && group "$PMOF_DISK_SPARE" && volume -L 100M && luks "$mapped" media_luks && ext4_on "$mapped" && disks "$PMOF_DISK_SPARE"; }

stack luks_detached loses - "spare udevadm mod:dm-crypt mod:xts cryptsetup mke2fs" "ext4 on LUKS2 whose header is a file on tmpfs"
stack_luks_detached() {
    with_udev
    in_memory "$work/m"
    truncate -s 16M "$work/m/header"
    opened_with=(--header "$work/m/header")
    luks "$PMOF_DISK_SPARE" media_luks --header "$work/m/header" && ext4_on "$mapped" && disks "$PMOF_DISK_SPARE"
}

stack luks_integrity keeps - "spare udevadm mod:dm-crypt mod:xts mod:authenc mod:dm-integrity cryptsetup mke2fs" "ext4 on LUKS2 with integrity (dm-integrity, with a journal)"
stack_luks_integrity() {
    with_udev && luks "$PMOF_DISK_SPARE" media_luks --integrity hmac-sha256 --integrity-no-wipe || return
    # What was never written has no tag yet.
    dd if=/dev/zero of="$mapped" bs=1M conv=fsync status=none
    ext4_on "$mapped" && disks "$PMOF_DISK_SPARE"
}

stack crypt_plain loses - "spare udevadm mod:dm-crypt mod:xts cryptsetup mke2fs" "ext4 on plain dm-crypt with a key made up at the start"
stack_crypt_plain() {
    with_udev
    cryptsetup open -q --type plain --cipher aes-xts-plain64 --key-size 512 --key-file /dev/urandom "$PMOF_DISK_SPARE" media_plain || return
    later "cryptsetup close media_plain; wipe $PMOF_DISK_SPARE"
    ext4_on /dev/mapper/media_plain && disks "$PMOF_DISK_SPARE"
}

stack lvm_half_memory loses - "spare udevadm mod:dm-mod mod:brd lvcreate mke2fs" "ext4 on a striped LVM volume on a virtio disk and brd"
stack_lvm_half_memory() { with_udev && brd && group "$PMOF_DISK_SPARE" "$brd" && volume -L 80M -i 2 && ext4_on "$mapped" && disks "$PMOF_DISK_SPARE"; }

stack lvm_snapshot_origin keeps - "spare udevadm mod:dm-snapshot lvcreate mke2fs" "ext4 on an LVM volume that has a snapshot"
stack_lvm_snapshot_origin() {
    with_udev && group "$PMOF_DISK_SPARE" && volume -L 72M && volumes lvcreate -s -n older -L 24M media/data && settled
    ext4_on "$mapped" && disks "$PMOF_DISK_SPARE"
}

stack lvm_thin keeps - "spare udevadm mod:dm-thin-pool lvcreate mke2fs" "ext4 on a thin LVM volume"
stack_lvm_thin() {
    with_udev && group "$PMOF_DISK_SPARE" && volumes lvcreate --type thin-pool -n pool -L 88M media && volumes lvcreate --type thin -n data -V 80M --thinpool pool media && settled
    ext4_on /dev/media/data && disks "$PMOF_DISK_SPARE"
}

stack lvm_raid1 keeps - "spare other udevadm mod:dm-raid mod:raid1 lvcreate mke2fs" "ext4 on a mirrored LVM volume (dm-raid) on two virtio disks"
stack_lvm_raid1() {
    with_udev && group "$PMOF_DISK_SPARE" "$PMOF_DISK_OTHER" && volumes lvcreate --type raid1 -m 1 --nosync -n data -Wn -Zn -L 80M media && settled
    ext4_on /dev/media/data && disks "$PMOF_DISK_SPARE" "$PMOF_DISK_OTHER"
}

stack dm_named_as_lvm loses - "spare udevadm mod:dm-flakey dmsetup mke2fs" "ext4 on device-mapper, flakey, with a uuid as of LVM, no physical volume below"
stack_dm_named_as_lvm() {
    with_udev
    local id=0123456789abcdefghijklmnopqrstuv
    dmsetup create media_named --uuid "LVM-$id$id" --table "0 $(sectors "$PMOF_DISK_SPARE") flakey $PMOF_DISK_SPARE 0 600 60 1 drop_writes" || return
    later "dmsetup remove --retry media_named"
    ext4_on /dev/mapper/media_named && disks "$PMOF_DISK_SPARE"
}
