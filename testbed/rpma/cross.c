/* A server and a client in processes of their own, each on the librpma of its own choice: the wire between them. */
#include "cross.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "link.h"

enum { ALWAYS = RPMA_F_COMPLETION_ALWAYS, ON_ERROR = RPMA_F_COMPLETION_ON_ERROR };

/* Where things lie in the server's memory. */
enum { WRITTEN = 0, WRITTEN_BYTES = 5000, POINTER = 8192, NOTED = 12288, NOTED_BYTES = 64, KEPT = 16384 };

enum { MESSAGE_BYTES = 32, SESSIONS = 3, NUMBER = 0x01020304, ANSWER = 0x0a0b0c0d };

/* As the examples of librpma have it: both descriptors in 24 bytes. */
struct hello {
    uint8_t mr_bytes, configuration_bytes;
    uint8_t descriptors[24];
};

/* What a session's connections are made with. */
struct kind {
    const char *name;
    bool shares_channel, has_rcq, has_srq;
};

static const struct kind kinds[SESSIONS] = {
    {"one queue", false, false, false},
    {"a queue of receives on one channel", true, true, false},
    {"shared receives with a queue of their own", false, false, true},
};

/* One end of a session. */
struct session {
    const struct kind *kind;
    struct rpma_peer *peer;
    struct rpma_conn_cfg *configuration;
    struct rpma_srq *srq;
    struct rpma_conn *connection;
    struct rpma_cq *cq, *rcq;
    unsigned char *bytes;
    size_t size;
    struct rpma_mr_local *memory, *messages;
    unsigned char text[4 * MESSAGE_BYTES];
};

static unsigned char pattern(size_t at, unsigned seed) {
    return (unsigned char)(at * 131 + (at >> 8) * 17 + seed * 29 + 1);
}

static void fill(unsigned char *bytes, size_t size, unsigned seed) {
    for (size_t at = 0; at < size; at++)
        bytes[at] = pattern(at, seed);
}

static bool holds(const unsigned char *bytes, size_t size, unsigned seed) {
    for (size_t at = 0; at < size; at++)
        if (bytes[at] != pattern(at, seed))
            return false;
    return true;
}

static void pause_ms(long milliseconds) {
    struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    nanosleep(&time, NULL);
}

static void open_session(struct session *session, unsigned number, bool with_pmem) {
    memset(session, 0, sizeof *session);
    session->kind = &kinds[number];
    session->peer = new_peer();
    NEED(CALL(rpma_conn_cfg_new)(&session->configuration));
    NEED(CALL(rpma_conn_cfg_set_compl_channel)(session->configuration, session->kind->shares_channel));
    NEED(CALL(rpma_conn_cfg_set_rcq_size)(session->configuration, session->kind->has_rcq ? 10 : 0));
    session->size = REGION_BYTES;
    bool is_persistent = with_pmem && options.pmem != NULL;
    if (is_persistent) {
        size_t mapped = 2 << 20;
        int file = open(options.pmem, O_RDWR);
        session->bytes = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        close(file);
    } else {
        session->bytes = mmap(NULL, session->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    if (session->bytes == MAP_FAILED)
        bail_out("the memory can not be mapped");
    memset(session->bytes, 0, session->size);
    int flush = is_persistent ? RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT : RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY;
    int usage = RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_READ_DST | RPMA_MR_USAGE_WRITE_SRC | RPMA_MR_USAGE_WRITE_DST | flush;
    NEED(CALL(rpma_mr_reg)(session->peer, session->bytes, session->size, usage, &session->memory));
    NEED(CALL(rpma_mr_reg)(session->peer, session->text, sizeof session->text, RPMA_MR_USAGE_SEND | RPMA_MR_USAGE_RECV,
                           &session->messages));
    if (session->kind->has_srq) {
        NEED(CALL(rpma_srq_new)(session->peer, NULL, &session->srq));
        NEED(CALL(rpma_conn_cfg_set_srq)(session->configuration, session->srq));
    }
}

static void post_receive(struct session *session, unsigned slot) {
    size_t offset = slot * MESSAGE_BYTES;
    if (session->srq != NULL)
        NEED(CALL(rpma_srq_recv)(session->srq, session->messages, offset, MESSAGE_BYTES, REQUEST(1000 + slot)));
    else
        NEED(CALL(rpma_recv)(session->connection, session->messages, offset, MESSAGE_BYTES, REQUEST(1000 + slot)));
}

/* Before the connection is there. */
static void post_first_receive(struct session *session, struct rpma_conn_req *request) {
    if (session->srq != NULL)
        NEED(CALL(rpma_srq_recv)(session->srq, session->messages, 0, MESSAGE_BYTES, REQUEST(1000)));
    else
        NEED(CALL(rpma_conn_req_recv)(request, session->messages, 0, MESSAGE_BYTES, REQUEST(1000)));
}

static void take_queues(struct session *session) {
    NEED(CALL(rpma_conn_get_cq)(session->connection, &session->cq));
    if (session->srq != NULL)
        NEED(CALL(rpma_srq_get_rcq)(session->srq, &session->rcq));
    else
        NEED(CALL(rpma_conn_get_rcq)(session->connection, &session->rcq));
    if (session->rcq == NULL)
        session->rcq = session->cq;
}

static bool receives(struct session *session, unsigned slot, struct ibv_wc *completion) {
    return next_completion(session->rcq, completion) && completion->status == IBV_WC_SUCCESS &&
           completion->wr_id == 1000 + slot;
}

/* The completions of a send and of the receive in `slot`. Where both come through one queue, either may be first: the
 * two queues of a connection have no order between them. */
static void take_sent_and_received(struct session *session, uintptr_t request, unsigned slot, struct ibv_wc *received) {
    struct ibv_wc first = {0}, second = {0};
    check(next_completion(session->cq, &first), "a completion of a send or a receive");
    check(next_completion(session->rcq, &second), "and the other");
    bool is_reversed = first.wr_id == 1000 + slot;
    struct ibv_wc sent = is_reversed ? second : first;
    *received = is_reversed ? first : second;
    check(sent.status == IBV_WC_SUCCESS && sent.wr_id == request && sent.opcode == IBV_WC_SEND, "the answer is sent");
    check(received->status == IBV_WC_SUCCESS && received->wr_id == 1000 + slot, "the receive completes");
}

static void close_session(struct session *session, bool is_first) {
    if (is_first) {
        IS(CALL(rpma_conn_disconnect)(session->connection), 0);
        check(next_event(session->connection, PATIENCE_MS) == RPMA_CONN_CLOSED, "closed");
    } else {
        check(next_event(session->connection, PATIENCE_MS) == RPMA_CONN_CLOSED, "the other side closed");
        IS(CALL(rpma_conn_disconnect)(session->connection), 0);
    }
    IS(CALL(rpma_conn_delete)(&session->connection), 0);
    IS(CALL(rpma_mr_dereg)(&session->messages), 0);
    IS(CALL(rpma_mr_dereg)(&session->memory), 0);
    IS(CALL(rpma_conn_cfg_delete)(&session->configuration), 0);
    if (session->srq != NULL)
        IS(CALL(rpma_srq_delete)(&session->srq), 0);
    IS(CALL(rpma_peer_delete)(&session->peer), 0);
}

static void serve(unsigned number) {
    struct session session;
    struct ibv_wc completion;
    open_session(&session, number, true);
    /* Of the same peer as the memory: a device has both in one protection domain. */
    struct rpma_ep *endpoint = NULL;
    NEED(CALL(rpma_ep_listen)(session.peer, options.address, port(0), &endpoint));
    section(session.kind->name);
    fill(session.bytes + KEPT, WRITTEN_BYTES, 2);

    struct rpma_peer_cfg *claim = NULL;
    struct hello hello = {0};
    size_t mr_bytes = 0, claim_bytes = 0;
    NEED(CALL(rpma_peer_cfg_new)(&claim));
    NEED(CALL(rpma_peer_cfg_set_direct_write_to_pmem)(claim, options.pmem != NULL));
    NEED(CALL(rpma_mr_get_descriptor_size)(session.memory, &mr_bytes));
    NEED(CALL(rpma_peer_cfg_get_descriptor_size)(claim, &claim_bytes));
    if (!check(mr_bytes + claim_bytes <= sizeof hello.descriptors, "both descriptors have room in 24 bytes"))
        bail_out("they have not");
    hello.mr_bytes = (uint8_t)mr_bytes;
    hello.configuration_bytes = (uint8_t)claim_bytes;
    NEED(CALL(rpma_mr_get_descriptor)(session.memory, hello.descriptors));
    NEED(CALL(rpma_peer_cfg_get_descriptor)(claim, hello.descriptors + mr_bytes));
    NEED(CALL(rpma_peer_cfg_delete)(&claim));

    struct rpma_conn_req *request = next_request(endpoint, session.configuration);
    struct rpma_conn_private_data data = {0};
    NEED(CALL(rpma_conn_req_get_private_data)(request, &data));
    /* As the network gives it: padded. */
    check(data.ptr != NULL && data.len >= 6 && memcmp(data.ptr, "client", 6) == 0, "the client's private data (%u bytes)", data.len);
    post_first_receive(&session, request);
    struct rpma_conn_private_data answer = {&hello, sizeof hello};
    NEED(CALL(rpma_conn_req_connect)(&request, &answer, &session.connection));
    check(next_event(session.connection, PATIENCE_MS) == RPMA_CONN_ESTABLISHED, "established");
    take_queues(&session);
    IS(CALL(rpma_ep_shutdown)(&endpoint), 0);

    check(receives(&session, 0, &completion) && completion.opcode == IBV_WC_RECV && completion.byte_len == 5 &&
              memcmp(session.text, "wrote", 5) == 0,
          "the first message");
    check(holds(session.bytes + WRITTEN, WRITTEN_BYTES, 1), "what was written and flushed is here");
    uint64_t pointer;
    memcpy(&pointer, session.bytes + POINTER, sizeof pointer);
    check(pointer == UINT64_C(0x1122334455667788), "what was written atomically is here");
    post_receive(&session, 1);
    memcpy(session.text + 2 * MESSAGE_BYTES, "seen", 4);
    NEED(CALL(rpma_send_with_imm)(session.connection, session.messages, 2 * MESSAGE_BYTES, 4, ALWAYS, ANSWER, REQUEST(7)));
    take_sent_and_received(&session, 7, 1, &completion);
    check(completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM &&
              (completion.wc_flags & IBV_WC_WITH_IMM) && ntohl(completion.imm_data) == NUMBER &&
              completion.byte_len == NOTED_BYTES,
          "a write carried its number");
    check(holds(session.bytes + NOTED, NOTED_BYTES, 3), "what it wrote is here");
    /* The next message waits until there is a receive. */
    pause_ms(300);
    post_receive(&session, 3);
    check(receives(&session, 3, &completion) && memcmp(session.text + 3 * MESSAGE_BYTES, "late", 4) == 0,
          "a message waited for its receive");
    close_session(&session, false);
}

static void connect_to_server(unsigned number) {
    struct session session;
    struct ibv_wc completion;
    open_session(&session, number, false);
    section(session.kind->name);

    struct rpma_conn_req *request = NULL;
    for (unsigned attempt = 0; attempt < 100; attempt++) {
        NEED(CALL(rpma_conn_req_new)(session.peer, options.address, port(0), session.configuration, &request));
        post_first_receive(&session, request);
        struct rpma_conn_private_data data = {"client", 6};
        NEED(CALL(rpma_conn_req_connect)(&request, &data, &session.connection));
        if (next_event(session.connection, PATIENCE_MS) == RPMA_CONN_ESTABLISHED)
            break;
        NEED(CALL(rpma_conn_delete)(&session.connection));
        pause_ms(100);
    }
    if (session.connection == NULL)
        bail_out("the server is not there");
    take_queues(&session);
    struct rpma_conn_private_data data = {0};
    NEED(CALL(rpma_conn_get_private_data)(session.connection, &data));
    struct hello hello;
    if (data.ptr == NULL || data.len < sizeof hello)
        bail_out("the server's private data");
    memcpy(&hello, data.ptr, sizeof hello);
    struct rpma_mr_remote *theirs = NULL;
    struct rpma_peer_cfg *claim = NULL;
    NEED(CALL(rpma_mr_remote_from_descriptor)(hello.descriptors, hello.mr_bytes, &theirs));
    NEED(CALL(rpma_peer_cfg_from_descriptor)(hello.descriptors + hello.mr_bytes, hello.configuration_bytes, &claim));
    NEED(CALL(rpma_conn_apply_remote_peer_cfg)(session.connection, claim));
    NEED(CALL(rpma_peer_cfg_delete)(&claim));
    size_t size = 0;
    int types = 0;
    IS(CALL(rpma_mr_remote_get_size)(theirs, &size), 0);
    check(size == REGION_BYTES, "the size of the server's memory");
    IS(CALL(rpma_mr_remote_get_flush_type)(theirs, &types), 0);
    bool is_persistent = types & RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT;
    enum rpma_flush_type type = is_persistent ? RPMA_FLUSH_TYPE_PERSISTENT : RPMA_FLUSH_TYPE_VISIBILITY;
    check(is_persistent == (options.pmem != NULL), "the server's memory is flushed as it said");

    struct rpma_conn *connection = session.connection;
    fill(session.bytes, WRITTEN_BYTES, 1);
    static const uint64_t value = UINT64_C(0x1122334455667788);
    IS(CALL(rpma_write)(connection, theirs, WRITTEN, session.memory, 0, WRITTEN_BYTES, ON_ERROR, NULL), 0);
    IS(CALL(rpma_flush)(connection, theirs, WRITTEN, WRITTEN_BYTES, type, ALWAYS, REQUEST(1)), 0);
    check(next_completion(session.cq, &completion) && completion.status == IBV_WC_SUCCESS && completion.wr_id == 1,
          "a flush completes (opcode %u)", completion.opcode);
    IS(CALL(rpma_atomic_write)(connection, theirs, POINTER, (const char *)&value, ON_ERROR, NULL), 0);
    IS(CALL(rpma_flush)(connection, theirs, POINTER, 8, type, ALWAYS, REQUEST(2)), 0);
    check(next_completion(session.cq, &completion) && completion.status == IBV_WC_SUCCESS && completion.wr_id == 2,
          "a flush of an atomic write completes");
    IS(CALL(rpma_write)(connection, NULL, 0, NULL, 0, 0, ALWAYS, REQUEST(3)), 0);
    check(completes(session.cq, 3, IBV_WC_RDMA_WRITE, "a write of nothing"), "a write of nothing completes");
    IS(CALL(rpma_read)(connection, session.memory, KEPT, theirs, KEPT, WRITTEN_BYTES, ALWAYS, REQUEST(4)), 0);
    check(completes(session.cq, 4, IBV_WC_RDMA_READ, "a read"), "a read completes");
    check(holds(session.bytes + KEPT, WRITTEN_BYTES, 2), "what was read is what the server had there");

    memcpy(session.text + MESSAGE_BYTES, "wrote", 5);
    IS(CALL(rpma_send)(connection, session.messages, MESSAGE_BYTES, 5, ON_ERROR, NULL), 0);
    check(receives(&session, 0, &completion) && completion.opcode == IBV_WC_RECV && completion.byte_len == 4 &&
              (completion.wc_flags & IBV_WC_WITH_IMM) && ntohl(completion.imm_data) == ANSWER &&
              memcmp(session.text, "seen", 4) == 0,
          "the server's answer");
    fill(session.bytes + NOTED, NOTED_BYTES, 3);
    IS(CALL(rpma_write_with_imm)(connection, theirs, NOTED, session.memory, NOTED, NOTED_BYTES, ALWAYS, NUMBER, REQUEST(5)), 0);
    check(completes(session.cq, 5, IBV_WC_RDMA_WRITE, "a write with a number"), "a write with a number completes");
    memcpy(session.text + MESSAGE_BYTES, "late", 4);
    IS(CALL(rpma_send)(connection, session.messages, MESSAGE_BYTES, 4, ALWAYS, REQUEST(6)), 0);
    check(completes(session.cq, 6, IBV_WC_SEND, "a send without a receive"), "a send waits for its receive");
    IS(CALL(rpma_mr_remote_delete)(&theirs), 0);
    close_session(&session, true);
}

void cross_server(void) {
    for (unsigned number = 0; number < SESSIONS; number++)
        serve(number);
}

void cross_client(void) {
    for (unsigned number = 0; number < SESSIONS; number++)
        connect_to_server(number);
}
