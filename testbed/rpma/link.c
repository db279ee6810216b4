#include "link.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { USAGES = RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_READ_DST | RPMA_MR_USAGE_WRITE_SRC | RPMA_MR_USAGE_WRITE_DST |
                RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY | RPMA_MR_USAGE_SEND | RPMA_MR_USAGE_RECV };

struct ibv_context *context(void) {
    struct ibv_context *found = NULL;
    NEED(CALL(rpma_utils_get_ibv_context)(options.address, RPMA_UTIL_IBV_CONTEXT_LOCAL, &found));
    return found;
}

bool is_device(void) {
    return strncmp(context()->device->name, "pmof_", 5) != 0;
}

struct rpma_peer *new_peer(void) {
    struct rpma_peer *peer = NULL;
    NEED(CALL(rpma_peer_new)(context(), &peer));
    return peer;
}

void delete_peer(struct rpma_peer **peer) {
    if (CALL(rpma_peer_delete)(peer) != 0)
        check(false, "a peer that nothing uses is deleted");
}

const char *port(unsigned number) {
    static char texts[PORTS][8];
    if (number >= PORTS)
        bail_out("there are too few ports");
    snprintf(texts[number], sizeof texts[number], "%u", options.port + number);
    return texts[number];
}

bool readable(int descriptor, int timeout_ms) {
    struct pollfd wanted = {.fd = descriptor, .events = POLLIN};
    int found;
    do
        found = poll(&wanted, 1, timeout_ms);
    while (found < 0 && errno == EINTR);
    return found > 0;
}

void set_nonblocking(int descriptor) {
    int flags = fcntl(descriptor, F_GETFL);
    if (flags < 0 || fcntl(descriptor, F_SETFL, flags | O_NONBLOCK) < 0)
        bail_out("a descriptor can not be made non-blocking");
}

struct rpma_conn_req *next_request(struct rpma_ep *endpoint, const struct rpma_conn_cfg *configuration) {
    int descriptor = -1;
    struct rpma_conn_req *request = NULL;
    NEED(CALL(rpma_ep_get_fd)(endpoint, &descriptor));
    if (!readable(descriptor, PATIENCE_MS))
        bail_out("no connection request came");
    NEED(CALL(rpma_ep_next_conn_req)(endpoint, configuration, &request));
    return request;
}

enum rpma_conn_event next_event(struct rpma_conn *connection, int timeout_ms) {
    int descriptor = -1;
    enum rpma_conn_event event = RPMA_CONN_UNDEFINED;
    NEED(CALL(rpma_conn_get_event_fd)(connection, &descriptor));
    if (!readable(descriptor, timeout_ms))
        return RPMA_CONN_UNDEFINED;
    NEED(CALL(rpma_conn_next_event)(connection, &event));
    return event;
}

void connect_ends(struct rpma_peer *peer, const struct rpma_conn_cfg *client, const struct rpma_conn_cfg *server,
                  struct rpma_conn **client_end, struct rpma_conn **server_end) {
    struct rpma_ep *endpoint = NULL;
    struct rpma_conn_req *outgoing = NULL;
    NEED(CALL(rpma_ep_listen)(peer, options.address, port(0), &endpoint));
    NEED(CALL(rpma_conn_req_new)(peer, options.address, port(0), client, &outgoing));
    NEED(CALL(rpma_conn_req_connect)(&outgoing, NULL, client_end));
    struct rpma_conn_req *incoming = next_request(endpoint, server);
    NEED(CALL(rpma_conn_req_connect)(&incoming, NULL, server_end));
    if (next_event(*client_end, PATIENCE_MS) != RPMA_CONN_ESTABLISHED ||
        next_event(*server_end, PATIENCE_MS) != RPMA_CONN_ESTABLISHED)
        bail_out("a connection was not established");
    NEED(CALL(rpma_ep_shutdown)(&endpoint));
}

void close_ends(struct rpma_conn **client, struct rpma_conn **server) {
    IS(CALL(rpma_conn_disconnect)(*client), 0);
    check(next_event(*server, PATIENCE_MS) == RPMA_CONN_CLOSED, "the other side sees that the connection is closed");
    IS(CALL(rpma_conn_disconnect)(*server), 0);
    check(next_event(*client, PATIENCE_MS) == RPMA_CONN_CLOSED, "the side that disconnects sees it too");
    IS(CALL(rpma_conn_delete)(client), 0);
    IS(CALL(rpma_conn_delete)(server), 0);
}

void make_region(struct rpma_peer *peer, int usage, struct region *region) {
    unsigned char descriptor[255];
    size_t size = 0;
    region->size = REGION_BYTES;
    if (posix_memalign((void **)&region->bytes, (size_t)sysconf(_SC_PAGESIZE), region->size) != 0)
        bail_out("no memory");
    memset(region->bytes, 0, region->size);
    NEED(CALL(rpma_mr_reg)(peer, region->bytes, region->size, usage, &region->local));
    NEED(CALL(rpma_mr_get_descriptor_size)(region->local, &size));
    if (size > sizeof descriptor)
        bail_out("a descriptor is longer than private data");
    NEED(CALL(rpma_mr_get_descriptor)(region->local, descriptor));
    NEED(CALL(rpma_mr_remote_from_descriptor)(descriptor, size, &region->remote));
}

void drop_region(struct region *region) {
    NEED(CALL(rpma_mr_remote_delete)(&region->remote));
    NEED(CALL(rpma_mr_dereg)(&region->local));
    free(region->bytes);
    region->bytes = NULL;
}

void open_link(struct link *link, const struct rpma_conn_cfg *client, const struct rpma_conn_cfg *server) {
    open_link_of(new_peer(), link, client, server);
}

void open_link_of(struct rpma_peer *peer, struct link *link, const struct rpma_conn_cfg *client,
                  const struct rpma_conn_cfg *server) {
    memset(link, 0, sizeof *link);
    link->peer = peer;
    connect_ends(link->peer, client, server, &link->client.connection, &link->server.connection);
    for (struct end *end = &link->client;; end = &link->server) {
        NEED(CALL(rpma_conn_get_cq)(end->connection, &end->cq));
        make_region(link->peer, USAGES, &end->region);
        if (end == &link->server)
            return;
    }
}

void close_link(struct link *link) {
    close_ends(&link->client.connection, &link->server.connection);
    drop_region(&link->client.region);
    drop_region(&link->server.region);
    delete_peer(&link->peer);
}

static bool poll_completion(struct rpma_cq *cq, struct ibv_wc *completion, int timeout_ms) {
    double start = now_ms();
    for (;;) {
        int returned = CALL(rpma_cq_get_wc)(cq, 1, completion, NULL);
        if (returned == 0)
            return true;
        if (returned != RPMA_E_NO_COMPLETION) {
            check_code(returned, 0, "rpma_cq_get_wc");
            return false;
        }
        if (now_ms() - start >= timeout_ms)
            return false;
        /* Another thread or process may have to work for it. */
        usleep(50);
    }
}

bool next_completion(struct rpma_cq *cq, struct ibv_wc *completion) {
    return poll_completion(cq, completion, PATIENCE_MS);
}

bool anything_comes(struct rpma_cq *cq) {
    struct ibv_wc completion;
    return poll_completion(cq, &completion, 50);
}

bool completes(struct rpma_cq *cq, uintptr_t request, enum ibv_wc_opcode opcode, const char *name) {
    struct ibv_wc completion;
    if (!next_completion(cq, &completion))
        return check(false, "%s: no completion came", name);
    bool passed = check(completion.status == IBV_WC_SUCCESS && completion.wr_id == request &&
                            completion.opcode == opcode, "%s completes", name);
    if (!passed)
        tell("request %lu status %d opcode %d, expected %lu, 0, %d", (unsigned long)completion.wr_id,
             completion.status, completion.opcode, (unsigned long)request, opcode);
    return passed;
}
