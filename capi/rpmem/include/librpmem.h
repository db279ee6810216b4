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
 * Makes the pool of a pool set on another machine and opens it. target is [user@]host[:port] for ssh; pool_set_name is
 * relative to the directory of pool sets there; pool_addr and pool_size name the local memory that the pool is the image
 * of, both multiples of the page size; nlanes holds how many lanes are wanted, and then how many there are; create_attr is
 * what the header is to say, any bytes, NULL or all zero for a pool without one. Part files that are there become parts if
 * they are as long as the set says and their headers are zero; what is behind the headers stays. Where it fails nothing is
 * left, and nlanes and such files are as they were.
 * Errors: EINVAL an argument, a set's file that is wrong or has other options than asked for, a part file of another
 * length, or a wrong line in rpmemd's configuration; EEXIST a part is there that is not blank; EBUSY a part is in use;
 * ENOENT there is no such set, or no directory for a part; EFBIG the set's parts are smaller than pool_size; ENOSPC no
 * room for the parts; EACCES no permission for the set or its parts; ECONNRESET ssh does not start or log in, rpmemd is
 * not found there, or the connection is lost; ECONNREFUSED ssh works, and rpmemd's data port cannot be reached; ETIMEDOUT
 * no answer in time; EPROTONOSUPPORT what answers is not pmof's rpmemd, or is of another version; ECONNABORTED who answers
 * at the data port is not that rpmemd; EPROTO an answer that is not understood; ENOMEM no memory for the connection;
 * EREMOTEIO anything else that fails on the other machine.
 */
RPMEMpool *rpmem_create(const char *target, const char *pool_set_name, void *pool_addr, size_t pool_size, unsigned *nlanes,
		const struct rpmem_pool_attr *create_attr);

/*
 * Opens the pool of a pool set on another machine. The arguments are those of rpmem_create; open_attr, which may be NULL,
 * receives what the header says, zeroes where there is none. It stays as it was where that fails.
 * Errors: EINVAL an argument, a set's file that is wrong, a part that is damaged, of another length or of another pool
 * than the others, or a wrong line in rpmemd's configuration; ENOENT there is no such set, or a part of it is missing;
 * EBUSY another program has it open; EFBIG the set's parts are smaller than pool_size; EACCES no permission for the set or
 * its parts; ECONNRESET ssh does not start or log in, rpmemd is not found there, or the connection is lost; ECONNREFUSED
 * ssh works, and rpmemd's data port cannot be reached; ETIMEDOUT no answer in time; EPROTONOSUPPORT what answers is not
 * pmof's rpmemd, or is of another version; ECONNABORTED who answers at the data port is not that rpmemd; EPROTO an answer
 * that is not understood; ENOMEM no memory for the connection; EREMOTEIO anything else that fails on the other machine.
 */
RPMEMpool *rpmem_open(const char *target, const char *pool_set_name, void *pool_addr, size_t pool_size, unsigned *nlanes,
		struct rpmem_pool_attr *open_attr);

/*
 * Changes what the headers of the remote pool say, durably: to any bytes. attr NULL stands for zeroes.
 * Errors: EINVAL no pool, or one without a header; ECONNRESET the connection is lost, as every later call says too;
 * ETIMEDOUT no answer in time, after which every call fails so; EREMOTEIO the header cannot be written on the other
 * machine; ECANCELED the pool is that of a parent process.
 */
int rpmem_set_attr(RPMEMpool *rpp, const struct rpmem_pool_attr *attr);

/*
 * Closes the pool; the pointer is good for nothing after that, also where it fails. A child of the process that opened it
 * only lets go of it.
 * Errors: EINVAL no pool; ECONNRESET the connection was lost before; ETIMEDOUT no answer in time; EREMOTEIO the other
 * machine could not close its parts in order.
 */
int rpmem_close(RPMEMpool *rpp);

#define RPMEM_PERSIST_RELAXED (1U << 0) /* a crash may leave any bytes of the range, not only whole words of 8 */

/*
 * Copies a range of the local memory to the same offset of the pool and makes it durable there. One thread at a time may
 * use a lane; lanes are independent.
 * Errors: EINVAL no pool, flags that are not defined, a lane or a range that is not there, or a range in the header;
 * ECONNRESET the connection is lost, an answer is due for too long, or the other machine cannot write its part, after
 * which every call fails so; ECANCELED the pool is that of a parent process.
 */
int rpmem_persist(RPMEMpool *rpp, size_t offset, size_t length, unsigned lane, unsigned flags);

#define RPMEM_FLUSH_RELAXED (1U << 0) /* as RPMEM_PERSIST_RELAXED */

/*
 * Starts to copy a range of the local memory to the pool. It is durable after the next rpmem_drain of the lane, and must
 * not change before.
 * Errors: as rpmem_persist.
 */
int rpmem_flush(RPMEMpool *rpp, size_t offset, size_t length, unsigned lane, unsigned flags);

/*
 * Returns when all that was flushed on the lane is durable. flags must be 0.
 * Errors: EINVAL no pool, flags, or a lane that is not there; ECONNRESET the connection is lost, an answer is due for too
 * long, or the other machine cannot write its part, after which every call fails so; ECANCELED the pool is that of a
 * parent process.
 */
int rpmem_drain(RPMEMpool *rpp, unsigned lane, unsigned flags);

/*
 * As rpmem_persist, to the strongest level that the other machine's memory can give, which here is what rpmem_persist
 * gives too.
 * Errors: as rpmem_persist.
 */
int rpmem_deep_persist(RPMEMpool *rpp, size_t offset, size_t length, unsigned lane);

/*
 * Copies a range of the pool to buff; the header may be read too.
 * Errors: EINVAL no pool, buff NULL, a lane or a range that is not there; ECONNRESET the connection is lost, an answer is
 * due for too long, or the other machine cannot read its part, after which every call fails so; ECANCELED the pool is that
 * of a parent process.
 */
int rpmem_read(RPMEMpool *rpp, void *buff, size_t offset, size_t length, unsigned lane);

#define RPMEM_REMOVE_FORCE 0x1    /* also where parts are missing, damaged, empty or full of holes */
#define RPMEM_REMOVE_POOL_SET 0x2 /* the pool set file too */

/*
 * Deletes the parts of a pool set on another machine: all, or where it fails none.
 * Errors: EINVAL an argument, a set's file that is wrong, or, without RPMEM_REMOVE_FORCE, a part that is damaged or of
 * another pool; ENOENT there is no such set, or, without RPMEM_REMOVE_FORCE, a part is missing; EBUSY a part is in use,
 * also with RPMEM_REMOVE_FORCE; EACCES no permission; ECONNRESET ssh does not start or log in, rpmemd is not found there,
 * or the connection is lost; ECONNREFUSED ssh works, and rpmemd's data port cannot be reached; ETIMEDOUT no answer in
 * time; EPROTONOSUPPORT what answers is not pmof's rpmemd, or is of another version; EREMOTEIO anything else that fails on
 * the other machine.
 */
int rpmem_remove(const char *target, const char *pool_set, int flags);

/*
 * Whether this library stands in for a version: gives NULL if so, else a text that says why not.
 */
const char *rpmem_check_version(unsigned major_required, unsigned minor_required);

/*
 * What went wrong in this thread's last call that failed; never NULL. The pointer is good until the thread ends; the next
 * call that fails puts its text there.
 */
const char *rpmem_errormsg(void);

#ifdef __cplusplus
}
#endif
#endif
