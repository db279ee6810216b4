/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * librpmem.h - the interface of librpmem 1.3, as provided by pmof's librpmem.so.1.
 *
 * A remote pool is the image of a piece of local memory on another machine, reached through ssh. Sizes and offsets are
 * in bytes. Functions that return an int return 0, or -1 with errno set; rpmem_errormsg describes the error.
 * Differences from the original are listed in docs/librpmem.md.
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

/* The header of a remote pool; all zero means a pool without one. */
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
 * Creates the pool of a pool set on another machine and opens it. target is [user@]host[:port] for ssh; pool_set_name
 * is relative to the directory of pool sets there; pool_addr and pool_size name the local memory that the pool is the
 * image of, both multiples of the page size; nlanes holds the number of lanes wanted, and on return the number
 * available; create_attr is the content of the header, any bytes, or NULL or all zero for a pool without one. Existing
 * part files become parts if their length matches the set and they hold only zeros; of a device only the first 4096
 * bytes count. On failure nothing is left behind, and nlanes and existing files are unchanged.
 * Errors: EINVAL an argument, a set's file that is wrong or has other options than asked for, a part file of another
 * length, or a wrong line in rpmemd's configuration; EEXIST a part is there that is not blank; EBUSY a part is in use;
 * ENOENT there is no such set, or no directory for a part; EFBIG the set's parts are smaller than pool_size; ENOSPC no
 * room for the parts; EACCES no permission for the set or its parts; ECONNRESET ssh does not start or log in, rpmemd is
 * not found there, or the connection is lost; ECONNREFUSED ssh works, and rpmemd's data port cannot be reached;
 * ETIMEDOUT no answer in time; EPROTONOSUPPORT the answer is not from pmof's rpmemd, or from another version;
 * ECONNABORTED another process answers at the data port; EPROTO an invalid answer; ENOMEM no memory for the connection;
 * EREMOTEIO anything else that fails on the other machine.
 */
RPMEMpool *rpmem_create(const char *target, const char *pool_set_name, void *pool_addr, size_t pool_size, unsigned *nlanes,
		const struct rpmem_pool_attr *create_attr);

/*
 * Opens the pool of a pool set on another machine. The arguments are those of rpmem_create; open_attr, which may be
 * NULL, receives the content of the header, zeroes if there is none. It is unchanged on failure.
 * Errors: EINVAL an argument, a set's file that is wrong, a part that is damaged, of another length or of another pool
 * than the others, or a wrong line in rpmemd's configuration; ENOENT there is no such set, or a part of it is missing;
 * EBUSY another program has it open; EFBIG the set's parts are smaller than pool_size; EACCES no permission for the set
 * or its parts; ECONNRESET ssh does not start or log in, rpmemd is not found there, or the connection is lost;
 * ECONNREFUSED ssh works, and rpmemd's data port cannot be reached; ETIMEDOUT no answer in time; EPROTONOSUPPORT the
 * answer is not from pmof's rpmemd, or from another version; ECONNABORTED another process answers at the data port;
 * EPROTO an invalid answer; ENOMEM no memory for the connection; EREMOTEIO anything else that fails on the other
 * machine.
 */
RPMEMpool *rpmem_open(const char *target, const char *pool_set_name, void *pool_addr, size_t pool_size, unsigned *nlanes,
		struct rpmem_pool_attr *open_attr);

/*
 * Changes the headers of the remote pool durably, to any bytes. attr NULL means zeroes.
 * Errors: EINVAL no pool, or one without a header; ECONNRESET the connection is lost, and every later call fails the
 * same way; ETIMEDOUT no answer in time, and every later call fails the same way; EREMOTEIO the header cannot be
 * written on the other machine; ECANCELED the pool belongs to a parent process.
 */
int rpmem_set_attr(RPMEMpool *rpp, const struct rpmem_pool_attr *attr);

/*
 * Closes the pool; the pointer is invalid afterwards, even on failure. A child of the process that opened it only
 * releases its memory.
 * Errors: EINVAL no pool; ECONNRESET the connection was lost before; ETIMEDOUT no answer in time; EREMOTEIO the other
 * machine could not close its parts in order.
 */
int rpmem_close(RPMEMpool *rpp);

#define RPMEM_PERSIST_RELAXED (1U << 0) /* a crash may leave any bytes of the range, not only whole words of 8 */

/*
 * Copies a range of the local memory to the same offset of the pool and makes it durable there. One thread at a time
 * may use a lane; lanes are independent.
 * Errors: EINVAL no pool, flags that are not defined, an unknown lane or a range outside the pool, or a range in the
 * header; ECONNRESET the connection is lost, an answer is overdue, or the other machine cannot write its part, and
 * every later call fails the same way; ECANCELED the pool belongs to a parent process.
 */
int rpmem_persist(RPMEMpool *rpp, size_t offset, size_t length, unsigned lane, unsigned flags);

#define RPMEM_FLUSH_RELAXED (1U << 0) /* as RPMEM_PERSIST_RELAXED */

/*
 * Starts to copy a range of the local memory to the pool. It is durable after the next rpmem_drain of the lane, and
 * must not change before.
 * Errors: as rpmem_persist.
 */
int rpmem_flush(RPMEMpool *rpp, size_t offset, size_t length, unsigned lane, unsigned flags);

/*
 * Returns when everything flushed on the lane is durable. flags must be 0.
 * Errors: EINVAL no pool, flags, or an unknown lane; ECONNRESET the connection is lost, an answer is overdue, or the
 * other machine cannot write its part, and every later call fails the same way; ECANCELED the pool belongs to a parent
 * process.
 */
int rpmem_drain(RPMEMpool *rpp, unsigned lane, unsigned flags);

/*
 * As rpmem_persist, to the strongest level that the other machine's memory can provide; here rpmem_persist does the
 * same.
 * Errors: as rpmem_persist.
 */
int rpmem_deep_persist(RPMEMpool *rpp, size_t offset, size_t length, unsigned lane);

/*
 * Copies a range of the pool to buff; the header may be read too.
 * Errors: EINVAL no pool, buff NULL, an unknown lane or a range outside the pool; ECONNRESET the connection is lost, an
 * answer is overdue, or the other machine cannot read its part, and every later call fails the same way; ECANCELED the
 * pool belongs to a parent process.
 */
int rpmem_read(RPMEMpool *rpp, void *buff, size_t offset, size_t length, unsigned lane);

#define RPMEM_REMOVE_FORCE 0x1    /* even if parts are missing, damaged, empty or full of holes */
#define RPMEM_REMOVE_POOL_SET 0x2 /* also the pool set file */

/*
 * Deletes the parts of a pool set on another machine: all of them or, on failure, none.
 * Errors: EINVAL an argument, a set's file that is wrong, or, without RPMEM_REMOVE_FORCE, a part that is damaged or of
 * another pool; ENOENT there is no such set, or, without RPMEM_REMOVE_FORCE, a part is missing; EBUSY a part is in use,
 * also with RPMEM_REMOVE_FORCE; EACCES no permission; ECONNRESET ssh does not start or log in, rpmemd is not found
 * there, or the connection is lost; ECONNREFUSED ssh works, and rpmemd's data port cannot be reached; ETIMEDOUT no
 * answer in time; EPROTONOSUPPORT the answer is not from pmof's rpmemd, or from another version; EREMOTEIO anything
 * else that fails on the other machine.
 */
int rpmem_remove(const char *target, const char *pool_set, int flags);

/*
 * Checks whether this library provides a version: returns NULL if so, otherwise a text that says why not.
 */
const char *rpmem_check_version(unsigned major_required, unsigned minor_required);

/*
 * The error message of this thread's last failed call; never NULL. The pointer is valid until the thread ends; the next
 * failed call replaces the text.
 */
const char *rpmem_errormsg(void);

#ifdef __cplusplus
}
#endif
#endif
