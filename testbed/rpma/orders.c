/* Objects that are deleted in every order, with operations under way; and memory that goes before its registration. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "link.h"
#include "parts.h"

enum { ALWAYS = RPMA_F_COMPLETION_ALWAYS, PORT = 15, BYTES = 64, POSTED = 4 };

enum object { PEER, ENDPOINT, MEMORY, CLIENT, SERVER, SHARED_QUEUE, OBJECTS };

static const char *const object_names[OBJECTS] = {"peer",   "endpoint", "memory",
                                                  "client", "server",   "shared receive queue"};

/* All there is, with memory that is mapped, so that its end is noticed. */
struct all {
    struct rpma_peer *peer;
    struct rpma_ep *endpoint;
    struct rpma_mr_local *local;
    struct rpma_mr_remote *remote;
    struct rpma_conn *client, *server;
    struct rpma_srq *queue;
    unsigned char *bytes;
    /* The memory goes before its registration: nothing is written there then, as that may end the program (docs/librpma.md). */
    bool goes_early;
};

static void make(struct all *all, bool goes_early) {
    struct rpma_cq *completions;
    struct ibv_wc completion;
    struct rpma_conn_cfg *sharing = NULL;
    struct rpma_conn_req *outgoing = NULL, *incoming;
    unsigned char descriptor[64];
    size_t size;
    memset(all, 0, sizeof *all);
    all->goes_early = goes_early;
    all->peer = new_peer();
    all->bytes = mmap(NULL, REGION_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all->bytes == MAP_FAILED)
        bail_out("no memory");
    int usage = RPMA_MR_USAGE_WRITE_SRC | RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_SEND | RPMA_MR_USAGE_RECV;
    NEED(CALL(rpma_mr_reg)(all->peer, all->bytes, REGION_BYTES, usage, &all->local));
    NEED(CALL(rpma_mr_get_descriptor_size)(all->local, &size));
    NEED(CALL(rpma_mr_get_descriptor)(all->local, descriptor));
    NEED(CALL(rpma_mr_remote_from_descriptor)(descriptor, size, &all->remote));
    NEED(CALL(rpma_srq_new)(all->peer, NULL, &all->queue));
    NEED(CALL(rpma_conn_cfg_new)(&sharing));
    NEED(CALL(rpma_conn_cfg_set_srq)(sharing, all->queue));
    NEED(CALL(rpma_ep_listen)(all->peer, options.address, port(PORT), &all->endpoint));
    NEED(CALL(rpma_conn_req_new)(all->peer, options.address, port(PORT), NULL, &outgoing));
    NEED(CALL(rpma_conn_req_connect)(&outgoing, NULL, &all->client));
    incoming = next_request(all->endpoint, sharing);
    NEED(CALL(rpma_conn_cfg_delete)(&sharing));
    NEED(CALL(rpma_conn_req_connect)(&incoming, NULL, &all->server));
    if (next_event(all->client, PATIENCE_MS) != RPMA_CONN_ESTABLISHED)
        bail_out("a connection was not established");
    for (uintptr_t each = 0; each < POSTED; each++) {
        NEED(CALL(rpma_srq_recv)(all->queue, all->local, each * BYTES, BYTES, REQUEST(each)));
        NEED(CALL(rpma_write)(all->client, all->remote, REGION_BYTES / 2, all->local, 0, BYTES, ALWAYS, REQUEST(each)));
    }
    NEED(CALL(rpma_conn_get_cq)(all->client, &completions));
    for (int each = 0; goes_early && each < POSTED; each++)
        if (!next_completion(completions, &completion))
            bail_out("a write does not complete");
}

/* Early, as programs do that do not know better; or once it is deregistered. */
static int forget_memory(struct all *all) {
    if (all->goes_early && all->bytes != NULL) {
        munmap(all->bytes, REGION_BYTES);
        all->bytes = NULL;
    }
    int returned = all->local == NULL ? 0 : CALL(rpma_mr_dereg)(&all->local);
    if (returned == 0 && all->bytes != NULL) {
        munmap(all->bytes, REGION_BYTES);
        all->bytes = NULL;
    }
    return returned;
}

static int drop(struct all *all, enum object object) {
    switch (object) {
    case PEER: return CALL(rpma_peer_delete)(&all->peer);
    case ENDPOINT: return CALL(rpma_ep_shutdown)(&all->endpoint);
    case MEMORY: return forget_memory(all);
    case CLIENT: return CALL(rpma_conn_delete)(&all->client);
    case SERVER: return CALL(rpma_conn_delete)(&all->server);
    default: return CALL(rpma_srq_delete)(&all->queue);
    }
}

/* Deletes all in the order, then what was refused once more. Whether each was deleted at last, and refused by name before. */
static bool drop_in(const enum object *order, bool goes_early) {
    struct all all;
    bool is_right = true;
    make(&all, goes_early);
    for (int turn = 0; turn < 2; turn++)
        for (int at = 0; at < OBJECTS; at++) {
            int returned = drop(&all, order[at]);
            bool is_typed = returned == 0 || (turn == 0 && returned == RPMA_E_PROVIDER);
            if (!is_typed)
                tell("turn %d: %s, after %s: %d", turn, object_names[order[at]],
                     at == 0 ? "nothing" : object_names[order[at - 1]], returned);
            is_right = is_right && is_typed;
        }
    NEED(CALL(rpma_mr_remote_delete)(&all.remote));
    return is_right && all.peer == NULL && all.endpoint == NULL && all.local == NULL && all.client == NULL &&
           all.server == NULL && all.queue == NULL;
}

void check_orders(void) {
    enum { ORDERS = 720, EACH = 7 };
    section("deleting in every order");
    unsigned tried = 0, right = 0;
    /* Every seventh: each two objects come in either order, next to each other and apart. */
    for (unsigned number = 0; number < ORDERS; number += EACH, tried++) {
        enum object order[OBJECTS] = {PEER, ENDPOINT, MEMORY, CLIENT, SERVER, SHARED_QUEUE};
        for (unsigned at = 0, rest = number; at < OBJECTS; rest /= OBJECTS - at, at++) {
            unsigned with = at + rest % (OBJECTS - at);
            enum object moved = order[with];
            order[with] = order[at];
            order[at] = moved;
        }
        right += drop_in(order, tried % 2 == 0);
    }
    check(right == tried, "what may not go yet is refused by name, and all goes at last: %u of %u orders", right, tried);
}
