/*
 * A librpmem that breaks its promise: of every EVERY persists it leaves one out. Everything else it hands to the real one, whose path
 * is REAL. libpmemobj looks functions up by name in what it loaded, so a library loaded before would not come in between.
 */
#include <dlfcn.h>
#include <librpmem.h>
#include <stdlib.h>

enum { EVERY = 50 };

static void *real(const char *name) {
    static void *library;
    if (library == NULL)
        library = dlopen(REAL, RTLD_NOW | RTLD_LOCAL);
    void *function = library == NULL ? NULL : dlsym(library, name);
    if (function == NULL)
        abort();
    return function;
}

#define PASS_ON(function, ...) return ((__typeof__(&function))real(#function))(__VA_ARGS__)

RPMEMpool *rpmem_create(const char *target, const char *set, void *memory, size_t bytes, unsigned *lanes,
                        const struct rpmem_pool_attr *attr) {
    PASS_ON(rpmem_create, target, set, memory, bytes, lanes, attr);
}

RPMEMpool *rpmem_open(const char *target, const char *set, void *memory, size_t bytes, unsigned *lanes,
                      struct rpmem_pool_attr *attr) {
    PASS_ON(rpmem_open, target, set, memory, bytes, lanes, attr);
}

int rpmem_set_attr(RPMEMpool *pool, const struct rpmem_pool_attr *attr) {
    PASS_ON(rpmem_set_attr, pool, attr);
}

int rpmem_close(RPMEMpool *pool) {
    PASS_ON(rpmem_close, pool);
}

int rpmem_persist(RPMEMpool *pool, size_t offset, size_t length, unsigned lane, unsigned flags) {
    static unsigned calls;
    if (++calls % EVERY == 0)
        return 0;
    PASS_ON(rpmem_persist, pool, offset, length, lane, flags);
}

int rpmem_deep_persist(RPMEMpool *pool, size_t offset, size_t length, unsigned lane) {
    PASS_ON(rpmem_deep_persist, pool, offset, length, lane);
}

int rpmem_read(RPMEMpool *pool, void *into, size_t offset, size_t length, unsigned lane) {
    PASS_ON(rpmem_read, pool, into, offset, length, lane);
}

int rpmem_remove(const char *target, const char *set, int flags) {
    PASS_ON(rpmem_remove, target, set, flags);
}
