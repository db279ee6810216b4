/* A target in another process: stopped, and without memory that it has registered. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "link.h"
#include "parts.h"
#include "peer.h"

enum { ALWAYS = RPMA_F_COMPLETION_ALWAYS, BYTES = 64 * 1024, PORT = 10, CHILD_SECONDS = 60 };

/* The peer's memory: some that stays, and a file that it unmaps or makes shorter. */
enum { KEPT, LOST, REGIONS };

enum {
    USAGE = RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY,
    DESCRIPTOR_BYTES = 21,
};

/* A child that does nothing and outlives this process; and an endpoint, on the next port. */
static void leave_child(struct rpma_peer *peer, const char *port) {
    struct rpma_ep *endpoint = NULL;
    char next[16];
    snprintf(next, sizeof next, "%lu", strtoul(port, NULL, 10) + 1);
    NEED(CALL(rpma_ep_listen)(peer, options.address, next, &endpoint));
    pid_t child = fork();
    if (child < 0)
        bail_out("no other process");
    if (child > 0)
        return;
    prctl(PR_SET_PDEATHSIG, 0);
    alarm(CHILD_SECONDS);
    for (;;)
        pause();
}

int be_peer(const char *port) {
    struct rpma_peer *peer = new_peer();
    struct rpma_conn_req *request = NULL;
    struct rpma_conn *connection = NULL;
    unsigned char descriptors[REGIONS * DESCRIPTOR_BYTES];
    void *places[REGIONS];
    int file = memfd_create("cut", 0), number;
    if (file < 0 || ftruncate(file, BYTES) != 0)
        bail_out("no file");
    for (int region = 0; region < REGIONS; region++) {
        struct rpma_mr_local *registered = NULL;
        int flags = region == LOST ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
        places[region] = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, flags, region == LOST ? file : -1, 0);
        if (places[region] == MAP_FAILED)
            bail_out("no memory");
        memset(places[region], 0, BYTES);
        NEED(CALL(rpma_mr_reg)(peer, places[region], BYTES, USAGE, &registered));
        NEED(CALL(rpma_mr_get_descriptor)(registered, descriptors + region * DESCRIPTOR_BYTES));
    }
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    sigaddset(&signals, SIGUSR2);
    sigaddset(&signals, SIGHUP);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    struct rpma_conn_private_data data = {descriptors, sizeof descriptors};
    NEED(CALL(rpma_conn_req_new)(peer, options.address, port, NULL, &request));
    NEED(CALL(rpma_conn_req_connect)(&request, &data, &connection));
    if (next_event(connection, PATIENCE_MS) != RPMA_CONN_ESTABLISHED)
        bail_out("the peer was not connected");
    for (;;) {
        sigwait(&signals, &number);
        if (number == SIGHUP)
            leave_child(peer, port);
        else if (number == SIGUSR1 ? munmap(places[LOST], BYTES) != 0 : ftruncate(file, 0) != 0)
            bail_out("the memory stays as it is");
        raise(SIGSTOP);
    }
}

/* A peer of this process, and what is known of it. */
struct other {
    pid_t process;
    struct rpma_conn *connection;
    struct rpma_cq *queue;
    struct rpma_mr_remote *regions[REGIONS];
};

static void start_other(struct rpma_ep *endpoint, struct other *other) {
    struct rpma_conn_private_data data = {NULL, 0};
    other->process = start_peer(port(PORT));
    struct rpma_conn_req *request = next_request(endpoint, NULL);
    NEED(CALL(rpma_conn_req_get_private_data)(request, &data));
    if (data.len < REGIONS * DESCRIPTOR_BYTES)
        bail_out("the peer does not say where its memory is");
    for (int region = 0; region < REGIONS; region++)
        NEED(CALL(rpma_mr_remote_from_descriptor)((char *)data.ptr + region * DESCRIPTOR_BYTES, DESCRIPTOR_BYTES,
                                                  &other->regions[region]));
    NEED(CALL(rpma_conn_req_connect)(&request, NULL, &other->connection));
    if (next_event(other->connection, PATIENCE_MS) != RPMA_CONN_ESTABLISHED)
        bail_out("a peer was not connected");
    NEED(CALL(rpma_conn_get_cq)(other->connection, &other->queue));
}

static void end_other(struct other *other) {
    kill(other->process, SIGKILL);
    waitpid(other->process, NULL, 0);
    for (int region = 0; region < REGIONS; region++)
        NEED(CALL(rpma_mr_remote_delete)(&other->regions[region]));
    NEED(CALL(rpma_conn_delete)(&other->connection));
}

/* Has the peer give memory up, by unmapping it or by cutting the file, and stop. */
static void stop_other(const struct other *other, bool by_cutting) {
    int status;
    kill(other->process, by_cutting ? SIGUSR2 : SIGUSR1);
    if (waitpid(other->process, &status, WUNTRACED) != other->process || !WIFSTOPPED(status))
        bail_out("a peer does not stop");
}

/* The first operation on memory of a peer that is stopped is posted at once. */
static void check_stopped(struct rpma_ep *endpoint, const struct region *own) {
    section("stopped target");
    const char *wire = getenv("PMOF_WIRE");
    if (wire != NULL && strcmp(wire, "pmof") == 0 && is_device()) {
        skip("a connection of pmof asks once for the key of memory that a device reaches, and waits for the answer",
             "posting does not wait for a target that is stopped");
        return;
    }
    struct other other;
    start_other(endpoint, &other);
    stop_other(&other, false);
    double start = now_ms();
    IS(CALL(rpma_write)(other.connection, other.regions[KEPT], 0, own->local, 0, 64, ALWAYS, REQUEST(1)), 0);
    IS(CALL(rpma_flush)(other.connection, other.regions[KEPT], 0, 64, RPMA_FLUSH_TYPE_VISIBILITY, ALWAYS, REQUEST(2)), 0);
    double posting_ms = now_ms() - start;
    check(posting_ms < 1000, "posting does not wait for it");
    tell("posted in %.0f ms", posting_ms);
    kill(other.process, SIGCONT);
    completes(other.queue, 1, IBV_WC_RDMA_WRITE, "the write, when the target goes on,");
    /* A read, or what the device has for it. */
    struct ibv_wc flushed;
    check(next_completion(other.queue, &flushed) && flushed.status == IBV_WC_SUCCESS && flushed.wr_id == 2,
          "the flush completes");
    end_other(&other);
}

static const struct lost_operation {
    const char *name;
    size_t len;
} lost_operations[] = {{"short write", 64}, {"write", BYTES}, {"short read", 64}, {"read", BYTES}, {"atomic write", 8}};

enum { FIRST_READ = 2, ATOMIC = 4 };

/* What its program has unmapped or cut fails there, and the program goes on. */
static void check_lost(struct rpma_ep *endpoint, const struct region *own, bool by_cutting, unsigned operation) {
    const struct lost_operation *lost = &lost_operations[operation];
    const char *what = by_cutting ? "of a file that was cut" : "that is unmapped";
    struct other other;
    struct ibv_wc completion;
    start_other(endpoint, &other);
    stop_other(&other, by_cutting);
    kill(other.process, SIGCONT);
    struct rpma_mr_remote *remote = other.regions[LOST];
    NEED(operation == ATOMIC
             ? CALL(rpma_atomic_write)(other.connection, remote, 0, (const char *)own->bytes, ALWAYS, REQUEST(1))
         : operation >= FIRST_READ
             ? CALL(rpma_read)(other.connection, own->local, 0, remote, 0, lost->len, ALWAYS, REQUEST(1))
             : CALL(rpma_write)(other.connection, remote, 0, own->local, 0, lost->len, ALWAYS, REQUEST(1)));
    bool has_come = next_completion(other.queue, &completion);
    check(has_come, "a %s of memory %s completes", lost->name, what);
    /* A device has the pages that were there when they were registered. */
    if (has_come && !is_device()) {
        check(completion.status != IBV_WC_SUCCESS, "as an error");
        tell("status %d", completion.status);
    }
    usleep(20000);
    check(waitpid(other.process, NULL, WNOHANG) == 0, "the program whose memory it was goes on");
    end_other(&other);
}

void check_peers(void) {
    struct rpma_peer *peer = new_peer();
    struct rpma_ep *endpoint = NULL;
    struct region own;
    make_region(peer, RPMA_MR_USAGE_WRITE_SRC | RPMA_MR_USAGE_READ_DST | RPMA_MR_USAGE_READ_SRC, &own);
    NEED(CALL(rpma_ep_listen)(peer, options.address, port(PORT), &endpoint));
    check_stopped(endpoint, &own);
    section("memory that has been unmapped");
    for (int by_cutting = 0; by_cutting < 2; by_cutting++)
        for (unsigned operation = 0; operation < sizeof lost_operations / sizeof *lost_operations; operation++)
            check_lost(endpoint, &own, by_cutting, operation);
    NEED(CALL(rpma_ep_shutdown)(&endpoint));
    drop_region(&own);
    delete_peer(&peer);
}
