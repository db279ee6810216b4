/* Every way in which programs wait, on every descriptor that the library hands out: a table of both. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "link.h"
#include "parts.h"

enum {
    ALWAYS = RPMA_F_COMPLETION_ALWAYS,
    REQUESTS = 64,    /* clients that connect at once */
    COMPLETIONS = 16, /* of each kind that are there at once */
    QUEUE = 64,       /* what the queues of a connection are made for */
};

/* One descriptor, and what makes it readable. */
struct stage {
    int descriptor;
    struct rpma_ep *endpoint;
    struct rpma_conn *clients[REQUESTS], *servers[REQUESTS];
    unsigned client_count, server_count;
    struct link link;
    struct rpma_srq *shared;
    struct rpma_cq *queue;
    bool is_channel, is_first;
};

struct source {
    const char *name;
    /* Makes all but the descriptor. */
    void (*set)(struct stage *);
    /* Asks for the descriptor. */
    void (*ask)(struct stage *);
    /* Brings half of the items; called twice. */
    void (*bring)(struct stage *);
    /* How many items there are then; on a device, where that differs. */
    unsigned items, device_items;
    /* Takes one item, or all that are there; how many there were. */
    unsigned (*take)(struct stage *, bool all);
    void (*drop)(struct stage *);
    /* One event of a device's channel announces all completions until it is taken. */
    bool gathers;
};

/* --- the endpoint: clients that connect at once --- */

static void set_endpoint(struct stage *stage) {
    stage->link.peer = new_peer();
    NEED(CALL(rpma_ep_listen)(stage->link.peer, options.address, port(8), &stage->endpoint));
}

static void ask_endpoint(struct stage *stage) {
    NEED(CALL(rpma_ep_get_fd)(stage->endpoint, &stage->descriptor));
}

static void connect_client(struct stage *stage, unsigned to) {
    struct rpma_conn_req *request = NULL;
    NEED(CALL(rpma_conn_req_new)(stage->link.peer, options.address, port(to), NULL, &request));
    NEED(CALL(rpma_conn_req_connect)(&request, NULL, &stage->clients[stage->client_count++]));
}

static void bring_requests(struct stage *stage) {
    for (unsigned each = 0; each < REQUESTS / 2; each++)
        connect_client(stage, 8);
}

static unsigned take_request(struct stage *stage, bool all) {
    struct rpma_conn_req *request = NULL;
    unsigned taken = 0;
    do {
        /* Debian's librpma has another code where there is none. */
        if (CALL(rpma_ep_next_conn_req)(stage->endpoint, NULL, &request) != 0)
            break;
        /* Taken by one thread, or by two. */
        unsigned place = __atomic_fetch_add(&stage->server_count, 1, __ATOMIC_SEQ_CST);
        if (place >= REQUESTS)
            bail_out("there are more requests than clients");
        NEED(CALL(rpma_conn_req_connect)(&request, NULL, &stage->servers[place]));
        taken++;
    } while (all);
    return taken;
}

static void drop_clients(struct stage *stage) {
    while (stage->server_count > 0)
        NEED(CALL(rpma_conn_delete)(&stage->servers[--stage->server_count]));
    while (stage->client_count > 0)
        NEED(CALL(rpma_conn_delete)(&stage->clients[--stage->client_count]));
    NEED(CALL(rpma_ep_shutdown)(&stage->endpoint));
    delete_peer(&stage->link.peer);
}

static unsigned items_of(const struct source *source) {
    return source->device_items > 0 && is_device() ? source->device_items : source->items;
}

/* --- events of a connection: established, and closed ---
 * Over RDMA the other side is not established before this one has taken the event, so that there is only one at a time. */

static void set_events(struct stage *stage) {
    set_endpoint(stage);
    connect_client(stage, 8);
}

static void ask_events(struct stage *stage) {
    NEED(CALL(rpma_conn_get_event_fd)(stage->clients[0], &stage->descriptor));
}

static void bring_event(struct stage *stage) {
    struct rpma_conn **server = &stage->link.server.connection;
    if (*server != NULL) {
        if (is_device())
            return;
        NEED(CALL(rpma_conn_disconnect)(*server));
        return;
    }
    struct rpma_conn_req *request = next_request(stage->endpoint, NULL);
    NEED(CALL(rpma_conn_req_connect)(&request, NULL, server));
    if (!is_device() && next_event(*server, PATIENCE_MS) != RPMA_CONN_ESTABLISHED)
        bail_out("a connection was not established");
}

static unsigned take_event(struct stage *stage, bool all) {
    enum rpma_conn_event event;
    unsigned taken = 0;
    do {
        if (CALL(rpma_conn_next_event)(stage->clients[0], &event) != 0)
            break;
        taken++;
    } while (all);
    return taken;
}

static void drop_events(struct stage *stage) {
    NEED(CALL(rpma_conn_delete)(&stage->link.server.connection));
    drop_clients(stage);
}

/* --- the event of a connection that nobody takes --- */

static void set_refused(struct stage *stage) {
    set_endpoint(stage);
    connect_client(stage, 9);
}

static void bring_nothing(struct stage *stage) {
    (void)stage;
}

/* --- completions --- */

static void open_stage(struct stage *stage, bool has_receives, bool is_channel, bool is_shared) {
    struct rpma_peer *peer = new_peer();
    struct rpma_conn_cfg *client = NULL, *server = NULL;
    NEED(CALL(rpma_conn_cfg_new)(&client));
    NEED(CALL(rpma_conn_cfg_new)(&server));
    for (struct rpma_conn_cfg *each = client;; each = server) {
        NEED(CALL(rpma_conn_cfg_set_cq_size)(each, 2 * QUEUE));
        NEED(CALL(rpma_conn_cfg_set_sq_size)(each, QUEUE));
        NEED(CALL(rpma_conn_cfg_set_rq_size)(each, QUEUE));
        if (each == server)
            break;
    }
    NEED(CALL(rpma_conn_cfg_set_rcq_size)(server, has_receives ? QUEUE : 0));
    NEED(CALL(rpma_conn_cfg_set_compl_channel)(server, is_channel));
    if (is_shared) {
        NEED(CALL(rpma_srq_new)(peer, NULL, &stage->shared));
        NEED(CALL(rpma_conn_cfg_set_srq)(server, stage->shared));
    }
    open_link_of(peer, &stage->link, client, server);
    NEED(CALL(rpma_conn_cfg_delete)(&client));
    NEED(CALL(rpma_conn_cfg_delete)(&server));
}

static void set_queue(struct stage *stage) {
    open_stage(stage, false, false, false);
    stage->queue = stage->link.client.cq;
}

static void ask_queue(struct stage *stage) {
    NEED(CALL(rpma_cq_get_fd)(stage->queue, &stage->descriptor));
}

static void write_from(const struct end *from, const struct end *to, unsigned count) {
    for (uintptr_t each = 0; each < count; each++)
        NEED(CALL(rpma_write)(from->connection, to->region.remote, 0, from->region.local, 0, 64, ALWAYS, REQUEST(each)));
}

static void bring_writes(struct stage *stage) {
    write_from(&stage->link.client, &stage->link.server, COMPLETIONS / 2);
}

static unsigned take_completion(struct stage *stage, bool all) {
    struct rpma_cq *queue = stage->queue;
    struct ibv_wc completion;
    unsigned taken = 0;
    if (stage->is_channel) {
        if (CALL(rpma_conn_wait)(stage->link.server.connection, 0, &queue, NULL) != 0)
            return 0;
    } else if (CALL(rpma_cq_wait)(queue) != 0) {
        return 0;
    }
    do {
        if (CALL(rpma_cq_get_wc)(queue, 1, &completion, NULL) != 0)
            break;
        if (completion.status != IBV_WC_SUCCESS)
            check(false, "a completion is a success, not %d", completion.status);
        taken++;
    } while (all);
    return taken;
}

static void drop_link(struct stage *stage) {
    close_link(&stage->link);
}

static void post_receives(struct stage *stage) {
    struct end *server = &stage->link.server;
    for (uintptr_t each = 0; each < COMPLETIONS; each++)
        NEED(stage->shared != NULL
                 ? CALL(rpma_srq_recv)(stage->shared, server->region.local, each * 64, 64, REQUEST(each))
                 : CALL(rpma_recv)(server->connection, server->region.local, each * 64, 64, REQUEST(each)));
}

static void set_receives(struct stage *stage) {
    open_stage(stage, true, false, false);
    NEED(CALL(rpma_conn_get_rcq)(stage->link.server.connection, &stage->queue));
    post_receives(stage);
}

/* What is no receive comes too, and must not wake a waiter for receives. */
static void bring_messages(struct stage *stage) {
    struct ibv_wc completion;
    const struct end *client = &stage->link.client;
    write_from(client, &stage->link.server, COMPLETIONS / 2);
    if (stage->is_first && stage->descriptor >= 0)
        check(!readable(stage->descriptor, 20), "writes of the other side do not make it readable");
    for (unsigned each = 0; each < COMPLETIONS / 2; each++)
        if (!next_completion(client->cq, &completion))
            bail_out("a write does not complete");
    for (uintptr_t each = 0; each < COMPLETIONS / 2; each++)
        NEED(CALL(rpma_send)(client->connection, client->region.local, 0, 64, ALWAYS, REQUEST(each)));
    for (unsigned each = 0; each < COMPLETIONS / 2; each++)
        if (!next_completion(client->cq, &completion))
            bail_out("a message is not sent");
}

static void set_channel(struct stage *stage) {
    open_stage(stage, true, true, false);
    stage->is_channel = true;
    post_receives(stage);
}

static void ask_channel(struct stage *stage) {
    NEED(CALL(rpma_conn_get_compl_fd)(stage->link.server.connection, &stage->descriptor));
}

static void bring_both(struct stage *stage) {
    bring_messages(stage);
    write_from(&stage->link.server, &stage->link.client, COMPLETIONS / 2);
}

static void set_shared(struct stage *stage) {
    open_stage(stage, false, false, true);
    NEED(CALL(rpma_srq_get_rcq)(stage->shared, &stage->queue));
    post_receives(stage);
}

static void drop_shared(struct stage *stage) {
    struct link *link = &stage->link;
    close_ends(&link->client.connection, &link->server.connection);
    NEED(CALL(rpma_srq_delete)(&stage->shared));
    drop_region(&link->client.region);
    drop_region(&link->server.region);
    delete_peer(&link->peer);
}

static const struct source sources[] = {
    {"endpoint", set_endpoint, ask_endpoint, bring_requests, REQUESTS, 0, take_request, drop_clients, false},
    {"events", set_events, ask_events, bring_event, 2, 1, take_event, drop_events, false},
    {"event of a refused connection", set_refused, ask_events, bring_nothing, 1, 0, take_event, drop_clients, false},
    {"completion queue", set_queue, ask_queue, bring_writes, COMPLETIONS, 0, take_completion, drop_link, true},
    {"receive completion queue", set_receives, ask_queue, bring_messages, COMPLETIONS, 0, take_completion, drop_link, true},
    {"shared channel", set_channel, ask_channel, bring_both, 2 * COMPLETIONS, 0, take_completion, drop_link, true},
    {"queue of shared receives", set_shared, ask_queue, bring_messages, COMPLETIONS, 0, take_completion, drop_shared, true},
};

/* --- ways --- */

/* A blocking descriptor, poll, one item at a wake-up. */
static unsigned one_at_a_time(const struct source *source, struct stage *stage) {
    unsigned taken = 0;
    while (taken < items_of(source) && readable(stage->descriptor, PATIENCE_MS)) {
        unsigned now = source->take(stage, false);
        if (now == 0)
            check(false, "%s: a wake-up is for nothing", source->name);
        taken += now;
    }
    return taken;
}

/* A descriptor that does not block, poll, all items at a wake-up. */
static unsigned all_at_once(const struct source *source, struct stage *stage) {
    unsigned taken = 0;
    set_nonblocking(stage->descriptor);
    while (taken < items_of(source) && readable(stage->descriptor, PATIENCE_MS))
        taken += source->take(stage, true);
    return taken;
}

/* The same with edge-triggered epoll. */
static unsigned by_edges(const struct source *source, struct stage *stage) {
    unsigned taken = 0;
    struct epoll_event ready = {.events = EPOLLIN | EPOLLET};
    int poller = epoll_create1(0);
    set_nonblocking(stage->descriptor);
    if (epoll_ctl(poller, EPOLL_CTL_ADD, stage->descriptor, &ready) != 0)
        bail_out("epoll does not take a descriptor");
    while (taken < items_of(source) && epoll_wait(poller, &ready, 1, PATIENCE_MS) == 1)
        for (unsigned now; (now = source->take(stage, true)) > 0;)
            taken += now;
    close(poller);
    return taken;
}

struct crew {
    const struct source *source;
    struct stage *stage;
    unsigned taken;
};

static void *one_of_two(void *argument) {
    struct crew *crew = argument;
    double start = now_ms();
    do {
        if (readable(crew->stage->descriptor, 20))
            __atomic_add_fetch(&crew->taken, crew->source->take(crew->stage, false), __ATOMIC_SEQ_CST);
    } while (__atomic_load_n(&crew->taken, __ATOMIC_SEQ_CST) < items_of(crew->source) &&
             now_ms() - start < PATIENCE_MS);
    return NULL;
}

/* Two threads that wait for one descriptor, and take one item at a wake-up. */
static unsigned by_two_threads(const struct source *source, struct stage *stage) {
    struct crew crew = {.source = source, .stage = stage};
    pthread_t other;
    set_nonblocking(stage->descriptor);
    if (pthread_create(&other, NULL, one_of_two, &crew) != 0)
        bail_out("no thread");
    one_of_two(&crew);
    pthread_join(other, NULL);
    return crew.taken;
}

static const struct way {
    const char *name;
    unsigned (*wait)(const struct source *, struct stage *);
    /* Half of the items come before the descriptor is asked for, the other half before anybody waits; else all come after. */
    bool is_late;
    bool takes_one;
} ways[] = {
    {"one at a wake-up", one_at_a_time, false, true},
    {"one at a wake-up, asked for late", one_at_a_time, true, true},
    {"all at a wake-up", all_at_once, false, false},
    {"all at a wake-up, asked for late", all_at_once, true, false},
    {"edge-triggered epoll", by_edges, false, false},
    {"edge-triggered epoll, asked for late", by_edges, true, false},
    {"two threads", by_two_threads, false, true},
};

static void check_way(const struct source *source, const struct way *way) {
    if (source->gathers && way->takes_one && is_device()) {
        skip("one event of a device's channel announces all completions until it is taken", "%s: %s", source->name,
             way->name);
        return;
    }
    struct stage stage;
    memset(&stage, 0, sizeof stage);
    stage.descriptor = -1;
    source->set(&stage);
    if (!way->is_late)
        source->ask(&stage);
    stage.is_first = true;
    source->bring(&stage);
    stage.is_first = false;
    if (way->is_late)
        source->ask(&stage);
    source->bring(&stage);
    unsigned taken = way->wait(source, &stage);
    if (!check(taken == items_of(source), "%s: %s", source->name, way->name))
        tell("%u of %u", taken, items_of(source));
    set_nonblocking(stage.descriptor);
    check(source->take(&stage, true) == 0, "%s: %s: there is no more", source->name, way->name);
    check(!readable(stage.descriptor, 0), "%s: %s: it is readable no more", source->name, way->name);
    source->drop(&stage);
}

void check_ways(void) {
    section("ways of waiting");
    for (unsigned source = 0; source < sizeof sources / sizeof *sources; source++)
        for (unsigned way = 0; way < sizeof ways / sizeof *ways; way++)
            check_way(&sources[source], &ways[way]);
}
