/* Many connections of one process: descriptors, threads, memory and time. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "cross.h"
#include "link.h"

/* Beyond those of connections: the device's, the endpoint's, standard ones. Over TCP and shm a process has threads that its connections share. */
enum { OTHER_DESCRIPTORS = 24, OTHER_THREADS = 5, TIMED = 256 };

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

static double resident_kib(void) {
    long all = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL || fscanf(file, "%ld %ld", &all, &resident) != 2)
        bail_out("/proc/self/statm");
    fclose(file);
    return (double)resident * (double)sysconf(_SC_PAGESIZE) / 1024;
}

static void check_costs(size_t connections, double kib_before) {
    size_t descriptors = entries("/proc/self/fd"), threads = entries("/proc/self/task");
    /* The control channel of shm is one more. */
    size_t each = strcmp(context()->device->name, "pmof_shm") == 0 ? 3 : 2, others = is_device() ? 0 : OTHER_THREADS;
    tell("%zu connections: %zu descriptors, %zu threads, %.1f KiB of memory each", connections, descriptors, threads,
         (resident_kib() - kib_before) / (double)connections);
    check(descriptors <= each * connections + OTHER_DESCRIPTORS, "%zu connections have %zu descriptors, %zu each", connections,
          descriptors, each);
    check(threads <= 1 + others, "%zu connections have %zu threads", connections, threads);
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
    double kib_before = resident_kib();
    for (unsigned at = 0; at < count; at++) {
        struct rpma_conn_req *request = next_request(endpoint, NULL);
        NEED(CALL(rpma_conn_req_connect)(&request, NULL, &connections[at]));
        if (next_event(connections[at], PATIENCE_MS) != RPMA_CONN_ESTABLISHED)
            bail_out("a connection was not established");
    }
    check_costs(count, kib_before);
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
    double began = now_ms(), kib_before = resident_kib();
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
    check_costs(count, kib_before);
    for (unsigned at = 0; at < count; at++) {
        NEED(CALL(rpma_conn_disconnect)(connections[at]));
        if (next_event(connections[at], PATIENCE_MS) != RPMA_CONN_CLOSED)
            check(false, "connection %u is closed", at);
        NEED(CALL(rpma_conn_delete)(&connections[at]));
    }
    IS(CALL(rpma_peer_delete)(&peer), 0);
    free(connections);
}
