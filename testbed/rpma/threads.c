/*
 * What programs do in several threads, for instruments that look for races: the threads agree by what such an instrument
 * knows (pthread_create, pthread_join, mutexes, barriers), and otherwise by what the library gives them.
 */
#include "threads.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "link.h"

enum { THREADS = 4, ROUNDS = 3, MESSAGE = 64, PORT_OF_THREADS = 12, ALWAYS = RPMA_F_COMPLETION_ALWAYS };

enum {
    ALL_USAGES = RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_READ_DST | RPMA_MR_USAGE_WRITE_SRC | RPMA_MR_USAGE_WRITE_DST |
                 RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY | RPMA_MR_USAGE_SEND | RPMA_MR_USAGE_RECV,
    DESCRIPTOR_BYTES = 32,
};

/* What all threads of a part have. */
static struct {
    struct rpma_peer *peer;
    struct rpma_ep *endpoint;
    struct rpma_conn_cfg *connections;
    struct rpma_srq_cfg *receives;
    struct rpma_peer_cfg *claims;
    struct link link;
    pthread_barrier_t all;
    const char *port;
} common;

/* One thread; `failed` counts what did not go as it should, first on that line. */
struct worker {
    pthread_t thread;
    unsigned number, failed;
    int line;
};

static void note_outcome(struct worker *worker, bool is_right, int line) {
    if (!is_right && worker->failed++ == 0)
        worker->line = line;
}

#define EXPECT(condition) note_outcome(worker, (condition), __LINE__)
#define DOES(call) EXPECT((call) == 0)

static void in_threads(const char *name, unsigned count, void *(*run)(void *)) {
    struct worker workers[2 * THREADS];
    unsigned failed = 0;
    pthread_barrier_init(&common.all, NULL, count);
    for (unsigned number = 0; number < count; number++) {
        workers[number] = (struct worker){.number = number};
        if (pthread_create(&workers[number].thread, NULL, run, &workers[number]) != 0)
            bail_out("no thread");
    }
    for (unsigned number = 0; number < count; number++) {
        pthread_join(workers[number].thread, NULL);
        failed += workers[number].failed;
        if (workers[number].failed > 0)
            tell("thread %u: %u failures, the first on line %d of threads.c", number, workers[number].failed,
                 workers[number].line);
    }
    pthread_barrier_destroy(&common.all);
    check(failed == 0, "%s, in %u threads", name, count);
}

/* Configurations that each has, and such that all set and get. */
static void *use_configurations(void *argument) {
    struct worker *worker = argument;
    int timeout_ms;
    uint32_t size;
    bool flag;
    pthread_barrier_wait(&common.all);
    for (unsigned round = 0; round < ROUNDS; round++) {
        struct rpma_conn_cfg *own = NULL;
        struct rpma_srq_cfg *own_receives = NULL;
        struct rpma_peer_cfg *own_claims = NULL, *read = NULL;
        unsigned char descriptor[DESCRIPTOR_BYTES];
        size_t length = 0;
        DOES(CALL(rpma_conn_cfg_new)(&own));
        DOES(CALL(rpma_srq_cfg_new)(&own_receives));
        DOES(CALL(rpma_peer_cfg_new)(&own_claims));
        for (unsigned turn = 0; turn < 2; turn++) {
            struct rpma_conn_cfg *connections = turn == 0 ? own : common.connections;
            struct rpma_srq_cfg *receives = turn == 0 ? own_receives : common.receives;
            struct rpma_peer_cfg *claims = turn == 0 ? own_claims : common.claims;
            DOES(CALL(rpma_conn_cfg_set_timeout)(connections, 1000 + (int)worker->number));
            DOES(CALL(rpma_conn_cfg_get_timeout)(connections, &timeout_ms));
            DOES(CALL(rpma_conn_cfg_set_cq_size)(connections, 20 + worker->number));
            DOES(CALL(rpma_conn_cfg_get_cq_size)(connections, &size));
            DOES(CALL(rpma_conn_cfg_set_rcq_size)(connections, 20 + worker->number));
            DOES(CALL(rpma_conn_cfg_get_rcq_size)(connections, &size));
            DOES(CALL(rpma_conn_cfg_set_sq_size)(connections, 20 + worker->number));
            DOES(CALL(rpma_conn_cfg_get_sq_size)(connections, &size));
            DOES(CALL(rpma_conn_cfg_set_rq_size)(connections, 20 + worker->number));
            DOES(CALL(rpma_conn_cfg_get_rq_size)(connections, &size));
            DOES(CALL(rpma_conn_cfg_set_compl_channel)(connections, worker->number % 2 == 0));
            DOES(CALL(rpma_conn_cfg_get_compl_channel)(connections, &flag));
            DOES(CALL(rpma_srq_cfg_set_rq_size)(receives, 20 + worker->number));
            DOES(CALL(rpma_srq_cfg_get_rq_size)(receives, &size));
            DOES(CALL(rpma_srq_cfg_set_rcq_size)(receives, 20 + worker->number));
            DOES(CALL(rpma_srq_cfg_get_rcq_size)(receives, &size));
            DOES(CALL(rpma_peer_cfg_set_direct_write_to_pmem)(claims, worker->number % 2 == 0));
            DOES(CALL(rpma_peer_cfg_get_direct_write_to_pmem)(claims, &flag));
            DOES(CALL(rpma_peer_cfg_get_descriptor_size)(claims, &length));
            DOES(CALL(rpma_peer_cfg_get_descriptor)(claims, descriptor));
            DOES(CALL(rpma_peer_cfg_from_descriptor)(descriptor, length, &read));
            DOES(CALL(rpma_peer_cfg_delete)(&read));
        }
        DOES(CALL(rpma_conn_cfg_delete)(&own));
        DOES(CALL(rpma_srq_cfg_delete)(&own_receives));
        DOES(CALL(rpma_peer_cfg_delete)(&own_claims));
    }
    return NULL;
}

static void *use_devices(void *argument) {
    struct worker *worker = argument;
    pthread_barrier_wait(&common.all);
    for (unsigned round = 0; round < ROUNDS; round++) {
        struct ibv_context *device = NULL;
        struct rpma_peer *peer = NULL;
        struct rpma_srq *queue = NULL;
        struct rpma_cq *receives = NULL;
        struct rpma_ep *endpoint = NULL;
        int descriptor, is_capable;
        DOES(CALL(rpma_utils_get_ibv_context)(options.address, RPMA_UTIL_IBV_CONTEXT_LOCAL, &device));
        DOES(CALL(rpma_utils_ibv_context_is_odp_capable)(device, &is_capable));
        DOES(CALL(rpma_peer_new)(device, &peer));
        DOES(CALL(rpma_srq_new)(peer, NULL, &queue));
        DOES(CALL(rpma_srq_get_rcq)(queue, &receives));
        DOES(CALL(rpma_cq_get_fd)(receives, &descriptor));
        DOES(CALL(rpma_srq_delete)(&queue));
        DOES(CALL(rpma_ep_listen)(peer, options.address, port(worker->number), &endpoint));
        DOES(CALL(rpma_ep_get_fd)(endpoint, &descriptor));
        DOES(CALL(rpma_ep_shutdown)(&endpoint));
        DOES(CALL(rpma_peer_delete)(&peer));
        EXPECT(strcmp(CALL(rpma_err_2str)(RPMA_E_INVAL), "Unknown error") != 0);
        EXPECT(CALL(rpma_utils_conn_event_2str)(RPMA_CONN_CLOSED) != NULL);
    }
    return NULL;
}

static void *use_memory(void *argument) {
    struct worker *worker = argument;
    pthread_barrier_wait(&common.all);
    for (unsigned round = 0; round < ROUNDS; round++) {
        unsigned char descriptor[DESCRIPTOR_BYTES], *bytes = NULL;
        struct rpma_mr_local *local = NULL;
        struct rpma_mr_remote *remote = NULL;
        size_t length = 0, size = 0;
        void *start = NULL;
        int types;
        if (posix_memalign((void **)&bytes, (size_t)sysconf(_SC_PAGESIZE), REGION_BYTES) != 0)
            bail_out("no memory");
        memset(bytes, (int)worker->number, REGION_BYTES);
        DOES(CALL(rpma_mr_reg)(common.peer, bytes, REGION_BYTES, ALL_USAGES, &local));
        DOES(CALL(rpma_mr_get_ptr)(local, &start));
        DOES(CALL(rpma_mr_get_size)(local, &size));
        EXPECT(start == bytes && size == REGION_BYTES);
        DOES(CALL(rpma_mr_get_descriptor_size)(local, &length));
        DOES(CALL(rpma_mr_get_descriptor)(local, descriptor));
        DOES(CALL(rpma_mr_remote_from_descriptor)(descriptor, length, &remote));
        DOES(CALL(rpma_mr_remote_get_size)(remote, &size));
        DOES(CALL(rpma_mr_remote_get_flush_type)(remote, &types));
        DOES(CALL(rpma_mr_remote_delete)(&remote));
        DOES(CALL(rpma_mr_dereg)(&local));
        free(bytes);
    }
    return NULL;
}

static pthread_mutex_t logging = PTHREAD_MUTEX_INITIALIZER;
static unsigned logged;

static void note(enum rpma_log_level level, const char *file, const int line, const char *function, const char *format,
                 ...) {
    (void)level, (void)file, (void)line, (void)function, (void)format;
    pthread_mutex_lock(&logging);
    logged++;
    pthread_mutex_unlock(&logging);
}

static void *use_log(void *argument) {
    struct worker *worker = argument;
    enum rpma_log_level level;
    pthread_barrier_wait(&common.all);
    for (unsigned round = 0; round < ROUNDS; round++) {
        DOES(CALL(rpma_log_set_threshold)(RPMA_LOG_THRESHOLD, RPMA_LOG_LEVEL_WARNING));
        DOES(CALL(rpma_log_get_threshold)(RPMA_LOG_THRESHOLD, &level));
        DOES(CALL(rpma_log_set_function)(note));
        /* An error that is logged. */
        EXPECT(CALL(rpma_peer_new)(NULL, NULL) == RPMA_E_INVAL);
    }
    return NULL;
}

/* A message that was posted is done, or one came: by waiting, as programs do that do not poll. */
static void take_either(struct worker *worker, struct rpma_cq *queue, enum ibv_wc_opcode opcode,
                        enum ibv_wc_opcode or_this) {
    struct ibv_wc completion = {.status = IBV_WC_GENERAL_ERR};
    int returned;
    while ((returned = CALL(rpma_cq_get_wc)(queue, 1, &completion, NULL)) == RPMA_E_NO_COMPLETION) {
        returned = CALL(rpma_cq_wait)(queue);
        if (returned != 0 && returned != RPMA_E_NO_COMPLETION)
            break;
    }
    EXPECT(returned == 0 && completion.status == IBV_WC_SUCCESS && (completion.opcode == opcode || completion.opcode == or_this));
}

static void take(struct worker *worker, struct rpma_cq *queue, enum ibv_wc_opcode opcode) {
    take_either(worker, queue, opcode, opcode);
}

static void await(struct worker *worker, struct rpma_conn *connection, enum rpma_conn_event expected) {
    enum rpma_conn_event event = RPMA_CONN_UNDEFINED;
    DOES(CALL(rpma_conn_next_event)(connection, &event));
    EXPECT(event == expected);
}

static unsigned char *region_of_thread(struct worker *worker, struct rpma_mr_local **local) {
    unsigned char *bytes = NULL;
    if (posix_memalign((void **)&bytes, (size_t)sysconf(_SC_PAGESIZE), REGION_BYTES) != 0)
        bail_out("no memory");
    memset(bytes, 0, REGION_BYTES);
    DOES(CALL(rpma_mr_reg)(common.peer, bytes, REGION_BYTES, ALL_USAGES, local));
    return bytes;
}

/* Takes one client of the endpoint that all servers wait at, and answers when it says that it has written. */
static void serve(struct worker *worker) {
    struct rpma_conn_req *request = NULL;
    struct rpma_conn *connection = NULL;
    struct rpma_cq *queue = NULL;
    struct rpma_mr_local *local = NULL;
    unsigned char descriptor[DESCRIPTOR_BYTES], *bytes = region_of_thread(worker, &local);
    size_t length = 0;
    DOES(CALL(rpma_mr_get_descriptor_size)(local, &length));
    DOES(CALL(rpma_mr_get_descriptor)(local, descriptor));
    struct rpma_conn_private_data data = {descriptor, (uint8_t)length}, asked = {NULL, 0};
    DOES(CALL(rpma_ep_next_conn_req)(common.endpoint, NULL, &request));
    DOES(CALL(rpma_conn_req_get_private_data)(request, &asked));
    EXPECT(asked.len > 0 && *(volatile unsigned char *)asked.ptr == 'w');
    DOES(CALL(rpma_conn_req_recv)(request, local, MESSAGE, MESSAGE, REQUEST(1)));
    DOES(CALL(rpma_conn_req_connect)(&request, &data, &connection));
    await(worker, connection, RPMA_CONN_ESTABLISHED);
    DOES(CALL(rpma_conn_get_cq)(connection, &queue));
    take(worker, queue, IBV_WC_RECV);
    /* What the message said, and what was written before it; then changed, to be read. */
    EXPECT(bytes[MESSAGE] == 'm' && bytes[0] == 'w');
    memset(bytes, 'a', MESSAGE);
    DOES(CALL(rpma_send)(connection, local, 0, MESSAGE, ALWAYS, REQUEST(2)));
    take(worker, queue, IBV_WC_SEND);
    await(worker, connection, RPMA_CONN_CLOSED);
    DOES(CALL(rpma_conn_disconnect)(connection));
    DOES(CALL(rpma_conn_delete)(&connection));
    DOES(CALL(rpma_mr_dereg)(&local));
    free(bytes);
}

static void ask(struct worker *worker) {
    struct rpma_conn_req *request = NULL;
    struct rpma_conn *connection = NULL;
    struct rpma_cq *queue = NULL;
    struct rpma_mr_local *local = NULL;
    struct rpma_mr_remote *remote = NULL;
    unsigned char *bytes = region_of_thread(worker, &local), own[] = "who asks";
    struct rpma_conn_private_data data = {NULL, 0}, sent = {own, sizeof own};
    DOES(CALL(rpma_conn_req_new)(common.peer, options.address, common.port, NULL, &request));
    DOES(CALL(rpma_conn_req_recv)(request, local, 2 * MESSAGE, MESSAGE, REQUEST(3)));
    DOES(CALL(rpma_conn_req_connect)(&request, &sent, &connection));
    await(worker, connection, RPMA_CONN_ESTABLISHED);
    DOES(CALL(rpma_conn_get_private_data)(connection, &data));
    /* As a program reads it, which has its own struct there. */
    unsigned char descriptor[DESCRIPTOR_BYTES];
    for (size_t at = 0; at < data.len && at < sizeof descriptor; at++)
        descriptor[at] = ((volatile unsigned char *)data.ptr)[at];
    DOES(CALL(rpma_mr_remote_from_descriptor)(descriptor, data.len, &remote));
    DOES(CALL(rpma_conn_get_cq)(connection, &queue));
    memset(bytes, 'w', MESSAGE);
    memset(bytes + MESSAGE, 'm', MESSAGE);
    DOES(CALL(rpma_write)(connection, remote, 0, local, 0, MESSAGE, ALWAYS, REQUEST(1)));
    DOES(CALL(rpma_atomic_write)(connection, remote, REGION_BYTES / 2, "8 bytes.", ALWAYS, REQUEST(1)));
    take(worker, queue, IBV_WC_RDMA_WRITE);
    take(worker, queue, IBV_WC_RDMA_WRITE);
    DOES(CALL(rpma_send)(connection, local, MESSAGE, MESSAGE, ALWAYS, REQUEST(2)));
    /* Without an order between a send and a receive. */
    take_either(worker, queue, IBV_WC_SEND, IBV_WC_RECV);
    take_either(worker, queue, IBV_WC_SEND, IBV_WC_RECV);
    EXPECT(bytes[2 * MESSAGE] == 'a');
    DOES(CALL(rpma_read)(connection, local, 0, remote, 0, MESSAGE, ALWAYS, REQUEST(4)));
    take(worker, queue, IBV_WC_RDMA_READ);
    EXPECT(bytes[0] == 'a');
    bytes[0] = 'c';
    DOES(CALL(rpma_conn_disconnect)(connection));
    await(worker, connection, RPMA_CONN_CLOSED);
    DOES(CALL(rpma_conn_delete)(&connection));
    DOES(CALL(rpma_mr_remote_delete)(&remote));
    DOES(CALL(rpma_mr_dereg)(&local));
    free(bytes);
}

static void *connect_and_talk(void *argument) {
    struct worker *worker = argument;
    pthread_barrier_wait(&common.all);
    (worker->number % 2 == 0 ? serve : ask)(worker);
    return NULL;
}

enum { POSTED = 32, POSTERS = 2 };

static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;
static unsigned taken;

/* Two threads post to one connection, two others take what comes to its queue. */
static void *share_connection(void *argument) {
    struct worker *worker = argument;
    struct end *client = &common.link.client;
    pthread_barrier_wait(&common.all);
    for (unsigned each = 0; worker->number < POSTERS && each < POSTED; each++) {
        size_t place = (worker->number * POSTED + each) * MESSAGE;
        memset(client->region.bytes + place, (int)each, MESSAGE);
        DOES(CALL(rpma_write)(client->connection, common.link.server.region.remote, place, client->region.local, place,
                              MESSAGE, ALWAYS, REQUEST(each)));
        /* No more may be under way than the queues hold. */
        for (bool is_full = true; is_full; usleep(50)) {
            pthread_mutex_lock(&counting);
            is_full = POSTERS * each > taken + 4;
            pthread_mutex_unlock(&counting);
        }
    }
    for (bool is_done = worker->number < POSTERS; !is_done;) {
        struct ibv_wc completion;
        int returned = CALL(rpma_cq_get_wc)(client->cq, 1, &completion, NULL);
        pthread_mutex_lock(&counting);
        taken += returned == 0;
        is_done = taken == POSTERS * POSTED;
        pthread_mutex_unlock(&counting);
        EXPECT(returned == RPMA_E_NO_COMPLETION || (returned == 0 && completion.status == IBV_WC_SUCCESS));
        usleep(50);
    }
    return NULL;
}

/* Deletes what another thread made. */
static void *close_for_another(void *argument) {
    (void)argument;
    close_ends(&common.link.client.connection, &common.link.server.connection);
    drop_region(&common.link.client.region);
    drop_region(&common.link.server.region);
    return NULL;
}

void check_threads(void) {
    section("threads");
    NEED(CALL(rpma_conn_cfg_new)(&common.connections));
    NEED(CALL(rpma_srq_cfg_new)(&common.receives));
    NEED(CALL(rpma_peer_cfg_new)(&common.claims));
    in_threads("configurations are set and read", THREADS, use_configurations);
    NEED(CALL(rpma_conn_cfg_delete)(&common.connections));
    NEED(CALL(rpma_srq_cfg_delete)(&common.receives));
    NEED(CALL(rpma_peer_cfg_delete)(&common.claims));
    in_threads("devices, peers and endpoints come and go", THREADS, use_devices);
    common.peer = new_peer();
    in_threads("memory is registered", THREADS, use_memory);
    in_threads("errors are logged", THREADS, use_log);
    NEED(CALL(rpma_log_set_function)(NULL));
    check(logged == THREADS * ROUNDS, "%u errors came to the program's function", logged);
    common.port = port(PORT_OF_THREADS);
    NEED(CALL(rpma_ep_listen)(common.peer, options.address, common.port, &common.endpoint));
    in_threads("connections are made, used and closed", 2 * THREADS, connect_and_talk);
    NEED(CALL(rpma_ep_shutdown)(&common.endpoint));
    open_link_of(common.peer, &common.link, NULL, NULL);
    in_threads("one connection is used", 2 * POSTERS, share_connection);
    check(memcmp(common.link.client.region.bytes, common.link.server.region.bytes,
                 (size_t)POSTERS * POSTED * MESSAGE) == 0, "all of it was written");
    in_threads("objects of another thread are deleted", 1, close_for_another);
    delete_peer(&common.peer);
}

/* Races of the program itself, which an instrument is to report although the library is called all around. */
static unsigned counted;

static __attribute__((noipa)) void race_between_calls(void) {
    counted++;
}

static __attribute__((noipa)) void race_in_callback(enum rpma_log_level level, const char *file, const int line,
                                                       const char *function, const char *format, ...) {
    (void)level, (void)file, (void)line, (void)function, (void)format;
    logged++;
}

static void *race(void *argument) {
    struct worker *worker = argument;
    size_t size = 0;
    pthread_barrier_wait(&common.all);
    for (unsigned round = 0; round < ROUNDS; round++) {
        DOES(CALL(rpma_mr_get_size)(common.link.client.region.local, &size));
        race_between_calls();
        EXPECT(CALL(rpma_mr_get_size)(NULL, &size) == RPMA_E_INVAL);
    }
    return NULL;
}

/* Each writes through a connection of its own, and to one place in memory that both have registered. */
static __attribute__((noipa)) void race_in_memory(struct worker *worker) {
    common.link.client.region.bytes[0] = (unsigned char)worker->number;
}

static void *race_and_post(void *argument) {
    struct worker *worker = argument;
    struct end *end = worker->number == 0 ? &common.link.client : &common.link.server;
    struct rpma_mr_remote *remote = common.link.server.region.remote;
    pthread_barrier_wait(&common.all);
    for (unsigned round = 0; round < ROUNDS; round++) {
        race_in_memory(worker);
        DOES(CALL(rpma_write)(end->connection, remote, worker->number * MESSAGE, end->region.local, MESSAGE, MESSAGE,
                              ALWAYS, REQUEST(round)));
        take(worker, end->cq, IBV_WC_RDMA_WRITE);
    }
    return NULL;
}

void race_threads(void) {
    section("threads that race");
    open_link(&common.link, NULL, NULL);
    NEED(CALL(rpma_log_set_function)(race_in_callback));
    in_threads("a variable is changed between calls", 2, race);
    NEED(CALL(rpma_log_set_function)(NULL));
    in_threads("registered memory is changed", 2, race_and_post);
    close_link(&common.link);
}
