/* Writes with flushes, or reads, one by one, for an instrument that counts the instructions of the calls. */
#include <string.h>
#include <time.h>

#include "cross.h"
#include "link.h"

enum { DESCRIPTOR_BYTES = 32, WRITE_BYTES = 64 };

/* Waits for the completion of an operation. So that the first look finds it, not at once. */
static bool is_done(struct rpma_cq *cq) {
    struct ibv_wc completion;
    struct timespec pause = {0, 2 * 1000000};
    int got;
    do
        nanosleep(&pause, NULL);
    while ((got = rpma_cq_get_wc(cq, 1, &completion, NULL)) == RPMA_E_NO_COMPLETION);
    return got == 0 && completion.status == IBV_WC_SUCCESS;
}

void cost_server(void) {
    section("one by one, the server");
    struct rpma_peer *peer = new_peer();
    struct rpma_ep *endpoint = NULL;
    struct region region = {0};
    struct rpma_conn *connection = NULL;
    make_region(peer, RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY, &region);
    unsigned char descriptor[DESCRIPTOR_BYTES] = {0};
    size_t size = 0;
    NEED(CALL(rpma_mr_get_descriptor_size)(region.local, &size));
    descriptor[0] = (unsigned char)size;
    NEED(CALL(rpma_mr_get_descriptor)(region.local, descriptor + 1));
    NEED(CALL(rpma_ep_listen)(peer, options.address, port(0), &endpoint));
    int descriptor_of_requests = -1;
    NEED(CALL(rpma_ep_get_fd)(endpoint, &descriptor_of_requests));
    /* A client under an instrument takes its time. */
    check(readable(descriptor_of_requests, 12 * PATIENCE_MS), "a client came");
    struct rpma_conn_req *request = next_request(endpoint, NULL);
    struct rpma_conn_private_data answer = {descriptor, DESCRIPTOR_BYTES};
    NEED(CALL(rpma_conn_req_connect)(&request, &answer, &connection));
    check(next_event(connection, PATIENCE_MS) == RPMA_CONN_ESTABLISHED, "established");
    check(next_event(connection, 60 * PATIENCE_MS) == RPMA_CONN_CLOSED, "closed");
    IS(CALL(rpma_conn_disconnect)(connection), 0);
    IS(CALL(rpma_conn_delete)(&connection), 0);
    drop_region(&region);
    IS(CALL(rpma_ep_shutdown)(&endpoint), 0);
    IS(CALL(rpma_peer_delete)(&peer), 0);
}

void cost_client(unsigned writes, unsigned reads) {
    section("one by one, the client");
    struct rpma_peer *peer = new_peer();
    struct rpma_conn_req *request = NULL;
    struct rpma_conn *connection = NULL;
    struct rpma_cq *cq = NULL;
    struct rpma_mr_remote *theirs = NULL;
    struct rpma_conn_private_data data = {0};
    struct region region = {0};
    make_region(peer, RPMA_MR_USAGE_WRITE_SRC | RPMA_MR_USAGE_READ_DST, &region);
    NEED(CALL(rpma_conn_req_new)(peer, options.address, port(0), NULL, &request));
    NEED(CALL(rpma_conn_req_connect)(&request, NULL, &connection));
    if (next_event(connection, PATIENCE_MS) != RPMA_CONN_ESTABLISHED)
        bail_out("the connection was not established");
    NEED(CALL(rpma_conn_get_private_data)(connection, &data));
    const unsigned char *descriptor = data.ptr;
    NEED(CALL(rpma_mr_remote_from_descriptor)(descriptor + 1, descriptor[0], &theirs));
    NEED(CALL(rpma_conn_get_cq)(connection, &cq));
    unsigned done = 0;
    for (unsigned at = 0; at < writes; at++) {
        NEED(rpma_write(connection, theirs, 0, region.local, 0, WRITE_BYTES, RPMA_F_COMPLETION_ON_ERROR, NULL));
        NEED(rpma_flush(connection, theirs, 0, WRITE_BYTES, RPMA_FLUSH_TYPE_VISIBILITY, RPMA_F_COMPLETION_ALWAYS, NULL));
        done += is_done(cq);
    }
    check(done == writes, "%u of %u writes were flushed", done, writes);
    done = 0;
    for (unsigned at = 0; at < reads; at++) {
        NEED(rpma_read(connection, region.local, 0, theirs, 0, WRITE_BYTES, RPMA_F_COMPLETION_ALWAYS, NULL));
        done += is_done(cq);
    }
    check(done == reads, "%u of %u reads were done", done, reads);
    IS(CALL(rpma_conn_disconnect)(connection), 0);
    check(next_event(connection, PATIENCE_MS) == RPMA_CONN_CLOSED, "closed");
    IS(CALL(rpma_conn_delete)(&connection), 0);
    IS(CALL(rpma_mr_remote_delete)(&theirs), 0);
    drop_region(&region);
    IS(CALL(rpma_peer_delete)(&peer), 0);
}
