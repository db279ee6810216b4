/* Programs that close the library's descriptors behind its back, and programs that have none left. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "link.h"
#include "parts.h"

enum { ALWAYS = RPMA_F_COMPLETION_ALWAYS, BYTES = 64, PORT = 14 };

enum given { OF_QUEUE, OF_EVENTS, OF_ENDPOINT, OF_CHANNEL, GIVEN };

static const char *const given_names[GIVEN] = {"completion queue", "connection's events", "endpoint",
                                               "completion channel"};

static const char content[] = "what the program keeps in its own file";

/* A file of the program's own takes the number of a descriptor that it has closed. */
static void take_number(int number, char *path) {
    int file = mkstemp(path);
    if (file < 0 || write(file, content, sizeof content) != sizeof content || lseek(file, 0, SEEK_SET) != 0)
        bail_out("no file");
    if (file != number && (dup2(file, number) != number || close(file) != 0))
        bail_out("the number is not to be had");
}

/* Everything that may look at the descriptor; what it returns is its own affair, as long as it returns. */
static void use_all(struct link *link, struct rpma_ep *endpoint, bool is_shared) {
    struct ibv_wc completion;
    enum rpma_conn_event event;
    struct rpma_conn_req *request = NULL;
    struct rpma_cq *queue;
    bool is_receive;
    int number;
    CALL(rpma_write)(link->client.connection, link->server.region.remote, 0, link->client.region.local, 0, BYTES, ALWAYS,
                     REQUEST(1));
    for (int turn = 0; turn < 100 && CALL(rpma_cq_get_wc)(link->client.cq, 1, &completion, NULL) != 0; turn++)
        usleep(1000);
    if (is_shared)
        CALL(rpma_conn_wait)(link->client.connection, 0, &queue, &is_receive);
    else
        CALL(rpma_cq_wait)(link->client.cq), CALL(rpma_cq_wait)(link->server.cq);
    CALL(rpma_cq_get_wc)(link->client.cq, 1, &completion, NULL);
    CALL(rpma_cq_get_fd)(link->client.cq, &number);
    CALL(rpma_conn_next_event)(link->client.connection, &event);
    CALL(rpma_conn_get_event_fd)(link->client.connection, &number);
    CALL(rpma_ep_next_conn_req)(endpoint, NULL, &request);
    if (request != NULL)
        CALL(rpma_conn_req_delete)(&request);
}

static int descriptor_of(enum given given, const struct link *link, const struct rpma_ep *endpoint) {
    int number = -1;
    switch (given) {
    case OF_QUEUE: NEED(CALL(rpma_cq_get_fd)(link->client.cq, &number)); break;
    case OF_EVENTS: NEED(CALL(rpma_conn_get_event_fd)(link->client.connection, &number)); break;
    case OF_ENDPOINT: NEED(CALL(rpma_ep_get_fd)(endpoint, &number)); break;
    default: NEED(CALL(rpma_conn_get_compl_fd)(link->client.connection, &number));
    }
    return number;
}

static void check_closed(enum given given) {
    const char *name = given_names[given];
    struct rpma_conn_cfg *configuration = NULL;
    struct rpma_peer *peer = new_peer();
    struct rpma_ep *endpoint = NULL;
    struct link link;
    char path[] = "/tmp/rpma-check-XXXXXX", found[sizeof content + 16];
    int numbers[GIVEN] = {-1, -1, -1, -1}, other;
    bool is_shared = given == OF_CHANNEL;
    NEED(CALL(rpma_conn_cfg_new)(&configuration));
    NEED(CALL(rpma_conn_cfg_set_compl_channel)(configuration, is_shared));
    open_link_of(peer, &link, configuration, configuration);
    NEED(CALL(rpma_ep_listen)(peer, options.address, port(PORT), &endpoint));
    for (enum given each = 0; each < GIVEN; each++)
        if (each != OF_CHANNEL || is_shared)
            set_nonblocking(numbers[each] = descriptor_of(each, &link, endpoint));
    if (!is_shared) {
        NEED(CALL(rpma_cq_get_fd)(link.server.cq, &other));
        set_nonblocking(other);
    }
    int number = numbers[given];
    close(number);
    use_all(&link, endpoint, is_shared);
    check(true, "%s: with its descriptor closed, calls return", name);
    take_number(number, path);
    use_all(&link, endpoint, is_shared);
    CALL(rpma_conn_disconnect)(link.client.connection);
    usleep(20000);
    use_all(&link, endpoint, is_shared);
    NEED(CALL(rpma_conn_delete)(&link.client.connection));
    NEED(CALL(rpma_conn_delete)(&link.server.connection));
    NEED(CALL(rpma_ep_shutdown)(&endpoint));
    drop_region(&link.client.region);
    drop_region(&link.server.region);
    delete_peer(&peer);
    NEED(CALL(rpma_conn_cfg_delete)(&configuration));

    int again = open(path, O_RDONLY);
    ssize_t length = read(again, found, sizeof found);
    check(length == sizeof content && memcmp(found, content, sizeof content) == 0,
          "%s: the program's file with its number has the program's bytes", name);
    close(again);
    unlink(path);
    bool stays = fcntl(number, F_GETFD) >= 0;
    check(stays, "%s: it stays open", name);
    check(stays && lseek(number, 0, SEEK_CUR) == 0, "%s: nothing was read from it", name);
    if (stays)
        close(number);
}

static unsigned open_descriptors(void) {
    unsigned count = 0;
    DIR *directory = opendir("/proc/self/fd");
    if (directory == NULL)
        bail_out("no /proc/self/fd");
    while (readdir(directory) != NULL)
        count++;
    closedir(directory);
    return count;
}

/* Makes all there is, in the order of programs, until something is refused; then deletes what is there. */
static int make_all(const char **refused) {
    struct ibv_context *device = NULL;
    struct rpma_peer *peer = NULL;
    struct rpma_ep *endpoint = NULL;
    struct rpma_srq *queue = NULL;
    struct rpma_conn_req *outgoing = NULL, *incoming = NULL;
    struct rpma_conn *client = NULL, *server = NULL;
    struct rpma_mr_local *local = NULL;
    struct rpma_cq *cq = NULL;
    struct ibv_wc completion;
    enum rpma_conn_event event;
    static unsigned char memory[REGION_BYTES] __attribute__((aligned(4096)));
    int returned = 0, number;
    *refused = NULL;
#define TRY(call) \
    if (returned == 0 && (returned = (call)) != 0) \
        *refused = #call
    TRY(CALL(rpma_utils_get_ibv_context)(options.address, RPMA_UTIL_IBV_CONTEXT_LOCAL, &device));
    TRY(CALL(rpma_peer_new)(device, &peer));
    TRY(CALL(rpma_mr_reg)(peer, memory, sizeof memory, RPMA_MR_USAGE_SEND, &local));
    TRY(CALL(rpma_srq_new)(peer, NULL, &queue));
    TRY(CALL(rpma_ep_listen)(peer, options.address, port(PORT), &endpoint));
    TRY(CALL(rpma_ep_get_fd)(endpoint, &number));
    TRY(CALL(rpma_conn_req_new)(peer, options.address, port(PORT), NULL, &outgoing));
    TRY(CALL(rpma_conn_req_connect)(&outgoing, NULL, &client));
    /* A client that could not finish its request has the endpoint readable, and a call that blocks would wait for it. */
    if (returned == 0) {
        set_nonblocking(number);
        if (!readable(number, 1000))
            returned = RPMA_E_NO_EVENT, *refused = "a request that comes";
    }
    TRY(CALL(rpma_ep_next_conn_req)(endpoint, NULL, &incoming));
    TRY(CALL(rpma_conn_req_connect)(&incoming, NULL, &server));
    TRY(CALL(rpma_conn_get_event_fd)(client, &number));
    if (returned == 0 && !readable(number, 1000))
        returned = RPMA_E_NO_EVENT, *refused = "an event that comes";
    TRY(CALL(rpma_conn_next_event)(client, &event));
    TRY(CALL(rpma_conn_get_cq)(client, &cq));
    TRY(CALL(rpma_cq_get_fd)(cq, &number));
    if (returned == 0)
        CALL(rpma_cq_get_wc)(cq, 1, &completion, NULL);
#undef TRY
    if (outgoing != NULL)
        CALL(rpma_conn_req_delete)(&outgoing);
    if (incoming != NULL)
        CALL(rpma_conn_req_delete)(&incoming);
    if (client != NULL)
        CALL(rpma_conn_disconnect)(client), CALL(rpma_conn_delete)(&client);
    if (server != NULL)
        CALL(rpma_conn_delete)(&server);
    if (endpoint != NULL)
        CALL(rpma_ep_shutdown)(&endpoint);
    if (queue != NULL)
        CALL(rpma_srq_delete)(&queue);
    if (local != NULL)
        CALL(rpma_mr_dereg)(&local);
    if (peer != NULL)
        CALL(rpma_peer_delete)(&peer);
    return returned;
}

/* With none left, one, two ... until all can be made: each refusal is a typed one and leaves nothing behind. */
static void check_exhausted(void) {
    enum { MOST = 64, FILLERS = 1024 };
    const char *refused = NULL;
    struct rlimit limit, low;
    int fillers[FILLERS], filled = 0, returned = -1, last_returned = 0;
    unsigned allowed;
    bool are_typed = true, leak = false;
    /* What a process opens once. */
    make_all(&refused);
    unsigned before = open_descriptors();
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        bail_out("no limit of descriptors");
    /* No number below the first free one may be free. */
    int first;
    while ((first = dup(STDOUT_FILENO)) >= 0 && first < (int)before && filled < FILLERS)
        fillers[filled++] = first;
    close(first);
    for (allowed = 0; allowed < MOST && returned != 0; allowed++) {
        low = (struct rlimit){.rlim_cur = (rlim_t)first + allowed, .rlim_max = limit.rlim_max};
        setrlimit(RLIMIT_NOFILE, &low);
        returned = make_all(&refused);
        setrlimit(RLIMIT_NOFILE, &limit);
        bool is_typed =
            returned == 0 || returned == RPMA_E_PROVIDER || returned == RPMA_E_NOMEM || returned == RPMA_E_NO_EVENT;
        if (!is_typed || (returned != 0 && last_returned == 0))
            tell("with %u descriptors: %s: %d", allowed, refused, returned);
        are_typed = are_typed && is_typed;
        last_returned = returned;
        if (open_descriptors() != before + (unsigned)filled) {
            tell("with %u descriptors: %s: %u are left open", allowed, refused == NULL ? "all" : refused,
                 open_descriptors() - before - (unsigned)filled);
            leak = true;
            before = open_descriptors() - (unsigned)filled;
        }
    }
    check(returned == 0, "with %u descriptors all can be made", allowed - 1);
    check(are_typed, "with fewer each refusal is a typed one");
    check(!leak, "and leaves no descriptor open");
    while (filled > 0)
        close(fillers[--filled]);
    IS(make_all(&refused), 0);
}

void check_descriptors(void) {
    section("descriptors that the program closes");
    if (options.reference)
        skip("librdmacm writes its commands into the program's file and waits for answers for ever; libibverbs takes what it reads "
             "there for an address", "the program's own descriptors stay as they are");
    else for (enum given given = 0; given < GIVEN; given++)
        check_closed(given);
    section("no descriptors left");
    check_exhausted();
}
