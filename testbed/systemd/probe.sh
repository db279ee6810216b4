#!/bin/bash
# Run by a systemd of its own (manager.sh), in the directory of the sources: installs the unit as docs/operating.md says, and tries what a
# manager does with a service. WORK has `install.sh`, the page's commands, and `conformance`, a program.
work=$1
ok() { echo "ok unit: $1"; }
check() {
    if "${@:2}"; then
        ok "$1"
    else
        echo "FAILED unit: $1"
        journalctl --no-pager -o cat | tail -30
    fi
}
target() { runuser -u pmof -- "$@"; }
state() { systemctl show -P "$1" pmof; }
becomes() {
    for _ in $(seq 300); do
        if [ "$(state "$1")" = "$2" ]; then return 0; fi
        sleep 0.1
    done
    return 1
}
logged() { journalctl --no-pager -u pmof | grep -q "$1"; }

echo "a note" >notes.txt
trap 'rm -f notes.txt' EXIT
check "the page's commands install it, and make the first pool" bash -eux "$work/install.sh"

same() { target pmof cp tcp://127.0.0.1:7204/notes "/var/lib/pmof/$1" && cmp "/var/lib/pmof/$1" notes.txt; }
check "the pool is read" same first
reloads() { systemctl reload pmof && logged "configuration_reloaded"; }
check "a reload reads the configuration" reloads
restarts() { systemctl restart pmof && same second; }
check "a restart keeps pools" restarts
metrics() { target bash -c 'exec 3<>/dev/tcp/127.0.0.1/7205; printf "GET /metrics HTTP/1.0\r\n\r\n" >&3; grep -q pmof_build_info <&3'; }
check "metrics are served" metrics
others() { ! runuser -u nobody -- pmof pool ls tcp://127.0.0.1:7204; }
check "no other user is served" others

mkdir -p /run/systemd/system/pmof.service.d
printf '[Service]\nWatchdogSec=2s\nTimeoutAbortSec=1s\n' >/run/systemd/system/pmof.service.d/watchdog.conf
hangs() {
    systemctl daemon-reload && systemctl restart pmof && kill -STOP "$(state MainPID)" && becomes NRestarts 1 && becomes ActiveState active && same third
}
check "one that hangs is started again" hangs
stops() { systemctl stop pmof && [ "$(state Result)" = success ] && [ "$(state ExecMainStatus)" = 0 ]; }
check "it stops with success" stops

# The same unit with another program: what the unit forbids is forbidden to the transports, too.
sed -e "s|^ExecStart=.*|ExecStart=/usr/local/bin/conformance --test-threads 2|" -e '/^ExecReload=/d; /^WatchdogSec=/d; s/^Type=.*/Type=oneshot/; s/^Restart=.*/Restart=no/' \
    -e 's|^TimeoutStopSec=.*|TimeoutStartSec=600|' -e "s|^ProtectSystem=.*|&\nReadWritePaths=$PWD/target/tmp|" \
    packaging/systemd/pmof.service >/run/systemd/system/conformance.service
install -m 755 "$work/conformance" /usr/local/bin/conformance
conforms() {
    systemctl daemon-reload
    systemctl start conformance
    local ended=$?
    journalctl --no-pager -o cat -u conformance | grep -E '^test result|FAILED|panicked'
    return $ended
}
check "the conformance suite passes inside it" conforms
