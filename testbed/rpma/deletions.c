/*
 * Objects that one thread deletes while others wait on them, or poll: librpma leaves that undefined. The waits end with
 * RPMA_E_INVAL, nothing is used after it was freed, and no other object is taken for the deleted one. And waits that nothing can
 * end any more, on connections that have ended.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "link.h"
#include "parts.h"

enum { WAITERS = 8, PORT_OF_DELETIONS = 13, SETTLED_US = 30000, SOON_MS = 250, SOON_ON_DEVICE_MS = 1000 };

enum wait { CQ_WAIT, NEXT_EVENT, CONN_WAIT, NEXT_REQUEST, POLL, WAITS };

static const char *const wait_names[WAITS] = {"rpma_cq_wait", "rpma_conn_next_event", "rpma_conn_wait",
                                              "rpma_ep_next_conn_req", "rpma_cq_get_wc, again and again"};

struct waiter {
    pthread_t thread;
    enum wait wait;
    struct rpma_conn *connection;
    struct rpma_cq *queue;
    struct rpma_ep *endpoint;
    int returned;
};

static void *wait_on(void *argument) {
    struct waiter *waiter = argument;
    enum rpma_conn_event event;
    struct rpma_cq *queue;
    struct rpma_conn_req *request;
    struct ibv_wc completion;
    bool is_receive;
    switch (waiter->wait) {
    case CQ_WAIT: waiter->returned = CALL(rpma_cq_wait)(waiter->queue); break;
    case NEXT_EVENT: waiter->returned = CALL(rpma_conn_next_event)(waiter->connection, &event); break;
    case CONN_WAIT: waiter->returned = CALL(rpma_conn_wait)(waiter->connection, 0, &queue, &is_receive); break;
    case NEXT_REQUEST: waiter->returned = CALL(rpma_ep_next_conn_req)(waiter->endpoint, NULL, &request); break;
    default:
        do
            waiter->returned = CALL(rpma_cq_get_wc)(waiter->queue, 1, &completion, NULL);
        while (waiter->returned == RPMA_E_NO_COMPLETION);
    }
    return NULL;
}

/* Over a device a wait looks now and then, and an emulated processor is slow. */
static double soon_ms(void) {
    return is_device() ? SOON_ON_DEVICE_MS : SOON_MS;
}

/* Whether all waits ended in time with the code that says so, or, where there was something, with that. */
static bool end_well(struct waiter *waiters, enum wait wait, bool has_something) {
    bool is_right = true;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE_MS / 1000;
    for (unsigned number = 0; number < WAITERS; number++) {
        if (pthread_timedjoin_np(waiters[number].thread, NULL, &until) != 0)
            bail_out("a thread waits on what was deleted");
        int returned = waiters[number].returned;
        bool is_well = returned == RPMA_E_INVAL || (has_something && returned == 0);
        if (!is_well)
            tell("%s: %d", wait_names[wait], returned);
        is_right = is_right && is_well;
    }
    return is_right;
}

/* Memory that was freed is soon another's. */
static void reuse_memory(void) {
    for (size_t size = 8; size <= 65536; size *= 2) {
        void *bytes = malloc(size);
        if (bytes != NULL)
            memset(bytes, 0x5a, size);
        free(bytes);
    }
}

static void give_out(const struct waiter *waiter) {
    int number;
    switch (waiter->wait) {
    case NEXT_EVENT: NEED(CALL(rpma_conn_get_event_fd)(waiter->connection, &number)); break;
    case CONN_WAIT: NEED(CALL(rpma_conn_get_compl_fd)(waiter->connection, &number)); break;
    case NEXT_REQUEST: NEED(CALL(rpma_ep_get_fd)(waiter->endpoint, &number)); break;
    default: NEED(CALL(rpma_cq_get_fd)(waiter->queue, &number));
    }
}

/* With a descriptor that was given out, reads of it block: where two waits see one event, one of them must not end in a read. */
static void delete_under(enum wait wait, bool is_given) {
    struct rpma_peer *peer = new_peer();
    struct rpma_conn_cfg *configuration = NULL;
    struct rpma_conn *client = NULL, *server = NULL;
    struct rpma_ep *endpoint = NULL;
    struct waiter waiters[WAITERS];
    struct waiter waiter = {.wait = wait};
    NEED(CALL(rpma_conn_cfg_new)(&configuration));
    if (wait == CONN_WAIT)
        NEED(CALL(rpma_conn_cfg_set_compl_channel)(configuration, true));
    if (wait == NEXT_REQUEST) {
        NEED(CALL(rpma_ep_listen)(peer, options.address, port(PORT_OF_DELETIONS), &endpoint));
    } else {
        connect_ends(peer, configuration, NULL, &client, &server);
        NEED(CALL(rpma_conn_get_cq)(client, &waiter.queue));
    }
    waiter.connection = client;
    waiter.endpoint = endpoint;
    if (is_given)
        give_out(&waiter);
    for (unsigned number = 0; number < WAITERS; number++) {
        waiters[number] = waiter;
        if (pthread_create(&waiters[number].thread, NULL, wait_on, &waiters[number]) != 0)
            bail_out("no thread");
    }
    usleep(SETTLED_US);
    /* One completion, which all of them get. */
    bool has_something = is_given && (wait == CQ_WAIT || wait == CONN_WAIT);
    if (has_something) {
        NEED(CALL(rpma_write)(client, NULL, 0, NULL, 0, 0, RPMA_F_COMPLETION_ALWAYS, REQUEST(1)));
        usleep(SETTLED_US);
    }
    double begin = now_ms();
    NEED(wait == NEXT_REQUEST ? CALL(rpma_ep_shutdown)(&endpoint) : CALL(rpma_conn_delete)(&client));
    reuse_memory();
    /* The port is free, and the requests of who listens there now are nobody else's. */
    if (wait == NEXT_REQUEST)
        NEED(CALL(rpma_ep_listen)(peer, options.address, port(PORT_OF_DELETIONS), &endpoint));
    bool is_right = end_well(waiters, wait, has_something);
    double took = now_ms() - begin;
    check(is_right && took < soon_ms(), "%s%s ends with RPMA_E_INVAL when its object is deleted (%.0f ms)", wait_names[wait],
          is_given ? ", its descriptor given out," : "", took);
    if (endpoint != NULL)
        NEED(CALL(rpma_ep_shutdown)(&endpoint));
    else
        NEED(CALL(rpma_conn_delete)(&server));
    NEED(CALL(rpma_conn_cfg_delete)(&configuration));
    delete_peer(&peer);
}

/* The other side ends while a thread waits for completions, and has ended when it waits once more. */
static void wait_on_ended(enum wait wait) {
    struct rpma_peer *peer = new_peer();
    struct rpma_conn_cfg *configuration = NULL;
    struct rpma_conn *client = NULL, *server = NULL;
    NEED(CALL(rpma_conn_cfg_new)(&configuration));
    if (wait == CONN_WAIT)
        NEED(CALL(rpma_conn_cfg_set_compl_channel)(configuration, true));
    connect_ends(peer, configuration, NULL, &client, &server);
    struct waiter waiter = {.wait = wait, .connection = client};
    NEED(CALL(rpma_conn_get_cq)(client, &waiter.queue));
    if (pthread_create(&waiter.thread, NULL, wait_on, &waiter) != 0)
        bail_out("no thread");
    usleep(SETTLED_US);
    double begin = now_ms();
    NEED(CALL(rpma_conn_disconnect)(server));
    pthread_join(waiter.thread, NULL);
    double first = now_ms() - begin;
    check(waiter.returned == RPMA_E_NO_COMPLETION && first < soon_ms(),
          "%s ends when the connection does (%d after %.0f ms)", wait_names[wait], waiter.returned, first);
    begin = now_ms();
    for (int again = 0; again < 3; again++)
        wait_on(&waiter);
    double rest = now_ms() - begin;
    check(waiter.returned == RPMA_E_NO_COMPLETION && rest < soon_ms(),
          "%s does not wait where nothing can come (%.0f ms for three)", wait_names[wait], rest);
    NEED(CALL(rpma_conn_delete)(&client));
    NEED(CALL(rpma_conn_delete)(&server));
    NEED(CALL(rpma_conn_cfg_delete)(&configuration));
    delete_peer(&peer);
}

void check_deletions(void) {
    section("deleting what others wait on");
    if (options.reference) {
        skip("librpma never ends such a wait, or uses what is freed", "waits end when their object is deleted");
        return;
    }
    NEED(CALL(rpma_log_set_threshold)(RPMA_LOG_THRESHOLD, RPMA_LOG_DISABLED));
    for (enum wait wait = 0; wait < WAITS; wait++)
        for (int is_given = 0; is_given < 2; is_given++)
            delete_under(wait, is_given);
    if (is_device()) {
        skip("a device does not report a connection's end to its queue, as with librpma", "a wait ends when the connection does");
    } else {
        wait_on_ended(CQ_WAIT);
        wait_on_ended(CONN_WAIT);
    }
    NEED(CALL(rpma_log_set_threshold)(RPMA_LOG_THRESHOLD, RPMA_LOG_LEVEL_WARNING));
}
