/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * librpma.h - the interface of librpma 1.3, as provided by pmof's librpma.so.0.
 *
 * Every function but the two that name numbers returns 0 or one of RPMA_E_*. Functions that create an object write it
 * to their last argument, on success only; functions that delete one take the address of the pointer, which they set to
 * NULL, and do nothing if it is already NULL. Sizes and offsets are in bytes. Differences from the original follow
 * "Differs:"; those common to all functions are in docs/librpma.md. RPMA_E_UNKNOWN may come from any function and is a
 * defect of the library, which the log describes; RPMA_E_NOMEM occurs only where it is named.
 */
#ifndef LIBRPMA_H
#define LIBRPMA_H 1

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h> /* programs have it from here */
#include <infiniband/verbs.h> /* struct ibv_context, struct ibv_wc */

#ifdef __cplusplus
extern "C" {
#endif

/* --- Errors and log --------------------------------------------------------------------------------------------------- */

#define RPMA_E_UNKNOWN (-100000)
#define RPMA_E_NOSUPP (-100001)
#define RPMA_E_PROVIDER (-100002)        /* what is below failed; the log says what */
#define RPMA_E_NOMEM (-100003)
#define RPMA_E_INVAL (-100004)
#define RPMA_E_NO_COMPLETION (-100005)
#define RPMA_E_NO_EVENT (-100006)
#define RPMA_E_AGAIN (-100007)           /* never returned */
#define RPMA_E_SHARED_CHANNEL (-100008)  /* wait on the connection, not on one of its queues */
#define RPMA_E_NOT_SHARED_CHNL (-100009) /* wait on a queue, not on the connection */

/* The name of an error code, in English; never NULL. */
const char *rpma_err_2str(int ret);

enum rpma_log_level {
	RPMA_LOG_DISABLED = -1,
	RPMA_LOG_LEVEL_FATAL,
	RPMA_LOG_LEVEL_ERROR,
	RPMA_LOG_LEVEL_WARNING,
	RPMA_LOG_LEVEL_NOTICE,
	RPMA_LOG_LEVEL_INFO,
	RPMA_LOG_LEVEL_DEBUG
};

enum rpma_log_threshold {
	RPMA_LOG_THRESHOLD,     /* of the log function; RPMA_LOG_LEVEL_WARNING by default */
	RPMA_LOG_THRESHOLD_AUX, /* of standard error; RPMA_LOG_DISABLED by default */
	RPMA_LOG_THRESHOLD_MAX
};

typedef void rpma_log_function(enum rpma_log_level level, const char *file_name, const int line_no,
		const char *function_name, const char *message_format, ...);

#define RPMA_LOG_USE_DEFAULT_FUNCTION (NULL) /* syslog, facility LOCAL7 */

/*
 * Sets from which level on messages go to the log function (RPMA_LOG_THRESHOLD) or to standard error
 * (RPMA_LOG_THRESHOLD_AUX, if no log function is set). Errors: RPMA_E_INVAL for an unknown threshold or level. Differs:
 * never RPMA_E_AGAIN, since it is set at once.
 */
int rpma_log_set_threshold(enum rpma_log_threshold threshold, enum rpma_log_level level);

/* Returns the current level. Errors: RPMA_E_INVAL for an unknown threshold and for NULL. */
int rpma_log_get_threshold(enum rpma_log_threshold threshold, enum rpma_log_level *level);

/*
 * Sets the function that messages go to; RPMA_LOG_USE_DEFAULT_FUNCTION for syslog. It is called from any thread.
 * Differs: never RPMA_E_AGAIN, since it is set at once. Over TCP and shm threads of the library call it too.
 */
int rpma_log_set_function(rpma_log_function *log_function);

/* --- Devices and peers ------------------------------------------------------------------------------------------------ */

#define RPMA_DEFAULT_TIMEOUT_MS 1000

enum rpma_util_ibv_context_type {
	RPMA_UTIL_IBV_CONTEXT_LOCAL, /* the address is one of this host */
	RPMA_UTIL_IBV_CONTEXT_REMOTE /* the address is where to connect to */
};

/*
 * Finds the RDMA device of an address, or a stand-in for TCP if there is none; PMOF_TRANSPORT=verbs|tcp|shm overrides
 * this. It stays valid for the life of the process. Errors: RPMA_E_INVAL for NULL and an unknown type; RPMA_E_PROVIDER
 * if the name has no address, the address is not of this host, or there is no route to it. Differs: an address without
 * an RDMA device gets a stand-in for TCP, so that programs run without hardware; its ibv_context has a device with a
 * name and nothing else.
 */
int rpma_utils_get_ibv_context(const char *addr, enum rpma_util_ibv_context_type type,
		struct ibv_context **ibv_ctx_ptr);

/*
 * Reports whether a device supports memory that is not pinned (1) or not (0). Errors: RPMA_E_INVAL for NULL;
 * RPMA_E_PROVIDER where the device cannot be asked. Differs: over TCP and shm 0, as no device pages there.
 */
int rpma_utils_ibv_context_is_odp_capable(struct ibv_context *ibv_ctx, int *is_odp_capable);

struct rpma_peer;

/* Opens a device. Errors: RPMA_E_INVAL for NULL; RPMA_E_PROVIDER where the device cannot be opened. */
int rpma_peer_new(struct ibv_context *ibv_ctx, struct rpma_peer **peer_ptr);

/*
 * Closes a peer; connections and endpoints created from it continue to work. Errors: RPMA_E_INVAL for NULL;
 * RPMA_E_PROVIDER while memory is registered with it, and the peer stays. Differs: with registered memory the peer
 * stays (the original reports the error, and has freed the peer), so that the memory can be deregistered.
 */
int rpma_peer_delete(struct rpma_peer **peer_ptr);

/* A peer's claim about its platform: that writes of its device reach persistent memory past the CPU caches. */
struct rpma_peer_cfg;

/* Creates a configuration that claims nothing. Errors: RPMA_E_INVAL for NULL. */
int rpma_peer_cfg_new(struct rpma_peer_cfg **pcfg_ptr);

/* Deletes a configuration. Errors: RPMA_E_INVAL for NULL. */
int rpma_peer_cfg_delete(struct rpma_peer_cfg **pcfg_ptr);

/*
 * Sets whether it claims that writes of the peer's device reach its persistent memory by themselves. The claim enables
 * persistent flushes; their method depends on what the platform proves. Errors: RPMA_E_INVAL for NULL. Differs: over
 * TCP and shm the claim allows persistent flushes and does not choose how they are done: a wrong one would lose data.
 */
int rpma_peer_cfg_set_direct_write_to_pmem(struct rpma_peer_cfg *pcfg, bool supported);

/* Returns the claim. Errors: RPMA_E_INVAL for NULL. */
int rpma_peer_cfg_get_direct_write_to_pmem(const struct rpma_peer_cfg *pcfg, bool *supported);

/*
 * Writes the configuration's descriptor for the other side: rpma_peer_cfg_get_descriptor_size() bytes. Errors:
 * RPMA_E_INVAL for NULL.
 */
int rpma_peer_cfg_get_descriptor(const struct rpma_peer_cfg *pcfg, void *desc);

/* Returns the size of a descriptor. Errors: RPMA_E_INVAL for NULL. */
int rpma_peer_cfg_get_descriptor_size(const struct rpma_peer_cfg *pcfg, size_t *desc_size);

/* Creates a configuration from a descriptor. Errors: RPMA_E_INVAL for NULL and for no bytes. */
int rpma_peer_cfg_from_descriptor(const void *desc, size_t desc_size, struct rpma_peer_cfg **pcfg_ptr);

/* --- Memory ----------------------------------------------------------------------------------------------------------- */

struct rpma_mr_local;
struct rpma_mr_remote;

/* What a registration is for; one bit at least. */
#define RPMA_MR_USAGE_READ_SRC (1 << 0)
#define RPMA_MR_USAGE_READ_DST (1 << 1)
#define RPMA_MR_USAGE_WRITE_SRC (1 << 2)
#define RPMA_MR_USAGE_WRITE_DST (1 << 3)
#define RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY (1 << 4)
#define RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT (1 << 5)
#define RPMA_MR_USAGE_SEND (1 << 6)
#define RPMA_MR_USAGE_RECV (1 << 7)

/*
 * Registers memory of the program, in place, for one or more usages. Errors: RPMA_E_INVAL for NULL, a size of 0, a
 * usage of 0 or unknown bits; RPMA_E_NOMEM; RPMA_E_PROVIDER where there is no such memory or the device refuses it (see
 * ulimit -l). Differs: over RDMA a persistent usage that the device refuses for ordinary memory is dropped, with a line
 * in the log (the original fails with RPMA_E_PROVIDER), and memory that is flushed can be read too, so that peers
 * without native flush can flush it; the log names ulimit -l where too little memory may be locked. Over TCP and shm
 * nothing is pinned.
 */
int rpma_mr_reg(struct rpma_peer *peer, void *ptr, size_t size, int usage, struct rpma_mr_local **mr_ptr);

/*
 * Deletes a registration: from now on accesses of the other side are refused. Errors: RPMA_E_INVAL for NULL;
 * RPMA_E_PROVIDER if the device does not release the memory. Differs: over TCP and shm operations in flight on it fail
 * and their connection ends, since no device fences the memory off.
 */
int rpma_mr_dereg(struct rpma_mr_local **mr_ptr);

/*
 * Writes the memory's descriptor for the other side: rpma_mr_get_descriptor_size() bytes, 21. Errors: RPMA_E_INVAL for
 * NULL. Differs: over TCP and shm the 21 bytes have pmof's own format, with a checksum, as there is no key of a device;
 * over RDMA they are the original's.
 */
int rpma_mr_get_descriptor(const struct rpma_mr_local *mr, void *desc);

/* Returns the size of a descriptor. Errors: RPMA_E_INVAL for NULL. */
int rpma_mr_get_descriptor_size(const struct rpma_mr_local *mr, size_t *desc_size);

/* Returns the start address of the memory. Errors: RPMA_E_INVAL for NULL. */
int rpma_mr_get_ptr(const struct rpma_mr_local *mr, void **ptr);

/* Returns the size of the memory. Errors: RPMA_E_INVAL for NULL. */
int rpma_mr_get_size(const struct rpma_mr_local *mr, size_t *size);

/*
 * Advises the kernel about a range, as ibv_advise_mr(3): loads its pages if the device pages on demand; elsewhere it
 * does nothing. Errors: RPMA_E_INVAL for NULL, a range outside, an unknown advice or flag; RPMA_E_PROVIDER where the
 * kernel refuses it. Differs: 0 where the device does not page on demand, as there is nothing to do (the original:
 * RPMA_E_NOSUPP, which fio takes for a failure); NULL is RPMA_E_INVAL (the original crashes).
 */
int rpma_mr_advise(struct rpma_mr_local *mr, size_t offset, size_t len, int advice, uint32_t flags);

/*
 * Reads a descriptor of the other side's memory. Errors: RPMA_E_INVAL for NULL and for fewer than 21 bytes;
 * RPMA_E_NOSUPP for one that grants no usage. Over TCP and shm one that is damaged is refused with RPMA_E_NOSUPP by
 * operations. Differs: over TCP and shm a damaged descriptor is detected by its checksum, and refused by operations.
 */
int rpma_mr_remote_from_descriptor(const void *desc, size_t desc_size, struct rpma_mr_remote **mr_ptr);

/* Returns the size of the other side's memory. Errors: RPMA_E_INVAL for NULL. */
int rpma_mr_remote_get_size(const struct rpma_mr_remote *mr, size_t *size);

/*
 * Returns the flush types that the memory was registered for: RPMA_MR_USAGE_FLUSH_TYPE_*. Errors: RPMA_E_INVAL for
 * NULL.
 */
int rpma_mr_remote_get_flush_type(const struct rpma_mr_remote *mr, int *flush_type);

/* Deletes the description of the other side's memory. Errors: RPMA_E_INVAL for NULL. */
int rpma_mr_remote_delete(struct rpma_mr_remote **mr_ptr);

/* --- Configuration of connections and shared receive queues ----------------------------------------------------------- */

struct rpma_conn_cfg;
struct rpma_srq_cfg;
struct rpma_srq;

/* Creates a configuration with the defaults. Errors: RPMA_E_INVAL for NULL. */
int rpma_conn_cfg_new(struct rpma_conn_cfg **cfg_ptr);

/* Deletes a configuration. Errors: RPMA_E_INVAL for NULL. */
int rpma_conn_cfg_delete(struct rpma_conn_cfg **cfg_ptr);

/*
 * Timeout for resolving address and route, in milliseconds; RPMA_DEFAULT_TIMEOUT_MS by default. Errors: RPMA_E_INVAL
 * for NULL and a negative time. Differs: over TCP and shm the timeout is at least 3 seconds, as a loaded host may need
 * them.
 */
int rpma_conn_cfg_set_timeout(struct rpma_conn_cfg *cfg, int timeout_ms);

/* Returns the value set by rpma_conn_cfg_set_timeout(). Errors: RPMA_E_INVAL for NULL. */
int rpma_conn_cfg_get_timeout(const struct rpma_conn_cfg *cfg, int *timeout_ms);

/*
 * Size of the completion queue; 10 by default. Errors: RPMA_E_INVAL for NULL. Differs: over TCP and shm the value is
 * only stored, as queues grow there.
 */
int rpma_conn_cfg_set_cq_size(struct rpma_conn_cfg *cfg, uint32_t cq_size);

/* Returns the value set by rpma_conn_cfg_set_cq_size(). Errors: RPMA_E_INVAL for NULL. */
int rpma_conn_cfg_get_cq_size(const struct rpma_conn_cfg *cfg, uint32_t *cq_size);

/*
 * Size of a separate completion queue for receives; 0, the default: there is none. Errors: RPMA_E_INVAL for NULL.
 * Differs: over TCP and shm a number other than 0 asks for the queue and does not bound it, as queues grow there.
 */
int rpma_conn_cfg_set_rcq_size(struct rpma_conn_cfg *cfg, uint32_t rcq_size);

/* Returns the value set by rpma_conn_cfg_set_rcq_size(). Errors: RPMA_E_INVAL for NULL. */
int rpma_conn_cfg_get_rcq_size(const struct rpma_conn_cfg *cfg, uint32_t *rcq_size);

/*
 * Maximum number of operations in flight; 10 by default. Errors: RPMA_E_INVAL for NULL. Differs: over TCP and shm twice
 * this number plus 64 is used, so that a flush has room behind that many operations.
 */
int rpma_conn_cfg_set_sq_size(struct rpma_conn_cfg *cfg, uint32_t sq_size);

/* Returns the value set by rpma_conn_cfg_set_sq_size(). Errors: RPMA_E_INVAL for NULL. */
int rpma_conn_cfg_get_sq_size(const struct rpma_conn_cfg *cfg, uint32_t *sq_size);

/* Maximum number of posted receives; 10 by default. Errors: RPMA_E_INVAL for NULL. */
int rpma_conn_cfg_set_rq_size(struct rpma_conn_cfg *cfg, uint32_t rq_size);

/* Returns the value set by rpma_conn_cfg_set_rq_size(). Errors: RPMA_E_INVAL for NULL. */
int rpma_conn_cfg_get_rq_size(const struct rpma_conn_cfg *cfg, uint32_t *rq_size);

/*
 * Makes both completion queues share one channel, that of rpma_conn_wait(); off by default. Errors: RPMA_E_INVAL for
 * NULL.
 */
int rpma_conn_cfg_set_compl_channel(struct rpma_conn_cfg *cfg, bool shared);

/* Returns the value set by rpma_conn_cfg_set_compl_channel(). Errors: RPMA_E_INVAL for NULL. */
int rpma_conn_cfg_get_compl_channel(const struct rpma_conn_cfg *cfg, bool *shared);

/* Makes connections take their receives from a shared queue. Errors: RPMA_E_INVAL for NULL. */
int rpma_conn_cfg_set_srq(struct rpma_conn_cfg *cfg, struct rpma_srq *srq);

/* Returns the value set by rpma_conn_cfg_set_srq(). Errors: RPMA_E_INVAL for NULL. */
int rpma_conn_cfg_get_srq(const struct rpma_conn_cfg *cfg, struct rpma_srq **srq_ptr);

/*
 * Creates a configuration with the defaults. Errors: RPMA_E_INVAL for NULL. Differs: both sizes are 100, as its manual
 * says (the original: 20).
 */
int rpma_srq_cfg_new(struct rpma_srq_cfg **cfg_ptr);

/* Deletes a configuration. Errors: RPMA_E_INVAL for NULL. */
int rpma_srq_cfg_delete(struct rpma_srq_cfg **cfg_ptr);

/* Maximum number of posted receives; 100 by default. Errors: RPMA_E_INVAL for NULL. */
int rpma_srq_cfg_set_rq_size(struct rpma_srq_cfg *cfg, uint32_t rq_size);

/* Returns the value set by rpma_srq_cfg_set_rq_size(). Errors: RPMA_E_INVAL for NULL. */
int rpma_srq_cfg_get_rq_size(const struct rpma_srq_cfg *cfg, uint32_t *rq_size);

/*
 * Size of the completion queue of the shared receives, 100 by default; 0: they complete where those of their connection
 * do. Errors: RPMA_E_INVAL for NULL. Differs: over TCP and shm a number other than 0 asks for the queue and does not
 * bound it, as queues grow there.
 */
int rpma_srq_cfg_set_rcq_size(struct rpma_srq_cfg *cfg, uint32_t rcq_size);

/* Returns the value set by rpma_srq_cfg_set_rcq_size(). Errors: RPMA_E_INVAL for NULL. */
int rpma_srq_cfg_get_rcq_size(const struct rpma_srq_cfg *cfg, uint32_t *rcq_size);

/* --- Making and ending connections ------------------------------------------------------------------------------------ */

struct rpma_ep;
struct rpma_conn_req;
struct rpma_conn;
struct rpma_cq;

struct rpma_conn_private_data {
	void *ptr;
	uint8_t len; /* at most 56 in a request, 196 in an answer */
};

enum rpma_conn_event {
	RPMA_CONN_UNDEFINED = -1,
	RPMA_CONN_ESTABLISHED,
	RPMA_CONN_CLOSED,
	RPMA_CONN_LOST,
	RPMA_CONN_REJECTED,
	RPMA_CONN_UNREACHABLE
};

/*
 * Listens. Errors: RPMA_E_INVAL for NULL; RPMA_E_PROVIDER for anything but an address and port of this host, a port in
 * use, and, over TCP, an address that other machines can reach (PMOF_TRUST_NETWORK=1 allows it: clients are not
 * authenticated). Differs: over TCP an address that other machines can reach needs PMOF_TRUST_NETWORK=1, since clients
 * are not authenticated.
 */
int rpma_ep_listen(struct rpma_peer *peer, const char *addr, const char *port, struct rpma_ep **ep_ptr);

/*
 * Stops listening; existing connections are kept. A thread that waits in rpma_ep_next_conn_req() returns with
 * RPMA_E_INVAL. Errors: RPMA_E_INVAL for NULL. Differs: never RPMA_E_PROVIDER: all resources are released. A thread
 * that waits for a request returns with RPMA_E_INVAL, where the original leaves it waiting, or uses freed memory.
 */
int rpma_ep_shutdown(struct rpma_ep **ep_ptr);

/*
 * Returns a descriptor that is readable while a request waits. With O_NONBLOCK set on it, the next function does not
 * block. Errors: RPMA_E_INVAL for NULL. Differs: over TCP and shm a client that has connected but not completed its
 * request does not make it readable.
 */
int rpma_ep_get_fd(const struct rpma_ep *ep, int *fd);

/*
 * Takes the next connection request; cfg is NULL for the defaults. Errors: RPMA_E_INVAL for NULL, a configuration that
 * contradicts itself, and when the endpoint is deleted meanwhile; RPMA_E_NO_EVENT if there is none and it must not
 * block; RPMA_E_PROVIDER without descriptors left. Differs: without a request, a non-blocking call returns
 * RPMA_E_NO_EVENT, as its name says (the original: RPMA_E_PROVIDER).
 */
int rpma_ep_next_conn_req(struct rpma_ep *ep, const struct rpma_conn_cfg *cfg, struct rpma_conn_req **req_ptr);

/*
 * Creates a request to connect; cfg is NULL for the defaults. Errors: RPMA_E_INVAL for NULL and a configuration that
 * contradicts itself; RPMA_E_PROVIDER for anything but an address and a port, and without descriptors left.
 */
int rpma_conn_req_new(struct rpma_peer *peer, const char *addr, const char *port, const struct rpma_conn_cfg *cfg,
		struct rpma_conn_req **req_ptr);

/*
 * Deletes a request; one of the other side is rejected. Errors: RPMA_E_INVAL for NULL. Differs: never RPMA_E_PROVIDER,
 * and nothing leaks: a client that is gone need not be notified.
 */
int rpma_conn_req_delete(struct rpma_conn_req **req_ptr);

/*
 * Posts a receive before the first message can arrive. Errors: RPMA_E_INVAL for NULL, a range outside, and where
 * receives are shared; RPMA_E_PROVIDER when the queue is full.
 */
int rpma_conn_req_recv(struct rpma_conn_req *req, struct rpma_mr_local *dst, size_t offset, size_t len,
		const void *op_context);

/*
 * Returns the private data that the other side's program sent, padded with zeros to 56 bytes, as RDMA's connection manager
 * carries them; NULL and 0 for a request of one's own. The bytes stay until the request is consumed. Errors: RPMA_E_INVAL for
 * NULL.
 */
int rpma_conn_req_get_private_data(const struct rpma_conn_req *req, struct rpma_conn_private_data *pdata);

/*
 * Connects, or accepts the other side's request, and sends pdata along if it is not NULL. The request is consumed in
 * any case. Errors: RPMA_E_INVAL for NULL and private data without bytes; RPMA_E_PROVIDER for more private data than 56
 * bytes (in an answer 196) and if the transport fails at once. If nothing listens there, an event reports it, not an
 * error. Differs: over RDMA an unanswered request is retried 6 times (the original: 7, which soft-RoCE takes forever),
 * so that a lost connection fails its posted operations.
 */
int rpma_conn_req_connect(struct rpma_conn_req **req_ptr, const struct rpma_conn_private_data *pdata,
		struct rpma_conn **conn_ptr);

/*
 * Returns a descriptor that is readable while there are events. With O_NONBLOCK set on it, the next function does not
 * block. Errors: RPMA_E_INVAL for NULL; RPMA_E_PROVIDER without descriptors left.
 */
int rpma_conn_get_event_fd(const struct rpma_conn *conn, int *fd);

/*
 * Takes the next event. The end of a connection is reported again to every later wait. Errors: RPMA_E_INVAL for NULL,
 * and when the connection is deleted meanwhile; RPMA_E_NO_EVENT if there is none and it must not block; RPMA_E_PROVIDER
 * where the descriptor cannot be read; RPMA_E_UNKNOWN for an event that has no name in librpma. Differs: without an
 * event, a non-blocking call returns RPMA_E_NO_EVENT, as its manual says (the original: RPMA_E_PROVIDER); the end of a
 * connection is reported again to every later wait, where the original waits forever; the descriptor is readable only
 * for the first report. Over TCP and shm a side that vanishes is RPMA_CONN_LOST after 30 s.
 */
int rpma_conn_next_event(struct rpma_conn *conn, enum rpma_conn_event *event);

/* The name of an event, in English; never NULL. */
const char *rpma_utils_conn_event_2str(enum rpma_conn_event conn_event);

/*
 * Returns the private data that the other side's program sent, padded with zeros to the 56 bytes of a request or the 196
 * of an answer, as RDMA's connection manager carries them; the bytes stay until the connection is deleted. Errors:
 * RPMA_E_INVAL for NULL.
 */
int rpma_conn_get_private_data(const struct rpma_conn *conn, struct rpma_conn_private_data *pdata);

/* Applies the other side's claims about its platform. Errors: RPMA_E_INVAL for NULL. */
int rpma_conn_apply_remote_peer_cfg(struct rpma_conn *conn, const struct rpma_peer_cfg *pcfg);

/*
 * Returns the connection's number in completions. Errors: RPMA_E_INVAL for NULL. Differs: over TCP and shm a number
 * assigned by the library, as there is no queue pair.
 */
int rpma_conn_get_qp_num(const struct rpma_conn *conn, uint32_t *qp_num);

/*
 * Returns the queue of all completions, except those of receives that have their own queue. Errors: RPMA_E_INVAL for
 * NULL.
 */
int rpma_conn_get_cq(const struct rpma_conn *conn, struct rpma_cq **cq_ptr);

/*
 * Returns the queue of the completions of receives; NULL if they are in the common queue. Errors: RPMA_E_INVAL for
 * NULL.
 */
int rpma_conn_get_rcq(const struct rpma_conn *conn, struct rpma_cq **rcq_ptr);

/*
 * Returns the descriptor of the channel that both queues share. Errors: RPMA_E_INVAL for NULL; RPMA_E_NOT_SHARED_CHNL.
 */
int rpma_conn_get_compl_fd(const struct rpma_conn *conn, int *fd);

/*
 * Waits on the shared channel until one of its queues has a completion, and returns that queue. Errors: RPMA_E_INVAL
 * for NULL, and when the connection is deleted meanwhile; RPMA_E_NOT_SHARED_CHNL; RPMA_E_NO_COMPLETION if it must not
 * block, and when the connection has ended; RPMA_E_PROVIDER where the descriptor cannot be read. Differs: over TCP and
 * shm waits on the queues of a connection that ended return RPMA_E_NO_COMPLETION, where the original waits forever.
 */
int rpma_conn_wait(struct rpma_conn *conn, int flags, struct rpma_cq **cq, bool *is_rcq);

/*
 * Disconnects in order; an event reports when this is done. A connection that has ended is not changed. Errors:
 * RPMA_E_INVAL for NULL; RPMA_E_PROVIDER where the device refuses it. Differs: over RDMA 0 if the other side closed
 * first (the original: RPMA_E_PROVIDER), as both sides of a program may; and where messages were sent it takes 10 ms,
 * in which the last one can arrive, which the original mostly loses.
 */
int rpma_conn_disconnect(struct rpma_conn *conn);

/*
 * Deletes a connection with its queues; an established one is closed. Threads that wait on it, or on its queues, or
 * poll these, return with RPMA_E_INVAL. Errors: RPMA_E_INVAL for NULL. Differs: never RPMA_E_PROVIDER: all resources
 * are released. Threads that wait on it return with RPMA_E_INVAL, where the original leaves them waiting, or uses freed
 * memory.
 */
int rpma_conn_delete(struct rpma_conn **conn_ptr);

/*
 * Creates a queue of receives that connections share; cfg is NULL for the defaults. Errors: RPMA_E_INVAL for NULL and a
 * size of 0; RPMA_E_PROVIDER where the device refuses it. Differs: a size of 0 is RPMA_E_INVAL, as no receive could be
 * posted.
 */
int rpma_srq_new(struct rpma_peer *peer, struct rpma_srq_cfg *cfg, struct rpma_srq **srq_ptr);

/*
 * Deletes a queue of shared receives with its completion queue. Threads that wait on that, or poll it, return with
 * RPMA_E_INVAL. Errors: RPMA_E_INVAL for NULL. Differs: never RPMA_E_PROVIDER: all resources are released. Threads that
 * wait on its completion queue return with RPMA_E_INVAL, where the original leaves them waiting, or uses freed memory.
 */
int rpma_srq_delete(struct rpma_srq **srq_ptr);

/*
 * Posts a receive for a message of any of the connections. Errors: RPMA_E_INVAL for NULL and a range outside;
 * RPMA_E_PROVIDER when the queue is full.
 */
int rpma_srq_recv(struct rpma_srq *srq, struct rpma_mr_local *dst, size_t offset, size_t len, const void *op_context);

/* Returns the completion queue of the shared receives; NULL if there is none. Errors: RPMA_E_INVAL for NULL. */
int rpma_srq_get_rcq(const struct rpma_srq *srq, struct rpma_cq **rcq_ptr);

/* --- Operations ------------------------------------------------------------------------------------------------------- */

#define RPMA_F_COMPLETION_ON_ERROR (1 << 0)
#define RPMA_F_COMPLETION_ALWAYS (1 << 1 | RPMA_F_COMPLETION_ON_ERROR)

#define RPMA_W_WAIT_FOR_COMPLETION (1) /* without effect, as in the original */

#define RPMA_ATOMIC_WRITE_ALIGNMENT 8

enum rpma_flush_type {
	RPMA_FLUSH_TYPE_PERSISTENT,
	RPMA_FLUSH_TYPE_VISIBILITY
};

/*
 * Posts a read of the other side's memory. Without both registrations, and with offsets and length 0, it moves nothing.
 * Errors: RPMA_E_INVAL for NULL, unknown flags, a range outside and memory that does not grant it; RPMA_E_PROVIDER when
 * the send queue is full and when the connection is not established. Differs: lengths are checked in 64 bits and ranges
 * when posting (the original truncates lengths to 32 bits and leaves ranges to the device, which breaks the
 * connection). Over RDMA an operation carries less than 4 GiB (otherwise RPMA_E_INVAL); over TCP and shm operations
 * over 1 GiB are split; over TCP and shm the send queue holds twice sq_size plus 64 operations, as there is no device
 * whose queue could be full.
 */
int rpma_read(struct rpma_conn *conn, struct rpma_mr_local *dst, size_t dst_offset, const struct rpma_mr_remote *src,
		size_t src_offset, size_t len, int flags, const void *op_context);

/*
 * Posts a write to the other side's memory. Errors: as for rpma_read(). Differs: lengths are checked in 64 bits and
 * ranges when posting (the original truncates lengths to 32 bits and leaves ranges to the device, which breaks the
 * connection). Over RDMA an operation carries less than 4 GiB (otherwise RPMA_E_INVAL); over TCP and shm operations
 * over 1 GiB are split; over TCP and shm the send queue holds twice sq_size plus 64 operations, as there is no device
 * whose queue could be full.
 */
int rpma_write(struct rpma_conn *conn, struct rpma_mr_remote *dst, size_t dst_offset, const struct rpma_mr_local *src,
		size_t src_offset, size_t len, int flags, const void *op_context);

/*
 * Posts a write that also consumes a receive of the other side and passes it a number: imm, in this machine's byte
 * order; the receive's completion has it in imm_data in network byte order, as ntohl() takes it. It completes when it
 * has found a receive, and later operations complete after it. Errors: as for rpma_read(). Differs: lengths are checked
 * in 64 bits and ranges when posting (the original truncates lengths to 32 bits and leaves ranges to the device, which
 * breaks the connection). Over RDMA an operation carries less than 4 GiB (otherwise RPMA_E_INVAL); over TCP and shm
 * operations over 1 GiB are split; over TCP and shm the send queue holds twice sq_size plus 64 operations, as there is
 * no device whose queue could be full.
 */
int rpma_write_with_imm(struct rpma_conn *conn, struct rpma_mr_remote *dst, size_t dst_offset,
		const struct rpma_mr_local *src, size_t src_offset, size_t len, int flags, uint32_t imm,
		const void *op_context);

/*
 * Posts an atomic write of 8 bytes at an offset divisible by 8: a crash leaves all of them or none. Errors: as for
 * rpma_read(); RPMA_E_INVAL for another offset. Differs: the range is checked when posting; over TCP and shm the target
 * stores the 8 bytes as one word, and the completion says IBV_WC_RDMA_WRITE.
 */
int rpma_atomic_write(struct rpma_conn *conn, struct rpma_mr_remote *dst, size_t dst_offset, const char src[8],
		int flags, const void *op_context);

/*
 * Posts a flush: the connection's earlier writes to the memory become persistent or visible. Errors: as for
 * rpma_read(); RPMA_E_NOSUPP where the memory was not registered for it, if a persistent flush lacks the claim of
 * direct write to pmem, and, with PMOF_STRICT=1, where the platform contradicts that. Differs: any range inside the
 * memory may be named (the original cannot flush its last 7 bytes, as it reads 8). Over RDMA a persistent flush without
 * native flush is a read that relies on the program's claim, as in the original, with a warning in the log once for
 * each memory; PMOF_STRICT=1 refuses it. Over TCP and shm the cheapest proven method is used, and only writes to that
 * registration are covered.
 */
int rpma_flush(struct rpma_conn *conn, struct rpma_mr_remote *dst, size_t dst_offset, size_t len,
		enum rpma_flush_type type, int flags, const void *op_context);

/*
 * Posts a message. It completes when it has found a receive, and later operations complete after it; until then its
 * memory belongs to the library. Errors: as for rpma_read(). Differs: over TCP and shm a message has at most 1 MiB, and
 * the other side's library buffers up to 64 per connection until receives are posted.
 */
int rpma_send(struct rpma_conn *conn, const struct rpma_mr_local *src, size_t offset, size_t len, int flags,
		const void *op_context);

/*
 * Posts a message that passes a number to its receive: imm, in this machine's byte order; the receive's completion has
 * it in imm_data in network byte order, as ntohl() takes it. It completes like one of rpma_send(). Errors: as for
 * rpma_read(). Differs: over TCP and shm a message has at most 1 MiB, and the other side's library buffers up to 64 per
 * connection until receives are posted.
 */
int rpma_send_with_imm(struct rpma_conn *conn, const struct rpma_mr_local *src, size_t offset, size_t len, int flags,
		uint32_t imm, const void *op_context);

/*
 * Posts a receive. Errors: RPMA_E_INVAL for NULL, a range outside, and where receives are shared; RPMA_E_PROVIDER when
 * the queue is full and when the connection has ended. Differs: over TCP and shm a message that is longer than its
 * receive fails the receive (IBV_WC_LOC_LEN_ERR) and ends the connection; its send may have completed by then.
 */
int rpma_recv(struct rpma_conn *conn, struct rpma_mr_local *dst, size_t offset, size_t len, const void *op_context);

/* --- Completions ------------------------------------------------------------------------------------------------------ */

/*
 * Returns a descriptor that is readable when there may be a completion, that of the channel where it is shared. With
 * O_NONBLOCK set on it, waits do not block. Errors: RPMA_E_INVAL for NULL. Differs: over TCP and shm it is readable
 * while a completion waits; over RDMA, as in the original, one event covers all completions until it is taken.
 */
int rpma_cq_get_fd(const struct rpma_cq *cq, int *fd);

/*
 * Waits until there is a completion to get. Errors: RPMA_E_INVAL for NULL, and when the owner of the queue is deleted
 * meanwhile; RPMA_E_SHARED_CHANNEL; RPMA_E_NO_COMPLETION if it must not block, and when the connection has ended;
 * RPMA_E_PROVIDER where the descriptor cannot be read. Differs: over TCP and shm waits on the queues of a connection
 * that ended return RPMA_E_NO_COMPLETION, where the original waits forever.
 */
int rpma_cq_wait(struct rpma_cq *cq);

/*
 * Gets up to num_entries available completions; num_entries_got may be NULL for one. Errors: RPMA_E_INVAL for NULL,
 * fewer than one, and when the owner of the queue is deleted meanwhile; RPMA_E_NO_COMPLETION where there is none;
 * RPMA_E_PROVIDER if polling the device fails. Differs: over TCP and shm vendor_err is 0, as no device wrote it.
 */
int rpma_cq_get_wc(struct rpma_cq *cq, int num_entries, struct ibv_wc *wc, int *num_entries_got);

#ifdef __cplusplus
}
#endif
#endif /* LIBRPMA_H */
