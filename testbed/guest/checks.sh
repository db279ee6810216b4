# For scripts of checks in the guest: for each check a line `seconds N` and a line `ok NAME` or `not ok NAME: why`; such a script
# ends with `echo "checks $checks"`.
checks=0

# check NAME FUNCTION: the function succeeds, within its own time limits.
check() {
    local said result began="$SECONDS"
    checks=$((checks + 1))
    said="$("$2" 2>&1)"
    result=$?
    echo "seconds $((SECONDS - began))"
    if [ "$result" -eq 0 ]; then
        echo "ok $1"
    else
        echo "not ok $1: $(echo "$said" | tail -n 4 | tr '\n' ' ')"
    fi
}
