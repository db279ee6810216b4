/* Counting checks, and what librpma's functions were called for. */
#ifndef CHECK_H
#define CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <librpma.h>

#include "functions.h"

/* What the command line says. */
struct options {
    const char *address;     /* of the device, or of a local interface */
    unsigned port;           /* the first of PORTS that are free */
    const char *pmem;        /* a device-DAX or a file for what is flushed persistently; NULL: ordinary memory */
    bool reference;          /* Debian's librpma is judged: what it is known to do wrong is left out */
};

extern struct options options;

/* How many ports from options.port on are used. */
enum { PORTS = 16 };

/* How long anything may take that must happen. */
enum { PATIENCE_MS = 10000 };

enum function {
#define NAME(function) FUNCTION_##function,
    RPMA_FUNCTIONS(NAME)
#undef NAME
    FUNCTIONS,
};

/* Every call goes through this macro, which notes it: CALL(rpma_peer_new)(context, &peer). */
#define CALL(function) (note_call(FUNCTION_##function), function)

void note_call(enum function function);

/* The part of the program that the next checks belong to. */
void section(const char *name);

/* One check, one line. The name is printf-like. Returns `passed`. */
bool check(bool passed, const char *name, ...) __attribute__((format(printf, 2, 3)));

/* A check that is left out, with the reason. */
void skip(const char *reason, const char *name, ...) __attribute__((format(printf, 2, 3)));

/* Compares what a call has returned with the documented code; a failure shows both. `name` is the call's source. */
bool check_code(int returned, int expected, const char *name);

void skip_call(const char *reason, const char *name);

/* Either code is right. */
bool check_codes(int returned, int expected, int or_this, const char *name);

#define IS(call, expected) check_code((call), (expected), #call " is " #expected)
#define IS_EITHER(call, expected, or_this) \
    check_codes((call), (expected), (or_this), #call " is " #expected " or " #or_this)
#define TRUE(condition) check((condition), "%s", #condition)

/* Not to be done with Debian's librpma, for the reason. */
#define IS_UNLESS_REFERENCE(reason, call, expected) \
    (options.reference ? skip_call((reason), #call " is " #expected) \
                       : (void)check_code((call), (expected), #call " is " #expected))

/* A line that tells something and checks nothing. */
void tell(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A call that the rest depends on: ends the program where it fails. */
void need(int returned, const char *call);
#define NEED(call) need((call), #call)

/* Ends the program; the checks so far do not count as done. */
_Noreturn void bail_out(const char *why);

/* The plan and the counts, of a run that is not to call every function; the exit code of the program. */
int finish_part(void);

/* The plan, the calls of each function and the counts; the exit code of the program. */
int finish(void);

#endif
