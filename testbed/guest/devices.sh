# Functions that bring up the guest's devices; sourced by start.sh. Each returns non-zero with a line on stderr.

# Waits up to five seconds for a file: devices appear after their driver's load returns.
await() {
    local tries=0
    until [ -e "$1" ]; do
        tries=$((tries + 1))
        [ "$tries" -le 500 ] || { echo "no $1" >&2; return 1; }
        sleep 0.01
    done
}

# The block device with this serial number.
disk() {
    local entry serial
    for entry in /sys/block/vd*; do
        serial="$(<"$entry/serial")"
        if [ "$serial" = "$1" ]; then
            echo "/dev/${entry##*/}"
            return
        fi
    done
    echo "no disk with serial number $1" >&2
    return 1
}

# The character device of the virtio-serial port with this name.
port() {
    local entry name
    for entry in /sys/class/virtio-ports/*; do
        # A port of the console has none.
        name=
        if [ -e "$entry/name" ]; then name="$(<"$entry/name")"; fi
        if [ "$name" = "$1" ]; then
            echo "/dev/${entry##*/}"
            return
        fi
    done
    echo "no virtio-serial port $1" >&2
    return 1
}

# Two devices with a wire in one network namespace. soft-RoCE works in the initial namespace only, where packets between
# two local addresses take the loopback: the rules send them over the veth pair instead.
wire() {
    local file
    ip link add wire0 mtu 9000 type veth peer name wire1 mtu 9000 || return
    for file in all default wire0 wire1; do
        file="/proc/sys/net/ipv4/conf/$file"
        echo 0 >"$file/rp_filter"
        echo 1 >"$file/accept_local"
        echo 1 >"$file/arp_ignore"
        echo 2 >"$file/arp_announce"
    done
    ip -batch - <<-'EOF' || return
		link set lo up
		address add 10.77.0.1/24 dev wire0
		address add 10.77.0.2/24 dev wire1
		link set wire0 up
		link set wire1 up
		route add 10.77.0.2/32 dev wire0 src 10.77.0.1 table 101
		route add 10.77.0.1/32 dev wire1 src 10.77.0.2 table 102
		rule add pref 10 iif lo from 10.77.0.1 to 10.77.0.2 lookup 101
		rule add pref 11 iif lo from 10.77.0.2 to 10.77.0.1 lookup 102
		rule add pref 100 lookup local
		rule del pref 0
	EOF
    rdma link add rxe0 type rxe netdev wire0 && rdma link add rxe1 type rxe netdev wire1 || return
    # Fills both neighbour tables: the first rdma_resolve_addr with a cold entry takes two seconds.
    busybox ping -c 1 -W 5 -I 10.77.0.1 10.77.0.2 >/dev/null
}

# A device with IPv6 addresses, to be used from itself to itself.
ipv6() {
    ip -batch - <<-'EOF' || return
		link add six0 mtu 9000 type dummy
		address add fd77::1/64 dev six0 nodad
		address add fd77::2/64 dev six0 nodad
		link set six0 up
	EOF
    rdma link add rxe2 type rxe netdev six0
}

# The link to the other machine: number $1 is 0 or 1.
link_to_other() {
    ip -batch - <<-EOF || return
		address add 10.77.1.$(($1 + 1))/24 dev eth0
		address add fd77:1::$(($1 + 1))/64 dev eth0 nodad
		link set eth0 up
	EOF
    rdma link add rxe3 type rxe netdev eth0 || return
    # On a busy host the other machine may come up a minute later.
    local _
    for _ in {1..60}; do
        busybox ping -c 1 -W 2 "10.77.1.$((2 - $1))" >/dev/null 2>&1 && return
    done
    echo "the other machine does not answer" >&2
    return 1
}

# Mounts the prepared file systems.
media() {
    mkdir -p /mnt/fsdax /mnt/file
    await /dev/dax0.0 && await /dev/pmem1 && mount -t ext4 -o dax=always /dev/pmem1 /mnt/fsdax || return
    mount -t ext4 "$(disk file)" /mnt/file && return
    # A power cut may leave one of the superblock's two sectors: ext4 wants them written as one, which the lossy disk does not do.
    # Then its backup serves, and the journal is replayed.
    e2fsck -f -y "$(disk file)" || [ $? -eq 1 ] || return
    mount -t ext4 "$(disk file)" /mnt/file
}

# Makes name spaces and file systems on empty NVDIMMs and an empty disk; once, when the test bed is built.
# --map mem: the kernel's page structures lie in ordinary memory, so nothing but data is ever stored to the NVDIMM.
# An NVDIMM with empty labels comes up with one raw name space over all of it: that is the one to change.
prepare() {
    ndctl create-namespace --force --reconfig namespace0.0 --mode devdax --align 2M --map mem >/dev/null &&
        ndctl create-namespace --force --reconfig namespace1.0 --mode fsdax --map mem >/dev/null &&
        await /dev/dax0.0 && await /dev/pmem1 || return
    # mke2fs would choose blocks of 1 KiB for so small a device, which cannot be mapped directly.
    mke2fs -q -t ext4 -b 4096 -E lazy_itable_init=0,lazy_journal_init=0 /dev/pmem1 &&
        mke2fs -q -t ext4 -E lazy_itable_init=0,lazy_journal_init=0 "$(disk file)"
}

# CXL persistent memory: the region must be made at every boot, with the same uuid for the same content.
cxl_memory() {
    local region
    modprobe -a cxl_acpi cxl_pci cxl_mem cxl_pmem || return
    await /sys/bus/cxl/devices/mem0 && await /sys/bus/cxl/devices/decoder0.0 || return
    cxl create-region --type pmem --decoder decoder0.0 --ways 1 --memdevs mem0 \
        --uuid 6f7ba6f0-0000-4000-8000-70006d006f66 >/dev/null || return
    region="$(ndctl list --regions --bus CXL | sed -n 's/.*"dev":"\(region[0-9]*\)".*/\1/p' | head -n 1)"
    [ -n "$(cxl_device)" ] || ndctl create-namespace --type pmem --region "$region" --mode devdax --map mem || return
    [ -n "$(cxl_device)" ] || { echo "no device-DAX on CXL memory" >&2; return 1; }
}

# The character device of the CXL memory, empty where there is none.
cxl_device() {
    ndctl list --bus CXL --namespaces --device-dax 2>/dev/null |
        sed -n 's/.*"chardev":"\(dax[0-9.]*\)".*/\/dev\/\1/p' | head -n 1
}
