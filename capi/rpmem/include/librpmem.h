/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * librpmem.h - the interface of librpmem 1.3, as pmof's librpmem.so.1 has it.
 *
 * A remote pool is the image of a piece of local memory on another machine, reached through ssh. Sizes and offsets are in
 * bytes. Functions that give an int give 0, or -1 with errno set; rpmem_errormsg says in words what went wrong. What differs
 * from the original is told in docs/librpmem.md.
 */
#ifndef LIBRPMEM_H
#define LIBRPMEM_H 1

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RPMEM_MAJOR_VERSION 1
#define RPMEM_MINOR_VERSION 3

#define RPMEM_POOL_HDR_SIG_LEN 8
#define RPMEM_POOL_HDR_UUID_LEN 16
#define RPMEM_POOL_USER_FLAGS_LEN 16

#define RPMEM_MIN_POOL ((size_t)(1024 * 8))        /* smallest pool */
#define RPMEM_MIN_PART ((size_t)(1024 * 1024 * 2)) /* smallest part */

/* What the header of a remote pool says; all zero stands for a pool without one. */
struct rpmem_pool_attr {
	char signature[RPMEM_POOL_HDR_SIG_LEN];
	uint32_t major;
	uint32_t compat_features;
	uint32_t incompat_features;
	uint32_t ro_compat_features;
	unsigned char poolset_uuid[RPMEM_POOL_HDR_UUID_LEN];
	unsigned char uuid[RPMEM_POOL_HDR_UUID_LEN];
	unsigned char next_uuid[RPMEM_POOL_HDR_UUID_LEN];
	unsigned char prev_uuid[RPMEM_POOL_HDR_UUID_LEN];
	unsigned char user_flags[RPMEM_POOL_USER_FLAGS_LEN];
};

typedef struct rpmem_pool RPMEMpool;

/*
 * Makes the pool of a pool set on another machine and opens it. target is [user@]host[:port] for ssh; pool_set_name is relative
 * to the directory of pool sets there; pool_addr and pool_size name the local memory that the pool is the image of, both
 * multiples of the page size; nlanes holds how many lanes are wanted, and then how many there are; create_attr is what the
 * header is to say, NULL or all zero for a pool without one. Gives NULL with errno set where it fails; then nothing is left.
 * Errors: EINVAL for an argument, EEXIST, EBUSY, EACCES, EFBIG where the set is too small, ENOENT where there is no such set,
 * ENOSPC, ECONNREFUSED and the like where the other machine is not reached.
 */
RPMEMpool *rpmem_create(const char *target, const char *pool_set_name, void *pool_addr, size_t pool_size, unsigned *nlanes,
		const struct rpmem_pool_attr *create_attr);

/*
 * Opens the pool of a pool set on another machine. The arguments are those of rpmem_create; open_attr, which may be NULL,
 * receives what the header says, zeroes where there is none. Errors: as rpmem_create.
 */
RPMEMpool *rpmem_open(const char *target, const char *pool_set_name, void *pool_addr, size_t pool_size, unsigned *nlanes,
		struct rpmem_pool_attr *open_attr);

/*
 * Changes what the headers of the remote pool say, durably. attr NULL stands for zeroes. Errors: EINVAL where the pool has no
 * header.
 */
int rpmem_set_attr(RPMEMpool *rpp, const struct rpmem_pool_attr *attr);

/*
 * Closes the pool; the pointer is good for nothing after that. Errors: those of the connection, of which the pool is closed
 * all the same.
 */
int rpmem_close(RPMEMpool *rpp);

#define RPMEM_PERSIST_RELAXED (1U << 0) /* a crash may leave any bytes of the range, not only whole words of 8 */

/*
 * Copies a range of the local memory to the same offset of the pool and makes it durable there. One thread at a time may use a
 * lane; lanes are independent. Errors: EINVAL for flags, a lane or a range that is not there, or one in the header; ECONNRESET
 * and the like where the connection is lost, after which every call fails.
 */
int rpmem_persist(RPMEMpool *rpp, size_t offset, size_t length, unsigned lane, unsigned flags);

#define RPMEM_FLUSH_RELAXED (1U << 0) /* as RPMEM_PERSIST_RELAXED */

/*
 * Starts to copy a range of the local memory to the pool. It is durable after the next rpmem_drain of the lane, and must not
 * change before. Errors: as rpmem_persist.
 */
int rpmem_flush(RPMEMpool *rpp, size_t offset, size_t length, unsigned lane, unsigned flags);

/*
 * Returns when all that was flushed on the lane is durable. flags must be 0. Errors: as rpmem_persist.
 */
int rpmem_drain(RPMEMpool *rpp, unsigned lane, unsigned flags);

/*
 * As rpmem_persist, to the strongest level that the other machine's memory can give, which here is what rpmem_persist gives
 * too. Errors: as rpmem_persist.
 */
int rpmem_deep_persist(RPMEMpool *rpp, size_t offset, size_t length, unsigned lane);

/*
 * Copies a range of the pool to buff. Errors: as rpmem_persist; the header may be read.
 */
int rpmem_read(RPMEMpool *rpp, void *buff, size_t offset, size_t length, unsigned lane);

#define RPMEM_REMOVE_FORCE 0x1    /* also where parts are missing or damaged */
#define RPMEM_REMOVE_POOL_SET 0x2 /* the pool set file too */

/*
 * Deletes the parts of a pool set on another machine. Errors: EINVAL for flags, EBUSY where it is open, those of rpmem_open.
 */
int rpmem_remove(const char *target, const char *pool_set, int flags);

/*
 * Whether this library stands in for a version: gives NULL if so, else a text that says why not.
 */
const char *rpmem_check_version(unsigned major_required, unsigned minor_required);

/*
 * What went wrong in this thread's last call that failed; never NULL. The pointer is good until the thread ends; the next call
 * that fails puts its text there.
 */
const char *rpmem_errormsg(void);

#ifdef __cplusplus
}
#endif
#endif
