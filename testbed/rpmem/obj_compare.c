/* The layout of the files of libpmemobj 1.12 (layout version 6). */
#include "obj_compare.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "obj.h"

/* What compare looks at in one go; parts are multiples of it. */
enum { PAGE = 4096 };

enum {
    HEADER = 4096,
    /* Of the header: from UUID to crtime, and from the shutdown state on, parts differ by right. */
    HEADER_OWN = 40,
    HEADER_SAME_AGAIN = 128,
    HEADER_OWN_AGAIN = 4024,
    UUID = 40,
    PREVIOUS_REPLICA = 88,
    NEXT_REPLICA = 104,
    UUID_BYTES = 16,
    /* Behind it: the descriptor, then what the library keeps while it runs, then the lanes' logs, then the heap. */
    HEAP_OFFSET = 4096 + 1024 + 16,
    ROOT_OFFSET = 6144,
    RUN_TIME = 6144 + 544,
    LANES = 8192,
    HEAP_HEADER = 1024,
    ZONE_HEADER = 64,
    CHUNKS_MAX = 65528,
    CHUNK = 256 << 10,
    CHUNK_HEADER_BYTES = 8,
    CHUNK_FREE = 2,
    CHUNK_USED = 3,
    CHUNK_RUN = 4,
    /* Of a chunk's flags: the bitmap of the run is as long as it needs to be. */
    FLEXIBLE_BITMAP = 8,
    /* What a run has before its blocks: two words, the length of a block and their alignment, and a bitmap. */
    RUN_WORDS = 16,
    RUN_BITMAP = 304,
    /* What a block of chunks has before its object. */
    BLOCK_HEADER_BYTES = 16,
};

const uint32_t RUN_TYPE = CHUNK_RUN;

const char *const KIND_NAMES[] = {
    [FREE] = "nothing",
    [OWN] = "the part's own",
    [HEADER_FIELD] = "header",
    [DESCRIPTOR] = "descriptor",
    [LOGS] = "lanes' logs",
    [HEAP] = "headers of heap and zone",
    [CHUNK_HEADER] = "header of a chunk",
    [EMPTY_RUN] = "header of an empty run",
    [RUN_HEADER] = "bitmap of a run",
    [BLOCK_HEADER] = "header of a block",
    [OBJECT] = "object",
};

/* A chunk's header. */
struct chunk {
    uint16_t type;
    uint16_t flags;
    uint32_t chunks;
};

unsigned char *read_part(const char *path) {
    FILE *file = fopen(path, "r");
    unsigned char *bytes = malloc(PART_BYTES);
    if (file == NULL || bytes == NULL || fread(bytes, 1, PART_BYTES, file) != PART_BYTES)
        bail_out("cannot read %s", path);
    fclose(file);
    return bytes;
}

static uint64_t word(const unsigned char *part, size_t at) {
    uint64_t value;
    memcpy(&value, part + at, sizeof value);
    return value;
}

static struct chunk chunk_at(const unsigned char *part, size_t header) {
    uint64_t value = word(part, header);
    return (struct chunk){(uint16_t)value, (uint16_t)(value >> 16), (uint32_t)(value >> 32)};
}

static void mark(unsigned char *kinds, size_t offset, size_t bytes, enum kind kind) {
    if (offset > PART_BYTES || bytes > PART_BYTES - offset)
        bail_out("%zu bytes at %zu lie outside the part", bytes, offset);
    memset(kinds + offset, kind, bytes);
}

size_t chunk_headers(const unsigned char *master, size_t *end) {
    size_t begin = word(master, HEAP_OFFSET) + HEAP_HEADER + ZONE_HEADER;
    *end = begin + (size_t)CHUNKS_MAX * CHUNK_HEADER_BYTES;
    return begin;
}

/* A bit for each block of the run. */
static size_t run_header(const unsigned char *master, size_t run, struct chunk chunk) {
    uint64_t block = word(master, run);
    if ((chunk.flags & FLEXIBLE_BITMAP) == 0 || block == 0)
        return RUN_WORDS + RUN_BITMAP;
    size_t blocks = ((size_t)chunk.chunks * CHUNK - RUN_WORDS) / block;
    return RUN_WORDS + (blocks + 63) / 64 * 8;
}

/* Whether no block of the run is in use. Of a run with a bitmap of fixed length it is not said. */
static bool is_empty(const unsigned char *master, size_t run, struct chunk chunk) {
    uint64_t block = word(master, run), alignment = word(master, run + 8);
    if ((chunk.flags & FLEXIBLE_BITMAP) == 0 || block == 0)
        return false;
    /* With the two words before it the bitmap ends at a cache line; bits behind the last block are set. */
    size_t content = (size_t)chunk.chunks * CHUNK - RUN_WORDS;
    size_t values = (content / block + 63) / 64;
    values = (values + 2 + 7) / 8 * 8 - 2;
    size_t blocks = (content - values * 8) / block - (alignment != 0);
    for (size_t index = 0; index < blocks; index++)
        if ((master[run + RUN_WORDS + index / 8] >> (index % 8) & 1) != 0)
            return false;
    return true;
}

/*
 * The heap's own data. Of chunks only those that begin something in use: the headers of others are written anew as the library
 * finds them, and not flushed.
 */
static void mark_heap(unsigned char *kinds, const unsigned char *master) {
    size_t heap = word(master, HEAP_OFFSET), end, headers = chunk_headers(master, &end);
    mark(kinds, heap, headers - heap, HEAP);
    for (size_t index = 0; end + (index + 1) * CHUNK <= PART_BYTES;) {
        size_t header = headers + index * CHUNK_HEADER_BYTES, at = end + index * CHUNK;
        struct chunk chunk = chunk_at(master, header);
        if (chunk.type == CHUNK_RUN) {
            mark(kinds, header, CHUNK_HEADER_BYTES, is_empty(master, at, chunk) ? EMPTY_RUN : CHUNK_HEADER);
            mark(kinds, at, run_header(master, at, chunk), RUN_HEADER);
        }
        if (chunk.type == CHUNK_USED) {
            mark(kinds, header, CHUNK_HEADER_BYTES, CHUNK_HEADER);
            mark(kinds, at, BLOCK_HEADER_BYTES, BLOCK_HEADER);
        }
        index += chunk.chunks == 0 ? 1 : chunk.chunks;
    }
}

size_t used_run(const unsigned char *master) {
    size_t end, headers = chunk_headers(master, &end);
    for (size_t index = 0; end + (index + 1) * CHUNK <= PART_BYTES;) {
        size_t header = headers + index * CHUNK_HEADER_BYTES;
        struct chunk chunk = chunk_at(master, header);
        if (chunk.type == CHUNK_RUN && !is_empty(master, end + index * CHUNK, chunk))
            return header;
        index += chunk.chunks == 0 ? 1 : chunk.chunks;
    }
    return 0;
}

static void mark_objects(unsigned char *kinds, const char *live) {
    FILE *file = fopen(live, "r");
    unsigned long long offset;
    size_t bytes;
    if (file == NULL)
        bail_out("cannot read %s", live);
    while (fscanf(file, "%llu %zu %*s", &offset, &bytes) == 2)
        mark(kinds, (size_t)offset, bytes, OBJECT);
    fclose(file);
}

unsigned char *kinds_of(const unsigned char *master, const char *live) {
    unsigned char *kinds = calloc(PART_BYTES, 1);
    if (kinds == NULL)
        bail_out("no memory");
    mark(kinds, 0, HEADER, HEADER_FIELD);
    mark(kinds, HEADER_OWN, HEADER_SAME_AGAIN - HEADER_OWN, OWN);
    mark(kinds, HEADER_OWN_AGAIN, HEADER - HEADER_OWN_AGAIN, OWN);
    mark(kinds, HEADER, RUN_TIME - HEADER, DESCRIPTOR);
    mark(kinds, LANES, word(master, HEAP_OFFSET) - LANES, LOGS);
    mark_heap(kinds, master);
    mark_objects(kinds, live);
    return kinds;
}

/* The chunk header of a replica where the master has an empty run that was not persisted at the replica. */
static bool is_free_chunk(const unsigned char *master, const unsigned char *replica, size_t header) {
    struct chunk there = chunk_at(replica, header);
    return there.type == CHUNK_FREE && there.chunks == chunk_at(master, header).chunks;
}

bool differs(const unsigned char *master, const unsigned char *replica, const unsigned char *kinds, size_t at) {
    if (master[at] == replica[at] || kinds[at] == FREE || kinds[at] == OWN)
        return false;
    return kinds[at] != EMPTY_RUN || !is_free_chunk(master, replica, at / CHUNK_HEADER_BYTES * CHUNK_HEADER_BYTES);
}

struct difference compare(const unsigned char *master, const unsigned char *replica, const unsigned char *kinds) {
    struct difference found = {.first = SIZE_MAX};
    for (size_t at = 0; at < PART_BYTES; at++) {
        while (at % PAGE == 0 && at < PART_BYTES && memcmp(master + at, replica + at, PAGE) == 0)
            at += PAGE;
        if (at == PART_BYTES || master[at] == replica[at] || kinds[at] == OWN)
            continue;
        bool counts = differs(master, replica, kinds, at);
        found.free += !counts;
        found.header += counts && kinds[at] == HEADER_FIELD;
        found.live += counts && kinds[at] != HEADER_FIELD;
        if (counts && found.first == SIZE_MAX)
            found.first = at;
    }
    return found;
}

bool are_neighbours(const unsigned char *part, const unsigned char *next) {
    return memcmp(part + NEXT_REPLICA, next + UUID, UUID_BYTES) == 0 &&
           memcmp(next + PREVIOUS_REPLICA, part + UUID, UUID_BYTES) == 0;
}

uint64_t committed_in(const unsigned char *part) {
    uint64_t root = word(part, ROOT_OFFSET);
    return root == 0 || root + 8 > PART_BYTES ? UINT64_MAX : word(part, (size_t)root);
}
