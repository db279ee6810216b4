/* A workload for libpmemobj, and what its pool's parts are held against. */
#ifndef OBJ_H
#define OBJ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
/* Checks all that must hold, and writes to `live` where objects are: lines with offset and length. */
int verify(const char *set, const char *live);

/* How a replica's part is unlike the master's. */
struct difference {
    size_t header;    /* bytes of the header that must be the same, and are not */
    size_t live;      /* bytes of descriptor, logs, metadata and objects */
    size_t free;      /* bytes where nothing is kept: unused blocks, and what the library keeps while it runs */
    size_t first;     /* the first byte counted as live or header */
};

/*
 * Compares two parts of a pool of libpmemobj that is closed. `live` was written by verify.
 *
 * These fields of the header differ by right: uuid, the UUIDs of neighbours, crtime, the shutdown state, the checksum.
 */
struct difference compare_parts(const char *master, const char *replica, const char *live);

/* Whether the headers name each other as neighbours: the replica is next of the master, or of the replica before it. */
bool are_neighbours(const char *part, const char *next);

/* The transactions that a part counts, read from its bytes alone; UINT64_MAX where there is no root object. */
uint64_t committed_in(const char *part);

#endif
