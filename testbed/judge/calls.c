#include "calls.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "check.h"

static unsigned calls[FUNCTIONS];
static const char *const names[FUNCTIONS] = {
#define NAME(function) #function,
    JUDGED_FUNCTIONS(NAME)
#undef NAME
};

void note_call(enum function function) {
    __atomic_add_fetch(&calls[function], 1, __ATOMIC_RELAXED);
}

const char *plain(const char *source) {
    static char text[512];
    size_t length = 0;
    bool in_macro = false;
    for (; *source != '\0' && length + 1 < sizeof text; source++) {
        if (strncmp(source, "CALL(", 5) == 0) {
            source += 4;
            in_macro = true;
        } else if (in_macro && *source == ')') {
            in_macro = false;
        } else {
            text[length++] = *source;
        }
    }
    text[length] = '\0';
    return text;
}

void check_calls(void) {
    section("calls");
    unsigned uncalled = 0;
    for (int function = 0; function < FUNCTIONS; function++) {
        printf("# calls %s %u\n", names[function], calls[function]);
        uncalled += calls[function] == 0;
    }
    check(uncalled == 0, "all %d functions were called", FUNCTIONS);
}
