/* What librpma's functions return, and what the command line says. */
#ifndef CODES_H
#define CODES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <librpma.h>

#include "calls.h"
#include "check.h"

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

/* Compares what a call has returned with the documented code; a failure shows both. `name` is the call's source. */
bool check_code(int returned, int expected, const char *name);

void skip_call(const char *reason, const char *name);

/* Either code is right. */
bool check_codes(int returned, int expected, int or_this, const char *name);

#define IS(call, expected) check_code((call), (expected), #call " is " #expected)
#define IS_EITHER(call, expected, or_this) \
    check_codes((call), (expected), (or_this), #call " is " #expected " or " #or_this)

/* Not to be done with Debian's librpma, for the reason. */
#define IS_UNLESS_REFERENCE(reason, call, expected) \
    (options.reference ? skip_call((reason), #call " is " #expected) \
                       : (void)check_code((call), (expected), #call " is " #expected))

/* A call that the rest depends on: ends the program where it fails. */
void need(int returned, const char *call);
#define NEED(call) need((call), #call)

#endif
