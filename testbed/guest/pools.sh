# Checks of pmof's commands on pools over verbs, in the guest; what `pools` of `cargo xtask vm test` runs.
# shellcheck source=checks.sh
. /host/guest/checks.sh

VERBS="verbs://$PMOF_WIRE_B:7300"
FROM="?source=$PMOF_WIRE_A"
cd /tmp || exit
mkdir -p "$PMOF_FILE/pools" "$PMOF_FSDAX/pools"
head -c 3000001 /dev/urandom >sent

# serve OPTION...: a target, killed by `unserve`; it listens on $VERBS unless LISTEN says else.
serve() {
    local tries=0
    rm -f served
    pmof serve --listen "${LISTEN:-$VERBS}" --trust-network "$@" >served 2>&1 &
    target=$!
    until grep -qs '^ready ' served; do
        tries=$((tries + 1))
        [ "$tries" -le 400 ] && kill -0 "$target" || { cat served; return 1; }
        sleep 0.05
    done
}

unserve() {
    kill -KILL "$target" && wait "$target"
    return 0
}

# copies POOL METHOD EVIDENCE OPTION...: a copy to the new pool, and back; the receipt says power failure and this method.
copies() {
    local pool="$1" method="$2" evidence="$3"
    shift 3
    rm -f received
    pmof cp --json sent "$pool" "$@" >receipt || return
    cat receipt
    grep -q '"durability":"power-failure"' receipt && grep -q "\"method\":\"$method\"" receipt &&
        grep -q "\"evidence\":\"$evidence\"" receipt && pmof cp "$pool" received && cmp sent received &&
        pmof pool rm "$pool"
}

# refused WORD COMMAND...: the command fails, and its complaint has the word.
refused() {
    local word="$1"
    shift
    ! "$@" >complaint 2>&1 || { echo "not refused: $*"; return 1; }
    cat complaint
    grep -q -- "$word" complaint
}

# With a target on device-DAX.
on_devdax() {
    local result
    serve --root "$PMOF_FILE/pools" --device "dax=$PMOF_DEVDAX" "${options[@]}" || return
    "$@"
    result=$?
    unserve
    return $result
}

native_flush() {
    options=()
    on_devdax copies "$VERBS/dax$FROM" native-flush probed
}

target_without_native_flush() {
    options=(--no-native-flush)
    on_devdax copies "$VERBS/dax$FROM" send-after-write probed
}

initiator_without_native_flush() {
    options=()
    on_devdax copies "$VERBS/dax$FROM" send-after-write probed --method send-after-write
}

native_flush_forced() {
    options=(--no-native-flush)
    on_devdax refused native-flush pmof cp sent "$VERBS/dax$FROM" --method native-flush
}

read_after_write_forced() {
    options=()
    on_devdax refused "read-after-write" pmof cp sent "$VERBS/dax$FROM" --method read-after-write
}

declared_inbound() {
    refused "soft" timeout 20 pmof serve --root "$PMOF_FILE/pools" --listen "$VERBS" --trust-network \
        --declare-inbound-persistent
}

on_directory() {
    local result
    serve --root "$1" || return
    copies "$VERBS/file$FROM" send-after-write probed
    result=$?
    unserve
    return $result
}

fsdax() {
    on_directory "$PMOF_FSDAX/pools"
}

page_cached_file() {
    on_directory "$PMOF_FILE/pools"
}

ipv6() {
    local result
    LISTEN="verbs://[$PMOF_IPV6_B]:7300" serve --root "$PMOF_FILE/pools" --device "dax=$PMOF_DEVDAX" || return
    copies "verbs://[$PMOF_IPV6_B]:7300/dax?source=$PMOF_IPV6" native-flush probed
    result=$?
    unserve
    return $result
}

# demo METHOD OPTION...: three targets, one killed.
demo() {
    local method="$1"
    shift
    timeout 120 pmof demo --dir "$PMOF_FILE" --time 4s --json "$@" >told || return
    cat told
    grep -q '"durability":"power-failure"' told && grep -q "\"method\":\"[^\"]*$method" told &&
        grep -q '"killed_first":true' told
}

demo_over_verbs() {
    demo native-flush --transport verbs --address "$PMOF_WIRE_B" --source "$PMOF_WIRE_A" --device "$PMOF_DEVDAX"
}

demo_over_rds() {
    modprobe -a rds rds_rdma && demo send-after-write --transport rds --address "$PMOF_WIRE_B" --source "$PMOF_WIRE_A"
}

demo_over_tcp() {
    demo ""
}

demo_over_shm() {
    demo "" --transport shm
}

# Each way of flushing beside bare work requests of its own; one cell of each, and few operations.
report_over_verbs() {
    local cell cells=()
    for cell in latency-write/verbs/{native,apm,gpspm}/512 latency-read/verbs/auto/512; do
        cells+=(--only "$cell")
    done
    rm -rf report
    timeout 300 pmof report --quick --time 20ms --rounds 2 --transports verbs --address "$PMOF_WIRE_B" --source "$PMOF_WIRE_A" \
        "${cells[@]}" --output report || return
    [ "$(grep -c ',measured,' report/report.csv)" = 4 ] && [ "$(grep -o '"floor_p50_us":' report/report.json | wc -l)" = 4 ]
}

# Writers that are stopped, taken over from, and continued: each is told, and none of its bytes lands.
takeover_over_verbs() {
    timeout 120 pmof bench takeover --transport verbs --listen "verbs://$PMOF_WIRE_B:0" --trust-network --count 5 \
        --dir /dev/shm
}

# ssh_to ADDRESS: from here on a command in ssh's place, to which the other machine is this one, reached at the address.
ssh_to() {
    printf '#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n' >ssh && chmod +x ssh
    export PMOF_SSH=/tmp/ssh
    export PMOF_SSH_COMMAND="SSH_CONNECTION='$PMOF_WIRE_A 1 $1 22' pmof serve --stdio --root $PMOF_FILE/pools --device dax=$PMOF_DEVDAX"
}

ssh_over_verbs() {
    ssh_to "$PMOF_WIRE_B"
    copies "ssh://peer/dax" native-flush probed
}

ssh_over_tcp() {
    ssh_to 127.0.0.1
    copies "ssh://peer/file" send-after-write probed
}

# The kernel connects the hosts when the first datagram is sent.
ssh_over_rds() {
    ssh_to "$PMOF_WIRE_B"
    modprobe -a rds rds_rdma && dmesg --clear || return
    PMOF_RDS=1 copies "ssh://peer/dax" send-after-write probed && dmesg | grep "RDS/IB: .* connected"
}

# The same binary on a machine without rdma-core: everything but verbs works.
hide_rdma_core() {
    mkdir /run/hidden && mv /usr/lib/x86_64-linux-gnu/lib{ibverbs,rdmacm}.so* /run/hidden
}

verbs_names_the_package() {
    refused "libibverbs1" pmof pool ls "$VERBS" --source "$PMOF_WIRE_A" &&
        refused "libibverbs1" timeout 20 pmof serve --root "$PMOF_FILE/pools" --listen "$VERBS" --trust-network
}

doctor() {
    pmof doctor >told && grep -q "libibverbs1" told
}

if [ -n "${PMOF_CXL:-}" ]; then
    cxl() {
        local result
        serve --root "$PMOF_FILE/pools" --device "cxl=$PMOF_CXL" "${options[@]}" || return
        "$@"
        result=$?
        unserve
        return $result
    }
    cxl_undeclared() {
        options=()
        cxl refused "power" pmof cp sent "$VERBS/cxl$FROM"
    }
    cxl_declared() {
        options=(--declare-battery-backed)
        cxl copies "$VERBS/cxl$FROM" native-flush declared
    }
    # This machine's firmware says that caches are kept, so that inbound writes need nothing but the read.
    read_after_write_attested() {
        options=()
        on_devdax copies "$VERBS/dax$FROM" read-after-write probed --method read-after-write
    }
    check "CXL without the operator's word - power failure is refused" cxl_undeclared
    check "CXL with it - a pool over verbs, native flush, declared" cxl_declared
    check "where caches are kept - read-after-write" read_after_write_attested
    echo "checks $checks"
    exit
fi

check "device-DAX over verbs - power-failure by native flush" native_flush
check "a target without native flush - send-after-write" target_without_native_flush
check "an initiator that does without - send-after-write" initiator_without_native_flush
check "native flush forced where the target has none - refused" native_flush_forced
check "read-after-write forced - refused" read_after_write_forced
check "a soft device whose writes are declared persistent - refused" declared_inbound
check "fsdax over verbs - send-after-write" fsdax
check "a page-cached file over verbs - send-after-write" page_cached_file
check "device-DAX over verbs and IPv6 - native flush" ipv6
check "the demo over verbs, with targets killed" demo_over_verbs
check "takeover over verbs - each writer is told, and nothing of it lands" takeover_over_verbs
check "a report over verbs - each cell beside bare work requests" report_over_verbs
check "a target that ssh starts - over verbs, native flush" ssh_over_verbs
check "a target that ssh starts at an address without a device - over tcp" ssh_over_tcp
check "a target that ssh starts, asked for RDS - over RDS" ssh_over_rds
check "the demo over RDS, with targets killed" demo_over_rds
hide_rdma_core
check "without rdma-core - a target that ssh starts - over tcp" ssh_over_tcp
check "without rdma-core - verbs names the package" verbs_names_the_package
check "without rdma-core - the demo over tcp" demo_over_tcp
check "without rdma-core - the demo over shm" demo_over_shm
check "without rdma-core - doctor names the package" doctor
echo "checks $checks"
