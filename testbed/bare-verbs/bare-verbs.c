/*
 * The floor of pmof's verbs benchmarks: remote writes made durable by a native RDMA FLUSH, with nothing between this
 * program and rdma-core. C11 with the extensions of GNU C, against rdma-core 45 or later:
 *
 *   cc -std=gnu11 -O2 -Wall -Wextra -Werror -o bare-verbs bare-verbs.c -libverbs -lrdmacm
 *
 * (With --sysroot and the libraries of a younger system than this one, add -Wl,--allow-shlib-undefined.)
 *
 *   bare-verbs server ADDRESS PORT MEDIUM SIZE
 *       offers SIZE bytes of MEDIUM, the path of a device-DAX or the word dram, to one client and ends with it.
 *       Prints "listening PORT" when it can be reached; PORT 0 takes a free one.
 *   bare-verbs client SOURCE ADDRESS PORT --op write-flush --size BYTES --batch N --count N --mode event|poll --warmup N
 *       posts --count batches after --warmup more that are not measured, each with one doorbell: --batch writes of
 *       --size bytes to consecutive places, then one flush over all of them, the only request that is signalled.
 *       Waits for it by an event of the completion queue, or by polling. Writes of up to 64 bytes go inline where the
 *       queue pair allows it. On device-DAX the flush is persistent, on dram, which takes no persistent flush, global.
 *   bare-verbs rows SOURCE ADDRESS PORT
 *       writes eight or more bytes 'N' to a page each, one way a page, as `enum row` says; prints "ready" when all is
 *       done and stays until it is killed. For tests of what a power cut leaves.
 *
 * The client prints one line: the median and the 99th percentile of a batch, and the time of all, in ns. A batch lasts
 * from the end of the one before; its clock is read once. Marker 1 of the instruction counter comes before the
 * first measured batch and 2 after the last. Then the bytes are read back and compared. Exit code 0 means that all was
 * done and the bytes were there, 1 that a call failed, 2 a usage error.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <rdma/rdma_cma.h>

enum { INLINE_BYTES = 64, TIMEOUT_MS = 5000, DEPTH = 16 };

/* `nopl 0x5150abID(%rax)`: does nothing, and is known to the instruction counter. */
#define MARK(id) __asm__ volatile(".byte 0x0f, 0x1f, 0x80, " #id ", 0xab, 0x50, 0x51" ::: "memory")

/* The pages of `bare-verbs rows`. */
enum row {
    ROW_WRITE,
    ROW_WRITE_READ,
    ROW_WRITE_FLUSH_GLOBAL,
    ROW_WRITE_FLUSH_PERSISTENT,
    ROW_ATOMIC_WRITE,
    ROW_ATOMIC_WRITE_FLUSH_PERSISTENT,
    ROWS,
};

enum { ROW_BYTES = 4096 };

/* What the server sends in the private data of its acceptance; numbers in network order. */
struct offer {
    uint64_t address;
    uint64_t len_bytes;
    uint32_t rkey;
    uint32_t placement;
} __attribute__((packed));

struct plan {
    uint32_t size;
    uint32_t batch;
    uint64_t count;
    uint64_t warmup;
    bool event;
};

struct client {
    struct rdma_event_channel *channel;
    struct rdma_cm_id *id;
    struct ibv_pd *pd;
    struct ibv_comp_channel *events;
    struct ibv_cq *cq;
    struct ibv_qp_ex *qp;
    struct ibv_mr *mr;
    char *memory;
    size_t memory_bytes;
    bool inline_data;
    unsigned int unacknowledged;
    struct offer offer;
};

static void fail(const char *call)
{
    fprintf(stderr, "bare-verbs: %s: %s\n", call, strerror(errno));
    exit(1);
}

static void usage(void)
{
    fprintf(stderr, "usage: bare-verbs server ADDRESS PORT MEDIUM SIZE\n"
                    "       bare-verbs client SOURCE ADDRESS PORT --op write-flush --size BYTES --batch N --count N"
                    " --mode event|poll --warmup N\n"
                    "       bare-verbs rows SOURCE ADDRESS PORT\n");
    exit(2);
}

/* A result that is 0, an errno value, or -1 with errno set. */
static void zero(int result, const char *call)
{
    if (result == 0)
        return;
    if (result > 0)
        errno = result;
    fail(call);
}

static void *made(void *object, const char *call)
{
    if (!object)
        fail(call);
    return object;
}

static uint64_t number(const char *text, uint64_t min, uint64_t max)
{
    char *end;
    errno = 0;
    uint64_t value = strtoull(text, &end, 10);
    if (errno || *end || end == text || *text == '-' || value < min || value > max) {
        fprintf(stderr, "bare-verbs: %s is not a number from %" PRIu64 " to %" PRIu64 "\n", text, min, max);
        exit(2);
    }
    return value;
}

static struct sockaddr_storage socket_address(const char *text, uint16_t port)
{
    struct sockaddr_storage storage = {0};
    struct sockaddr_in *v4 = (struct sockaddr_in *)&storage;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&storage;
    if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(port);
    } else if (inet_pton(AF_INET6, text, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons(port);
    } else {
        fprintf(stderr, "bare-verbs: %s is not an address\n", text);
        exit(2);
    }
    return storage;
}

/* Takes the next event, which must be `kind`. The offer is copied where one is asked for. */
static struct rdma_cm_id *expect(struct rdma_event_channel *channel, enum rdma_cm_event_type kind, struct offer *offer)
{
    struct rdma_cm_event *event;
    zero(rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
    if (event->event != kind) {
        fprintf(stderr, "bare-verbs: %s, status %d, instead of %s\n", rdma_event_str(event->event), event->status,
                rdma_event_str(kind));
        exit(1);
    }
    struct rdma_cm_id *id = event->id;
    if (offer) {
        if (event->param.conn.private_data_len < sizeof(*offer)) {
            fprintf(stderr, "bare-verbs: the server made no offer\n");
            exit(1);
        }
        memcpy(offer, event->param.conn.private_data, sizeof(*offer));
    }
    zero(rdma_ack_cm_event(event), "rdma_ack_cm_event");
    return id;
}

static struct rdma_conn_param connection_parameters(void)
{
    /* A target without responder resources answers no flush; a retry count of 7 means for ever. */
    return (struct rdma_conn_param){
        .responder_resources = DEPTH, .initiator_depth = DEPTH, .retry_count = 6, .rnr_retry_count = 6};
}

static void create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_cq *cq, uint32_t requests, uint64_t more_ops)
{
    struct ibv_qp_init_attr_ex attributes = {
        .send_cq = cq,
        .recv_cq = cq,
        .cap = {.max_send_wr = requests,
                .max_recv_wr = 1,
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = INLINE_BYTES},
        .qp_type = IBV_QPT_RC,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = pd,
        .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_FLUSH | more_ops,
    };
    zero(rdma_create_qp_ex(id, &attributes), "rdma_create_qp_ex");
}

static void *map(const char *medium, size_t len_bytes)
{
    void *memory;
    if (strcmp(medium, "dram") == 0) {
        memory = mmap(NULL, len_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    } else {
        int fd = open(medium, O_RDWR | O_CLOEXEC);
        if (fd < 0)
            fail(medium);
        memory = mmap(NULL, len_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
    }
    if (memory == MAP_FAILED)
        fail("mmap");
    return memory;
}

static int serve(const char *address, uint16_t port, const char *medium, size_t len_bytes)
{
    void *memory = map(medium, len_bytes);
    bool persistent = strcmp(medium, "dram") != 0;
    struct rdma_event_channel *channel = made(rdma_create_event_channel(), "rdma_create_event_channel");
    struct rdma_cm_id *listener;
    zero(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP), "rdma_create_id");
    struct sockaddr_storage at = socket_address(address, port);
    zero(rdma_bind_addr(listener, (struct sockaddr *)&at), "rdma_bind_addr");
    zero(rdma_listen(listener, 1), "rdma_listen");
    printf("listening %u\n", ntohs(rdma_get_src_port(listener)));
    fflush(stdout);

    struct rdma_cm_id *id = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST, NULL);
    struct ibv_pd *pd = made(ibv_alloc_pd(id->verbs), "ibv_alloc_pd");
    struct ibv_cq *cq = made(ibv_create_cq(id->verbs, 1, NULL, NULL, 0), "ibv_create_cq");
    create_qp(id, pd, cq, 1, 0);
    unsigned int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                          IBV_ACCESS_FLUSH_GLOBAL | (persistent ? IBV_ACCESS_FLUSH_PERSISTENT : 0);
    struct ibv_mr *mr = made(ibv_reg_mr(pd, memory, len_bytes, access), "ibv_reg_mr");
    struct offer offer = {
        .address = htobe64((uintptr_t)memory),
        .len_bytes = htobe64(len_bytes),
        .rkey = htonl(mr->rkey),
        .placement = htonl(persistent ? IBV_FLUSH_PERSISTENT : IBV_FLUSH_GLOBAL),
    };
    struct rdma_conn_param parameters = connection_parameters();
    parameters.private_data = &offer;
    parameters.private_data_len = sizeof(offer);
    zero(rdma_accept(id, &parameters), "rdma_accept");
    expect(channel, RDMA_CM_EVENT_ESTABLISHED, NULL);
    expect(channel, RDMA_CM_EVENT_DISCONNECTED, NULL);

    rdma_disconnect(id);
    rdma_destroy_qp(id);
    zero(ibv_dereg_mr(mr), "ibv_dereg_mr");
    zero(ibv_destroy_cq(cq), "ibv_destroy_cq");
    zero(ibv_dealloc_pd(pd), "ibv_dealloc_pd");
    zero(rdma_destroy_id(id), "rdma_destroy_id");
    zero(rdma_destroy_id(listener), "rdma_destroy_id");
    rdma_destroy_event_channel(channel);
    munmap(memory, len_bytes);
    return 0;
}

static void connect_client(struct client *client, const char *source, const char *address, uint16_t port,
                           const struct plan *plan, uint64_t more_ops)
{
    client->channel = made(rdma_create_event_channel(), "rdma_create_event_channel");
    zero(rdma_create_id(client->channel, &client->id, NULL, RDMA_PS_TCP), "rdma_create_id");
    struct sockaddr_storage from = socket_address(source, 0), to = socket_address(address, port);
    zero(rdma_resolve_addr(client->id, (struct sockaddr *)&from, (struct sockaddr *)&to, TIMEOUT_MS),
         "rdma_resolve_addr");
    expect(client->channel, RDMA_CM_EVENT_ADDR_RESOLVED, NULL);
    zero(rdma_resolve_route(client->id, TIMEOUT_MS), "rdma_resolve_route");
    expect(client->channel, RDMA_CM_EVENT_ROUTE_RESOLVED, NULL);

    struct ibv_context *context = client->id->verbs;
    client->pd = made(ibv_alloc_pd(context), "ibv_alloc_pd");
    client->events = made(ibv_create_comp_channel(context), "ibv_create_comp_channel");
    client->cq = made(ibv_create_cq(context, 1, NULL, client->events, 0), "ibv_create_cq");
    create_qp(client->id, client->pd, client->cq, plan->batch + 1, more_ops);
    client->qp = made(ibv_qp_to_qp_ex(client->id->qp), "ibv_qp_to_qp_ex");
    struct ibv_qp_attr attributes;
    struct ibv_qp_init_attr made_with;
    zero(ibv_query_qp(client->id->qp, &attributes, IBV_QP_CAP, &made_with), "ibv_query_qp");
    client->inline_data = plan->size <= INLINE_BYTES && plan->size <= made_with.cap.max_inline_data;

    /* The bytes to write, and behind them room to read all of a batch back. */
    client->memory_bytes = (size_t)plan->size * (plan->batch + 1);
    client->memory = map("dram", client->memory_bytes);
    for (uint32_t at = 0; at < plan->size; at++)
        client->memory[at] = (char)(at * 7 + plan->batch);
    client->mr = made(ibv_reg_mr(client->pd, client->memory, client->memory_bytes, IBV_ACCESS_LOCAL_WRITE),
                      "ibv_reg_mr");

    struct rdma_conn_param parameters = connection_parameters();
    zero(rdma_connect(client->id, &parameters), "rdma_connect");
    expect(client->channel, RDMA_CM_EVENT_ESTABLISHED, &client->offer);
    client->offer.address = be64toh(client->offer.address);
    client->offer.len_bytes = be64toh(client->offer.len_bytes);
    client->offer.rkey = ntohl(client->offer.rkey);
    client->offer.placement = ntohl(client->offer.placement);
    if (client->offer.len_bytes < (uint64_t)plan->size * plan->batch) {
        fprintf(stderr, "bare-verbs: the server offers %" PRIu64 " bytes, less than a batch\n", client->offer.len_bytes);
        exit(1);
    }
}

/* The completion of the one signalled request. */
static void wait_completion(struct client *client, bool event)
{
    struct ibv_wc completion;
    int count;
    if (event) {
        struct ibv_cq *cq;
        void *context;
        zero(ibv_get_cq_event(client->events, &cq, &context), "ibv_get_cq_event");
        client->unacknowledged++;
    }
    while ((count = ibv_poll_cq(client->cq, 1, &completion)) == 0)
        ;
    if (count < 0)
        fail("ibv_poll_cq");
    if (completion.status != IBV_WC_SUCCESS) {
        fprintf(stderr, "bare-verbs: request %" PRIu64 ": %s\n", completion.wr_id, ibv_wc_status_str(completion.status));
        exit(1);
    }
}

static void write_flush(struct client *client, const struct plan *plan)
{
    struct ibv_qp_ex *qp = client->qp;
    uint64_t to = client->offer.address;
    if (plan->event)
        zero(ibv_req_notify_cq(client->cq, 0), "ibv_req_notify_cq");
    ibv_wr_start(qp);
    /* soft-RoCE needs the flag beside the call that copies the data; other providers ignore it there. */
    qp->wr_flags = client->inline_data ? IBV_SEND_INLINE : 0;
    qp->wr_id = 1;
    for (uint32_t i = 0; i < plan->batch; i++, to += plan->size) {
        ibv_wr_rdma_write(qp, client->offer.rkey, to);
        if (client->inline_data)
            ibv_wr_set_inline_data(qp, client->memory, plan->size);
        else
            ibv_wr_set_sge(qp, client->mr->lkey, (uintptr_t)client->memory, plan->size);
    }
    qp->wr_flags = IBV_SEND_SIGNALED;
    qp->wr_id = 2;
    ibv_wr_flush(qp, client->offer.rkey, client->offer.address, (size_t)plan->size * plan->batch,
                 (uint8_t)client->offer.placement, IBV_FLUSH_RANGE);
    zero(ibv_wr_complete(qp), "ibv_wr_complete");
    wait_completion(client, plan->event);
}

/* Whether every place that was written holds the bytes. */
static bool read_back(struct client *client, const struct plan *plan)
{
    struct ibv_qp_ex *qp = client->qp;
    char *back = client->memory + plan->size;
    if (plan->event)
        zero(ibv_req_notify_cq(client->cq, 0), "ibv_req_notify_cq");
    ibv_wr_start(qp);
    qp->wr_flags = IBV_SEND_SIGNALED;
    qp->wr_id = 3;
    ibv_wr_rdma_read(qp, client->offer.rkey, client->offer.address);
    ibv_wr_set_sge(qp, client->mr->lkey, (uintptr_t)back, plan->size * plan->batch);
    zero(ibv_wr_complete(qp), "ibv_wr_complete");
    wait_completion(client, plan->event);
    for (uint32_t i = 0; i < plan->batch; i++)
        if (memcmp(client->memory, back + (size_t)i * plan->size, plan->size) != 0)
            return false;
    return true;
}

static uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static int ascending(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

static int run_client(struct client *client, const struct plan *plan)
{
    uint64_t *batch_ns = made(calloc(plan->count, sizeof(*batch_ns)), "calloc");
    /* So that no page of it is new while the clock runs. */
    memset(batch_ns, 1, plan->count * sizeof(*batch_ns));
    for (uint64_t i = 0; i < plan->warmup; i++)
        write_flush(client, plan);

    MARK(1);
    uint64_t start = now_ns(), before = start;
    for (uint64_t i = 0; i < plan->count; i++) {
        write_flush(client, plan);
        uint64_t after = now_ns();
        batch_ns[i] = after - before;
        before = after;
    }
    MARK(2);

    qsort(batch_ns, plan->count, sizeof(*batch_ns), ascending);
    printf("op=write-flush size=%" PRIu32 " batch=%" PRIu32 " count=%" PRIu64 " mode=%s inline=%d placement=%s"
           " p50_ns=%" PRIu64 " p99_ns=%" PRIu64 " total_ns=%" PRIu64 "\n",
           plan->size, plan->batch, plan->count, plan->event ? "event" : "poll", client->inline_data,
           client->offer.placement == IBV_FLUSH_PERSISTENT ? "persistent" : "global",
           batch_ns[(plan->count - 1) / 2], batch_ns[(plan->count - 1) * 99 / 100], before - start);
    free(batch_ns);
    if (!read_back(client, plan)) {
        fprintf(stderr, "bare-verbs: the bytes read back are not those written\n");
        return 1;
    }
    return 0;
}

static int write_rows(struct client *client)
{
    if (client->offer.len_bytes < ROWS * ROW_BYTES || client->offer.placement != IBV_FLUSH_PERSISTENT) {
        fprintf(stderr, "bare-verbs: rows need %d bytes of persistent memory\n", ROWS * ROW_BYTES);
        return 1;
    }
    struct ibv_qp_ex *qp = client->qp;
    uint32_t rkey = client->offer.rkey, len_bytes = INLINE_BYTES;
    memset(client->memory, 'N', len_bytes);
    for (enum row row = ROW_WRITE; row < ROWS; row++) {
        uint64_t to = client->offer.address + (uint64_t)row * ROW_BYTES;
        bool atomic = row == ROW_ATOMIC_WRITE || row == ROW_ATOMIC_WRITE_FLUSH_PERSISTENT;
        ibv_wr_start(qp);
        qp->wr_id = row;
        qp->wr_flags = row == ROW_WRITE || row == ROW_ATOMIC_WRITE ? IBV_SEND_SIGNALED : 0;
        if (atomic) {
            ibv_wr_atomic_write(qp, rkey, to, client->memory);
        } else {
            ibv_wr_rdma_write(qp, rkey, to);
            ibv_wr_set_sge(qp, client->mr->lkey, (uintptr_t)client->memory, len_bytes);
        }
        qp->wr_flags = IBV_SEND_SIGNALED;
        if (row == ROW_WRITE_READ) {
            ibv_wr_rdma_read(qp, rkey, to);
            ibv_wr_set_sge(qp, client->mr->lkey, (uintptr_t)client->memory + len_bytes, 8);
        } else if (row == ROW_WRITE_FLUSH_GLOBAL) {
            ibv_wr_flush(qp, rkey, to, len_bytes, IBV_FLUSH_GLOBAL, IBV_FLUSH_RANGE);
        } else if (row == ROW_WRITE_FLUSH_PERSISTENT || row == ROW_ATOMIC_WRITE_FLUSH_PERSISTENT) {
            ibv_wr_flush(qp, rkey, to, atomic ? 8 : len_bytes, IBV_FLUSH_PERSISTENT, IBV_FLUSH_RANGE);
        }
        zero(ibv_wr_complete(qp), "ibv_wr_complete");
        wait_completion(client, false);
    }
    printf("ready\n");
    fflush(stdout);
    for (;;)
        pause();
}

static void disconnect_client(struct client *client)
{
    zero(rdma_disconnect(client->id), "rdma_disconnect");
    expect(client->channel, RDMA_CM_EVENT_DISCONNECTED, NULL);
    rdma_destroy_qp(client->id);
    ibv_ack_cq_events(client->cq, client->unacknowledged);
    zero(ibv_dereg_mr(client->mr), "ibv_dereg_mr");
    zero(ibv_destroy_cq(client->cq), "ibv_destroy_cq");
    zero(ibv_destroy_comp_channel(client->events), "ibv_destroy_comp_channel");
    zero(ibv_dealloc_pd(client->pd), "ibv_dealloc_pd");
    zero(rdma_destroy_id(client->id), "rdma_destroy_id");
    rdma_destroy_event_channel(client->channel);
    munmap(client->memory, client->memory_bytes);
}

static struct plan parse_plan(int count, char **options)
{
    struct plan plan = {0};
    bool op = false, mode = false, warmup = false;
    for (int i = 0; i < count; i += 2) {
        const char *name = options[i], *value = i + 1 < count ? options[i + 1] : NULL;
        if (!value)
            usage();
        if (strcmp(name, "--op") == 0 && strcmp(value, "write-flush") == 0)
            op = true;
        else if (strcmp(name, "--size") == 0)
            plan.size = (uint32_t)number(value, 1, 1 << 20);
        else if (strcmp(name, "--batch") == 0)
            plan.batch = (uint32_t)number(value, 1, 1 << 10);
        else if (strcmp(name, "--count") == 0)
            plan.count = number(value, 1, 1 << 28);
        else if (strcmp(name, "--warmup") == 0)
            warmup = true, plan.warmup = number(value, 0, 1 << 28);
        else if (strcmp(name, "--mode") == 0 && (strcmp(value, "event") == 0 || strcmp(value, "poll") == 0))
            mode = true, plan.event = strcmp(value, "event") == 0;
        else
            usage();
    }
    if (!op || !mode || !warmup || !plan.size || !plan.batch || !plan.count)
        usage();
    return plan;
}

int main(int argc, char **argv)
{
    if (argc == 6 && strcmp(argv[1], "server") == 0)
        return serve(argv[2], (uint16_t)number(argv[3], 0, UINT16_MAX), argv[4], number(argv[5], 1, SIZE_MAX));
    if (argc >= 5 && strcmp(argv[1], "client") == 0) {
        struct plan plan = parse_plan(argc - 5, argv + 5);
        struct client client = {0};
        connect_client(&client, argv[2], argv[3], (uint16_t)number(argv[4], 1, UINT16_MAX), &plan, 0);
        int result = run_client(&client, &plan);
        disconnect_client(&client);
        return result;
    }
    if (argc == 5 && strcmp(argv[1], "rows") == 0) {
        struct plan plan = {.size = INLINE_BYTES, .batch = 1};
        struct client client = {0};
        connect_client(&client, argv[2], argv[3], (uint16_t)number(argv[4], 1, UINT16_MAX), &plan,
                       IBV_QP_EX_WITH_ATOMIC_WRITE);
        return write_rows(&client);
    }
    usage();
}
