# Two soft-iWARP devices with a wire of their own, as `wire` of devices.sh makes for soft-RoCE. To be sourced by what is to run
# over them: the names of the wire's ends are theirs afterwards.
make_iwarp() {
    local file
    modprobe -a siw sch_netem || return
    ip link add wire2 mtu 9000 type veth peer name wire3 mtu 9000 || return
    for file in wire2 wire3; do
        file="/proc/sys/net/ipv4/conf/$file"
        echo 0 >"$file/rp_filter"
        echo 1 >"$file/accept_local"
        echo 1 >"$file/arp_ignore"
        echo 2 >"$file/arp_announce"
    done
    ip -batch - <<-'EOF' || return
	address add 10.77.2.1/24 dev wire2
	address add 10.77.2.2/24 dev wire3
	link set wire2 up
	link set wire3 up
	route add 10.77.2.2/32 dev wire2 src 10.77.2.1 table 103
	route add 10.77.2.1/32 dev wire3 src 10.77.2.2 table 104
	rule add pref 12 iif lo from 10.77.2.1 to 10.77.2.2 lookup 103
	rule add pref 13 iif lo from 10.77.2.2 to 10.77.2.1 lookup 104
EOF
    rdma link add siw0 type siw netdev wire2 && rdma link add siw1 type siw netdev wire3 || return
    busybox ping -c 1 -W 5 -I 10.77.2.1 10.77.2.2 >/dev/null || return
}
[ -e /sys/class/infiniband/siw1 ] || make_iwarp || return
export PMOF_WIRE_A=10.77.2.1 PMOF_WIRE_B=10.77.2.2 PMOF_WIRE_A_NETDEV=wire2 PMOF_WIRE_B_NETDEV=wire3
