/* Waiting for completions, and who shares the queues that they come to. */
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "link.h"
#include "parts.h"

enum { ALWAYS = RPMA_F_COMPLETION_ALWAYS };

/* Waits for and takes one completion, by events. */
static bool wait_and_take(struct rpma_cq *cq, struct ibv_wc *completion) {
    int descriptor = -1;
    NEED(CALL(rpma_cq_get_fd)(cq, &descriptor));
    /* An event may announce a completion that has already been taken. */
    for (int attempt = 0; attempt < 8; attempt++) {
        if (CALL(rpma_cq_get_wc)(cq, 1, completion, NULL) == 0)
            return true;
        if (!readable(descriptor, PATIENCE_MS))
            return false;
        int returned = CALL(rpma_cq_wait)(cq);
        if (returned != 0 && returned != RPMA_E_NO_COMPLETION) {
            check_code(returned, 0, "rpma_cq_wait");
            return false;
        }
    }
    return false;
}

static void check_events(void) {
    section("events");
    struct link link;
    open_link(&link, NULL, NULL);
    struct ibv_wc completion;
    int descriptor = -1;
    IS(CALL(rpma_cq_get_fd)(NULL, &descriptor), RPMA_E_INVAL);
    IS(CALL(rpma_cq_get_fd)(link.client.cq, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_cq_get_fd)(link.client.cq, &descriptor), 0);
    check((fcntl(descriptor, F_GETFL) & O_NONBLOCK) == 0, "a completion queue's descriptor is a blocking one");
    check(!readable(descriptor, 0), "there is no event before the first request");
    IS(CALL(rpma_cq_wait)(NULL), RPMA_E_INVAL);
    NEED(CALL(rpma_write)(link.client.connection, link.server.region.remote, 0, link.client.region.local, 0, 8, ALWAYS,
                          REQUEST(1)));
    IS(CALL(rpma_cq_wait)(link.client.cq), 0);
    completes(link.client.cq, 1, IBV_WC_RDMA_WRITE, "a write that was waited for");
    IS(CALL(rpma_cq_get_wc)(link.client.cq, 1, &completion, NULL), RPMA_E_NO_COMPLETION);
    for (uintptr_t request = 2; request < 12; request++) {
        NEED(CALL(rpma_write)(link.client.connection, link.server.region.remote, 0, link.client.region.local, 0, 8,
                              ALWAYS, REQUEST(request)));
        if (!wait_and_take(link.client.cq, &completion) || completion.wr_id != request)
            check(false, "the completion of request %lu is waited for", (unsigned long)request);
    }
    check(true, "ten writes are waited for one after the other");
    set_nonblocking(descriptor);
    int returned;
    int spurious = 0;
    while ((returned = CALL(rpma_cq_wait)(link.client.cq)) == 0 && spurious < 16)
        spurious++;
    check_code(returned, RPMA_E_NO_COMPLETION, "rpma_cq_wait on a non-blocking descriptor is RPMA_E_NO_COMPLETION");
    tell("%d events without a completion before", spurious);
    NEED(CALL(rpma_write)(link.client.connection, link.server.region.remote, 0, link.client.region.local, 0, 8, ALWAYS,
                          REQUEST(12)));
    check(readable(descriptor, PATIENCE_MS), "a completion makes the descriptor readable");
    IS(CALL(rpma_cq_wait)(link.client.cq), 0);
    completes(link.client.cq, 12, IBV_WC_RDMA_WRITE, "the write behind it");
    close_link(&link);
}

/* A server and a client of one thread that only does what epoll says. */
static void check_epoll(void) {
    section("epoll");
    enum { ENDPOINT, CLIENT, SERVER, CLIENT_CQ, SERVER_CQ };
    struct rpma_peer *peer = new_peer();
    struct rpma_ep *endpoint = NULL;
    struct rpma_conn_req *request = NULL;
    struct rpma_conn *client = NULL, *server = NULL;
    struct rpma_cq *client_cq = NULL, *server_cq = NULL;
    struct region buffers;
    struct ibv_wc completion;
    enum rpma_conn_event event;
    make_region(peer, RPMA_MR_USAGE_SEND | RPMA_MR_USAGE_RECV, &buffers);
    memset(buffers.bytes, 'e', 16);
    int poller = epoll_create1(0), descriptor = -1, received = 0, closed = 0, seen[5] = {0};
#define WATCH(getter, object, what)                                                                                  \
    do {                                                                                                             \
        NEED(CALL(getter)(object, &descriptor));                                                                     \
        set_nonblocking(descriptor);                                                                                 \
        if (epoll_ctl(poller, EPOLL_CTL_ADD, descriptor,                                                             \
                      &(struct epoll_event){.events = EPOLLIN, .data.u32 = (what)}) != 0)                            \
            bail_out("epoll does not take a descriptor");                                                            \
    } while (0)
    NEED(CALL(rpma_ep_listen)(peer, options.address, port(5), &endpoint));
    WATCH(rpma_ep_get_fd, endpoint, ENDPOINT);
    NEED(CALL(rpma_conn_req_new)(peer, options.address, port(5), NULL, &request));
    NEED(CALL(rpma_conn_req_connect)(&request, NULL, &client));
    WATCH(rpma_conn_get_event_fd, client, CLIENT);
    for (struct epoll_event ready; closed < 2 && epoll_wait(poller, &ready, 1, PATIENCE_MS) == 1;) {
        uint32_t what = ready.data.u32;
        if (++seen[what] > 64)
            bail_out("a descriptor stays readable");
        if (what == ENDPOINT) {
            NEED(CALL(rpma_ep_next_conn_req)(endpoint, NULL, &request));
            NEED(CALL(rpma_conn_req_recv)(request, buffers.local, 1024, 16, REQUEST(1)));
            NEED(CALL(rpma_conn_req_connect)(&request, NULL, &server));
            WATCH(rpma_conn_get_event_fd, server, SERVER);
            NEED(CALL(rpma_conn_get_cq)(server, &server_cq));
            WATCH(rpma_cq_get_fd, server_cq, SERVER_CQ);
        } else if (what == CLIENT || what == SERVER) {
            NEED(CALL(rpma_conn_next_event)(what == CLIENT ? client : server, &event));
            closed += event == RPMA_CONN_CLOSED;
            if (what == CLIENT && event == RPMA_CONN_ESTABLISHED) {
                NEED(CALL(rpma_conn_get_cq)(client, &client_cq));
                WATCH(rpma_cq_get_fd, client_cq, CLIENT_CQ);
                NEED(CALL(rpma_send)(client, buffers.local, 0, 16, ALWAYS, REQUEST(2)));
            }
            if (what == SERVER && event == RPMA_CONN_CLOSED)
                NEED(CALL(rpma_conn_disconnect)(server));
        } else {
            struct rpma_cq *cq = what == CLIENT_CQ ? client_cq : server_cq;
            int returned = CALL(rpma_cq_wait)(cq);
            if (returned != 0 && returned != RPMA_E_NO_COMPLETION)
                check_code(returned, 0, "rpma_cq_wait");
            while (CALL(rpma_cq_get_wc)(cq, 1, &completion, NULL) == 0)
                received += completion.status == IBV_WC_SUCCESS;
            if (received == 2) {
                NEED(CALL(rpma_conn_disconnect)(client));
                received++;
            }
        }
    }
#undef WATCH
    check(received == 3, "a message and its receipt come by epoll");
    check(closed == 2, "so does the end, at both sides");
    check(memcmp(buffers.bytes + 1024, "eeeeeeeeeeeeeeee", 16) == 0, "the message is there");
    close(poller);
    NEED(CALL(rpma_conn_delete)(&client));
    NEED(CALL(rpma_conn_delete)(&server));
    NEED(CALL(rpma_ep_shutdown)(&endpoint));
    drop_region(&buffers);
    delete_peer(&peer);
}

void check_waiting(void) {
    check_events();
    check_epoll();
}

static void check_receive_queue(void) {
    section("receive completion queue");
    struct rpma_conn_cfg *configuration = NULL;
    struct rpma_cq *receives = NULL;
    struct ibv_wc completion;
    struct link link;
    NEED(CALL(rpma_conn_cfg_new)(&configuration));
    NEED(CALL(rpma_conn_cfg_set_rcq_size)(configuration, 10));
    open_link(&link, NULL, configuration);
    IS(CALL(rpma_conn_get_rcq)(link.server.connection, &receives), 0);
    check(receives != NULL && receives != link.server.cq, "it is there, and another than the main one");
    NEED(CALL(rpma_recv)(link.server.connection, link.server.region.local, 0, 64, REQUEST(1)));
    NEED(CALL(rpma_send)(link.client.connection, link.client.region.local, 0, 64, ALWAYS, REQUEST(2)));
    check(wait_and_take(receives, &completion) && completion.wr_id == 1 && completion.opcode == IBV_WC_RECV,
          "a receive completes there");
    NEED(CALL(rpma_recv)(link.client.connection, link.client.region.local, 64, 64, REQUEST(3)));
    NEED(CALL(rpma_send)(link.server.connection, link.server.region.local, 0, 64, ALWAYS, REQUEST(4)));
    check(wait_and_take(link.server.cq, &completion) && completion.wr_id == 4 && completion.opcode == IBV_WC_SEND,
          "a send completes in the main one");
    check(!anything_comes(receives), "and not in the other");
    NEED(CALL(rpma_recv)(link.server.connection, NULL, 0, 0, REQUEST(5)));
    /* A send and a receive of one connection have no order between them. */
    uint64_t both = 0;
    for (int each = 0; each < 2; each++)
        both += next_completion(link.client.cq, &completion) && completion.status == IBV_WC_SUCCESS ? completion.wr_id : 0;
    check(both == 5, "the client's message and its receive complete in the client's only queue");
    NEED(CALL(rpma_write_with_imm)(link.client.connection, link.server.region.remote, 0, link.client.region.local, 0, 8,
                                   ALWAYS, 5, REQUEST(6)));
    check(wait_and_take(receives, &completion) && completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM,
          "the number of a write completes there too");
    close_link(&link);
    NEED(CALL(rpma_conn_cfg_delete)(&configuration));
}

static void check_shared_channel(void) {
    section("shared completion channel");
    struct rpma_conn_cfg *configuration = NULL;
    struct rpma_cq *receives = NULL, *which = NULL;
    struct ibv_wc completion;
    struct link link;
    int descriptor = -1;
    bool is_receive = true;
    NEED(CALL(rpma_conn_cfg_new)(&configuration));
    NEED(CALL(rpma_conn_cfg_set_rcq_size)(configuration, 10));
    NEED(CALL(rpma_conn_cfg_set_compl_channel)(configuration, true));
    open_link(&link, NULL, configuration);
    struct rpma_conn *server = link.server.connection;
    NEED(CALL(rpma_conn_get_rcq)(server, &receives));
    int of_main = -1, of_receives = -1;
    IS(CALL(rpma_cq_get_fd)(link.server.cq, &of_main), 0);
    IS(CALL(rpma_cq_get_fd)(receives, &of_receives), 0);
    IS(CALL(rpma_cq_wait)(link.server.cq), RPMA_E_SHARED_CHANNEL);
    IS(CALL(rpma_cq_wait)(receives), RPMA_E_SHARED_CHANNEL);
    IS(CALL(rpma_conn_get_compl_fd)(server, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_conn_get_compl_fd)(server, &descriptor), 0);
    check(of_main == descriptor && of_receives == descriptor, "both queues have the descriptor of the channel");
    IS(CALL(rpma_conn_wait)(server, 0, NULL, &is_receive), RPMA_E_INVAL);
    check(!readable(descriptor, 0), "there is nothing to read at first");
    NEED(CALL(rpma_recv)(server, link.server.region.local, 0, 64, REQUEST(1)));
    NEED(CALL(rpma_send)(link.client.connection, link.client.region.local, 0, 64, ALWAYS, REQUEST(2)));
    check(readable(descriptor, PATIENCE_MS), "a receive makes it readable");
    IS(CALL(rpma_conn_wait)(server, 0, &which, &is_receive), 0);
    check(which == receives && is_receive, "it is of the receive queue");
    completes(receives, 1, IBV_WC_RECV, "the receive");
    NEED(CALL(rpma_write)(server, link.client.region.remote, 0, link.server.region.local, 0, 8, ALWAYS, REQUEST(3)));
    check(readable(descriptor, PATIENCE_MS), "a write makes it readable");
    IS(CALL(rpma_conn_wait)(server, 0, &which, NULL), 0);
    check(which == link.server.cq, "it is of the main queue");
    completes(link.server.cq, 3, IBV_WC_RDMA_WRITE, "the write");
    set_nonblocking(descriptor);
    which = NULL;
    IS(CALL(rpma_conn_wait)(server, 0, &which, &is_receive), RPMA_E_NO_COMPLETION);
    check(next_completion(link.client.cq, &completion) && completion.wr_id == 2, "the client's message");
    close_link(&link);

    NEED(CALL(rpma_conn_cfg_set_rcq_size)(configuration, 0));
    open_link(&link, configuration, NULL);
    NEED(CALL(rpma_write)(link.client.connection, link.server.region.remote, 0, link.client.region.local, 0, 8, ALWAYS,
                          REQUEST(1)));
    is_receive = true;
    IS(CALL(rpma_conn_wait)(link.client.connection, 0, &which, &is_receive), 0);
    check(which == link.client.cq && !is_receive, "a client without a receive queue waits there too");
    completes(link.client.cq, 1, IBV_WC_RDMA_WRITE, "its write");
    close_link(&link);
    NEED(CALL(rpma_conn_cfg_delete)(&configuration));
}

/* The answer to a message does not come before the message's own outcome, where pmof carries both. */
static void check_order_on_channel(void) {
    section("order on a shared channel");
    enum { ROUNDS = 100 };
    struct rpma_conn_cfg *configuration = NULL;
    struct rpma_cq *receives = NULL, *which = NULL;
    struct ibv_wc completion;
    struct link link;
    unsigned first = 0, both = 0;
    NEED(CALL(rpma_conn_cfg_new)(&configuration));
    NEED(CALL(rpma_conn_cfg_set_rcq_size)(configuration, 10));
    NEED(CALL(rpma_conn_cfg_set_compl_channel)(configuration, true));
    open_link(&link, configuration, NULL);
    struct rpma_conn *client = link.client.connection, *server = link.server.connection;
    NEED(CALL(rpma_conn_get_rcq)(client, &receives));
    for (unsigned round = 0; round < ROUNDS; round++) {
        NEED(CALL(rpma_recv)(client, link.client.region.local, 64, 64, REQUEST(1)));
        NEED(CALL(rpma_recv)(server, link.server.region.local, 64, 64, REQUEST(2)));
        NEED(CALL(rpma_send)(client, link.client.region.local, 0, 64, ALWAYS, REQUEST(3)));
        if (!next_completion(link.server.cq, &completion))
            break;
        NEED(CALL(rpma_send)(server, link.server.region.local, 0, 64, ALWAYS, REQUEST(4)));
        if (!next_completion(link.server.cq, &completion))
            break;
        for (int each = 0; each < 2; each++) {
            NEED(CALL(rpma_conn_wait)(client, 0, &which, NULL));
            first += each == 0 && which == link.client.cq;
            both += CALL(rpma_cq_get_wc)(which, 1, &completion, NULL) == 0 && completion.status == IBV_WC_SUCCESS &&
                    completion.wr_id == (which == receives ? 1 : 3);
        }
    }
    check(both == 2 * ROUNDS, "each round has two outcomes (%u)", both);
    /* Over a device the order of two queues is the device's: soft-RoCE acknowledges a message after the other program can
     * take it. */
    if (is_device())
        tell("the message's outcome came before its answer in %u of %u", first, (unsigned)ROUNDS);
    else
        check(first == ROUNDS, "the message's outcome comes before its answer (%u of %u)", first, (unsigned)ROUNDS);
    close_link(&link);
    NEED(CALL(rpma_conn_cfg_delete)(&configuration));
}

enum { CLIENTS = 3 };

/* Three connections that receive from one queue; where its completions go depends on the two configurations. */
static void check_connections_of(struct rpma_peer *peer, struct rpma_srq *queue, uint32_t connection_rcq) {
    struct rpma_conn_cfg *configuration = NULL;
    struct rpma_srq *found = NULL;
    struct rpma_conn *clients[CLIENTS] = {NULL}, *servers[CLIENTS] = {NULL};
    struct rpma_cq *of_queue = NULL, *of_client = NULL;
    struct region buffers;
    struct ibv_wc completion;
    uint32_t number = 0;
    make_region(peer, RPMA_MR_USAGE_SEND | RPMA_MR_USAGE_RECV, &buffers);
    NEED(CALL(rpma_conn_cfg_new)(&configuration));
    IS(CALL(rpma_conn_cfg_set_srq)(configuration, queue), 0);
    IS(CALL(rpma_conn_cfg_get_srq)(configuration, &found), 0);
    check(found == queue, "a configuration keeps its shared receive queue");
    NEED(CALL(rpma_conn_cfg_set_rcq_size)(configuration, connection_rcq));
    NEED(CALL(rpma_srq_get_rcq)(queue, &of_queue));
    for (int each = 0; each < CLIENTS; each++)
        connect_ends(peer, NULL, configuration, &clients[each], &servers[each]);
    for (uintptr_t request = 0; request < CLIENTS; request++)
        NEED(CALL(rpma_srq_recv)(queue, buffers.local, request * 64, 64, REQUEST(request)));
    bool right = true;
    for (int each = 0; each < CLIENTS; each++) {
        struct rpma_cq *receives = of_queue, *main_queue = NULL;
        NEED(CALL(rpma_conn_get_cq)(servers[each], &main_queue));
        if (receives == NULL)
            NEED(CALL(rpma_conn_get_rcq)(servers[each], &receives));
        if (receives == NULL)
            receives = main_queue;
        memset(buffers.bytes + 4096, 'a' + each, 64);
        NEED(CALL(rpma_conn_get_cq)(clients[each], &of_client));
        NEED(CALL(rpma_send)(clients[each], buffers.local, 4096, 64, ALWAYS, REQUEST(9)));
        completes(of_client, 9, IBV_WC_SEND, "a message");
        NEED(CALL(rpma_conn_get_qp_num)(servers[each], &number));
        right = right && wait_and_take(receives, &completion) && completion.status == IBV_WC_SUCCESS &&
                completion.qp_num == number && completion.wr_id < CLIENTS &&
                buffers.bytes[completion.wr_id * 64] == 'a' + each;
    }
    check(right, "each message is in a buffer of the shared queue, and its completion says from which connection");
    int returned = CALL(rpma_recv)(servers[0], buffers.local, 0, 64, NULL);
    tell("rpma_recv on a connection that shares its receive queue: %d", returned);
    check(returned != 0, "a connection that shares its receive queue has none of its own");
    for (int each = 0; each < CLIENTS; each++)
        close_ends(&clients[each], &servers[each]);
    NEED(CALL(rpma_conn_cfg_delete)(&configuration));
    drop_region(&buffers);
}

static void check_shared_queue(void) {
    section("shared receive queue");
    struct rpma_peer *peer = new_peer();
    struct rpma_srq *queue = NULL;
    struct rpma_srq_cfg *configuration = NULL;
    struct rpma_cq *receives = NULL;
    struct region buffers;
    make_region(peer, RPMA_MR_USAGE_RECV, &buffers);
    IS(CALL(rpma_srq_new)(NULL, NULL, &queue), RPMA_E_INVAL);
    IS(CALL(rpma_srq_new)(peer, NULL, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_srq_new)(peer, NULL, &queue), 0);
    IS(CALL(rpma_srq_get_rcq)(NULL, &receives), RPMA_E_INVAL);
    IS(CALL(rpma_srq_get_rcq)(queue, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_srq_get_rcq)(queue, &receives), 0);
    check(receives != NULL, "by default it has a completion queue of its own");
    IS(CALL(rpma_srq_recv)(NULL, buffers.local, 0, 64, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_srq_recv)(queue, NULL, 0, 64, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_srq_recv)(queue, NULL, 64, 0, NULL), RPMA_E_INVAL);
    drop_region(&buffers);
    check_connections_of(peer, queue, 0);

    struct rpma_conn_cfg *sharing = NULL;
    struct rpma_conn_req *request = NULL;
    NEED(CALL(rpma_conn_cfg_new)(&sharing));
    NEED(CALL(rpma_conn_cfg_set_srq)(sharing, queue));
    NEED(CALL(rpma_conn_cfg_set_compl_channel)(sharing, true));
    IS(CALL(rpma_conn_req_new)(peer, options.address, port(0), sharing, &request), RPMA_E_INVAL);
    check(request == NULL, "a shared channel does not go with a shared queue that has a completion queue of its own");
    NEED(CALL(rpma_conn_cfg_delete)(&sharing));
    IS(CALL(rpma_srq_delete)(NULL), RPMA_E_INVAL);
    IS(CALL(rpma_srq_delete)(&queue), 0);
    check(queue == NULL, "a deleted queue is NULL");
    IS(CALL(rpma_srq_delete)(&queue), 0);

    section("shared receive queue without completion queue");
    NEED(CALL(rpma_srq_cfg_new)(&configuration));
    NEED(CALL(rpma_srq_cfg_set_rcq_size)(configuration, 0));
    NEED(CALL(rpma_srq_cfg_set_rq_size)(configuration, 16));
    IS(CALL(rpma_srq_new)(peer, configuration, &queue), 0);
    IS(CALL(rpma_srq_get_rcq)(queue, &receives), 0);
    check(receives == NULL, "it has no completion queue where none is wanted");
    check_connections_of(peer, queue, 10);
    check_connections_of(peer, queue, 0);
    IS(CALL(rpma_srq_delete)(&queue), 0);
    NEED(CALL(rpma_srq_cfg_delete)(&configuration));
    delete_peer(&peer);
}

void check_receive_queues(void) {
    check_receive_queue();
    check_shared_channel();
    check_order_on_channel();
    check_shared_queue();
}
