#include "codes.h"

struct options options;

void skip_call(const char *reason, const char *name) {
    skip(reason, "%s", plain(name));
}

bool check_code(int returned, int expected, const char *name) {
    bool passed = check(returned == expected, "%s", plain(name));
    if (!passed)
        tell("returned %d, expected %d", returned, expected);
    return passed;
}

bool check_codes(int returned, int expected, int or_this, const char *name) {
    bool passed = check(returned == expected || returned == or_this, "%s", plain(name));
    if (!passed)
        tell("returned %d, expected %d or %d", returned, expected, or_this);
    return passed;
}

void need(int returned, const char *call) {
    if (returned == 0)
        return;
    check(false, "%s", call);
    tell("returned %d", returned);
    bail_out("what follows needs this call");
}
