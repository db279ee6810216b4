/* Both ends of a connection in one thread: nothing that is called may wait for the other end. */
#ifndef LINK_H
#define LINK_H

#include "codes.h"

enum { REGION_BYTES = 64 * 1024 };

/* Registered memory, and how the other side sees it. */
struct region {
    unsigned char *bytes;
    size_t size;
    struct rpma_mr_local *local;
    struct rpma_mr_remote *remote;
};

struct end {
    struct rpma_conn *connection;
    struct rpma_cq *cq;
    struct region region;
};

/* An established connection. `peer` is of both ends: they use one device. */
struct link {
    struct rpma_peer *peer;
    struct end client, server;
};

/* The context of the device with the address, or of the transport that replaces it. */
struct ibv_context *context(void);

/* Whether it is a device, and not what represents TCP or shm. */
bool is_device(void);
struct rpma_peer *new_peer(void);
void delete_peer(struct rpma_peer **peer);

/* One of PORTS ports, as text that stays. */
const char *port(unsigned number);

/* Readable, or in error, within the time. */
bool readable(int descriptor, int timeout_ms);
void set_nonblocking(int descriptor);

/* Two connected connections, without memory; either configuration may be NULL. */
void connect_ends(struct rpma_peer *peer, const struct rpma_conn_cfg *client, const struct rpma_conn_cfg *server,
                  struct rpma_conn **client_end, struct rpma_conn **server_end);

/* The next connection request of an endpoint. */
struct rpma_conn_req *next_request(struct rpma_ep *endpoint, const struct rpma_conn_cfg *configuration);

/* The next event, RPMA_CONN_UNDEFINED where none comes in time. */
enum rpma_conn_event next_event(struct rpma_conn *connection, int timeout_ms);

/* Disconnects both and deletes them, with checks. */
void close_ends(struct rpma_conn **client, struct rpma_conn **server);

/* A peer, a connection, a region at each end for every usage but the persistent flush; and its end. */
void open_link(struct link *link, const struct rpma_conn_cfg *client, const struct rpma_conn_cfg *server);
void close_link(struct link *link);

/* The same with a peer that is there already; closing the link deletes it. */
void open_link_of(struct rpma_peer *peer, struct link *link, const struct rpma_conn_cfg *client,
                  const struct rpma_conn_cfg *server);

/* Registers zeroed memory for a usage, and makes what the other side has of it. */
void make_region(struct rpma_peer *peer, int usage, struct region *region);
void drop_region(struct region *region);

/* The next completion, by polling. False where none comes in time. */
bool next_completion(struct rpma_cq *cq, struct ibv_wc *completion);

/* Checks that the next completion is a success of this request. */
bool completes(struct rpma_cq *cq, uintptr_t request, enum ibv_wc_opcode opcode, const char *name);

/* Whether a completion comes within some milliseconds: for what must not come. */
bool anything_comes(struct rpma_cq *cq);

/* An address that no machine has (RFC 5737), one that no packet reaches (RFC 6666), and a name of nobody (RFC 6761). */
#define FOREIGN_ADDRESS "198.51.100.77"
#define UNREACHABLE_ADDRESS "100::1"
#define NO_SUCH_NAME "pmof.invalid"

#define REQUEST(number) ((const void *)(uintptr_t)(number))

#endif
