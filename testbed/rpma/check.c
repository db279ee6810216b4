#include "check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct options options;

static unsigned calls[FUNCTIONS];
static const char *const names[FUNCTIONS] = {
#define NAME(function) #function,
    RPMA_FUNCTIONS(NAME)
#undef NAME
};
static unsigned done, failed, skipped;
static const char *part = "";

void note_call(enum function function) {
    __atomic_add_fetch(&calls[function], 1, __ATOMIC_RELAXED);
}

void section(const char *name) {
    part = name;
    tell("== %s", name);
}

static void line(const char *verdict, const char *format, va_list arguments) {
    printf("%s %u - %s: ", verdict, ++done, part);
    vprintf(format, arguments);
}

bool check(bool passed, const char *name, ...) {
    va_list arguments;
    va_start(arguments, name);
    line(passed ? "ok" : "not ok", name, arguments);
    va_end(arguments);
    putchar('\n');
    failed += !passed;
    return passed;
}

void skip(const char *reason, const char *name, ...) {
    va_list arguments;
    va_start(arguments, name);
    line("ok", name, arguments);
    va_end(arguments);
    printf(" # SKIP %s\n", reason);
    skipped++;
}

/* The source of a call without the macro around it, in a buffer that the next call takes. */
static const char *plain(const char *source) {
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

void tell(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("# ", stdout);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
    fflush(stdout);
}

void need(int returned, const char *call) {
    if (returned == 0)
        return;
    check(false, "%s", call);
    tell("returned %d", returned);
    bail_out("what follows needs this call");
}

void bail_out(const char *why) {
    printf("Bail out! %s: %s\n", part, why);
    fflush(stdout);
    _Exit(3);
}

int finish(void) {
    section("calls");
    unsigned uncalled = 0;
    for (int function = 0; function < FUNCTIONS; function++) {
        printf("# calls %s %u\n", names[function], calls[function]);
        uncalled += calls[function] == 0;
    }
    check(uncalled == 0, "all %d functions were called", FUNCTIONS);
    return finish_part();
}

int finish_part(void) {
    printf("1..%u\n", done);
    /* The closing line of the project's test runners. */
    printf("%u passed, %u failed, %u skipped\n", done - failed - skipped, failed, skipped);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
