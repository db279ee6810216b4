# What the guest offers to what runs in it; sourced by start.sh after the devices are there. Names only, no actions.
export PATH="/host/bin:$PATH"
# Two soft-RoCE devices, rxe0 and rxe1, with a wire between them. A client must bind its own address as source.
export PMOF_WIRE_A=10.77.0.1 PMOF_WIRE_B=10.77.0.2
# The network interfaces at the wire's two ends, for `tc qdisc` and `ip link set ... down`.
export PMOF_WIRE_A_NETDEV=wire0 PMOF_WIRE_B_NETDEV=wire1
# A third device, rxe2, with two IPv6 addresses of its own: traffic goes from the device to itself.
export PMOF_IPV6=fd77::1 PMOF_IPV6_B=fd77::2
# Persistent memory as a character device (NVDIMM 0), and as ext4 with dax=always (NVDIMM 1).
export PMOF_DEVDAX=/dev/dax0.0 PMOF_FSDAX=/mnt/fsdax
# Page-cached ext4 on a disk of its own, and memory that looks like a file.
export PMOF_FILE=/mnt/file PMOF_TMPFS=/dev/shm
if [ -n "${PMOF_VM:-}" ]; then
    # Of two machines: this one's address, the other one's, and the device; a directory that both see.
    export PMOF_LOCAL="10.77.1.$((PMOF_VM + 1))" PMOF_PEER="10.77.1.$((2 - PMOF_VM))" PMOF_RDMA=rxe3
    export PMOF_LOCAL6="fd77:1::$((PMOF_VM + 1))" PMOF_PEER6="fd77:1::$((2 - PMOF_VM))"
fi
if [ -n "${testbed_shared:-}" ]; then
    # A directory of the host.
    export PMOF_SHARED=/shared
fi
if [ -n "${testbed_cxl:-}" ]; then
    # CXL persistent memory as a character device.
    PMOF_CXL="$(cxl_device)"
    export PMOF_CXL
fi
