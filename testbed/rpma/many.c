/* Many connections of one process: descriptors, threads and time. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "cross.h"
#include "link.h"

/* Beyond those of connections: the device's, the endpoint's, standard ones. */
enum { OTHER_DESCRIPTORS = 24, TIMED = 256 };

static size_t entries(const char *path) {
    size_t count = 0;
    DIR *directory = opendir(path);
    if (directory == NULL)
        bail_out(path);
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(directory);
    return count;
}

static void check_costs(size_t connections) {
    size_t descriptors = entries("/proc/self/fd"), threads = entries("/proc/self/task");
    check(descriptors <= 2 * connections + OTHER_DESCRIPTORS, "%zu connections have %zu descriptors, two each", connections,
          descriptors);
    check(threads == 1, "%zu connections have %zu threads", connections, threads);
}

/* What a process may open is its own to raise, up to the limit that it was given. */
static void allow_descriptors(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

void many_server(unsigned count) {
    section("many connections, the server");
    allow_descriptors();
    struct rpma_conn **connections = calloc(count, sizeof *connections);
    struct rpma_peer *peer = new_peer();
    struct rpma_ep *endpoint = NULL;
    NEED(CALL(rpma_ep_listen)(peer, options.address, port(0), &endpoint));
    for (unsigned at = 0; at < count; at++) {
        struct rpma_conn_req *request = next_request(endpoint, NULL);
        NEED(CALL(rpma_conn_req_connect)(&request, NULL, &connections[at]));
        if (next_event(connections[at], PATIENCE_MS) != RPMA_CONN_ESTABLISHED)
            bail_out("a connection was not established");
    }
    check_costs(count);
    unsigned closed = 0;
    for (unsigned at = 0; at < count; at++) {
        closed += next_event(connections[at], PATIENCE_MS) == RPMA_CONN_CLOSED;
        CALL(rpma_conn_disconnect)(connections[at]);
        NEED(CALL(rpma_conn_delete)(&connections[at]));
    }
    check(closed == count, "%u of %u were closed", closed, count);
    IS(CALL(rpma_ep_shutdown)(&endpoint), 0);
    IS(CALL(rpma_peer_delete)(&peer), 0);
    free(connections);
}

void many_client(unsigned count) {
    section("many connections, the client");
    allow_descriptors();
    struct rpma_conn **connections = calloc(count, sizeof *connections);
    struct rpma_peer *peer = new_peer();
    double began = now_ms();
    for (unsigned at = 0; at < count; at++) {
        for (unsigned attempt = 0;; attempt++) {
            struct rpma_conn_req *request = NULL;
            NEED(CALL(rpma_conn_req_new)(peer, options.address, port(0), NULL, &request));
            NEED(CALL(rpma_conn_req_connect)(&request, NULL, &connections[at]));
            if (next_event(connections[at], PATIENCE_MS) == RPMA_CONN_ESTABLISHED)
                break;
            NEED(CALL(rpma_conn_delete)(&connections[at]));
            if (at > 0 || attempt == 100)
                bail_out("a connection was not established");
            struct timespec pause = {0, 100 * 1000000};
            nanosleep(&pause, NULL);
            began = now_ms();
        }
        if (at + 1 == TIMED)
            tell("connecting %d took %.0f ms", TIMED, now_ms() - began);
    }
    check_costs(count);
    for (unsigned at = 0; at < count; at++) {
        NEED(CALL(rpma_conn_disconnect)(connections[at]));
        if (next_event(connections[at], PATIENCE_MS) != RPMA_CONN_CLOSED)
            check(false, "connection %u is closed", at);
        NEED(CALL(rpma_conn_delete)(&connections[at]));
    }
    IS(CALL(rpma_peer_delete)(&peer), 0);
    free(connections);
}
