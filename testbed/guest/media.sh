#!/bin/bash
# Builds stacks of media live and asks `pmof doctor` about each. The truth of a stack is its construction, and, where a disk
# counts them (/sys/block/*/stat, field 16), the flushes that an fsync brings to the disks below: nothing of it is taken from
# what pmof reads. No claim may go beyond it.
#
#   media.sh                 every stack that this machine can build; `ok NAME`, `not ok NAME: why`, `skipped NAME: why`
#   media.sh stack NAME      one, in the mount namespace that the former made for it
#
# Needs root. PMOF: the command to ask, `pmof` unless set. PMOF_BEFORE: another one, whose answer is put beside it.
# PMOF_MEDIA_BASE: a directory on a disk, /var/media unless set. PMOF_MEDIA_ALL: what cannot be built is a failure.
# PMOF_DISK_SPARE, PMOF_DISK_OTHER: disks without content, if there are any. PMOF_MEDIA_ONLY: names of stacks, instead of all.
# Each stack is judged a second time as a user who is not root, who must never get a higher level than root.
set -u
export LC_ALL=C
here=$(realpath "${BASH_SOURCE[0]}")
pmof=${PMOF:-pmof}
base=${PMOF_MEDIA_BASE:-/var/media}

# Names, truths and needs of all stacks; the functions that build them.
names=()
declare -A truth must needs about
# stack NAME keeps|loses|unknown claim|everybody|- NEEDS DESCRIPTION: what happens to bytes after fsync when power goes; whether
# the doctor has to see that they are kept, asked by root or by everybody; modules and tools (loop, ext4, dm-crypt, mkfs.xfs,
# spare, other ...).
stack() {
    names+=("$1")
    truth[$1]=$2
    must[$1]=$3
    needs[$1]=$4
    about[$1]=$5
}
for part in "$(dirname "$here")"/media-*.sh; do
    # shellcheck source=/dev/null
    . "$part"
done

# What this machine lacks of a stack's needs, if anything.
missing() {
    local need
    for need in $1; do
        case $need in
        spare) [ -n "${PMOF_DISK_SPARE:-}" ] || { echo "no spare disk"; return; } ;;
        other) [ -n "${PMOF_DISK_OTHER:-}" ] || { echo "no other spare disk"; return; } ;;
        loop) [ -e /dev/loop-control ] || modprobe -q loop 2>/dev/null || { echo "no loop devices"; return; } ;;
        fs:*) grep -qw "${need#fs:}" /proc/filesystems || modprobe -q "${need#fs:}" 2>/dev/null || { echo "no file system ${need#fs:}"; return; } ;;
        mod:*) [ -e "/sys/module/$(echo "${need#mod:}" | tr - _)" ] || modprobe -q "${need#mod:}" 2>/dev/null || { echo "no module ${need#mod:}"; return; } ;;
        dir:*) [ -d "${need#dir:}" ] || { echo "no ${need#dir:}"; return; } ;;
        *) command -v "$need" >/dev/null || { echo "no program $need"; return; } ;;
        esac
    done
}

# Commands that undo what a stack did, the last first.
undo=()
later() { undo=("$*" "${undo[@]}"); }
clean_up() {
    local command
    cd /
    for command in "${undo[@]}"; do eval "$command" >/dev/null 2>&1; done
    rm -rf "$work"
}
die() { echo "building: $*" >&2; exit 3; }

# image NAME MIB: a sparse file in the directory of disk or memory that the name says; prints its path.
image() {
    mkdir -p "$(dirname "$1")" && truncate -s "$2M" "$1" && echo "$1"
}
# attach FILE: a loop device, in $loop.
attach() {
    loop=$(losetup --find --show "$1") || die "losetup $1"
    later "losetup -d $loop"
}
# format TYPE DEVICE OPTION...
format() {
    local type=$1 device=$2
    shift 2
    case $type in
    ext2 | ext4) mke2fs -q -F -t "$type" -E nodiscard "$@" "$device" 64M ;;
    xfs) mkfs.xfs -q -f -K "$@" "$device" ;;
    btrfs) mkfs.btrfs -q -f -K "$@" "$device" ;;
    f2fs) mkfs.f2fs -q -f -t 0 "$@" "$device" ;;
    jfs) mkfs.jfs -q "$@" "$device" ;;
    esac >"$work/format" 2>&1 || die "mkfs of $type: $(tail -n 2 "$work/format")"
}
# mounted DEVICE DIRECTORY OPTIONS TYPE: mounts it until the end.
mounted() {
    mkdir -p "$2"
    mount -t "$4" -o "$3" "$1" "$2" || die "mount $4"
    later "umount -l $2"
}
# in_memory DIRECTORY: a tmpfs.
in_memory() { mounted tmpfs "$1" rw,size=600m tmpfs; }
# name_of DEVICE: the kernel's name; that of device-mapper's may be a node of another name.
name_of() { basename "$(realpath "/sys/dev/block/$(stat -Lc '%Hr:%Lr' "$1")")"; }
# disk_of PATH: the kernel's name of the whole disk below.
disk_of() {
    local directory
    directory=$(realpath "/sys/dev/block/$(stat -c '%Hd:%Ld' "$1")")
    [ -e "$directory/partition" ] && directory=$(dirname "$directory")
    basename "$directory"
}
flushes() { awk '{ print $16 }' "/sys/block/$1/stat"; }
# passes_no_flush DEVICE: root tells the kernel so.
passes_no_flush() {
    local queue
    queue=/sys/block/$(name_of "$1")/queue/write_cache
    local was
    was=$(cat "$queue")
    echo 'write through' >"$queue" || die "write_cache"
    later "echo '$was' >$queue"
}

# says PATH COMMAND...: the level that it names for the path, and why no more.
says() {
    local text level path=$1
    shift
    text=$("$@" doctor "$path" 2>&1) || { echo "failed: $(echo "$text" | tail -n 1)"; return; }
    level=$(echo "$text" | awk -v at="$path" 'index($0, "  " at " ") == 1 { for (i = 2; i <= NF; i++) if ($i ~ /^(power-failure|process-crash|visible)$/) { print $i; exit } }')
    printf '%s\t' "${level:-nothing}"
    echo "$text" | awk -v at="  $path" '$0 == at { in_it = 1; next } in_it && /^$/ { exit } in_it && $1 == "no" && $2 == "more" { sub(/^ *no more /, ""); sub(/; keep it in .*/, ""); print; exit }'
}

# Builds one stack, measures, asks, compares.
one_stack() {
    local name=$1 level why user="" user_why="" before="" disk passed=() measured="" target
    work=$base/$name.$$
    mkdir -p "$work" || exit
    chmod 755 "$work"
    trap clean_up EXIT
    at="" reach=""
    "stack_$name" || die "a command failed"
    level=$(says "$at" "$pmof")
    why=${level#*$'\t'} level=${level%%$'\t'*}
    [ -f "$at" ] || chmod 1777 "$at"
    if command -v setpriv >/dev/null; then
        user=$(says "$at" setpriv --reuid 65534 --regid 65534 --clear-groups "$pmof")
        user_why=${user#*$'\t'} user=${user%%$'\t'*}
    fi
    if [ -n "${PMOF_BEFORE:-}" ]; then
        before=$(says "$at" "$PMOF_BEFORE")
        before=${before%%$'\t'*}
    fi
    target=$at
    [ -d "$at" ] && target=$at/measured
    dd if=/dev/zero of="$target" bs=4k count=1 conv=fsync,notrunc status=none
    for disk in $reach; do passed+=("$(flushes "$disk")"); done
    for _ in 1 2 3; do dd if=/dev/urandom of="$target" bs=4k count=1 conv=fsync,notrunc status=none || die "fsync"; done
    # Each fsync flushes the first; a journal elsewhere, and what is below, may take several for one.
    local index=0 wanted=3 short="" now
    for disk in $reach; do
        now=$(($(flushes "$disk") - passed[index]))
        measured+=" $disk $now"
        [ "$now" -ge "$wanted" ] || short=$disk
        index=$((index + 1)) wanted=1
    done
    printf 'row | %s | %s |%s | %s | %s | %s | %s | %s |\n' "${about[$name]}" "${truth[$name]}" "$measured" "$before" "$level" "$user" "$why" "$user_why"
    case $level in power-failure | process-crash | visible) ;; *) echo "the doctor says: $level $why"; return 1 ;; esac
    if [ "${truth[$name]}" = keeps ] && [ -n "$short" ]; then
        echo "of three fsyncs too few came through to $short:$measured; the stack is not what it should be"
        return 1
    fi
    if [ "$level" = power-failure ] && [ "${truth[$name]}" != keeps ]; then
        echo "power-failure is claimed, and this stack ${truth[$name]}"
        return 1
    fi
    if [ "$level" != power-failure ] && [ "${must[$name]}" != - ]; then
        echo "kept and not seen: $level, $why"
        return 1
    fi
    if [ "$user" = power-failure ] && [ "$level" != power-failure ]; then
        echo "a user gets power-failure, and root $level, $why"
        return 1
    fi
    if [ "$user" != power-failure ] && [ "${must[$name]}" = everybody ]; then
        echo "kept and not seen by a user: $user, $user_why"
        return 1
    fi
}

if [ "${1:-}" = stack ]; then
    one_stack "$2"
    exit
fi

mkdir -p "$base" || exit
# A program on a file system of the host is slow to start.
fast=$(mktemp -d /dev/shm/media.XXXXXX) || exit
trap 'rm -rf "$fast"' EXIT
chmod 755 "$fast" "$base"
cp "$(command -v "$pmof")" "$fast/pmof" && export PMOF=$fast/pmof || exit
if [ -n "${PMOF_BEFORE:-}" ]; then
    cp "$(command -v "$PMOF_BEFORE")" "$fast/before" && export PMOF_BEFORE=$fast/before || exit
fi
checks=0
# shellcheck disable=SC2086 # words
for name in ${PMOF_MEDIA_ONLY:-"${names[@]}"}; do
    lack=$(missing "${needs[$name]}")
    if [ -n "$lack" ] && [ -z "${PMOF_MEDIA_ALL:-}" ]; then
        echo "skipped $name: $lack"
        continue
    fi
    checks=$((checks + 1)) started=$EPOCHREALTIME
    if [ -n "$lack" ]; then
        echo "not ok $name: $lack"
    elif said=$(timeout -k 5 180 unshare --mount --propagation private bash "$here" stack "$name" 2>&1 </dev/null); then
        echo "ok $name"
        echo "$said" | grep '^row '
    elif [ $? -eq 3 ] && [ -z "${PMOF_MEDIA_ALL:-}" ]; then
        checks=$((checks - 1))
        echo "skipped $name: $(echo "$said" | grep '^building: ' | tail -n 1)"
    else
        echo "not ok $name: $(echo "$said" | tail -n 4 | tr '\n' ' ')"
        echo "$said" | grep '^row '
    fi
    [ -z "${PMOF_MEDIA_TIMES:-}" ] || echo "time $name $(((${EPOCHREALTIME/./} - ${started/./}) / 1000)) ms"
done
rmdir "$base" 2>/dev/null
echo "checks $checks"
