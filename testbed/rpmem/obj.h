/* A workload for libpmemobj, and what its pool's parts are held against. */
#ifndef OBJ_H
#define OBJ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "between.h"

/* Bytes of each part. */
enum { PART_BYTES = 16 << 20 };

/* Remote replicas of a pool, at most. */
enum { REPLICAS_MAX = 3 };

/* Shared between a worker and who kills it: transactions begun, and those that were committed. */
struct ledger {
    uint64_t begun;
    uint64_t committed;
};

/* What an exit status says of a pool that somebody has open. */
enum { BUSY = 2 };

/*
 * What the program does in processes of its own, since libpmemobj ends its process where a replica fails. Each returns an
 * exit status: 0, BUSY, or 1, both with a line of why.
 */
int create_pool(const char *set);
/* Steps chosen by the seed; `steps` of them, or without end where it is 0. */
int work(const char *set, uint64_t seed, uint64_t steps, struct ledger *ledger);
/* Allocates an object that nothing leads to; with the library between it is killed before this replica knows of it. */
int allocate_loose(const char *set, unsigned replica, struct between *between);
/* Checks all that must hold, and writes the layout to `live`: lines with offset, length and name. */
int verify(const char *set, const char *live);

#endif
