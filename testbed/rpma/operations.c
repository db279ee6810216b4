/* Reads, writes, messages, flushes: what they refuse, what they do, what comes of what can not be done. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "link.h"
#include "parts.h"

enum { ALWAYS = RPMA_F_COMPLETION_ALWAYS, ON_ERROR = RPMA_F_COMPLETION_ON_ERROR };

/* With what must be refused: no connection, no flags, memory at one side only, offsets without memory. */
void check_arguments(void) {
    section("arguments");
    struct link link;
    open_link(&link, NULL, NULL);
    struct rpma_conn *conn = link.client.connection;
    struct rpma_mr_local *mine = link.client.region.local;
    struct rpma_mr_remote *theirs = link.server.region.remote;
    static const char eight[8];

    IS(CALL(rpma_read)(NULL, mine, 0, theirs, 0, 8, ALWAYS, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_read)(conn, mine, 0, theirs, 0, 8, 0, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_read)(conn, NULL, 0, theirs, 0, 8, ALWAYS, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_read)(conn, mine, 0, NULL, 0, 8, ALWAYS, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_read)(conn, NULL, 0, NULL, 0, 8, ALWAYS, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_read)(conn, NULL, 8, NULL, 0, 0, ALWAYS, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_read)(conn, NULL, 0, NULL, 8, 0, ALWAYS, NULL), RPMA_E_INVAL);

    IS(CALL(rpma_write)(NULL, theirs, 0, mine, 0, 8, ALWAYS, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_write)(conn, theirs, 0, mine, 0, 8, 0, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_write)(conn, NULL, 0, mine, 0, 8, ALWAYS, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_write)(conn, theirs, 0, NULL, 0, 8, ALWAYS, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_write)(conn, NULL, 0, NULL, 0, 8, ALWAYS, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_write)(conn, NULL, 8, NULL, 0, 0, ALWAYS, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_write)(conn, NULL, 0, NULL, 8, 0, ALWAYS, NULL), RPMA_E_INVAL);

    IS(CALL(rpma_write_with_imm)(NULL, theirs, 0, mine, 0, 8, ALWAYS, 1, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_write_with_imm)(conn, theirs, 0, mine, 0, 8, 0, 1, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_write_with_imm)(conn, NULL, 0, mine, 0, 8, ALWAYS, 1, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_write_with_imm)(conn, theirs, 0, NULL, 0, 8, ALWAYS, 1, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_write_with_imm)(conn, NULL, 0, NULL, 0, 8, ALWAYS, 1, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_write_with_imm)(conn, NULL, 8, NULL, 0, 0, ALWAYS, 1, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_write_with_imm)(conn, NULL, 0, NULL, 8, 0, ALWAYS, 1, NULL), RPMA_E_INVAL);

    IS(CALL(rpma_atomic_write)(NULL, theirs, 0, eight, ALWAYS, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_atomic_write)(conn, NULL, 0, eight, ALWAYS, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_atomic_write)(conn, theirs, 0, NULL, ALWAYS, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_atomic_write)(conn, theirs, 0, eight, 0, NULL), RPMA_E_INVAL);
    for (size_t offset = 1; offset < RPMA_ATOMIC_WRITE_ALIGNMENT; offset++)
        if (CALL(rpma_atomic_write)(conn, theirs, offset, eight, ALWAYS, NULL) != RPMA_E_INVAL)
            check(false, "rpma_atomic_write refuses the offset %zu", offset);
    check(true, "rpma_atomic_write looks at the alignment of its offset");

    IS(CALL(rpma_flush)(NULL, theirs, 0, 8, RPMA_FLUSH_TYPE_VISIBILITY, ALWAYS, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_flush)(conn, NULL, 0, 8, RPMA_FLUSH_TYPE_VISIBILITY, ALWAYS, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_flush)(conn, theirs, 0, 8, RPMA_FLUSH_TYPE_VISIBILITY, 0, NULL), RPMA_E_INVAL);
    IS_UNLESS_REFERENCE("librpma takes every other type for visibility",
                        CALL(rpma_flush)(conn, theirs, 0, 8, (enum rpma_flush_type)7, ALWAYS, NULL), RPMA_E_INVAL);

    IS(CALL(rpma_send)(NULL, mine, 0, 8, ALWAYS, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_send)(conn, mine, 0, 8, 0, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_send)(conn, NULL, 8, 0, ALWAYS, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_send)(conn, NULL, 0, 8, ALWAYS, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_send_with_imm)(NULL, mine, 0, 8, ALWAYS, 1, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_send_with_imm)(conn, mine, 0, 8, 0, 1, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_send_with_imm)(conn, NULL, 8, 0, ALWAYS, 1, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_send_with_imm)(conn, NULL, 0, 8, ALWAYS, 1, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_recv)(NULL, mine, 0, 8, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_recv)(conn, NULL, 8, 0, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_recv)(conn, NULL, 0, 8, NULL), RPMA_E_INVAL);

    struct ibv_wc completions[2];
    int got = -1;
    IS(CALL(rpma_cq_get_wc)(NULL, 1, completions, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_cq_get_wc)(link.client.cq, 1, NULL, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_cq_get_wc)(link.client.cq, 0, completions, &got), RPMA_E_INVAL);
    IS(CALL(rpma_cq_get_wc)(link.client.cq, -1, completions, &got), RPMA_E_INVAL);
    IS(CALL(rpma_cq_get_wc)(link.client.cq, 2, completions, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_cq_get_wc)(link.client.cq, 2, completions, &got), RPMA_E_NO_COMPLETION);
    IS(CALL(rpma_cq_get_wc)(link.client.cq, 1, completions, NULL), RPMA_E_NO_COMPLETION);
    check(!anything_comes(link.client.cq), "nothing that is refused completes");
    close_link(&link);
}

static bool same(const struct region *one, size_t at, const struct region *other, size_t there, size_t bytes) {
    return memcmp(one->bytes + at, other->bytes + there, bytes) == 0;
}

static void fill(struct region *region, unsigned seed) {
    for (size_t byte = 0; byte < region->size; byte++)
        region->bytes[byte] = (unsigned char)((byte * 2654435761U + seed) >> 13);
}

void check_transfers(void) {
    section("transfers");
    struct link link;
    open_link(&link, NULL, NULL);
    struct rpma_conn *conn = link.client.connection;
    struct rpma_cq *cq = link.client.cq;
    struct region *mine = &link.client.region, *theirs = &link.server.region;
    uint32_t number = 0;
    struct ibv_wc completion, several[4];
    NEED(CALL(rpma_conn_get_qp_num)(conn, &number));

    fill(mine, 1);
    IS(CALL(rpma_write)(conn, theirs->remote, 5, mine->local, 3, 1000, ALWAYS, REQUEST(0x123456789abcdef0)), 0);
    if (check(next_completion(cq, &completion), "a write completes")) {
        check(completion.status == IBV_WC_SUCCESS && completion.opcode == IBV_WC_RDMA_WRITE, "as a write");
        check(completion.wr_id == 0x123456789abcdef0, "with all 64 bits of its context");
        check(completion.qp_num == number, "with the number of its connection");
    }
    check(same(theirs, 5, mine, 3, 1000), "its bytes are there");
    check(theirs->bytes[4] == 0 && theirs->bytes[1005] == 0, "and no others");
    IS(CALL(rpma_write)(conn, theirs->remote, 0, mine->local, 0, REGION_BYTES, ALWAYS, REQUEST(2)), 0);
    completes(cq, 2, IBV_WC_RDMA_WRITE, "a write of a whole region");
    check(same(theirs, 0, mine, 0, REGION_BYTES), "all its bytes are there");

    fill(theirs, 2);
    IS(CALL(rpma_read)(conn, mine->local, 7, theirs->remote, 9, 3000, ALWAYS, REQUEST(3)), 0);
    if (check(next_completion(cq, &completion), "a read completes"))
        check(completion.status == IBV_WC_SUCCESS && completion.opcode == IBV_WC_RDMA_READ && completion.wr_id == 3 &&
                  completion.byte_len == 3000, "as a read, with its length");
    check(same(mine, 7, theirs, 9, 3000), "its bytes are there");
    IS(CALL(rpma_read)(link.server.connection, theirs->local, 0, mine->remote, 0, 64, ALWAYS, REQUEST(4)), 0);
    completes(link.server.cq, 4, IBV_WC_RDMA_READ, "a read from the side that listened");

    IS(CALL(rpma_write)(conn, theirs->remote, 0, mine->local, 0, 64, ON_ERROR, REQUEST(5)), 0);
    IS(CALL(rpma_read)(conn, mine->local, 4000, theirs->remote, 4000, 64, ON_ERROR, REQUEST(6)), 0);
    IS(CALL(rpma_write)(conn, theirs->remote, 64, mine->local, 64, 64, ALWAYS, REQUEST(7)), 0);
    completes(cq, 7, IBV_WC_RDMA_WRITE, "of three requests that do not fail the one that asks");
    check(!anything_comes(cq), "and no other");
    check(same(theirs, 0, mine, 0, 128) && same(theirs, 4000, mine, 4000, 64), "what came before it is done");

    IS(CALL(rpma_write)(conn, NULL, 0, NULL, 0, 0, ALWAYS, REQUEST(8)), 0);
    completes(cq, 8, IBV_WC_RDMA_WRITE, "a write of nothing");
    IS(CALL(rpma_read)(conn, NULL, 0, NULL, 0, 0, ALWAYS, REQUEST(9)), 0);
    completes(cq, 9, IBV_WC_RDMA_READ, "a read of nothing");
    IS(CALL(rpma_write)(conn, theirs->remote, 16, mine->local, 16, 0, ALWAYS, REQUEST(10)), 0);
    completes(cq, 10, IBV_WC_RDMA_WRITE, "a write of no bytes of a region");

    for (uintptr_t request = 20; request < 28; request++)
        NEED(CALL(rpma_write)(conn, theirs->remote, request, mine->local, request, 64, ALWAYS, REQUEST(request)));
    uint64_t expected = 20;
    bool ordered = true;
    while (expected < 28) {
        int got = 0;
        if (!next_completion(cq, &several[0]))
            break;
        ordered = ordered && several[0].wr_id == expected++;
        if (CALL(rpma_cq_get_wc)(cq, 4, several, &got) == 0)
            for (int each = 0; each < got; each++)
                ordered = ordered && several[each].wr_id == expected++;
    }
    check(ordered && expected == 28, "eight writes complete in their order, some taken together");

    static const char eight[8] = {1, 2, 3, 4, 5, 6, 7, 8}, other[8] = {8, 7, 6, 5, 4, 3, 2, 1};
    IS(CALL(rpma_atomic_write)(conn, theirs->remote, 4096, eight, ALWAYS, REQUEST(30)), 0);
    if (check(next_completion(cq, &completion), "an atomic write completes"))
        check(completion.status == IBV_WC_SUCCESS && completion.wr_id == 30, "with success and its context");
    tell("an atomic write completes as %d", completion.opcode);
    check(memcmp(theirs->bytes + 4096, eight, 8) == 0, "its eight bytes are there");
    IS(CALL(rpma_atomic_write)(conn, theirs->remote, 4096, other, ON_ERROR, REQUEST(31)), 0);
    IS(CALL(rpma_atomic_write)(conn, theirs->remote, REGION_BYTES - 8, other, ALWAYS, REQUEST(32)), 0);
    check(next_completion(cq, &completion) && completion.status == IBV_WC_SUCCESS && completion.wr_id == 32,
          "an atomic write to the last eight bytes completes, and the silent one before does not");
    check(memcmp(theirs->bytes + 4096, other, 8) == 0 && memcmp(theirs->bytes + REGION_BYTES - 8, other, 8) == 0,
          "the bytes of both are there");
    close_link(&link);
}

/* A message that is longer than its receive fails at both ends, whether it found the receive or waited for it. */
static void check_message_too_long(bool waits) {
    section(waits ? "a message too long for the receive that it waited for" : "a message too long for its receive");
    struct link link;
    struct ibv_wc completion;
    open_link(&link, NULL, NULL);
    struct rpma_conn *client = link.client.connection, *server = link.server.connection;
    struct rpma_mr_local *local = link.server.region.local;
    if (!waits)
        NEED(CALL(rpma_recv)(server, local, 0, 32, REQUEST(1)));
    IS(CALL(rpma_send)(client, link.client.region.local, 0, 64, ALWAYS, REQUEST(2)), 0);
    if (waits) {
        IS(CALL(rpma_send)(client, link.client.region.local, 0, 8, ON_ERROR, REQUEST(3)), 0);
        check(!anything_comes(link.client.cq), "it waits");
        NEED(CALL(rpma_recv)(server, local, 0, 32, REQUEST(1)));
    }
    if (check(next_completion(link.client.cq, &completion), "the message has an outcome"))
        check(completion.wr_id == 2 && (completion.status == IBV_WC_REM_OP_ERR ||
              completion.status == IBV_WC_REM_INV_REQ_ERR), "it is the other side's error (%d)", completion.status);
    if (waits)
        check(next_completion(link.client.cq, &completion) && completion.wr_id == 3 &&
                  completion.status == IBV_WC_WR_FLUSH_ERR, "what was posted behind it is flushed");
    /* Devices differ: soft-RoCE calls it an error of its queue pair. */
    if (check(next_completion(link.server.cq, &completion), "the receive has an outcome"))
        check(completion.wr_id == 1 && (completion.status == IBV_WC_LOC_LEN_ERR ||
              completion.status == IBV_WC_LOC_QP_OP_ERR), "it was too small (%d)", completion.status);
    CALL(rpma_conn_disconnect)(client);
    CALL(rpma_conn_disconnect)(server);
    NEED(CALL(rpma_conn_delete)(&link.client.connection));
    NEED(CALL(rpma_conn_delete)(&link.server.connection));
    drop_region(&link.client.region);
    drop_region(&link.server.region);
    delete_peer(&link.peer);
}

void check_messages(void) {
    section("messages");
    struct link link;
    open_link(&link, NULL, NULL);
    struct rpma_conn *conn = link.client.connection, *other = link.server.connection;
    struct region *mine = &link.client.region, *theirs = &link.server.region;
    struct ibv_wc completion;
    uint32_t number = 0;
    NEED(CALL(rpma_conn_get_qp_num)(other, &number));
    fill(mine, 3);

    IS(CALL(rpma_recv)(other, theirs->local, 100, 512, REQUEST(1)), 0);
    IS(CALL(rpma_send)(conn, mine->local, 10, 300, ALWAYS, REQUEST(2)), 0);
    completes(link.client.cq, 2, IBV_WC_SEND, "a message");
    if (check(next_completion(link.server.cq, &completion), "it is received"))
        check(completion.status == IBV_WC_SUCCESS && completion.opcode == IBV_WC_RECV && completion.wr_id == 1 &&
                  completion.byte_len == 300 && completion.qp_num == number &&
                  (completion.wc_flags & IBV_WC_WITH_IMM) == 0, "with its length, number and context");
    check(same(theirs, 100, mine, 10, 300) && theirs->bytes[400] == 0, "in its place");

    IS(CALL(rpma_recv)(other, theirs->local, 0, 512, REQUEST(3)), 0);
    IS(CALL(rpma_send_with_imm)(conn, mine->local, 0, 16, ALWAYS, 0x12345678, REQUEST(4)), 0);
    completes(link.client.cq, 4, IBV_WC_SEND, "a message with a number");
    if (check(next_completion(link.server.cq, &completion), "it is received"))
        check(completion.status == IBV_WC_SUCCESS && completion.opcode == IBV_WC_RECV && completion.wr_id == 3 &&
                  completion.byte_len == 16 && (completion.wc_flags & IBV_WC_WITH_IMM) != 0 &&
                  completion.imm_data == htonl(0x12345678), "with the number in network order");

    IS(CALL(rpma_recv)(other, NULL, 0, 0, REQUEST(5)), 0);
    IS(CALL(rpma_send)(conn, NULL, 0, 0, ALWAYS, REQUEST(6)), 0);
    completes(link.client.cq, 6, IBV_WC_SEND, "an empty message");
    check(next_completion(link.server.cq, &completion) && completion.status == IBV_WC_SUCCESS &&
              completion.opcode == IBV_WC_RECV && completion.wr_id == 5 && completion.byte_len == 0,
          "it is received without a buffer");
    IS(CALL(rpma_recv)(other, NULL, 0, 0, REQUEST(7)), 0);
    IS(CALL(rpma_send_with_imm)(conn, NULL, 0, 0, ALWAYS, 0xfedcba98, REQUEST(8)), 0);
    completes(link.client.cq, 8, IBV_WC_SEND, "an empty message with a number");
    check(next_completion(link.server.cq, &completion) && completion.wr_id == 7 &&
              completion.imm_data == htonl(0xfedcba98), "its number is received");

    IS(CALL(rpma_recv)(other, NULL, 0, 0, REQUEST(9)), 0);
    IS(CALL(rpma_write_with_imm)(conn, theirs->remote, 2048, mine->local, 0, 200, ALWAYS, 77, REQUEST(10)), 0);
    completes(link.client.cq, 10, IBV_WC_RDMA_WRITE, "a write with a number");
    if (check(next_completion(link.server.cq, &completion), "its number is received"))
        check(completion.status == IBV_WC_SUCCESS && completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM &&
                  completion.wr_id == 9 && completion.byte_len == 200 && completion.imm_data == htonl(77) &&
                  (completion.wc_flags & IBV_WC_WITH_IMM) != 0, "with its length");
    check(same(theirs, 2048, mine, 0, 200), "its bytes are there");
    IS(CALL(rpma_recv)(other, NULL, 0, 0, REQUEST(11)), 0);
    IS(CALL(rpma_write_with_imm)(conn, NULL, 0, NULL, 0, 0, ALWAYS, 78, REQUEST(12)), 0);
    completes(link.client.cq, 12, IBV_WC_RDMA_WRITE, "a write of nothing with a number");
    check(next_completion(link.server.cq, &completion) && completion.wr_id == 11 && completion.imm_data == htonl(78),
          "its number is received");

    /* A message waits for a receive that comes later: the sender tries again without end. */
    IS(CALL(rpma_send)(conn, mine->local, 0, 8, ALWAYS, REQUEST(13)), 0);
    check(!anything_comes(link.client.cq), "a message that nobody receives does not complete");
    IS(CALL(rpma_recv)(other, theirs->local, 4000, 8, REQUEST(14)), 0);
    completes(link.client.cq, 13, IBV_WC_SEND, "a message that had to wait for its receive");
    completes(link.server.cq, 14, IBV_WC_RECV, "the receive that came late");
    check(same(theirs, 4000, mine, 0, 8), "its bytes are there");
    IS(CALL(rpma_recv)(conn, mine->local, 0, 64, REQUEST(15)), 0);
    IS(CALL(rpma_send)(other, theirs->local, 0, 64, ON_ERROR, REQUEST(16)), 0);
    completes(link.client.cq, 15, IBV_WC_RECV, "a message from the side that listened");
    check(!anything_comes(link.server.cq), "a send that does not ask does not complete");
    close_link(&link);
    for (int waits = 0; waits < 2; waits++)
        check_message_too_long(waits != 0);

    section("receives before the connection");
    struct rpma_peer *peer = new_peer();
    struct rpma_ep *endpoint = NULL;
    struct rpma_conn_req *outgoing = NULL, *incoming = NULL;
    struct rpma_conn *client = NULL, *server = NULL;
    struct rpma_cq *client_cq = NULL, *server_cq = NULL;
    struct region buffers;
    make_region(peer, RPMA_MR_USAGE_RECV | RPMA_MR_USAGE_SEND, &buffers);
    NEED(CALL(rpma_ep_listen)(peer, options.address, port(0), &endpoint));
    NEED(CALL(rpma_conn_req_new)(peer, options.address, port(0), NULL, &outgoing));
    IS(CALL(rpma_conn_req_recv)(NULL, buffers.local, 0, 64, REQUEST(1)), RPMA_E_INVAL);
    IS(CALL(rpma_conn_req_recv)(outgoing, NULL, 0, 64, REQUEST(1)), RPMA_E_INVAL);
    IS(CALL(rpma_conn_req_recv)(outgoing, buffers.local, 0, 64, REQUEST(1)), 0);
    NEED(CALL(rpma_conn_req_connect)(&outgoing, NULL, &client));
    incoming = next_request(endpoint, NULL);
    for (uintptr_t request = 2; request < 6; request++)
        IS(CALL(rpma_conn_req_recv)(incoming, buffers.local, request * 64, 64, REQUEST(request)), 0);
    NEED(CALL(rpma_conn_req_connect)(&incoming, NULL, &server));
    check(next_event(client, PATIENCE_MS) == RPMA_CONN_ESTABLISHED, "the client is connected");
    NEED(CALL(rpma_conn_get_cq)(client, &client_cq));
    memset(buffers.bytes + 4096, 0x42, 64);
    IS(CALL(rpma_send)(client, buffers.local, 4096, 64, ALWAYS, REQUEST(9)), 0);
    completes(client_cq, 9, IBV_WC_SEND, "a message before the server has seen its connection");
    check(next_event(server, PATIENCE_MS) == RPMA_CONN_ESTABLISHED, "the server is connected");
    NEED(CALL(rpma_conn_get_cq)(server, &server_cq));
    if (check(next_completion(server_cq, &completion), "it is in one of the prepared buffers"))
        check(completion.status == IBV_WC_SUCCESS && completion.wr_id >= 2 && completion.wr_id < 6 &&
                  buffers.bytes[completion.wr_id * 64] == 0x42, "the one that the completion names");
    IS(CALL(rpma_send)(server, buffers.local, 4096, 64, ALWAYS, REQUEST(10)), 0);
    completes(server_cq, 10, IBV_WC_SEND, "an answer");
    completes(client_cq, 1, IBV_WC_RECV, "the receive that the client had prepared");
    NEED(CALL(rpma_ep_shutdown)(&endpoint));
    IS(CALL(rpma_conn_disconnect)(client), 0);
    check(next_event(server, PATIENCE_MS) == RPMA_CONN_CLOSED, "the server sees that it is closed");
    IS(CALL(rpma_conn_disconnect)(server), 0);
    unsigned flushed = 0;
    while (flushed < 3 && next_completion(server_cq, &completion) && completion.status == IBV_WC_WR_FLUSH_ERR)
        flushed++;
    check(flushed == 3, "receives that nothing came for complete with an error when the connection ends");
    IS(CALL(rpma_conn_delete)(&client), 0);
    IS(CALL(rpma_conn_delete)(&server), 0);
    drop_region(&buffers);
    delete_peer(&peer);
}

/* Memory that can be flushed persistently, as far as this machine has some. */
struct persistent {
    void *bytes;
    int file;
    bool mapped;
};

enum { PERSISTENT_BYTES = 2 << 20 };

static struct persistent persistent_memory(void) {
    struct persistent memory = {.file = -1};
    if (options.pmem == NULL) {
        if (posix_memalign(&memory.bytes, (size_t)sysconf(_SC_PAGESIZE), PERSISTENT_BYTES) != 0)
            bail_out("no memory");
        return memory;
    }
    memory.file = open(options.pmem, O_RDWR);
    memory.bytes = mmap(NULL, PERSISTENT_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memory.file, 0);
    if (memory.file < 0 || memory.bytes == MAP_FAILED)
        bail_out("the persistent memory can not be mapped");
    memory.mapped = true;
    return memory;
}

static void drop_persistent(struct persistent *memory) {
    if (memory->mapped) {
        munmap(memory->bytes, PERSISTENT_BYTES);
        close(memory->file);
    } else {
        free(memory->bytes);
    }
}

static bool flushed(struct link *link, struct rpma_mr_remote *where, size_t offset, size_t bytes,
                    enum rpma_flush_type type) {
    struct ibv_wc completion;
    int returned = CALL(rpma_flush)(link->client.connection, where, offset, bytes, type, ALWAYS, REQUEST(offset + 1));
    if (returned != 0 || !next_completion(link->client.cq, &completion)) {
        tell("rpma_flush returned %d", returned);
        return false;
    }
    if (completion.status != IBV_WC_SUCCESS || completion.wr_id != offset + 1)
        tell("request %lu status %d", (unsigned long)completion.wr_id, completion.status);
    return completion.status == IBV_WC_SUCCESS && completion.wr_id == offset + 1;
}

static void check_persistent_flushes(struct link *link) {
    struct rpma_conn *conn = link->client.connection;
    struct persistent memory = persistent_memory();
    struct rpma_mr_local *local = NULL;
    struct rpma_mr_remote *remote = NULL;
    struct rpma_peer_cfg *claim = NULL;
    unsigned char descriptor[255];
    size_t size = 0;
    enum { USAGE = RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT };
    NEED(CALL(rpma_mr_reg)(link->peer, memory.bytes, PERSISTENT_BYTES, USAGE, &local));
    NEED(CALL(rpma_mr_get_descriptor_size)(local, &size));
    NEED(CALL(rpma_mr_get_descriptor)(local, descriptor));
    NEED(CALL(rpma_mr_remote_from_descriptor)(descriptor, size, &remote));
    int types = 0;
    NEED(CALL(rpma_mr_remote_get_flush_type)(remote, &types));
    check(types == RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT, "the flush type comes through a descriptor");

    IS(CALL(rpma_flush)(conn, remote, 0, 8, RPMA_FLUSH_TYPE_PERSISTENT, ALWAYS, NULL), RPMA_E_NOSUPP);
    NEED(CALL(rpma_peer_cfg_new)(&claim));
    NEED(CALL(rpma_conn_apply_remote_peer_cfg)(conn, claim));
    IS(CALL(rpma_flush)(conn, remote, 0, 8, RPMA_FLUSH_TYPE_PERSISTENT, ALWAYS, NULL), RPMA_E_NOSUPP);
    NEED(CALL(rpma_peer_cfg_set_direct_write_to_pmem)(claim, true));
    IS(CALL(rpma_flush)(conn, remote, 0, 8, RPMA_FLUSH_TYPE_PERSISTENT, ALWAYS, NULL), RPMA_E_NOSUPP);
    check(true, "a claim counts only once it is applied");
    NEED(CALL(rpma_conn_apply_remote_peer_cfg)(conn, claim));
    IS(CALL(rpma_flush)(conn, link->server.region.remote, 0, 8, RPMA_FLUSH_TYPE_PERSISTENT, ALWAYS, NULL),
       RPMA_E_NOSUPP);
    IS(CALL(rpma_flush)(conn, remote, 0, 8, RPMA_FLUSH_TYPE_VISIBILITY, ALWAYS, NULL), RPMA_E_NOSUPP);
    fill(&link->client.region, 4);
    IS(CALL(rpma_write)(conn, remote, 64, link->client.region.local, 0, 4096, ON_ERROR, REQUEST(1)), 0);
    check(flushed(link, remote, 64, 4096, RPMA_FLUSH_TYPE_PERSISTENT), "a persistent flush completes after its write");
    check(memcmp((char *)memory.bytes + 64, link->client.region.bytes, 4096) == 0, "the bytes are there");
    check(flushed(link, remote, 0, PERSISTENT_BYTES, RPMA_FLUSH_TYPE_PERSISTENT), "all of a region can be flushed");
    check(flushed(link, remote, PERSISTENT_BYTES - 8, 8, RPMA_FLUSH_TYPE_PERSISTENT), "so can its last eight bytes");

    /* A remote log's step: record, flush, pointer, flush, none waited for. */
    static const char pointer[8] = {'p', 'o', 'i', 'n', 't', 'e', 'r', '!'};
    IS(CALL(rpma_write)(conn, remote, 8192, link->client.region.local, 8192, 512, ON_ERROR, REQUEST(2)), 0);
    IS(CALL(rpma_flush)(conn, remote, 8192, 512, RPMA_FLUSH_TYPE_PERSISTENT, ON_ERROR, REQUEST(3)), 0);
    IS(CALL(rpma_atomic_write)(conn, remote, 0, pointer, ON_ERROR, REQUEST(4)), 0);
    check(flushed(link, remote, 0, 8, RPMA_FLUSH_TYPE_PERSISTENT), "a record and its pointer are flushed");
    check(memcmp(memory.bytes, pointer, 8) == 0, "the pointer is there");

    NEED(CALL(rpma_peer_cfg_set_direct_write_to_pmem)(claim, false));
    NEED(CALL(rpma_conn_apply_remote_peer_cfg)(conn, claim));
    IS(CALL(rpma_flush)(conn, remote, 0, 8, RPMA_FLUSH_TYPE_PERSISTENT, ALWAYS, NULL), RPMA_E_NOSUPP);
    NEED(CALL(rpma_peer_cfg_delete)(&claim));
    NEED(CALL(rpma_mr_remote_delete)(&remote));
    NEED(CALL(rpma_mr_dereg)(&local));
    drop_persistent(&memory);
}

void check_flushing(void) {
    section("flushing");
    struct link link;
    struct region silent;
    open_link(&link, NULL, NULL);
    struct rpma_conn *conn = link.client.connection;
    make_region(link.peer, RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_READ_SRC, &silent);
    IS(CALL(rpma_flush)(conn, silent.remote, 0, 8, RPMA_FLUSH_TYPE_VISIBILITY, ALWAYS, NULL), RPMA_E_NOSUPP);
    IS(CALL(rpma_flush)(conn, silent.remote, 0, 8, RPMA_FLUSH_TYPE_PERSISTENT, ALWAYS, NULL), RPMA_E_NOSUPP);
    IS(CALL(rpma_flush)(conn, link.server.region.remote, 0, 8, RPMA_FLUSH_TYPE_PERSISTENT, ALWAYS, NULL),
       RPMA_E_NOSUPP);
    drop_region(&silent);
    fill(&link.client.region, 5);
    struct rpma_mr_remote *theirs = link.server.region.remote;
    IS(CALL(rpma_write)(conn, theirs, 0, link.client.region.local, 0, 1024, ON_ERROR, REQUEST(1)), 0);
    check(flushed(&link, theirs, 0, 1024, RPMA_FLUSH_TYPE_VISIBILITY), "a visibility flush completes after its write");
    check(same(&link.server.region, 0, &link.client.region, 0, 1024), "the bytes are there");
    check(flushed(&link, theirs, REGION_BYTES - 8, 8, RPMA_FLUSH_TYPE_VISIBILITY), "the last eight bytes are flushed");
    if (options.reference && options.pmem == NULL)
        skip("soft-RoCE refuses ordinary memory for persistent flushes, and librpma passes that on",
             "persistent flushes");
    else
        check_persistent_flushes(&link);
    /* Last, since an error ends the connection. */
    check(flushed(&link, theirs, REGION_BYTES - 3, 3, RPMA_FLUSH_TYPE_VISIBILITY), "the last three bytes are flushed");
    close_link(&link);
}

/* How a request that can not be done ends: refused, or completed with an error. Anything but success. */
static bool fails(struct rpma_cq *cq, int returned, const char *name) {
    struct ibv_wc completion = {.status = IBV_WC_SUCCESS};
    if (returned != 0)
        return check(returned == RPMA_E_INVAL || returned == RPMA_E_PROVIDER || returned == RPMA_E_NOSUPP,
                     "%s is refused (%d)", name, returned);
    if (!next_completion(cq, &completion))
        return check(false, "%s: no completion came", name);
    return check(completion.status != IBV_WC_SUCCESS && completion.wr_id == 66, "%s completes with an error (%d)", name,
                 completion.status);
}

enum { BAD_READ, BAD_WRITE, BAD_ATOMIC, BAD_FLUSH, BAD_LOCAL, BAD_RIGHT, BAD_KEY, BAD_LENGTH, BAD_SILENT, BAD_ENDS };

/* Each on a connection of its own: an error may end it. */
static void check_bad(int which) {
    struct link link;
    struct region weak = {.bytes = NULL};
    open_link(&link, NULL, NULL);
    struct rpma_conn *conn = link.client.connection;
    struct rpma_cq *cq = link.client.cq;
    struct rpma_mr_local *mine = link.client.region.local;
    struct rpma_mr_remote *theirs = link.server.region.remote;
    static const char eight[8] = {1};
    unsigned char descriptor[255];
    size_t size = 0;
    switch (which) {
    case BAD_READ:
        fails(cq, CALL(rpma_read)(conn, mine, 0, theirs, REGION_BYTES - 4, 8, ALWAYS, REQUEST(66)),
              "a read beyond a remote region");
        break;
    case BAD_WRITE:
        fails(cq, CALL(rpma_write)(conn, theirs, REGION_BYTES - 4, mine, 0, 8, ALWAYS, REQUEST(66)),
              "a write beyond a remote region");
        break;
    case BAD_ATOMIC:
        fails(cq, CALL(rpma_atomic_write)(conn, theirs, REGION_BYTES, eight, ALWAYS, REQUEST(66)),
              "an atomic write beyond a remote region");
        break;
    case BAD_FLUSH:
        fails(cq, CALL(rpma_flush)(conn, theirs, REGION_BYTES - 4, 8, RPMA_FLUSH_TYPE_VISIBILITY, ALWAYS, REQUEST(66)),
              "a flush beyond a remote region");
        break;
    case BAD_LOCAL:
        fails(cq, CALL(rpma_write)(conn, theirs, 0, mine, REGION_BYTES - 4, 8, ALWAYS, REQUEST(66)),
              "a write from beyond a local region");
        break;
    case BAD_RIGHT:
        make_region(link.peer, RPMA_MR_USAGE_READ_SRC, &weak);
        memset(link.client.region.bytes, 1, 8);
        fails(cq, CALL(rpma_write)(conn, weak.remote, 0, mine, 0, 8, ALWAYS, REQUEST(66)),
              "a write to memory that may only be read");
        check(weak.bytes[0] == 0, "the memory is as it was");
        break;
    case BAD_KEY: {
        struct rpma_mr_remote *strange = NULL;
        NEED(CALL(rpma_mr_get_descriptor_size)(link.server.region.local, &size));
        NEED(CALL(rpma_mr_get_descriptor)(link.server.region.local, descriptor));
        descriptor[17] ^= 0xff;
        int returned = CALL(rpma_mr_remote_from_descriptor)(descriptor, size, &strange);
        if (returned == 0) {
            memset(link.client.region.bytes, 1, 8);
            returned = CALL(rpma_write)(conn, strange, 0, mine, 0, 8, ALWAYS, REQUEST(66));
        }
        fails(cq, returned, "a write with a key that was changed");
        check(link.server.region.bytes[0] == 0, "the memory is as it was");
        NEED(CALL(rpma_mr_remote_delete)(&strange));
        break;
    }
    case BAD_LENGTH:
        if (options.reference)
            skip("librpma takes the length modulo 2^32", "a write of 4 GiB and 8 bytes");
        else
            fails(cq, CALL(rpma_write)(conn, theirs, 0, mine, 0, (1ULL << 32) + 8, ALWAYS, REQUEST(66)),
                  "a write of 4 GiB and 8 bytes");
        break;
    case BAD_SILENT:
        fails(cq, CALL(rpma_write)(conn, theirs, REGION_BYTES - 4, mine, 0, 8, ON_ERROR, REQUEST(66)),
              "a write that asks to hear of errors only");
        break;
    case BAD_ENDS:
        NEED(CALL(rpma_conn_disconnect)(conn));
        check(next_event(link.server.connection, PATIENCE_MS) == RPMA_CONN_CLOSED, "the connection is closed");
        fails(cq, CALL(rpma_write)(conn, theirs, 0, mine, 0, 8, ALWAYS, REQUEST(66)), "a write after the end");
        /* Over verbs the side that did not disconnect may go on posting until it does. */
        NEED(CALL(rpma_conn_disconnect)(link.server.connection));
        fails(link.server.cq, CALL(rpma_send)(link.server.connection, link.server.region.local, 0, 8, ALWAYS,
                                              REQUEST(66)), "a message after the end");
        break;
    default: break;
    }
    if (weak.bytes != NULL)
        drop_region(&weak);
    NEED(CALL(rpma_conn_delete)(&link.client.connection));
    NEED(CALL(rpma_conn_delete)(&link.server.connection));
    drop_region(&link.client.region);
    drop_region(&link.server.region);
    delete_peer(&link.peer);
}

void check_errors(void) {
    section("errors");
    for (int which = BAD_READ; which <= BAD_ENDS; which++)
        check_bad(which);

    struct link link;
    open_link(&link, NULL, NULL);
    int posted = 0, returned = 0;
    enum { FAR_TOO_MANY = 4096 };
    while (posted < FAR_TOO_MANY &&
           (returned = CALL(rpma_recv)(link.client.connection, link.client.region.local, 0, 8, NULL)) == 0)
        posted++;
    check_code(returned, RPMA_E_PROVIDER, "rpma_recv into a full receive queue is RPMA_E_PROVIDER");
    check(posted >= 10, "at least as many receives fit as were configured");
    tell("%d receives fit", posted);
    close_link(&link);
}
