# Runs in both of two machines: machine 0 serves, machine 1 asks, over IPv4 and IPv6. Exit code 0 where all went well.
set -e
await_file() {
    local tries=0
    until [ -e "$PMOF_SHARED/$1" ]; do
        tries=$((tries + 1))
        [ "$tries" -le 600 ] || { echo "the other machine did not write $1"; exit 1; }
        sleep 0.1
    done
}

if [ "$PMOF_VM" = 0 ]; then
    rping -s -P -a "$PMOF_LOCAL" &
    rping -s -P -p 7175 -a "$PMOF_LOCAL6" &
    sleep 1
    touch "$PMOF_SHARED/serving"
    await_file done
else
    await_file serving
    timeout 30 rping -c -C 5 -a "$PMOF_PEER"
    timeout 30 rping -c -C 5 -p 7175 -a "$PMOF_PEER6"
    touch "$PMOF_SHARED/done"
fi
