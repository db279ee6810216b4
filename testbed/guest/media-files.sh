# Stacks of loop devices, file systems and overlays; sourced by media.sh.
# shellcheck shell=bash disable=SC2034,SC2154 # at, reach, loop, work: media.sh

stack disk keeps claim "" "the disk's own file system"
stack_disk() { at=$work reach=$(disk_of "$work"); }

# On a loop device over FILE: a file system of TYPE with mount options, at $work/on.
on_loop() { # TYPE FILE MIB OPTIONS
    attach "$(image "$2" "$3")"
    format "$1" "$loop"
    mounted "$loop" "$work/on" "$4" "$1"
    at=$work/on reach=$(name_of "$loop")
}

stack loop_ext4 keeps claim "loop fs:ext4 mke2fs" "ext4 on a loop device, its file on the disk"
stack_loop_ext4() { on_loop ext4 "$work/a" 64 rw; reach+=" $(disk_of "$work")"; }

stack loop_ext4_no_journal keeps claim "loop fs:ext4 mke2fs" "ext4 without a journal on such a loop device"
stack_loop_ext4_no_journal() {
    attach "$(image "$work/a" 64)"
    format ext4 "$loop" -O ^has_journal
    mounted "$loop" "$work/on" rw ext4
    at=$work/on reach="$(name_of "$loop") $(disk_of "$work")"
}

stack loop_ext2 keeps claim "loop fs:ext2 mke2fs" "ext2 on such a loop device"
stack_loop_ext2() { on_loop ext2 "$work/a" 64 rw; reach+=" $(disk_of "$work")"; }

stack loop_xfs keeps claim "loop fs:xfs mkfs.xfs" "XFS on such a loop device"
stack_loop_xfs() { on_loop xfs "$work/a" 320 rw; reach+=" $(disk_of "$work")"; }

stack loop_btrfs keeps claim "loop fs:btrfs mkfs.btrfs" "btrfs on such a loop device"
stack_loop_btrfs() { on_loop btrfs "$work/a" 256 rw; reach+=" $(disk_of "$work")"; }

# btrfs on two loop devices; PROFILE of its data, files, options.
two_btrfs() {
    attach "$(image "$2" 256)"
    local first=$loop
    attach "$(image "$3" 256)"
    format btrfs "$first" -d "$1" -m "$1" "$loop"
    mounted "$first" "$work/on" "$4" btrfs
    at=$work/on reach="$(name_of "$first") $(name_of "$loop")"
}

stack btrfs_raid1 keeps claim "loop fs:btrfs mkfs.btrfs" "btrfs, RAID 1 of two such loop devices"
stack_btrfs_raid1() { two_btrfs raid1 "$work/a" "$work/b" rw; }

stack btrfs_half_in_memory loses - "loop fs:btrfs mkfs.btrfs" "btrfs, RAID 0 of loop devices on the disk and on tmpfs"
stack_btrfs_half_in_memory() { in_memory "$work/m"; two_btrfs raid0 "$work/a" "$work/m/b" rw; }

stack btrfs_nobarrier loses - "loop fs:btrfs mkfs.btrfs" "btrfs with nobarrier"
stack_btrfs_nobarrier() { on_loop btrfs "$work/a" 256 rw,nobarrier; }

stack ext4_nobarrier loses - "loop fs:ext4 mke2fs" "ext4 with barrier=0 on a loop device over the disk"
stack_ext4_nobarrier() { on_loop ext4 "$work/a" 64 rw,barrier=0; }

stack loop_tmpfs loses - "loop fs:ext4 mke2fs" "ext4 on a loop device, its file on tmpfs"
stack_loop_tmpfs() { in_memory "$work/m"; on_loop ext4 "$work/m/a" 64 rw; }

stack loop_tmpfs_detached loses - "loop fs:ext4 mke2fs" "the same, the tmpfs detached (umount -l), a file of that name on the disk"
stack_loop_tmpfs_detached() {
    in_memory "$work/m"
    on_loop ext4 "$work/m/a" 64 rw
    umount -l "$work/m" || return
    image "$work/m/a" 64 >/dev/null
}

stack loop_tmpfs_mounted_over loses - "loop fs:ext4 mke2fs" "the same, the tmpfs mounted over by a directory of the disk"
stack_loop_tmpfs_mounted_over() {
    in_memory "$work/m"
    on_loop ext4 "$work/m/a" 64 rw
    image "$work/over/a" 64 >/dev/null
    mount --bind "$work/over" "$work/m" && later "umount -l $work/m"
}

stack loop_other_namespace loses - "loop fs:ext4 mke2fs" "the same, the tmpfs in another mount namespace, a file of that name on the disk here"
stack_loop_other_namespace() {
    image "$work/m/a" 64 >/dev/null
    loop=$(unshare --mount --propagation private bash -c \
        "mount -t tmpfs tmpfs $work/m && truncate -s 64M $work/m/a && losetup --find --show $work/m/a") || return
    later "losetup -d $loop"
    format ext4 "$loop"
    mounted "$loop" "$work/on" rw ext4
    at=$work/on reach=$(name_of "$loop")
}

stack loop_deleted loses - "loop fs:ext4 mke2fs" "ext4 on a loop device whose file is deleted"
stack_loop_deleted() { on_loop ext4 "$work/a" 64 rw; rm "$work/a"; }

stack loop_write_through loses - "loop fs:ext4 mke2fs" "ext4 on a loop device that is told write through"
stack_loop_write_through() { on_loop ext4 "$work/a" 64 rw; passes_no_flush "$loop"; }

# A loop device over a file on ext4 on a loop device over the disk.
loop_on_loop() {
    on_loop ext4 "$work/a" 128 rw
    lower=$loop
    attach "$(image "$work/on/b" 32)"
    mke2fs -q -F -t ext4 "$loop" || return
    mounted "$loop" "$work/upper" rw ext4
    at=$work/upper reach="$(name_of "$loop") $(name_of "$lower")"
}

stack loop_on_loop keeps claim "loop fs:ext4 mke2fs" "ext4 on a loop device over ext4 on a loop device over the disk"
stack_loop_on_loop() { loop_on_loop; }

stack loop_on_write_through loses - "loop fs:ext4 mke2fs" "the same, the lower loop device told write through"
stack_loop_on_write_through() { loop_on_loop && passes_no_flush "$lower"; }

# Before Linux 6.15 (jbd2: "add a missing data flush during file and fs synchronization") fsync often flushes the device of the
# journal only; the doctor believes kernels from 6.18 on.
journal_truth=loses journal_claim=-
if [ "$(printf '%s\n' 6.18 "$(uname -r)" | sort -V | head -n 1)" = 6.18 ]; then journal_truth=keeps journal_claim=claim; fi
stack ext4_journal_loop $journal_truth $journal_claim "loop fs:ext4 mke2fs" "ext4, its journal on another loop device over the disk"
stack_ext4_journal_loop() { journal_at "$work/j"; }
journal_at() { # FILE
    attach "$(image "$1" 16)"
    local journal=$loop
    mke2fs -q -F -b 4096 -O journal_dev "$journal" >/dev/null || return
    attach "$(image "$work/a" 64)"
    format ext4 "$loop" -b 4096 -J device="$journal"
    mounted "$loop" "$work/on" rw ext4
    at=$work/on reach="$(name_of "$loop") $(name_of "$journal")"
}

stack ext4_journal_in_memory loses - "loop fs:ext4 mke2fs" "ext4 on the disk, its journal on a loop device over tmpfs"
stack_ext4_journal_in_memory() { in_memory "$work/m"; journal_at "$work/m/j"; }

xfs_with() { # OPTION FILE
    attach "$(image "$2" 128)"
    local other=$loop
    attach "$(image "$work/a" 320)"
    if [ "$1" = logdev ]; then format xfs "$loop" -l logdev="$other"; else format xfs "$loop" -r rtdev="$other"; fi
    mounted "$loop" "$work/on" "rw,$1=$other" xfs
    at=$work/on reach=$(name_of "$loop")
}

stack xfs_log_on_disk keeps claim "loop fs:xfs mkfs.xfs" "XFS, its log on another loop device over the disk"
stack_xfs_log_on_disk() { xfs_with logdev "$work/l"; }

stack xfs_log_in_memory loses - "loop fs:xfs mkfs.xfs" "XFS on the disk, its log on a loop device over tmpfs"
stack_xfs_log_in_memory() { in_memory "$work/m"; xfs_with logdev "$work/m/l"; }

stack xfs_realtime_in_memory loses - "loop fs:xfs mkfs.xfs" "XFS on the disk, its realtime device over tmpfs"
stack_xfs_realtime_in_memory() { in_memory "$work/m"; xfs_with rtdev "$work/m/l"; }

# An overlay at $work/o whose upper directory is in $1; more options.
overlay_on() {
    mkdir -p "$1/up" "$1/wk" "$work/low" "$work/o"
    echo lower >"$work/low/file"
    mounted overlay "$work/o" "lowerdir=$work/low,upperdir=$1/up,workdir=$1/wk${2:-}" overlay
    at=$work/o
}

stack overlay_disk keeps claim "fs:overlay" "an overlay, its upper directory on the disk"
stack_overlay_disk() { overlay_on "$work/u"; reach=$(disk_of "$work/u"); }

stack overlay_bound keeps claim "fs:overlay" "a directory of that overlay, mounted elsewhere (bind)"
stack_overlay_bound() {
    overlay_on "$work/u"
    mkdir -p "$work/o/deep/er" "$work/bound"
    mount --bind "$work/o/deep" "$work/bound" && later "umount -l $work/bound"
    at=$work/bound/er reach=$(disk_of "$work/u")
}

stack overlay_loop keeps claim "loop fs:overlay fs:ext4 mke2fs" "an overlay, its upper directory on ext4 on a loop device"
stack_overlay_loop() { on_loop ext4 "$work/a" 64 rw; overlay_on "$work/on"; }

stack overlay_nobarrier loses - "loop fs:overlay fs:ext4 mke2fs" "an overlay, its upper directory on ext4 with barrier=0"
stack_overlay_nobarrier() { on_loop ext4 "$work/a" 64 rw,barrier=0; overlay_on "$work/on"; }

stack overlay_lower_file loses - "loop fs:overlay fs:ext4 mke2fs" "a file of its lower directory on the disk, not yet written to"
stack_overlay_lower_file() { stack_overlay_nobarrier && at=$work/o/file; }

stack overlay_tmpfs loses - "fs:overlay" "an overlay, its upper directory on tmpfs, its lower one on the disk"
stack_overlay_tmpfs() { in_memory "$work/m"; overlay_on "$work/m"; }

stack overlay_loop_tmpfs loses - "loop fs:overlay fs:ext4 mke2fs" "an overlay, its upper directory on a loop device over tmpfs"
stack_overlay_loop_tmpfs() { in_memory "$work/m"; on_loop ext4 "$work/m/a" 64 rw; overlay_on "$work/on"; }

stack overlay_volatile loses - "fs:overlay" "an overlay that is mounted volatile"
stack_overlay_volatile() { overlay_on "$work/u" ,volatile; reach=""; }

stack overlay_detached loses - "loop fs:overlay fs:ext4 mke2fs" "an overlay whose upper mount (barrier=0) is detached, a directory of that name on the disk"
stack_overlay_detached() {
    stack_overlay_nobarrier
    umount -l "$work/on" && mkdir -p "$work/on/up"
}

stack overlay_mounted_over loses - "loop fs:overlay fs:ext4 mke2fs" "an overlay whose upper mount (barrier=0) is mounted over by a copy of it on a sound one"
stack_overlay_mounted_over() {
    stack_overlay_nobarrier
    echo upper >"$work/o/kept"
    sync -f "$work/on"
    cp --sparse=always "$work/a" "$work/copy"
    attach "$work/copy"
    mounted "$loop" "$work/on" rw ext4
    at=$work/o/kept
}

stack tmpfs loses - "" "tmpfs"
stack_tmpfs() { in_memory "$work/m"; at=$work/m; }
