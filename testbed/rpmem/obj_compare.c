/* A pool's parts as bytes: what lies where in the files of libpmemobj 1.12 (layout version 6). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "obj.h"

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
    CHUNK_USED = 3,
    CHUNK_RUN = 4,
    /* Of a chunk's flags: the bitmap of the run is as long as it needs to be. */
    FLEXIBLE_BITMAP = 8,
    /* What a run has before its blocks: two words, of which the first is the length of a block, and a bitmap. */
    RUN_WORDS = 16,
    RUN_BITMAP = 304,
    /* What a block of chunks has before its object. */
    BLOCK_HEADER = 16,
};

static unsigned char *read_part(const char *path) {
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

enum kind { FREE, OWN, HEADER_FIELD, LIVE };

static void mark(unsigned char *kinds, size_t offset, size_t bytes, enum kind kind) {
    if (offset > PART_BYTES || bytes > PART_BYTES - offset)
        bail_out("%zu bytes at %zu lie outside the part", bytes, offset);
    memset(kinds + offset, kind, bytes);
}

/* A bit for each block of the run. */
static size_t run_header(const unsigned char *master, size_t run, uint32_t chunks, bool is_flexible) {
    uint64_t block = word(master, run);
    if (!is_flexible || block == 0)
        return RUN_WORDS + RUN_BITMAP;
    size_t blocks = ((size_t)chunks * CHUNK - RUN_WORDS) / block;
    return RUN_WORDS + (blocks + 63) / 64 * 8;
}

/*
 * The heap's own data. Of chunks only those that begin something in use: the headers of others are written anew as the library
 * finds them, and not flushed.
 */
static void mark_heap(unsigned char *kinds, const unsigned char *master) {
    size_t heap = word(master, HEAP_OFFSET), zone = heap + HEAP_HEADER;
    size_t chunks = zone + ZONE_HEADER + (size_t)CHUNKS_MAX * 8;
    mark(kinds, heap, HEAP_HEADER + ZONE_HEADER, LIVE);
    for (size_t index = 0; chunks + (index + 1) * CHUNK <= PART_BYTES;) {
        size_t header = zone + ZONE_HEADER + index * 8, chunk = chunks + index * CHUNK;
        uint16_t type = (uint16_t)word(master, header), flags = (uint16_t)(word(master, header) >> 16);
        uint32_t count = (uint32_t)(word(master, header) >> 32);
        if (type == CHUNK_RUN || type == CHUNK_USED)
            mark(kinds, header, 8, LIVE);
        if (type == CHUNK_RUN)
            mark(kinds, chunk, run_header(master, chunk, count, (flags & FLEXIBLE_BITMAP) != 0), LIVE);
        if (type == CHUNK_USED)
            mark(kinds, chunk, BLOCK_HEADER, LIVE);
        index += count == 0 ? 1 : count;
    }
}

static void mark_objects(unsigned char *kinds, const char *live) {
    FILE *file = fopen(live, "r");
    unsigned long long offset;
    size_t bytes;
    if (file == NULL)
        bail_out("cannot read %s", live);
    while (fscanf(file, "%llu %zu", &offset, &bytes) == 2)
        mark(kinds, (size_t)offset, bytes, LIVE);
    fclose(file);
}

struct difference compare_parts(const char *master_path, const char *replica_path, const char *live) {
    unsigned char *master = read_part(master_path), *replica = read_part(replica_path), *kinds = calloc(PART_BYTES, 1);
    if (kinds == NULL)
        bail_out("no memory");
    mark(kinds, 0, HEADER, HEADER_FIELD);
    mark(kinds, HEADER_OWN, HEADER_SAME_AGAIN - HEADER_OWN, OWN);
    mark(kinds, HEADER_OWN_AGAIN, HEADER - HEADER_OWN_AGAIN, OWN);
    mark(kinds, HEADER, RUN_TIME - HEADER, LIVE);
    mark(kinds, LANES, word(master, HEAP_OFFSET) - LANES, LIVE);
    mark_heap(kinds, master);
    mark_objects(kinds, live);
    struct difference found = {.first = SIZE_MAX};
    for (size_t at = 0; at < PART_BYTES; at++) {
        if (master[at] == replica[at] || kinds[at] == OWN)
            continue;
        found.header += kinds[at] == HEADER_FIELD;
        found.live += kinds[at] == LIVE;
        found.free += kinds[at] == FREE;
        if (kinds[at] != FREE && found.first == SIZE_MAX)
            found.first = at;
    }
    free(master);
    free(replica);
    free(kinds);
    return found;
}

bool are_neighbours(const char *part, const char *next) {
    unsigned char *first = read_part(part), *second = read_part(next);
    bool are = memcmp(first + NEXT_REPLICA, second + UUID, UUID_BYTES) == 0 &&
               memcmp(second + PREVIOUS_REPLICA, first + UUID, UUID_BYTES) == 0;
    free(first);
    free(second);
    return are;
}

uint64_t committed_in(const char *path) {
    unsigned char *part = read_part(path);
    uint64_t root = word(part, ROOT_OFFSET);
    uint64_t committed = root == 0 || root + 8 > PART_BYTES ? UINT64_MAX : word(part, (size_t)root);
    free(part);
    return committed;
}
