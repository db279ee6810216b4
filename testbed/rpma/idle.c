/* What connections cost on which nothing happens. */
#include <sys/resource.h>
#include <unistd.h>

#include "link.h"
#include "parts.h"

void check_idle(void) {
    enum { CONNECTIONS = 8, SETTLED_US = 300000, SECONDS = 1, WAKE_UPS_MAX = 200 };
    section("idle connections");
    struct rpma_peer *peer = new_peer();
    struct rpma_conn *clients[CONNECTIONS], *servers[CONNECTIONS];
    for (unsigned number = 0; number < CONNECTIONS; number++) {
        clients[number] = servers[number] = NULL;
        connect_ends(peer, NULL, NULL, &clients[number], &servers[number]);
    }
    usleep(SETTLED_US);
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    sleep(SECONDS);
    getrusage(RUSAGE_SELF, &after);
    long wake_ups = after.ru_nvcsw - before.ru_nvcsw;
    check(wake_ups < WAKE_UPS_MAX, "%d idle connections wake up %ld times in a second", CONNECTIONS, wake_ups);
    for (unsigned number = 0; number < CONNECTIONS; number++) {
        NEED(CALL(rpma_conn_delete)(&clients[number]));
        NEED(CALL(rpma_conn_delete)(&servers[number]));
    }
    delete_peer(&peer);
}
