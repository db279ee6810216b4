/* Connections: being made, refused, closed and lost. */
#include <fcntl.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "link.h"
#include "parts.h"
#include "peer.h"

/* Private data that a connection request and an acceptance carry, at most (rdma_cm, port space TCP). */
enum { REQUEST_DATA_BYTES = 56, ACCEPT_DATA_BYTES = 196 };

static void check_requests(struct rpma_peer *peer) {
    section("requests");
    struct rpma_conn_req *const untouched = (struct rpma_conn_req *)&options, *request = untouched;
    IS(CALL(rpma_conn_req_new)(NULL, options.address, port(0), NULL, &request), RPMA_E_INVAL);
    IS(CALL(rpma_conn_req_new)(peer, NULL, port(0), NULL, &request), RPMA_E_INVAL);
    IS(CALL(rpma_conn_req_new)(peer, options.address, NULL, NULL, &request), RPMA_E_INVAL);
    IS(CALL(rpma_conn_req_new)(peer, options.address, port(0), NULL, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_conn_req_new)(peer, NO_SUCH_NAME, port(0), NULL, &request), RPMA_E_PROVIDER);
    IS(CALL(rpma_conn_req_new)(peer, options.address, "no port", NULL, &request), RPMA_E_PROVIDER);
    check(request == untouched, "a failure leaves the request as it was");
    request = NULL;
    IS(CALL(rpma_conn_req_new)(peer, options.address, port(0), NULL, &request), 0);
    struct rpma_conn_private_data data = {NULL, 0};
    IS(CALL(rpma_conn_req_get_private_data)(NULL, &data), RPMA_E_INVAL);
    IS(CALL(rpma_conn_req_get_private_data)(request, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_conn_req_get_private_data)(request, &data), 0);
    check(data.len == 0 && data.ptr == NULL, "a request of one's own has no private data");
    IS(CALL(rpma_conn_req_delete)(NULL), RPMA_E_INVAL);
    IS(CALL(rpma_conn_req_delete)(&request), 0);
    check(request == NULL, "a deleted request is NULL");
    IS(CALL(rpma_conn_req_delete)(&request), 0);

    struct rpma_conn *connection = NULL;
    IS(CALL(rpma_conn_req_connect)(NULL, NULL, &connection), RPMA_E_INVAL);
    IS(CALL(rpma_conn_req_connect)(&request, NULL, &connection), RPMA_E_INVAL);
    char byte = 0;
    static const char *const what[] = {"no connection", "private data without length", "private data without address"};
    for (int wrong = 0; wrong < 3; wrong++) {
        NEED(CALL(rpma_conn_req_new)(peer, options.address, port(0), NULL, &request));
        data.ptr = wrong == 2 ? NULL : &byte;
        data.len = wrong == 1 ? 0 : 1;
        int returned = CALL(rpma_conn_req_connect)(&request, wrong == 0 ? NULL : &data, wrong == 0 ? NULL : &connection);
        if (!check(returned == RPMA_E_INVAL, "rpma_conn_req_connect with %s is RPMA_E_INVAL", what[wrong]))
            tell("returned %d", returned);
        check(request == NULL, "the request is consumed all the same");
        NEED(CALL(rpma_conn_req_delete)(&request));
    }
    check(connection == NULL, "a failure leaves the connection as it was");

    struct rpma_conn_cfg *configuration = NULL;
    NEED(CALL(rpma_conn_cfg_new)(&configuration));
    NEED(CALL(rpma_conn_cfg_set_timeout)(configuration, 300));
    int returned = CALL(rpma_conn_req_new)(peer, UNREACHABLE_ADDRESS, port(0), configuration, &request);
    if (returned == 0 && CALL(rpma_conn_req_connect)(&request, NULL, &connection) == 0) {
        /* A transport that does not resolve addresses finds out while it connects. */
        enum rpma_conn_event event = next_event(connection, PATIENCE_MS);
        check(event == RPMA_CONN_UNREACHABLE, "an address that no packet reaches is unreachable");
        tell("event %d", event);
        NEED(CALL(rpma_conn_delete)(&connection));
    } else {
        check_code(returned, RPMA_E_PROVIDER, "a request to an address that no packet reaches is RPMA_E_PROVIDER");
    }
    NEED(CALL(rpma_conn_cfg_delete)(&configuration));
}

static void check_endpoints(struct rpma_peer *peer) {
    section("endpoints");
    struct rpma_ep *const untouched = (struct rpma_ep *)&options, *endpoint = untouched, *second = NULL;
    struct rpma_conn_req *request = NULL;
    int descriptor = -1;
    IS(CALL(rpma_ep_listen)(NULL, options.address, port(0), &endpoint), RPMA_E_INVAL);
    IS(CALL(rpma_ep_listen)(peer, NULL, port(0), &endpoint), RPMA_E_INVAL);
    IS(CALL(rpma_ep_listen)(peer, options.address, NULL, &endpoint), RPMA_E_INVAL);
    IS(CALL(rpma_ep_listen)(peer, options.address, port(0), NULL), RPMA_E_INVAL);
    IS(CALL(rpma_ep_listen)(peer, FOREIGN_ADDRESS, port(0), &endpoint), RPMA_E_PROVIDER);
    IS(CALL(rpma_ep_listen)(peer, NO_SUCH_NAME, port(0), &endpoint), RPMA_E_PROVIDER);
    IS(CALL(rpma_ep_listen)(peer, options.address, "no port", &endpoint), RPMA_E_PROVIDER);
    check(endpoint == untouched, "a failure leaves the endpoint as it was");
    NEED(CALL(rpma_ep_listen)(peer, options.address, port(0), &endpoint));
    IS(CALL(rpma_ep_get_fd)(NULL, &descriptor), RPMA_E_INVAL);
    IS(CALL(rpma_ep_get_fd)(endpoint, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_ep_get_fd)(endpoint, &descriptor), 0);
    check(fcntl(descriptor, F_GETFL) >= 0 && (fcntl(descriptor, F_GETFL) & O_NONBLOCK) == 0,
          "an endpoint's descriptor is a blocking one");
    IS(CALL(rpma_ep_next_conn_req)(NULL, NULL, &request), RPMA_E_INVAL);
    IS(CALL(rpma_ep_next_conn_req)(endpoint, NULL, NULL), RPMA_E_INVAL);
    check(!readable(descriptor, 0), "there is nothing to read where nobody connects");
    IS(CALL(rpma_ep_listen)(peer, options.address, port(0), &second), RPMA_E_PROVIDER);
    IS(CALL(rpma_ep_listen)(peer, options.address, port(1), &second), 0);
    set_nonblocking(descriptor);
    IS_UNLESS_REFERENCE("librpma takes EAGAIN for an error of the provider",
                        CALL(rpma_ep_next_conn_req)(endpoint, NULL, &request), RPMA_E_NO_EVENT);
    if (options.reference)
        IS(CALL(rpma_ep_next_conn_req)(endpoint, NULL, &request), RPMA_E_PROVIDER);
    check(request == NULL, "a failure leaves the request as it was");
    IS(CALL(rpma_ep_shutdown)(NULL), RPMA_E_INVAL);
    IS(CALL(rpma_ep_shutdown)(&endpoint), 0);
    check(endpoint == NULL, "an endpoint that was shut down is NULL");
    IS(CALL(rpma_ep_shutdown)(&endpoint), 0);
    IS(CALL(rpma_ep_shutdown)(&second), 0);
    NEED(CALL(rpma_ep_listen)(peer, options.address, port(0), &endpoint));
    check(true, "its port is free again");
    NEED(CALL(rpma_ep_shutdown)(&endpoint));
}

static void check_established(struct rpma_peer *peer) {
    section("established");
    struct rpma_conn *client = NULL, *server = NULL;
    struct rpma_cq *queue = NULL;
    struct rpma_peer_cfg *claim = NULL;
    struct rpma_conn_private_data data;
    enum rpma_conn_event event = RPMA_CONN_UNDEFINED;
    uint32_t client_number = 0, server_number = 0;
    int descriptor = -1;
    bool is_receive = false;
    connect_ends(peer, NULL, NULL, &client, &server);
    check(true, "a connection is made, and outlives its endpoint");
    IS(CALL(rpma_conn_get_qp_num)(NULL, &client_number), RPMA_E_INVAL);
    IS(CALL(rpma_conn_get_qp_num)(client, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_conn_get_qp_num)(client, &client_number), 0);
    IS(CALL(rpma_conn_get_qp_num)(server, &server_number), 0);
    check(client_number != server_number, "the ends have numbers of their own");
    IS(CALL(rpma_conn_get_cq)(NULL, &queue), RPMA_E_INVAL);
    IS(CALL(rpma_conn_get_cq)(client, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_conn_get_cq)(client, &queue), 0);
    check(queue != NULL, "there is a completion queue");
    IS(CALL(rpma_conn_get_rcq)(NULL, &queue), RPMA_E_INVAL);
    IS(CALL(rpma_conn_get_rcq)(client, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_conn_get_rcq)(client, &queue), 0);
    check(queue == NULL, "there is no receive completion queue unless wanted");
    IS(CALL(rpma_conn_get_event_fd)(NULL, &descriptor), RPMA_E_INVAL);
    IS(CALL(rpma_conn_get_event_fd)(client, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_conn_get_event_fd)(client, &descriptor), 0);
    check((fcntl(descriptor, F_GETFL) & O_NONBLOCK) == 0, "a connection's descriptor is a blocking one");
    IS(CALL(rpma_conn_next_event)(NULL, &event), RPMA_E_INVAL);
    IS(CALL(rpma_conn_next_event)(client, NULL), RPMA_E_INVAL);
    check(!readable(descriptor, 0), "there is no event after the first");
    set_nonblocking(descriptor);
    IS_UNLESS_REFERENCE("librpma takes EAGAIN for an error of the provider", CALL(rpma_conn_next_event)(client, &event),
                        RPMA_E_NO_EVENT);
    if (options.reference)
        IS(CALL(rpma_conn_next_event)(client, &event), RPMA_E_PROVIDER);
    IS(CALL(rpma_conn_get_compl_fd)(NULL, &descriptor), RPMA_E_INVAL);
    IS(CALL(rpma_conn_get_compl_fd)(client, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_conn_get_compl_fd)(client, &descriptor), RPMA_E_NOT_SHARED_CHNL);
    IS(CALL(rpma_conn_wait)(NULL, 0, &queue, &is_receive), RPMA_E_INVAL);
    IS(CALL(rpma_conn_wait)(client, 0, NULL, &is_receive), RPMA_E_INVAL);
    IS(CALL(rpma_conn_wait)(client, 0, &queue, &is_receive), RPMA_E_NOT_SHARED_CHNL);
    IS(CALL(rpma_conn_get_private_data)(NULL, &data), RPMA_E_INVAL);
    IS(CALL(rpma_conn_get_private_data)(client, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_conn_get_private_data)(client, &data), 0);
    tell("private data where none was sent: %u bytes", data.len);
    NEED(CALL(rpma_peer_cfg_new)(&claim));
    IS(CALL(rpma_conn_apply_remote_peer_cfg)(NULL, claim), RPMA_E_INVAL);
    IS(CALL(rpma_conn_apply_remote_peer_cfg)(client, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_conn_apply_remote_peer_cfg)(client, claim), 0);
    NEED(CALL(rpma_peer_cfg_delete)(&claim));
    IS(CALL(rpma_conn_disconnect)(NULL), RPMA_E_INVAL);
    close_ends(&client, &server);
    check(client == NULL && server == NULL, "deleted connections are NULL");
    IS(CALL(rpma_conn_delete)(NULL), RPMA_E_INVAL);
    IS(CALL(rpma_conn_delete)(&client), 0);
}

/* Both directions, with as much as fits and a byte more. */
static void check_private_data(struct rpma_peer *peer) {
    section("private data");
    unsigned char sent[255];
    for (size_t byte = 0; byte < sizeof sent; byte++)
        sent[byte] = (unsigned char)(byte * 7 + 1);
    struct rpma_ep *endpoint = NULL;
    struct rpma_conn_req *outgoing = NULL, *incoming = NULL;
    struct rpma_conn *client = NULL, *server = NULL;
    struct rpma_conn_private_data data = {sent, REQUEST_DATA_BYTES + 1}, got;
    NEED(CALL(rpma_ep_listen)(peer, options.address, port(0), &endpoint));
    NEED(CALL(rpma_conn_req_new)(peer, options.address, port(0), NULL, &outgoing));
    IS(CALL(rpma_conn_req_connect)(&outgoing, &data, &client), RPMA_E_PROVIDER);
    check(outgoing == NULL, "a request whose connecting fails is consumed");
    check(client == NULL, "and there is no connection");
    /* Whatever the answer, what follows goes on. */
    NEED(CALL(rpma_conn_req_delete)(&outgoing));
    NEED(CALL(rpma_conn_delete)(&client));
    data.len = REQUEST_DATA_BYTES;
    NEED(CALL(rpma_conn_req_new)(peer, options.address, port(0), NULL, &outgoing));
    IS(CALL(rpma_conn_req_connect)(&outgoing, &data, &client), 0);
    check(outgoing == NULL, "a request that connects is consumed");
    incoming = next_request(endpoint, NULL);
    IS(CALL(rpma_conn_req_get_private_data)(incoming, &got), 0);
    check(got.len >= data.len && memcmp(got.ptr, sent, data.len) == 0, "the request's data arrives, all that fits");
    data.len = ACCEPT_DATA_BYTES;
    IS(CALL(rpma_conn_req_connect)(&incoming, &data, &server), 0);
    check(next_event(client, PATIENCE_MS) == RPMA_CONN_ESTABLISHED, "the client is connected");
    check(next_event(server, PATIENCE_MS) == RPMA_CONN_ESTABLISHED, "the server is connected");
    IS(CALL(rpma_conn_get_private_data)(client, &got), 0);
    check(got.len >= data.len && memcmp(got.ptr, sent, data.len) == 0, "the acceptance's data arrives, all that fits");
    IS(CALL(rpma_conn_get_private_data)(server, &got), 0);
    check(got.len >= REQUEST_DATA_BYTES && memcmp(got.ptr, sent, REQUEST_DATA_BYTES) == 0,
          "the server's connection keeps the data of the request");
    close_ends(&client, &server);

    data.len = 3;
    NEED(CALL(rpma_conn_req_new)(peer, options.address, port(0), NULL, &outgoing));
    NEED(CALL(rpma_conn_req_connect)(&outgoing, &data, &client));
    incoming = next_request(endpoint, NULL);
    NEED(CALL(rpma_conn_req_get_private_data)(incoming, &got));
    tell("of 3 bytes in a request %u arrive", got.len);
    check(got.len >= 3 && memcmp(got.ptr, sent, 3) == 0, "three bytes arrive");
    data.len = ACCEPT_DATA_BYTES + 1;
    IS(CALL(rpma_conn_req_connect)(&incoming, &data, &server), RPMA_E_PROVIDER);
    check(incoming == NULL && server == NULL, "a request whose acceptance fails is consumed");
    check(next_event(client, PATIENCE_MS) == RPMA_CONN_REJECTED, "the client of a failed acceptance is rejected");
    NEED(CALL(rpma_conn_delete)(&server));
    NEED(CALL(rpma_conn_delete)(&client));
    NEED(CALL(rpma_ep_shutdown)(&endpoint));
}

void check_connecting(void) {
    struct rpma_peer *peer = new_peer();
    check_requests(peer);
    check_endpoints(peer);
    check_established(peer);
    check_private_data(peer);
    delete_peer(&peer);
}

static void check_rejection(struct rpma_peer *peer) {
    section("rejection");
    struct rpma_ep *endpoint = NULL;
    struct rpma_conn_req *request = NULL;
    struct rpma_conn *connection = NULL;
    struct rpma_conn_cfg *shared = NULL;
    struct rpma_cq *queue = NULL;
    NEED(CALL(rpma_conn_cfg_new)(&shared));
    NEED(CALL(rpma_conn_cfg_set_rcq_size)(shared, 4));
    NEED(CALL(rpma_conn_cfg_set_compl_channel)(shared, true));
    for (int attempt = 0; attempt < 3; attempt++) {
        bool has_channel = attempt == 2;
        NEED(CALL(rpma_conn_req_new)(peer, options.address, port(2), has_channel ? shared : NULL, &request));
        IS(CALL(rpma_conn_req_connect)(&request, NULL, &connection), 0);
        check(next_event(connection, PATIENCE_MS) == RPMA_CONN_REJECTED, "where nobody listens a client is rejected");
        /* Over a device, as with librpma, a waiter waits forever. */
        if (!is_device() && has_channel) {
            IS(CALL(rpma_conn_wait)(connection, 0, &queue, NULL), RPMA_E_NO_COMPLETION);
        } else if (!is_device()) {
            NEED(CALL(rpma_conn_get_cq)(connection, &queue));
            IS(CALL(rpma_cq_wait)(queue), RPMA_E_NO_COMPLETION);
        }
        int returned = CALL(rpma_conn_disconnect)(connection);
        check(returned == 0 || returned == RPMA_E_PROVIDER, "a rejected connection may be disconnected");
        tell("disconnecting a rejected connection: %d", returned);
        IS(CALL(rpma_conn_delete)(&connection), 0);
    }
    NEED(CALL(rpma_conn_cfg_delete)(&shared));
    NEED(CALL(rpma_ep_listen)(peer, options.address, port(2), &endpoint));
    NEED(CALL(rpma_conn_req_new)(peer, options.address, port(2), NULL, &request));
    NEED(CALL(rpma_conn_req_connect)(&request, NULL, &connection));
    request = next_request(endpoint, NULL);
    IS(CALL(rpma_conn_req_delete)(&request), 0);
    check(next_event(connection, PATIENCE_MS) == RPMA_CONN_REJECTED, "a request that is deleted is rejected");
    IS(CALL(rpma_conn_delete)(&connection), 0);
    check(true, "a rejected connection is deleted without being disconnected");
    NEED(CALL(rpma_ep_shutdown)(&endpoint));
}

/* Clients that connect a socket and say nothing: others are served meanwhile, and nothing is waited for. Only over TCP is there a socket
 * to connect. */
static void check_silent_clients(struct rpma_peer *peer) {
    section("silent clients");
    enum { SILENT = 5 };
    struct rpma_ep *endpoint = NULL;
    struct rpma_conn_req *request = NULL;
    struct rpma_conn *client = NULL, *server = NULL;
    struct addrinfo wanted = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    int sockets[SILENT], descriptor = -1, connected = 0;
    NEED(CALL(rpma_ep_listen)(peer, options.address, port(2), &endpoint));
    NEED(CALL(rpma_ep_get_fd)(endpoint, &descriptor));
    if (getaddrinfo(options.address, port(2), &wanted, &found) != 0)
        bail_out("the address cannot be resolved");
    for (int each = 0; each < SILENT; each++) {
        sockets[each] = socket(found->ai_family, SOCK_STREAM, 0);
        connected += connect(sockets[each], found->ai_addr, found->ai_addrlen) == 0;
    }
    freeaddrinfo(found);
    if (connected == 0) {
        tell("there is no socket to connect");
    } else {
        check(!readable(descriptor, 300), "who says nothing is no request");
        close(sockets[0]);
        check(!readable(descriptor, 100), "nor is who leaves");
        NEED(CALL(rpma_conn_req_new)(peer, options.address, port(2), NULL, &request));
        NEED(CALL(rpma_conn_req_connect)(&request, NULL, &client));
        check(readable(descriptor, PATIENCE_MS), "a client behind them is");
        /* It blocks, and has nothing to wait for. */
        IS(CALL(rpma_ep_next_conn_req)(endpoint, NULL, &request), 0);
        check(!readable(descriptor, 0), "then none is left");
        set_nonblocking(descriptor);
        struct rpma_conn_req *none = NULL;
        IS(CALL(rpma_ep_next_conn_req)(endpoint, NULL, &none), RPMA_E_NO_EVENT);
        NEED(CALL(rpma_conn_req_connect)(&request, NULL, &server));
        check(next_event(client, PATIENCE_MS) == RPMA_CONN_ESTABLISHED &&
                  next_event(server, PATIENCE_MS) == RPMA_CONN_ESTABLISHED, "it is served");
        close_ends(&client, &server);
    }
    for (int each = 1; each < SILENT; each++)
        close(sockets[each]);
    NEED(CALL(rpma_ep_shutdown)(&endpoint));
}

static void check_ends(struct rpma_peer *peer) {
    section("ends");
    struct rpma_conn *client = NULL, *server = NULL;
    connect_ends(peer, NULL, NULL, &client, &server);
    IS(CALL(rpma_conn_delete)(&client), 0);
    check(next_event(server, PATIENCE_MS) == RPMA_CONN_CLOSED, "a connection deleted at one end is closed at the other");
    IS(CALL(rpma_conn_disconnect)(server), 0);
    IS(CALL(rpma_conn_delete)(&server), 0);
    connect_ends(peer, NULL, NULL, &client, &server);
    IS(CALL(rpma_conn_disconnect)(server), 0);
    check(next_event(client, PATIENCE_MS) == RPMA_CONN_CLOSED, "a server may end a connection too");
    IS(CALL(rpma_conn_delete)(&client), 0);
    IS(CALL(rpma_conn_delete)(&server), 0);

    /* A client in another process, which is killed. */
    struct rpma_ep *endpoint = NULL;
    NEED(CALL(rpma_ep_listen)(peer, options.address, port(3), &endpoint));
    pid_t child = start_peer(port(3));
    struct rpma_conn_req *request = next_request(endpoint, NULL);
    NEED(CALL(rpma_conn_req_connect)(&request, NULL, &server));
    check(next_event(server, PATIENCE_MS) == RPMA_CONN_ESTABLISHED, "a client in another process connects");
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    enum rpma_conn_event event = next_event(server, PATIENCE_MS);
    check(event == RPMA_CONN_CLOSED || event == RPMA_CONN_LOST, "the end of a killed client is noticed");
    tell("event %d", event);
    IS(CALL(rpma_conn_disconnect)(server), 0);
    IS(CALL(rpma_conn_delete)(&server), 0);
    NEED(CALL(rpma_ep_shutdown)(&endpoint));
}

void check_lives(void) {
    struct rpma_peer *peer = new_peer();
    check_rejection(peer);
    check_silent_clients(peer);
    check_ends(peer);
    delete_peer(&peer);
}

/* What a program may still hold when the object has been deleted. */
static void check_stale(void) {
    section("deleted objects");
    if (options.reference) {
        skip("librpma frees the memory that it then reads", "deleted objects are refused");
        return;
    }
    struct link link;
    struct rpma_conn_cfg *configuration = NULL;
    struct rpma_ep *endpoint = NULL;
    size_t size = 0;
    uint32_t number = 0;
    int descriptor = -1;
    open_link(&link, NULL, NULL);
    NEED(CALL(rpma_conn_cfg_new)(&configuration));
    NEED(CALL(rpma_ep_listen)(link.peer, options.address, port(6), &endpoint));
    struct rpma_conn *connection = link.client.connection;
    struct rpma_cq *queue = link.client.cq;
    struct rpma_mr_local *local = link.client.region.local;
    struct rpma_mr_remote *remote = link.server.region.remote;
    struct rpma_peer *peer = link.peer;
    const struct rpma_conn_cfg *gone = configuration;
    const struct rpma_ep *shut = endpoint;
    struct ibv_wc completion;
    NEED(CALL(rpma_ep_shutdown)(&endpoint));
    NEED(CALL(rpma_conn_cfg_delete)(&configuration));
    close_link(&link);
    IS(CALL(rpma_conn_get_qp_num)(connection, &number), RPMA_E_INVAL);
    IS(CALL(rpma_conn_disconnect)(connection), RPMA_E_INVAL);
    IS(CALL(rpma_cq_get_wc)(queue, 1, &completion, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_mr_get_size)(local, &size), RPMA_E_INVAL);
    IS(CALL(rpma_mr_remote_get_size)(remote, &size), RPMA_E_INVAL);
    IS(CALL(rpma_ep_listen)(peer, options.address, port(6), &endpoint), RPMA_E_INVAL);
    IS(CALL(rpma_conn_cfg_get_cq_size)(gone, &number), RPMA_E_INVAL);
    IS(CALL(rpma_ep_get_fd)(shut, &descriptor), RPMA_E_INVAL);
    IS(CALL(rpma_conn_delete)(&connection), RPMA_E_INVAL);
}

void check_process(void) {
    check_stale();
    section("process");
    struct rpma_peer *peer = new_peer();
    struct rpma_conn_req *request = NULL;
    struct rpma_ep *endpoint = NULL;
    struct rlimit limit, low;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        bail_out("no limit of descriptors");
    int next = dup(STDOUT_FILENO);
    close(next);
    low = (struct rlimit){.rlim_cur = (rlim_t)next, .rlim_max = limit.rlim_max};
    setrlimit(RLIMIT_NOFILE, &low);
    int new_request = CALL(rpma_conn_req_new)(peer, options.address, port(4), NULL, &request);
    int listening = CALL(rpma_ep_listen)(peer, options.address, port(4), &endpoint);
    setrlimit(RLIMIT_NOFILE, &limit);
    check_code(new_request, RPMA_E_PROVIDER, "rpma_conn_req_new without descriptors left is RPMA_E_PROVIDER");
    check_code(listening, RPMA_E_PROVIDER, "rpma_ep_listen without descriptors left is RPMA_E_PROVIDER");
    NEED(CALL(rpma_conn_req_delete)(&request));
    NEED(CALL(rpma_ep_shutdown)(&endpoint));
    delete_peer(&peer);

    struct link link;
    open_link(&link, NULL, NULL);
    fflush(stdout);
    /* Not the exit code, which valgrind takes for itself. */
    int answer[2], in_child = 0;
    if (pipe(answer) != 0)
        bail_out("no pipe");
    pid_t child = fork();
    if (child == 0) {
        uint32_t number = 0;
        in_child = options.reference ? 0 : CALL(rpma_conn_get_qp_num)(link.client.connection, &number);
        _Exit(write(answer[1], &in_child, sizeof in_child) != sizeof in_child);
    }
    close(answer[1]);
    bool answered = read(answer[0], &in_child, sizeof in_child) == sizeof in_child;
    close(answer[0]);
    waitpid(child, NULL, 0);
    check(answered, "a child that is forked ends");
    if (options.reference)
        skip("librpma does not look at it", "in a child that is forked a connection is refused");
    else
        check_code(in_child, RPMA_E_INVAL, "in a child that is forked a connection is RPMA_E_INVAL");
    link.client.region.bytes[0] = 0x77;
    IS(CALL(rpma_write)(link.client.connection, link.server.region.remote, 0, link.client.region.local, 0, 1,
                        RPMA_F_COMPLETION_ALWAYS, REQUEST(1)), 0);
    completes(link.client.cq, 1, IBV_WC_RDMA_WRITE, "a write after a fork");
    check(link.server.region.bytes[0] == 0x77, "it writes what the parent had");
    close_link(&link);
}
