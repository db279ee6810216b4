#include "check.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static unsigned done, failed, skipped;
static const char *part = "";

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
    fflush(stdout);
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

void tell(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("# ", stdout);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
    fflush(stdout);
}

void bail_out(const char *format, ...) {
    printf("Bail out! %s: ", part);
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
    fflush(stdout);
    _Exit(3);
}

static void too_long(int signal) {
    (void)signal;
    static const char text[] = "\nBail out! it took too long\n";
    if (write(STDOUT_FILENO, text, sizeof text - 1) < 0)
        _exit(4);
    _exit(3);
}

void bail_out_after(unsigned seconds) {
    signal(SIGALRM, too_long);
    alarm(seconds);
}

int finish(void) {
    printf("1..%u\n", done);
    /* The closing line of the project's test runners. */
    printf("%u passed, %u failed, %u skipped\n", done - failed - skipped, failed, skipped);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

double now_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}
