# Started by initrd.sh from the host's directory: brings up the devices, runs what is asked for, and ends the machine.
#
# /host/settings   shell assignments written by xtask: testbed_mode (run, shell, prepare), testbed_cxl, PMOF_VM, others
# /host/command    what to run with bash; its output goes to the virtio-serial port named `output`
# /host/error      written here if the machine cannot be started
# /host/exit-code  written here when the command has ended
. /host/guest/devices.sh
set -a
. /host/settings
set +a

# Ends QEMU with the exit status 2 * $1 + 1; $1 at most 127. Disks are consistent afterwards.
power_off() {
    cd /
    sync
    busybox umount /mnt/fsdax /mnt/file /shared /host 2>/dev/null
    # shellcheck disable=SC2059 # the format is the byte
    printf "\\$(printf %o "$1")" | busybox dd of=/dev/port bs=1 seek=244 count=1 2>/dev/null
    # Only where the machine has no such device.
    busybox poweroff -f
}

give_up() {
    echo "pmof-testbed: $1"
    echo "$1" >/host/error
    power_off 1
}

bring_up() {
    local step="$1"
    echo "pmof-testbed: $step"
    "$@" 2>/run/step-error || give_up "$step: $(cat /run/step-error)"
}

load_modules() {
    # shellcheck disable=SC2046 # one word a module
    modprobe -a $(busybox awk '$1 == "start" { print $2 }' /host/guest/modules)
}

# All but the first one wait until here (`maxcpus=1`): see "Processors" in testbed/README.md.
processors() {
    local each
    for each in /sys/devices/system/cpu/cpu[1-9]*/online; do
        if [ -e "$each" ]; then echo 1 >"$each"; fi
    done
}

echo guest >/proc/sys/kernel/hostname
bring_up load_modules
if [ "$testbed_mode" = prepare ]; then
    bring_up prepare
    echo 0 >/host/exit-code
    power_off 0
fi
bring_up media
bring_up wire
bring_up ipv6
if [ -n "${PMOF_VM:-}" ]; then bring_up link_to_other "$PMOF_VM"; fi
if [ -n "${testbed_cxl:-}" ]; then bring_up cxl_memory; fi
bring_up processors
if [ -n "${testbed_shared:-}" ]; then
    mkdir -p /shared
    bring_up mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,cache=none shared /shared
fi
. /host/guest/environment.sh
for name in ${testbed_ports:-}; do declare -x "PMOF_PORT_${name^^}=$(port "$name")"; done
for name in ${testbed_disks:-}; do declare -x "PMOF_DISK_${name^^}=$(disk "$name")"; done

cd /host || give_up "no /host"
echo "pmof-testbed: command"
if [ "$testbed_mode" = shell ]; then
    cd /root || true
    stty -F /dev/hvc0 rows "${testbed_rows:-24}" columns "${testbed_columns:-80}"
    PS1='guest:\w# ' setsid -c bash --norc -i </dev/hvc0 >/dev/hvc0 2>&1
    code=$?
else
    output="$(port output)" || give_up "no port for the output"
    bash /host/command </dev/null >"$output" 2>&1
    code=$?
fi
echo "$code" >/host/exit-code
power_off $((code & 127))
