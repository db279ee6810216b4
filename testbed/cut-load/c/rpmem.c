/*
 * A load on a program for librpmem: a local image in ordinary memory, and a pool on the other machine that batches are flushed to
 * and drained, one lane a stream.
 *
 *   cut-rpmem create|open TARGET SET SEED LEDGER AREA-BYTES LANES [undrained]
 *
 * The first area begins at byte 1 MiB of the pool. With "undrained" batches are acknowledged that were flushed and not drained: a
 * power cut must lose some.
 */
#include "load.h"

#include <librpmem.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/mman.h>

enum { BASE = 1 << 20, POOL_BYTES = 4 << 20 };

struct lane {
    pthread_t thread;
    RPMEMpool *pool;
    struct stream stream;
    size_t base;
    int ledger;
    bool is_drained;
};

static void *work(void *argument) {
    struct lane *lane = argument;
    struct stream *stream = &lane->stream;
    for (;; stream->batch++) {
        struct range ranges[RANGES_MAX];
        size_t count = next_batch(stream, ranges);
        tell(lane->ledger, "issue", stream->number, stream->batch);
        for (size_t i = 0; i < count; i++)
            if (rpmem_flush(lane->pool, lane->base + 8 * ranges[i].first, 8 * ranges[i].words, stream->number, 0) != 0)
                bail_out("rpmem_flush: %s", rpmem_errormsg());
        if (lane->is_drained && rpmem_drain(lane->pool, stream->number, 0) != 0)
            bail_out("rpmem_drain: %s", rpmem_errormsg());
        tell(lane->ledger, "ack", stream->number, stream->batch);
    }
    return NULL;
}

int main(int count, char **words) {
    if (count < 8)
        bail_out("cut-rpmem create|open TARGET SET SEED LEDGER AREA-BYTES LANES [undrained]");
    unsigned char *image =
        mmap(NULL, POOL_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned lanes = (unsigned)strtoul(words[7], NULL, 10), given = lanes;
    size_t area = strtoull(words[6], NULL, 10);
    if (image == MAP_FAILED || BASE + lanes * area > POOL_BYTES)
        bail_out("no room for %u lanes", lanes);
    struct rpmem_pool_attr attributes = {.signature = "PMEMOBJ", .major = 6, .incompat_features = 2};
    memset(attributes.poolset_uuid, 7, sizeof attributes.poolset_uuid);
    memset(attributes.uuid, 1, sizeof attributes.uuid);
    memset(attributes.next_uuid, 1, sizeof attributes.next_uuid);
    memset(attributes.prev_uuid, 1, sizeof attributes.prev_uuid);
    RPMEMpool *pool = strcmp(words[1], "create") == 0
                          ? rpmem_create(words[2], words[3], image, POOL_BYTES, &given, &attributes)
                          : rpmem_open(words[2], words[3], image, POOL_BYTES, &given, NULL);
    if (pool == NULL || given < lanes)
        bail_out("%s: %s", words[1], rpmem_errormsg());
    int ledger = open_ledger(words[5]);
    struct lane *all = calloc(lanes, sizeof *all);
    for (unsigned number = 0; number < lanes; number++) {
        struct lane *lane = &all[number];
        *lane = (struct lane){.pool = pool, .base = BASE + number * area, .ledger = ledger, .is_drained = count == 8};
        stream_init(&lane->stream, strtoull(words[4], NULL, 10), number, image + lane->base, area);
        if (pthread_create(&lane->thread, NULL, work, lane) != 0)
            bail_out("no thread");
    }
    pthread_join(all[0].thread, NULL);
    return 1;
}
