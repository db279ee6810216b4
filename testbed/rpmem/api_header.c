/* What programs rely on that include nothing but the library's header: the types that the original's header brings, its numbers. */
#include <librpmem.h>

typedef struct {
    uint8_t small;
    uint64_t large;
    ssize_t count;
    off_t offset;
    mode_t mode;
    size_t bytes;
} brought_types;

_Static_assert(sizeof(brought_types) > 0, "types");
_Static_assert(sizeof(struct rpmem_pool_attr) == 104, "attributes");
_Static_assert(RPMEM_POOL_HDR_SIG_LEN == 8 && RPMEM_POOL_HDR_UUID_LEN == 16 && RPMEM_POOL_USER_FLAGS_LEN == 16, "lengths");
_Static_assert(RPMEM_PERSIST_RELAXED == 1 && RPMEM_FLUSH_RELAXED == 1, "flags");
_Static_assert(RPMEM_REMOVE_FORCE == 1 && RPMEM_REMOVE_POOL_SET == 2, "flags of removal");
_Static_assert(RPMEM_MAJOR_VERSION == 1 && RPMEM_MINOR_VERSION == 3, "version");
_Static_assert(RPMEM_MIN_POOL == 8192 && RPMEM_MIN_PART == 2097152, "least lengths");
