/* What between.c and the program that judges share: a file that both map, whose path is in RPMEM_BETWEEN. */
#ifndef BETWEEN_H
#define BETWEEN_H

#include <stdint.h>

/* Persists that are remembered, and how many bytes of each. */
enum { PERSISTS_KEPT = 4096, BYTES_KEPT = 16 };

struct persist {
    uint32_t replica;      /* the number behind the last '-' of the pool set's name */
    uint32_t acknowledged; /* 1 once the function returned success */
    uint64_t offset;
    uint64_t length;
    unsigned char bytes[BYTES_KEPT]; /* the first of them */
};

struct between {
    /* Written by the judge; 0 for never. */
    uint64_t drop_every;     /* one of this many persists is omitted */
    uint64_t kill_at;        /* the process is killed before this persist, counted from 1 */
    uint32_t kill_at_run_of; /* or before a new run is persisted at this replica */
    /* Eight bytes there whose first two are `run_type` are the header of a new run. */
    uint32_t run_type;
    uint64_t chunk_headers_begin;
    uint64_t chunk_headers_end;
    /* Written by between.c. Number N is at index (N - 1) % PERSISTS_KEPT. */
    uint64_t persists;
    struct persist last[PERSISTS_KEPT];
};

#endif
