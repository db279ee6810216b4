/*
 * A load on a program for librpma: a server that lends persistent memory, and a client that writes batches to it and makes each
 * durable by one rpma_flush.
 *
 *   cut-rpma server ADDRESS PORT FILE BYTES
 *   cut-rpma client ADDRESS PORT SEED LEDGER AREA-BYTES [visibility]
 *
 * The file is a device-DAX or on fsdax. With "visibility" the flush is one that a power cut must find out.
 */
#include "load.h"

#include <librpma.h>
#include <poll.h>
#include <stdbool.h>
#include <sys/mman.h>

/* Writes that are posted between two completions. */
enum { WRITES_MAX = 8 };

static void need(int returned, const char *what) {
    if (returned != 0)
        bail_out("%s: %s", what, rpma_err_2str(returned));
}
#define NEED(call) need(call, #call)

static struct rpma_peer *new_peer(const char *address, enum rpma_util_ibv_context_type type) {
    struct ibv_context *context = NULL;
    struct rpma_peer *peer = NULL;
    NEED(rpma_utils_get_ibv_context(address, type, &context));
    NEED(rpma_peer_new(context, &peer));
    return peer;
}

static void expect(struct rpma_conn *connection, enum rpma_conn_event expected) {
    enum rpma_conn_event event = RPMA_CONN_UNDEFINED;
    NEED(rpma_conn_next_event(connection, &event));
    if (event != expected)
        bail_out("the connection's event is %s", rpma_utils_conn_event_2str(event));
}

static int serve(char **words) {
    size_t bytes = strtoull(words[3], NULL, 10), size = 0, configuration_size = 0;
    int file = open(words[2], O_RDWR);
    void *memory = file < 0 ? MAP_FAILED
                            : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED_VALIDATE | MAP_SYNC, file, 0);
    if (memory == MAP_FAILED)
        bail_out("cannot map %s", words[2]);
    struct rpma_peer *peer = new_peer(words[0], RPMA_UTIL_IBV_CONTEXT_LOCAL);
    struct rpma_ep *endpoint = NULL;
    struct rpma_mr_local *region = NULL;
    struct rpma_peer_cfg *configuration = NULL;
    struct rpma_conn_req *request = NULL;
    struct rpma_conn *connection = NULL;
    NEED(rpma_ep_listen(peer, words[0], words[1], &endpoint));
    NEED(rpma_mr_reg(peer, memory, bytes,
                     RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT |
                         RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY,
                     &region));
    NEED(rpma_peer_cfg_new(&configuration));
    NEED(rpma_peer_cfg_set_direct_write_to_pmem(configuration, true));
    /* The descriptors of the memory and of the configuration, each behind its length. */
    unsigned char told[128];
    NEED(rpma_mr_get_descriptor_size(region, &size));
    NEED(rpma_peer_cfg_get_descriptor_size(configuration, &configuration_size));
    if (2 + size + configuration_size > sizeof told)
        bail_out("descriptors too long");
    told[0] = (unsigned char)size;
    told[1] = (unsigned char)configuration_size;
    NEED(rpma_mr_get_descriptor(region, told + 2));
    NEED(rpma_peer_cfg_get_descriptor(configuration, told + 2 + size));
    struct rpma_conn_private_data data = {.ptr = told, .len = (uint8_t)(2 + size + configuration_size)};
    puts("ready");
    fflush(stdout);
    NEED(rpma_ep_next_conn_req(endpoint, NULL, &request));
    NEED(rpma_conn_req_connect(&request, &data, &connection));
    expect(connection, RPMA_CONN_ESTABLISHED);
    expect(connection, RPMA_CONN_CLOSED);
    return 0;
}

/* Waits for the operation that was posted last. */
static void wait_for(struct rpma_conn *connection, struct rpma_cq *queue) {
    struct ibv_wc completion;
    for (;;) {
        struct rpma_cq *ready = NULL;
        int returned = rpma_cq_get_wc(queue, 1, &completion, NULL);
        if (returned == 0 && completion.status == IBV_WC_SUCCESS)
            return;
        if (returned != RPMA_E_NO_COMPLETION)
            bail_out("an operation failed: %s, status %d", rpma_err_2str(returned), (int)completion.status);
        (void)ready;
        (void)connection;
        returned = rpma_cq_wait(queue);
        if (returned != 0 && returned != RPMA_E_NO_COMPLETION)
            bail_out("waiting: %s", rpma_err_2str(returned));
    }
}

static int load(int count, char **words) {
    size_t bytes = strtoull(words[4], NULL, 10);
    enum rpma_flush_type type = count > 5 && strcmp(words[5], "visibility") == 0 ? RPMA_FLUSH_TYPE_VISIBILITY
                                                                                 : RPMA_FLUSH_TYPE_PERSISTENT;
    unsigned char *source = NULL;
    if (posix_memalign((void **)&source, 4096, bytes) != 0)
        bail_out("no memory");
    struct rpma_peer *peer = new_peer(words[0], RPMA_UTIL_IBV_CONTEXT_REMOTE);
    struct rpma_conn_req *request = NULL;
    struct rpma_conn *connection = NULL;
    struct rpma_conn_private_data data;
    struct rpma_mr_local *region = NULL;
    struct rpma_mr_remote *target = NULL;
    struct rpma_peer_cfg *configuration = NULL;
    struct rpma_cq *queue = NULL;
    NEED(rpma_mr_reg(peer, source, bytes, RPMA_MR_USAGE_WRITE_SRC, &region));
    NEED(rpma_conn_req_new(peer, words[0], words[1], NULL, &request));
    NEED(rpma_conn_req_connect(&request, NULL, &connection));
    expect(connection, RPMA_CONN_ESTABLISHED);
    NEED(rpma_conn_get_private_data(connection, &data));
    const unsigned char *told = data.ptr;
    NEED(rpma_mr_remote_from_descriptor(told + 2, told[0], &target));
    NEED(rpma_peer_cfg_from_descriptor(told + 2 + told[0], told[1], &configuration));
    NEED(rpma_conn_apply_remote_peer_cfg(connection, configuration));
    NEED(rpma_conn_get_cq(connection, &queue));
    struct stream stream;
    stream_init(&stream, strtoull(words[2], NULL, 10), 0, source, bytes);
    int ledger = open_ledger(words[3]);
    for (;; stream.batch++) {
        struct range ranges[RANGES_MAX];
        size_t ranges_count = next_batch(&stream, ranges);
        tell(ledger, "issue", 0, stream.batch);
        for (size_t i = 0; i < ranges_count; i++) {
            bool is_waited_for = i % WRITES_MAX == WRITES_MAX - 1;
            size_t at = 8 * ranges[i].first;
            NEED(rpma_write(connection, target, at, region, at, 8 * ranges[i].words,
                            is_waited_for ? RPMA_F_COMPLETION_ALWAYS : RPMA_F_COMPLETION_ON_ERROR, NULL));
            if (is_waited_for)
                wait_for(connection, queue);
        }
        NEED(rpma_flush(connection, target, 0, bytes, type, RPMA_F_COMPLETION_ALWAYS, NULL));
        wait_for(connection, queue);
        tell(ledger, "ack", 0, stream.batch);
    }
}

int main(int count, char **words) {
    if (count == 6 && strcmp(words[1], "server") == 0)
        return serve(words + 2);
    if ((count == 7 || count == 8) && strcmp(words[1], "client") == 0)
        return load(count - 2, words + 2);
    bail_out("cut-rpma server|client ...: see the source");
}
