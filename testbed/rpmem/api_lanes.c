/* What goes through an open pool: persists, flushes and drains, reads. */
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "check.h"
#include "stage.h"
#include "api.h"

/* Fills a range of the local memory anew. */
static void change(size_t offset, size_t length) {
    for (size_t at = 0; at < length; at++)
        memory[offset + at] = (unsigned char)random();
}

enum way { ATOMIC, RELAXED, DEEP, FLUSH, FLUSH_RELAXED, WAYS };

static const char *const way_names[WAYS] = {"persist", "persist, relaxed", "deep persist", "flush and drain",
                                            "flush, relaxed, and drain"};

static int copy(RPMEMpool *pool, enum way way, size_t offset, size_t length, unsigned lane) {
    switch (way) {
    case ATOMIC: return CALL(rpmem_persist)(pool, offset, length, lane, 0);
    case RELAXED: return CALL(rpmem_persist)(pool, offset, length, lane, RPMEM_PERSIST_RELAXED);
    case DEEP: return CALL(rpmem_deep_persist)(pool, offset, length, lane);
    case FLUSH:
    case FLUSH_RELAXED: {
        int flushed = CALL(rpmem_flush)(pool, offset, length, lane, way == FLUSH ? 0 : RPMEM_FLUSH_RELAXED);
        return flushed != 0 ? flushed : CALL(rpmem_drain)(pool, lane, 0);
    }
    default: return -1;
    }
}

/* The memory is the caller's again once the pool is closed, also where flushes were not drained. */
static void check_memory_given_back(void) {
    for (unsigned round = 0; round < 20; round++) {
        unsigned lanes = 1;
        unsigned char *own = mmap(NULL, POOL_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (own == MAP_FAILED)
            bail_out("no memory");
        memset(own, (int)round, POOL_BYTES);
        RPMEMpool *pool = CALL(rpmem_open)(stage.target, "copies.set", own, POOL_BYTES, &lanes, NULL);
        if (pool == NULL)
            bail_out("rpmem_open: %s", rpmem_errormsg());
        for (size_t at = 4096; at + 65536 <= POOL_BYTES; at += 65536)
            if (CALL(rpmem_flush)(pool, at, 65536, 0, RPMEM_FLUSH_RELAXED) != 0)
                bail_out("rpmem_flush: %s", rpmem_errormsg());
        if (CALL(rpmem_close)(pool) != 0)
            bail_out("rpmem_close: %s", rpmem_errormsg());
        munmap(own, POOL_BYTES);
    }
    check(true, "memory is unmapped right after 20 pools with flushes under way are closed");
}

void check_copies(void) {
    section("copies");
    write_set("copies", POOL_BYTES, "");
    RPMEMpool *pool = must_create("copies.set", 4);
    /* Words, odd places, whole and half pages, over the limits at which writes are cut, the pool's ends. */
    static const size_t ranges[][2] = {{4096, 1},        {4096, 8},           {4097, 7},
                                       {4103, 2},        {8191, 2},           {8190, 4096},
                                       {12345, 54321},   {65536, 65536},      {100001, 1 << 20},
                                       {4096, 3 << 20},  {POOL_BYTES - 1, 1}, {POOL_BYTES - 4095, 4095},
                                       {4096, POOL_BYTES - 4096}};
    for (enum way way = 0; way < WAYS; way++) {
        bool works = true, same = true;
        for (unsigned range = 0; range < sizeof ranges / sizeof *ranges; range++) {
            change(ranges[range][0], ranges[range][1]);
            works = copy(pool, way, ranges[range][0], ranges[range][1], way % 4) == 0 && works;
            same = part_is("copies", ranges[range][0], ranges[range][1]) && same;
        }
        check(works, "%s works on ranges of all kinds", way_names[way]);
        check(same && part_is("copies", 4096, POOL_BYTES - 4096), "%s: the part is the memory's image", way_names[way]);
    }
    /* The control: what was not copied is not there. */
    change(1 << 20, 4096);
    check(!part_is("copies", 1 << 20, 4096), "what was changed and not copied is not in the part");
    change(2 << 20, 1000);
    for (size_t at = 0; at < 1000; at++)
        if (CALL(rpmem_flush)(pool, (2 << 20) + at, 1, 3, at % 2) != 0)
            bail_out("rpmem_flush: %s", rpmem_errormsg());
    WORKS(CALL(rpmem_drain)(pool, 3, 0));
    check(part_is("copies", 2 << 20, 1000), "one drain covers 1000 flushes of both kinds");
    WORKS(CALL(rpmem_drain)(pool, 3, 0));
    tell("a drain with nothing to do:");
    WORKS(CALL(rpmem_drain)(pool, 0, 0));

    unsigned char back[5000];
    memset(back, 0xaa, sizeof back);
    WORKS(CALL(rpmem_persist)(pool, 4096, 8192, 1, 0));
    WORKS(CALL(rpmem_read)(pool, back + 100, 5001, 4000, 2));
    check(memcmp(back + 100, memory + 5001, 4000) == 0, "a read gives what is in the pool");
    check(back[99] == 0xaa && back[4100] == 0xaa, "a read stays in its buffer");
    unsigned char *whole = malloc(POOL_BYTES);
    memset(whole, 0, POOL_BYTES);
    WORKS(copy(pool, RELAXED, 4096, POOL_BYTES - 4096, 0));
    WORKS(CALL(rpmem_read)(pool, whole, 0, POOL_BYTES, 1));
    check(memcmp(whole + 4096, memory + 4096, POOL_BYTES - 4096) == 0, "a read of the whole pool");
    check(memcmp(whole, attributes.signature, 8) == 0, "a read gives the header too");
    free(whole);
    WORKS(CALL(rpmem_close)(pool));
    check_memory_given_back();
}

void check_ranges(void) {
    section("ranges");
    RPMEMpool *pool = must_open("copies.set", 2);
    char byte = 'x';
    static const size_t outside[][2] = {{POOL_BYTES, 1},        {POOL_BYTES - 7, 8},   {POOL_BYTES + 4096, 0},
                                        {SIZE_MAX, 1},          {4096, SIZE_MAX},      {SIZE_MAX - 7, 8},
                                        {(size_t)1 << 63, 4096}, {4096, POOL_BYTES},    {SIZE_MAX, SIZE_MAX}};
    for (unsigned index = 0; index < sizeof outside / sizeof *outside; index++) {
        size_t offset = outside[index][0], length = outside[index][1];
        tell("offset %zu, length %zu:", offset, length);
        FAILS(CALL(rpmem_persist)(pool, offset, length, 0, 0), EINVAL);
        FAILS(CALL(rpmem_persist)(pool, offset, length, 0, RPMEM_PERSIST_RELAXED), EINVAL);
        FAILS(CALL(rpmem_flush)(pool, offset, length, 0, 0), EINVAL);
        FAILS(CALL(rpmem_deep_persist)(pool, offset, length, 0), EINVAL);
        FAILS(CALL(rpmem_read)(pool, &byte, offset, length, 0), EINVAL);
    }
    static const size_t in_header[][2] = {{0, 1}, {0, 4096}, {4095, 1}, {4088, 16}, {0, POOL_BYTES}};
    for (unsigned index = 0; index < sizeof in_header / sizeof *in_header; index++) {
        size_t offset = in_header[index][0], length = in_header[index][1];
        tell("offset %zu, length %zu:", offset, length);
        FAILS(CALL(rpmem_persist)(pool, offset, length, 0, 0), EINVAL);
        FAILS(CALL(rpmem_flush)(pool, offset, length, 0, RPMEM_FLUSH_RELAXED), EINVAL);
        FAILS(CALL(rpmem_deep_persist)(pool, offset, length, 0), EINVAL);
    }
    static const unsigned no_lanes[] = {2, 3, 1024, UINT32_MAX};
    for (unsigned index = 0; index < sizeof no_lanes / sizeof *no_lanes; index++) {
        unsigned lane = no_lanes[index];
        tell("lane %u:", lane);
        FAILS(CALL(rpmem_persist)(pool, 4096, 8, lane, 0), EINVAL);
        FAILS(CALL(rpmem_flush)(pool, 4096, 8, lane, 0), EINVAL);
        FAILS(CALL(rpmem_drain)(pool, lane, 0), EINVAL);
        FAILS(CALL(rpmem_deep_persist)(pool, 4096, 8, lane), EINVAL);
        FAILS(CALL(rpmem_read)(pool, &byte, 4096, 1, lane), EINVAL);
    }
    static const unsigned no_flags[] = {2, 3, 1U << 31, UINT32_MAX};
    for (unsigned index = 0; index < sizeof no_flags / sizeof *no_flags; index++) {
        unsigned flags = no_flags[index];
        tell("flags %#x:", flags);
        FAILS(CALL(rpmem_persist)(pool, 4096, 8, 0, flags), EINVAL);
        FAILS(CALL(rpmem_flush)(pool, 4096, 8, 0, flags), EINVAL);
        FAILS(CALL(rpmem_drain)(pool, 0, flags), EINVAL);
    }
    FAILS(CALL(rpmem_drain)(pool, 0, 1), EINVAL);
    FAILS(CALL(rpmem_read)(pool, NULL, 4096, 8, 0), EINVAL);
    tell("nothing to copy:");
    WORKS(CALL(rpmem_persist)(pool, 4096, 0, 0, 0));
    WORKS(CALL(rpmem_persist)(pool, POOL_BYTES, 0, 0, 0));
    WORKS(CALL(rpmem_flush)(pool, 4096, 0, 0, 0));
    WORKS(CALL(rpmem_deep_persist)(pool, 4096, 0, 0));
    WORKS(CALL(rpmem_read)(pool, NULL, 0, 0, 0));
    WORKS(CALL(rpmem_read)(pool, &byte, POOL_BYTES, 0, 0));
    check(byte == 'x', "no refused read wrote anything");
    tell("after all these refusals:");
    change(4096, 4096);
    WORKS(CALL(rpmem_persist)(pool, 4096, 4096, 1, 0));
    check(part_is("copies", 4096, 4096), "the pool goes on as before");
    WORKS(CALL(rpmem_close)(pool));
}

enum { THREADS = 8, THREAD_BYTES = 64 << 10 };

struct job {
    RPMEMpool *pool;
    unsigned lane;
    unsigned failed;
};

static void *use_lane(void *of) {
    struct job *job = of;
    size_t begin = HEADER_BYTES + (size_t)job->lane % THREADS * THREAD_BYTES;
    for (unsigned round = 0; round < 50; round++) {
        for (size_t at = 0; at < THREAD_BYTES; at += 4096) {
            memset(memory + begin + at, (int)(round + job->lane + at), 4096);
            job->failed += CALL(rpmem_flush)(job->pool, begin + at, 4096, job->lane, round % 2) != 0;
        }
        job->failed += CALL(rpmem_drain)(job->pool, job->lane, 0) != 0;
        unsigned char back[4096];
        size_t at = begin + round % 16 * 4096;
        job->failed += CALL(rpmem_read)(job->pool, back, at, sizeof back, job->lane) != 0;
        job->failed += memcmp(back, memory + at, sizeof back) != 0;
        job->failed += CALL(rpmem_persist)(job->pool, begin + round, 64, job->lane, 0) != 0;
    }
    return NULL;
}

void check_lanes(void) {
    section("lanes");
    RPMEMpool *pool = must_open("copies.set", 1024);
    struct job jobs[THREADS];
    pthread_t threads[THREADS];
    unsigned failed = 0;
    for (unsigned index = 0; index < THREADS; index++) {
        /* From all over the lanes. */
        jobs[index] = (struct job){.pool = pool, .lane = index + index * 8 * 14};
        if (pthread_create(&threads[index], NULL, use_lane, &jobs[index]) != 0)
            bail_out("no thread");
    }
    for (unsigned index = 0; index < THREADS; index++) {
        pthread_join(threads[index], NULL);
        failed += jobs[index].failed;
    }
    check(failed == 0, "%d threads with a lane each", THREADS);
    check(part_is("copies", HEADER_BYTES, THREADS * THREAD_BYTES), "and the part is the memory's image");
    bool all = true;
    for (unsigned lane = 0; lane < 1024; lane++)
        all = CALL(rpmem_persist)(pool, HEADER_BYTES + lane * 8, 8, lane, 0) == 0 && all;
    check(all, "1024 lanes work");
    char name[64], line[256];
    unsigned thread_count = 0;
    snprintf(name, sizeof name, "/proc/%d/status", (int)last_target());
    FILE *status = fopen(name, "r");
    while (status != NULL && fgets(line, sizeof line, status) != NULL)
        if (sscanf(line, "Threads: %u", &thread_count) == 1)
            break;
    if (status != NULL)
        fclose(status);
    check(thread_count > 0 && thread_count <= 16, "for them the target has %u threads, 16 at most", thread_count);
    WORKS(CALL(rpmem_close)(pool));
}
