/*
 * A librpmem between libpmemobj and the real one, whose path is REAL: it remembers persists, and as its judge wishes (between.h) it
 * breaks its promise and leaves some out, or kills the process before one. All else it hands on. libpmemobj looks functions up
 * by name in what it loaded, so a library loaded before would not come in between. For programs with one thread.
 */
#include "between.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <librpmem.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Pools that one process opens, at most. */
enum { POOLS_MAX = 16 };

static struct {
    RPMEMpool *pool;
    const unsigned char *memory;
    uint32_t replica;
} pools[POOLS_MAX];

static void *real(const char *name) {
    static void *library;
    if (library == NULL)
        library = dlopen(REAL, RTLD_NOW | RTLD_LOCAL);
    void *function = library == NULL ? NULL : dlsym(library, name);
    if (function == NULL)
        abort();
    return function;
}

#define REAL_ONE(function) ((__typeof__(&function))real(#function))

static struct between *between(void) {
    static struct between *map;
    if (map != NULL)
        return map;
    const char *path = getenv("RPMEM_BETWEEN");
    int file = path == NULL ? -1 : open(path, O_RDWR);
    map = mmap(NULL, sizeof *map, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (map == MAP_FAILED)
        abort();
    close(file);
    return map;
}

static RPMEMpool *opened(RPMEMpool *pool, const char *set, const void *memory) {
    const char *number = strrchr(set, '-');
    unsigned place = 0;
    while (place < POOLS_MAX && pools[place].pool != NULL)
        place++;
    if (place == POOLS_MAX)
        abort();
    pools[place].pool = pool;
    pools[place].memory = memory;
    pools[place].replica = number == NULL ? 0 : (uint32_t)strtoul(number + 1, NULL, 10);
    return pool;
}

RPMEMpool *rpmem_create(const char *target, const char *set, void *memory, size_t bytes, unsigned *lanes,
                        const struct rpmem_pool_attr *attr) {
    RPMEMpool *pool = REAL_ONE(rpmem_create)(target, set, memory, bytes, lanes, attr);
    return pool == NULL ? NULL : opened(pool, set, memory);
}

RPMEMpool *rpmem_open(const char *target, const char *set, void *memory, size_t bytes, unsigned *lanes,
                      struct rpmem_pool_attr *attr) {
    RPMEMpool *pool = REAL_ONE(rpmem_open)(target, set, memory, bytes, lanes, attr);
    return pool == NULL ? NULL : opened(pool, set, memory);
}

int rpmem_set_attr(RPMEMpool *pool, const struct rpmem_pool_attr *attr) {
    return REAL_ONE(rpmem_set_attr)(pool, attr);
}

int rpmem_close(RPMEMpool *pool) {
    for (unsigned place = 0; place < POOLS_MAX; place++)
        if (pools[place].pool == pool)
            pools[place].pool = NULL;
    return REAL_ONE(rpmem_close)(pool);
}

static bool is_new_run(const struct between *told, const struct persist *persist) {
    uint16_t type;
    memcpy(&type, persist->bytes, sizeof type);
    return persist->length == 8 && type == told->run_type && persist->offset >= told->chunk_headers_begin &&
           persist->offset < told->chunk_headers_end;
}

int rpmem_persist(RPMEMpool *pool, size_t offset, size_t length, unsigned lane, unsigned flags) {
    struct between *told = between();
    struct persist *persist = &told->last[told->persists % PERSISTS_KEPT];
    *persist = (struct persist){.offset = offset, .length = length};
    for (unsigned place = 0; place < POOLS_MAX; place++) {
        if (pools[place].pool != pool)
            continue;
        persist->replica = pools[place].replica;
        memcpy(persist->bytes, pools[place].memory + offset, length < BYTES_KEPT ? length : BYTES_KEPT);
    }
    /* A reader that finds the number finds its record: the process may be killed anywhere. */
    uint64_t number = told->persists + 1;
    __atomic_store_n(&told->persists, number, __ATOMIC_RELEASE);
    if (number == told->kill_at || (persist->replica == told->kill_at_run_of && is_new_run(told, persist)))
        raise(SIGKILL);
    bool is_dropped = told->drop_every != 0 && number % told->drop_every == 0;
    int result = is_dropped ? 0 : REAL_ONE(rpmem_persist)(pool, offset, length, lane, flags);
    __atomic_store_n(&persist->acknowledged, result == 0, __ATOMIC_RELEASE);
    return result;
}

int rpmem_deep_persist(RPMEMpool *pool, size_t offset, size_t length, unsigned lane) {
    return REAL_ONE(rpmem_deep_persist)(pool, offset, length, lane);
}

int rpmem_read(RPMEMpool *pool, void *into, size_t offset, size_t length, unsigned lane) {
    return REAL_ONE(rpmem_read)(pool, into, offset, length, lane);
}

int rpmem_remove(const char *target, const char *set, int flags) {
    return REAL_ONE(rpmem_remove)(target, set, flags);
}
