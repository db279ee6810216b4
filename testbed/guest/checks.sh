# For scripts of checks in the guest: a line `ok NAME` or `not ok NAME: why` for each check; such a script ends with
# `echo "checks $checks"`.
checks=0

# check NAME FUNCTION: the function succeeds, within its own time limits.
check() {
    local said
    checks=$((checks + 1))
    if said="$("$2" 2>&1)"; then
        echo "ok $1"
    else
        echo "not ok $1: $(echo "$said" | tail -n 4 | tr '\n' ' ')"
    fi
}
