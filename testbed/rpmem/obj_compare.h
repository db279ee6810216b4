/* A pool's parts as bytes: their layout, and how replicas differ from the master. */
#ifndef OBJ_COMPARE_H
#define OBJ_COMPARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a byte of a part is. From HEADER_FIELD on it must be the same on each replica. */
enum kind {
    FREE, /* nothing is kept there: unused blocks, and what the library keeps while it runs */
    OWN,  /* of the header, what differs by right: UUIDs, time of creation, shutdown state, checksum */
    HEADER_FIELD,
    DESCRIPTOR,
    LOGS,
    HEAP,
    CHUNK_HEADER,
    EMPTY_RUN, /* a chunk header too; differs says what a replica may have there instead */
    RUN_HEADER,
    BLOCK_HEADER,
    OBJECT,
};

extern const char *const KIND_NAMES[];

/* How a replica's part is unlike the master's. */
struct difference {
    size_t header; /* bytes of the header that must be the same, and are not */
    size_t live;   /* bytes of descriptor, logs, metadata and objects */
    size_t free;   /* bytes where nothing is kept */
    size_t first;  /* the first byte counted as live or header */
};

/* The bytes of a file of PART_BYTES. The caller frees them. */
unsigned char *read_part(const char *path);

/* The kind of each byte of a closed pool, by its master. `live` was written by verify. The caller frees them. */
unsigned char *kinds_of(const unsigned char *master, const char *live);

/*
 * Whether a byte of a replica differs from the master's and may not. Of EMPTY_RUN: libpmemobj writes the header of a new run, which
 * is empty, into the master and then into one replica after the other, and no log has it. Killed in between it leaves replicas
 * that have a free chunk there still, and the next opening does not mend them; nor need it, since a run that is found empty
 * is made a free chunk again, in all replicas, before anything is allocated in its zone. So a free chunk of the same length
 * may be there.
 */
bool differs(const unsigned char *master, const unsigned char *replica, const unsigned char *kinds, size_t at);

/* Compares a replica with the master of a closed pool. */
struct difference compare(const unsigned char *master, const unsigned char *replica, const unsigned char *kinds);

/* Whether the headers name each other as neighbours: the replica is next of the master, or of the replica before it. */
bool are_neighbours(const unsigned char *part, const unsigned char *next);

/* The transactions that a part counts, read only from its bytes; UINT64_MAX if there is no root object. */
uint64_t committed_in(const unsigned char *part);

/* Where the headers of chunks begin and end, and the type of one that begins a run. */
size_t chunk_headers(const unsigned char *master, size_t *end);
extern const uint32_t RUN_TYPE;

/* The header of the first run that something is allocated in; 0 where there is none. */
size_t used_run(const unsigned char *master);

#endif
