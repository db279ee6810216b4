/* What the checks of librpmem's functions share. */
#ifndef API_H
#define API_H

#include <librpmem.h>

#include "calls.h"

/* Checks that a call succeeds: gives 0, or a pool. */
#define WORKS(call) check_success((call), #call)
#define GIVES_POOL(call) check_pool((call), #call)

/* Checks that a call fails with this errno and says why. */
#define FAILS(call, code) check_failure((before_failure(), (call)), (code), #call " fails with " #code)
#define GIVES_NO_POOL(call, code) check_no_pool((before_failure(), (call)), (code), #call " fails with " #code)

/* Or with the other. */
#define FAILS_EITHER(call, code, other) \
    check_failure_either((before_failure(), (call)), (code), (other), #call " fails with " #code " or " #other)

void before_failure(void);
bool check_success(int returned, const char *call);
RPMEMpool *check_pool(RPMEMpool *pool, const char *call);
bool check_failure(int returned, int code, const char *name);
bool check_failure_either(int returned, int code, int other, const char *name);
bool check_no_pool(RPMEMpool *pool, int code, const char *name);

/* Bytes of most pools here, header included. */
enum { POOL_BYTES = 4 << 20, HEADER_BYTES = 4096 };

/* The local memory of pools: POOL_BYTES of pseudo-random bytes. */
extern unsigned char *memory;

/* What headers say here. */
extern const struct rpmem_pool_attr attributes;

/* Makes or opens the pool of `NAME.set` with this memory and this many lanes; the program ends if that fails. */
RPMEMpool *must_create(const char *set, unsigned lanes);
RPMEMpool *must_open(const char *set, unsigned lanes);

/* Whether the part of `NAME.set` holds what the memory holds there. */
bool part_is(const char *name, size_t offset, size_t length);

/* The program's arguments. */
extern bool under_valgrind;

void check_arguments(void);
void check_sets(void);
void check_headers(void);
void check_removing(void);
void check_copies(void);
void check_ranges(void);
void check_lanes(void);
void check_second_opener(void);
void check_lost_targets(void);
void check_forks(void);
void check_environment(void);

#endif
