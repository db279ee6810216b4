/*
 * Processes that fork at every stage. In the child old objects are refused and new ones work; the parent goes on with all it
 * had, and with more.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "link.h"
#include "parts.h"
#include "peer.h"

enum { ALWAYS = RPMA_F_COMPLETION_ALWAYS, POSTED = 8, BYTES = 64, CHILD_SECONDS = 20, PORT = 13, PORT_OF_CHILD = 14 };

enum stage { BEFORE_ANYTHING, WITH_PEER, WITH_ENDPOINT, WITH_MEMORY, WITH_REQUEST, CONNECTED, POSTED_MUCH, STAGES };

static const char *const stage_names[STAGES] = {
    "before anything is there", "with a peer", "with an endpoint", "with registered memory",
    "with a request under way", "with a connection",   "with operations under way",
};

/* How the child ends: at once, or by way of what was registered with atexit. */
enum ending { BY_EXIT_AT_ONCE, BY_EXIT, ENDINGS };

/* What the parent has at the stage; NULL from there on. */
struct held {
    struct rpma_peer *peer;
    struct rpma_ep *endpoint;
    struct region region;
    struct rpma_conn_req *outgoing;
    struct rpma_conn *client, *server;
    struct rpma_cq *cq;
};

/* In the child nothing is printed: what it found goes to the parent by its pipe. */
struct answer {
    int wrong;      /* the line of this file on which something went otherwise; 0: all is well */
    int returned;
};

#define WRONG_UNLESS(condition, code) \
    do { \
        if (!(condition)) \
            return (struct answer){__LINE__, (code)}; \
    } while (0)

#define DOES(call) \
    do { \
        int returned_ = (call); \
        WRONG_UNLESS(returned_ == 0, returned_); \
    } while (0)

#define REFUSES(call) \
    do { \
        int returned_ = (call); \
        WRONG_UNLESS(returned_ == RPMA_E_INVAL, returned_); \
    } while (0)

/* All that a program can do with what it inherited; each deletes a copy of the pointer, as the parent has them still. */
static struct answer use_old(const struct held *old) {
    int number;
    uint32_t qp_number;
    size_t size;
    struct ibv_wc completion;
    enum rpma_conn_event event;
    if (old->peer != NULL) {
        struct rpma_peer *peer = old->peer;
        struct rpma_ep *endpoint = NULL;
        struct rpma_conn_req *request = NULL;
        struct rpma_srq *queue = NULL;
        struct rpma_mr_local *registered = NULL;
        static char memory[BYTES];
        REFUSES(CALL(rpma_ep_listen)(peer, options.address, port(PORT_OF_CHILD), &endpoint));
        REFUSES(CALL(rpma_conn_req_new)(peer, options.address, port(PORT), NULL, &request));
        REFUSES(CALL(rpma_mr_reg)(peer, memory, sizeof memory, RPMA_MR_USAGE_SEND, &registered));
        REFUSES(CALL(rpma_srq_new)(peer, NULL, &queue));
        REFUSES(CALL(rpma_peer_delete)(&peer));
    }
    if (old->endpoint != NULL) {
        struct rpma_ep *endpoint = old->endpoint;
        struct rpma_conn_req *request = NULL;
        REFUSES(CALL(rpma_ep_get_fd)(endpoint, &number));
        REFUSES(CALL(rpma_ep_next_conn_req)(endpoint, NULL, &request));
        REFUSES(CALL(rpma_ep_shutdown)(&endpoint));
    }
    if (old->region.local != NULL) {
        struct rpma_mr_local *local = old->region.local;
        struct rpma_mr_remote *remote = old->region.remote;
        REFUSES(CALL(rpma_mr_get_size)(local, &size));
        REFUSES(CALL(rpma_mr_dereg)(&local));
        REFUSES(CALL(rpma_mr_remote_get_size)(remote, &size));
        REFUSES(CALL(rpma_mr_remote_delete)(&remote));
    }
    if (old->outgoing != NULL) {
        struct rpma_conn_req *request = old->outgoing;
        struct rpma_conn *connection = NULL;
        REFUSES(CALL(rpma_conn_req_recv)(request, old->region.local, 0, BYTES, NULL));
        REFUSES(CALL(rpma_conn_req_connect)(&request, NULL, &connection));
        request = old->outgoing;
        REFUSES(CALL(rpma_conn_req_delete)(&request));
    }
    if (old->client != NULL) {
        struct rpma_conn *connection = old->client;
        REFUSES(CALL(rpma_conn_get_event_fd)(connection, &number));
        REFUSES(CALL(rpma_conn_next_event)(connection, &event));
        REFUSES(CALL(rpma_conn_get_qp_num)(connection, &qp_number));
        REFUSES(CALL(rpma_write)(connection, old->region.remote, 0, old->region.local, 0, BYTES, ALWAYS, NULL));
        REFUSES(CALL(rpma_cq_wait)(old->cq));
        REFUSES(CALL(rpma_cq_get_wc)(old->cq, 1, &completion, NULL));
        REFUSES(CALL(rpma_conn_disconnect)(connection));
        REFUSES(CALL(rpma_conn_delete)(&connection));
        connection = old->server;
        REFUSES(CALL(rpma_conn_delete)(&connection));
    }
    return (struct answer){0, 0};
}

static bool is_readable(int descriptor) {
    struct pollfd wanted = {.fd = descriptor, .events = POLLIN};
    return poll(&wanted, 1, PATIENCE_MS) == 1;
}

/* Both ends of a connection of this process, and a write over it. */
static struct answer use_new(void) {
    struct ibv_context *device = NULL;
    struct rpma_peer *peer = NULL;
    struct rpma_ep *endpoint = NULL;
    struct rpma_conn_req *outgoing = NULL, *incoming = NULL;
    struct rpma_conn *client = NULL, *server = NULL;
    struct rpma_cq *cq = NULL;
    struct rpma_mr_local *local = NULL;
    struct rpma_mr_remote *remote = NULL;
    enum rpma_conn_event event;
    struct ibv_wc completion;
    unsigned char descriptor[64], *bytes = NULL;
    size_t size;
    int number;
    WRONG_UNLESS(posix_memalign((void **)&bytes, (size_t)sysconf(_SC_PAGESIZE), REGION_BYTES) == 0, ENOMEM);
    memset(bytes, 0, REGION_BYTES);
    DOES(CALL(rpma_utils_get_ibv_context)(options.address, RPMA_UTIL_IBV_CONTEXT_LOCAL, &device));
    DOES(CALL(rpma_peer_new)(device, &peer));
    DOES(CALL(rpma_mr_reg)(peer, bytes, REGION_BYTES, RPMA_MR_USAGE_WRITE_SRC | RPMA_MR_USAGE_WRITE_DST, &local));
    DOES(CALL(rpma_mr_get_descriptor_size)(local, &size));
    DOES(CALL(rpma_mr_get_descriptor)(local, descriptor));
    DOES(CALL(rpma_mr_remote_from_descriptor)(descriptor, size, &remote));
    DOES(CALL(rpma_ep_listen)(peer, options.address, port(PORT_OF_CHILD), &endpoint));
    DOES(CALL(rpma_conn_req_new)(peer, options.address, port(PORT_OF_CHILD), NULL, &outgoing));
    DOES(CALL(rpma_conn_req_connect)(&outgoing, NULL, &client));
    DOES(CALL(rpma_ep_get_fd)(endpoint, &number));
    WRONG_UNLESS(is_readable(number), 0);
    DOES(CALL(rpma_ep_next_conn_req)(endpoint, NULL, &incoming));
    DOES(CALL(rpma_conn_req_connect)(&incoming, NULL, &server));
    struct rpma_conn *const ends[] = {client, server};
    for (int each = 0; each < 2; each++) {
        DOES(CALL(rpma_conn_get_event_fd)(ends[each], &number));
        WRONG_UNLESS(is_readable(number), each);
        DOES(CALL(rpma_conn_next_event)(ends[each], &event));
        WRONG_UNLESS(event == RPMA_CONN_ESTABLISHED, (int)event);
    }
    DOES(CALL(rpma_conn_get_cq)(client, &cq));
    bytes[0] = 'c';
    DOES(CALL(rpma_write)(client, remote, BYTES, local, 0, BYTES, ALWAYS, REQUEST(7)));
    WRONG_UNLESS(next_completion(cq, &completion), 0);
    WRONG_UNLESS(completion.status == IBV_WC_SUCCESS && completion.wr_id == 7, (int)completion.status);
    WRONG_UNLESS(bytes[BYTES] == 'c', bytes[BYTES]);
    DOES(CALL(rpma_conn_disconnect)(client));
    DOES(CALL(rpma_conn_delete)(&client));
    DOES(CALL(rpma_conn_delete)(&server));
    DOES(CALL(rpma_ep_shutdown)(&endpoint));
    DOES(CALL(rpma_mr_remote_delete)(&remote));
    DOES(CALL(rpma_mr_dereg)(&local));
    DOES(CALL(rpma_peer_delete)(&peer));
    free(bytes);
    return (struct answer){0, 0};
}

/* A child that looks at all this; `held` is what the parent has. */
static void check_child(const struct held *held, enum stage stage, enum ending ending) {
    int pipes[2], status = 0;
    struct answer answers[2] = {{-1, 0}, {-1, 0}};
    fflush(stdout);
    if (pipe(pipes) != 0)
        bail_out("no pipe");
    pid_t child = fork();
    if (child < 0)
        bail_out("no other process");
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        signal(SIGALRM, SIG_DFL);
        alarm(CHILD_SECONDS);
        /* Old objects before and after new ones, which take their place. */
        answers[0] = options.reference ? (struct answer){0, 0} : use_old(held);
        answers[1] = use_new();
        if (answers[0].wrong == 0 && !options.reference)
            answers[0] = use_old(held);
        if (write(pipes[1], answers, sizeof answers) != sizeof answers)
            _exit(1);
        (ending == BY_EXIT ? exit : _exit)(0);
    }
    close(pipes[1]);
    /* Not the exit code, which valgrind takes for itself. */
    bool has_answered = read(pipes[0], answers, sizeof answers) == sizeof answers;
    close(pipes[0]);
    waitpid(child, &status, 0);
    const char *name = stage_names[stage], *how = ending == BY_EXIT ? "exit" : "_exit";
    check(has_answered && WIFEXITED(status), "%s: a child ends by %s", name, how);
    if (!has_answered || !WIFEXITED(status))
        tell("status %d", status);
    if (options.reference)
        skip("librpma does not look at it", "%s: in the child old objects are refused", name);
    else
        check(answers[0].wrong == 0, "%s: in the child old objects are refused", name);
    check(answers[1].wrong == 0, "%s: in the child new ones work", name);
    for (int each = 0; each < 2; each++)
        if (answers[each].wrong != 0)
            tell("line %d of forks.c: %d", answers[each].wrong, answers[each].returned);
}

/* The parent's connection carries on: what was posted before the fork completes, then more. */
static void check_connection(struct held *held, unsigned posted) {
    struct ibv_wc completion;
    unsigned completed = 0;
    while (completed < posted && next_completion(held->cq, &completion) && completion.status == IBV_WC_SUCCESS)
        completed++;
    if (posted > 0)
        check(completed == posted, "the parent: what was under way completes, %u of %u", completed, posted);
    held->region.bytes[0] = 'p';
    IS(CALL(rpma_write)(held->client, held->region.remote, BYTES, held->region.local, 0, BYTES, ALWAYS, REQUEST(99)), 0);
    completes(held->cq, 99, IBV_WC_RDMA_WRITE, "the parent: a write");
    check(held->region.bytes[BYTES] == 'p', "the parent: it writes what the parent had");
}

static void accept_client(struct held *held) {
    struct rpma_conn_req *incoming = next_request(held->endpoint, NULL);
    NEED(CALL(rpma_conn_req_connect)(&incoming, NULL, &held->server));
    if (next_event(held->client, PATIENCE_MS) != RPMA_CONN_ESTABLISHED ||
        next_event(held->server, PATIENCE_MS) != RPMA_CONN_ESTABLISHED)
        bail_out("a connection was not established");
    NEED(CALL(rpma_conn_get_cq)(held->client, &held->cq));
}

static void check_stage(enum stage stage, enum ending ending) {
    struct held held = {0};
    unsigned posted = 0;
    if (stage >= WITH_PEER)
        held.peer = new_peer();
    if (stage >= WITH_ENDPOINT)
        NEED(CALL(rpma_ep_listen)(held.peer, options.address, port(PORT), &held.endpoint));
    if (stage >= WITH_MEMORY)
        make_region(held.peer, RPMA_MR_USAGE_WRITE_SRC | RPMA_MR_USAGE_WRITE_DST, &held.region);
    if (stage >= WITH_REQUEST)
        NEED(CALL(rpma_conn_req_new)(held.peer, options.address, port(PORT), NULL, &held.outgoing));
    if (stage >= CONNECTED) {
        NEED(CALL(rpma_conn_req_connect)(&held.outgoing, NULL, &held.client));
        accept_client(&held);
    }
    for (; stage >= POSTED_MUCH && posted < POSTED; posted++)
        NEED(CALL(rpma_write)(held.client, held.region.remote, REGION_BYTES / 2, held.region.local, 0,
                              REGION_BYTES / 2, ALWAYS, REQUEST(posted)));
    check_child(&held, stage, ending);
    /* The parent does the rest of what it would have done. */
    if (held.peer == NULL)
        held.peer = new_peer();
    if (held.endpoint == NULL)
        NEED(CALL(rpma_ep_listen)(held.peer, options.address, port(PORT), &held.endpoint));
    if (held.region.local == NULL)
        make_region(held.peer, RPMA_MR_USAGE_WRITE_SRC | RPMA_MR_USAGE_WRITE_DST, &held.region);
    if (held.client == NULL) {
        if (held.outgoing == NULL)
            NEED(CALL(rpma_conn_req_new)(held.peer, options.address, port(PORT), NULL, &held.outgoing));
        NEED(CALL(rpma_conn_req_connect)(&held.outgoing, NULL, &held.client));
        accept_client(&held);
    }
    check_connection(&held, posted);
    close_ends(&held.client, &held.server);
    struct answer more = use_new();
    check(more.wrong == 0, "%s: the parent makes new objects", stage_names[stage]);
    if (more.wrong != 0)
        tell("line %d of forks.c: %d", more.wrong, more.returned);
    NEED(CALL(rpma_ep_shutdown)(&held.endpoint));
    drop_region(&held.region);
    delete_peer(&held.peer);
}

/* Makes and deletes objects until it has to stop. */
static void *keep_busy(void *argument) {
    const bool *is_over = argument;
    static unsigned char memory[BYTES];
    while (!__atomic_load_n(is_over, __ATOMIC_RELAXED)) {
        struct rpma_peer *peer = new_peer();
        struct rpma_conn_cfg *configuration = NULL;
        struct rpma_mr_local *registered = NULL;
        NEED(CALL(rpma_mr_reg)(peer, memory, sizeof memory, RPMA_MR_USAGE_SEND, &registered));
        for (int each = 0; each < 100; each++) {
            NEED(CALL(rpma_conn_cfg_new)(&configuration));
            NEED(CALL(rpma_conn_cfg_delete)(&configuration));
        }
        NEED(CALL(rpma_mr_dereg)(&registered));
        delete_peer(&peer);
    }
    return NULL;
}

/* What other threads were in the middle of, when one forks, does not keep the child waiting for ever. */
static void check_threads_that_fork(void) {
    enum { BUSY = 2, FORKS = 300, SECONDS = 5 };
    pthread_t busy[BUSY];
    bool is_over = false;
    unsigned forked = 0, ended = 0;
    for (int each = 0; each < BUSY; each++)
        if (pthread_create(&busy[each], NULL, keep_busy, &is_over) != 0)
            bail_out("no thread");
    for (; forked < FORKS && forked == ended; forked++) {
        int status = 0;
        pid_t child = fork();
        if (child == 0) {
            struct ibv_context *device = NULL;
            struct rpma_peer *peer = NULL;
            struct rpma_conn_cfg *configuration = NULL;
            signal(SIGALRM, SIG_DFL);
            alarm(SECONDS);
            _exit(CALL(rpma_conn_cfg_new)(&configuration) != 0 ||
                  CALL(rpma_utils_get_ibv_context)(options.address, RPMA_UTIL_IBV_CONTEXT_LOCAL, &device) != 0 ||
                  CALL(rpma_peer_new)(device, &peer) != 0 || CALL(rpma_peer_delete)(&peer) != 0 ||
                  CALL(rpma_conn_cfg_delete)(&configuration) != 0);
        }
        waitpid(child, &status, 0);
        /* Other codes are valgrind's. */
        bool is_well = WIFEXITED(status) && WEXITSTATUS(status) != 1;
        ended += is_well;
        if (!is_well)
            tell("fork %u: status %d", forked, status);
    }
    __atomic_store_n(&is_over, true, __ATOMIC_RELAXED);
    for (int each = 0; each < BUSY; each++)
        pthread_join(busy[each], NULL);
    check(ended == FORKS, "children make new objects, whatever other threads were at: %u of %u", ended, FORKS);
}

/* A peer whose process is killed while a child that it forked sleeps on: the other side notices, and its port is free. */
static void check_orphan(void) {
    enum { PORT_OF_PEER = 11, PORT_OF_ITS_ENDPOINT = PORT_OF_PEER + 1, SOON_MS = 2000 };
    struct rpma_peer *peer = new_peer();
    struct rpma_ep *endpoint = NULL, *next = NULL;
    struct rpma_conn *connection = NULL;
    int status = 0;
    NEED(CALL(rpma_ep_listen)(peer, options.address, port(PORT_OF_PEER), &endpoint));
    pid_t parent = start_peer(port(PORT_OF_PEER));
    struct rpma_conn_req *request = next_request(endpoint, NULL);
    NEED(CALL(rpma_conn_req_connect)(&request, NULL, &connection));
    if (next_event(connection, PATIENCE_MS) != RPMA_CONN_ESTABLISHED)
        bail_out("a peer was not connected");
    kill(parent, SIGHUP);
    if (waitpid(parent, &status, WUNTRACED) != parent || !WIFSTOPPED(status))
        bail_out("a peer does not fork");
    kill(parent, SIGKILL);
    waitpid(parent, NULL, 0);
    enum rpma_conn_event event = next_event(connection, SOON_MS);
    bool has_child = kill(-parent, 0) == 0;
    check(has_child && (event == RPMA_CONN_CLOSED || event == RPMA_CONN_LOST),
          "a peer that was killed has gone, although a child of its goes on");
    if (event == RPMA_CONN_UNDEFINED || !has_child)
        tell("event %d, the child %s", (int)event, has_child ? "is there" : "is not");
    check(CALL(rpma_ep_listen)(peer, options.address, port(PORT_OF_ITS_ENDPOINT), &next) == 0, "its port is free");
    kill(-parent, SIGKILL);
    if (next != NULL)
        NEED(CALL(rpma_ep_shutdown)(&next));
    NEED(CALL(rpma_conn_delete)(&connection));
    NEED(CALL(rpma_ep_shutdown)(&endpoint));
    delete_peer(&peer);
}

void check_forks(void) {
    section("forks");
    for (enum stage stage = 0; stage < STAGES; stage++)
        for (enum ending ending = 0; ending < ENDINGS; ending++)
            check_stage(stage, ending);
    if (options.reference)
        skip("librdmacm's locks are not made for it", "children make new objects, whatever other threads were at");
    else
        check_threads_that_fork();
    /* Looks for a device, which those before must not. */
    if (is_device())
        skip("over a device the child's copies of the devices' own descriptors keep it, as with librpma",
             "a peer that was killed has gone, although a child of its goes on");
    else
        check_orphan();
}
