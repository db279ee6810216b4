# The test bed's checks of itself, in the guest: a line `ok NAME` or `not ok NAME: why` for each, and `checks N` last.
# shellcheck source=checks.sh
. /host/guest/checks.sh

names_are_set() {
    local name
    for name in PMOF_WIRE_A PMOF_WIRE_B PMOF_WIRE_A_NETDEV PMOF_WIRE_B_NETDEV PMOF_IPV6 PMOF_IPV6_B PMOF_DEVDAX \
        PMOF_FSDAX PMOF_FILE PMOF_TMPFS; do
        [ -n "${!name}" ] || { echo "no $name"; return 1; }
    done
    [ -c "$PMOF_DEVDAX" ] && mountpoint "$PMOF_FSDAX" && mountpoint "$PMOF_FILE" && mountpoint "$PMOF_TMPFS"
}

processors_run() {
    [ "$(cat /sys/devices/system/cpu/online)" = "$(cat /sys/devices/system/cpu/present)" ] && [ "$(nproc)" = 2 ] || {
        echo "online: $(cat /sys/devices/system/cpu/online)"
        return 1
    }
}

devices_are_active() {
    local device
    for device in rxe0 rxe1 rxe2; do
        rdma link show "$device/1" | grep "state ACTIVE" && ibv_devinfo -d "$device" | grep PORT_ACTIVE || return 1
    done
}

# client FROM TO: five round trips with the server at TO; tries again while there is no server yet.
client() {
    local try
    for try in 1 2 3 4 5 6 7 8 9 10; do
        if timeout 20 rping -c -I "$1" -a "$2" -C 5; then return 0; fi
        sleep 0.3
    done
    echo "no answer in $try tries"
    return 1
}

packets() {
    cat "/sys/class/net/$PMOF_WIRE_B_NETDEV/statistics/rx_packets"
}

rping_over_the_wire() {
    local before after
    before="$(packets)"
    client "$PMOF_WIRE_A" "$PMOF_WIRE_B" || return
    after="$(packets)"
    echo "$before packets before, $after after"
    [ "$after" -ge $((before + 20)) ]
}

# The control of the check above: without the wire there is no answer, and with it again there is.
cut_wire_is_seen() {
    modprobe sch_netem && tc qdisc replace dev "$PMOF_WIRE_A_NETDEV" root netem loss 100% || return
    if timeout 5 rping -c -I "$PMOF_WIRE_A" -a "$PMOF_WIRE_B" -C 5; then
        echo "an answer over a cut wire"
        return 1
    fi
    tc qdisc del dev "$PMOF_WIRE_A_NETDEV" root && rping_over_the_wire
}

rping_over_ipv6() {
    client "$PMOF_IPV6" "$PMOF_IPV6_B"
}

devdax_is_where_it_should_be() {
    local device="/sys/bus/dax/devices/${PMOF_DEVDAX#/dev/}"
    echo "align $(cat "$device/align") size $(cat "$device/size") at $(cat "$device/resource")"
    # The first 2 MiB hold the name space's information block.
    [ "$(cat "$device/align")" = 2097152 ] && [ "$(cat "$device/size")" = $((254 << 20)) ] &&
        [ $(($(cat "$device/resource"))) = $((${NVDIMM_ADDRESSES%% *} + (2 << 20))) ]
}

nvdimms_are_where_they_should_be() {
    local number=0 address
    for address in $NVDIMM_ADDRESSES; do
        echo "NVDIMM $number at $(cat "/sys/bus/nd/devices/region$number/resource")"
        [ $(($(cat "/sys/bus/nd/devices/region$number/resource"))) = "$address" ] || return
        number=$((number + 1))
    done
    [ "$number" = 2 ]
}

# map_sync FILE: a mapping that the file system keeps durable without fsync.
map_sync() {
    xfs_io -f -c "truncate 64k" -c "mmap -S -rw 0 64k" -c "mwrite -S 7 0 4k" "$1" 2>&1 | tee /dev/stderr |
        grep -q . && return 1
    [ "$(od -An -tu1 -N1 "$1" | tr -d ' ')" = 7 ]
}

fsdax_maps_synchronously() {
    grep " $PMOF_FSDAX ext4 .*dax=always" /proc/mounts && map_sync "$PMOF_FSDAX/selftest"
}

# The control: the same is refused where pages are cached.
page_cache_does_not() {
    if map_sync "$PMOF_FILE/selftest"; then
        echo "MAP_SYNC on a page-cached file system"
        return 1
    fi
}

valgrind_runs() {
    timeout 120 valgrind --quiet --error-exitcode=3 /usr/bin/true
}

persistence_is_declared() {
    [ "$(sort -u /sys/bus/nd/devices/region*/persistence_domain)" = memory_controller ]
}

check "both processors run" processors_run
check "the environment names what is there" names_are_set
check "three soft-RoCE devices are active" devices_are_active
rping -s -P -a "$PMOF_WIRE_B" >/dev/null 2>&1 &
check "rping goes over the wire" rping_over_the_wire
check "a cut wire is seen" cut_wire_is_seen
rping -s -P -a "$PMOF_IPV6_B" >/dev/null 2>&1 &
check "rping over IPv6" rping_over_ipv6
check "NVDIMMs at their addresses" nvdimms_are_where_they_should_be
check "device-DAX at its address" devdax_is_where_it_should_be
check "fsdax takes MAP_SYNC" fsdax_maps_synchronously
check "a page-cached file refuses MAP_SYNC" page_cache_does_not
check "the persistence domain is the memory controller" persistence_is_declared
check "valgrind runs" valgrind_runs
echo "checks $checks"
