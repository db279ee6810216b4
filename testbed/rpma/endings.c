/*
 * Connections that end while operations are in flight: each operation has exactly one completion, soon. After the last one the
 * program's memory is its own: nothing that it stores there is sent, and nothing is written there.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "link.h"
#include "parts.h"

enum {
    PORT_OF_CHILD = 14,
    LONG_BYTES = 1 << 20,
    SHORT_BYTES = 64,
    OPERATIONS = 32,
    QUEUE = 64,
    LAST_MESSAGES = 60,
    IDENTIFIERS = 2 * OPERATIONS,
    /* Parts of an end's memory, LONG_BYTES each. */
    SOURCE = 0,
    DESTINATION,
    /* The other side writes there, and reads: a target keeps a write back while the answer to a read before it waits to be sent. */
    TARGET,
    PARTS,
    USAGES = RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_READ_DST | RPMA_MR_USAGE_WRITE_SRC | RPMA_MR_USAGE_WRITE_DST |
             RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY | RPMA_MR_USAGE_SEND | RPMA_MR_USAGE_RECV,
    DESCRIPTOR_BYTES = 21,
    /* What the memory holds while operations are under way, and what the program puts there afterwards. */
    BEFORE = 0x11,
    AFTER = 0xee,
};

enum closer { HERE, THERE, BOTH, KILL, DELETION, CLOSERS };
static const char *const closer_names[CLOSERS] = {"this side disconnects", "the other side disconnects",
                                                  "both sides disconnect", "the other side is killed",
                                                  "this side deletes the connection"};

enum kind { WRITES, READS, FLUSHES, ATOMICS, SENDS, RECEIVES, MIXED, KINDS };
static const char *const kind_names[KINDS] = {"writes", "reads", "flushes", "atomic writes", "sends", "receives", "all kinds"};

/* How the program learns that there are no more completions. */
enum way { BY_WAITING, BY_THE_EVENT, BY_THE_CHANNEL, WAYS };
static const char *const way_names[WAYS] = {"rpma_cq_wait", "the event, then rpma_cq_get_wc", "rpma_conn_wait"};

struct ending {
    enum closer closer;
    enum kind kind;
    enum way way;
    size_t bytes;
    int flags;
};

/* One end, what it has posted and what of that has completed. */
struct side {
    struct rpma_conn *connection;
    struct rpma_cq *cq, *receives;
    unsigned char *bytes;
    struct rpma_mr_local *local;
    struct rpma_mr_remote *remote;
    unsigned posted, completed[IDENTIFIERS];
    /* The first request that failed, but for receives. */
    unsigned first_failed;
    bool has_failed;
    int flags[IDENTIFIERS];
    /* Receives have a queue of their own. */
    bool is_receive[IDENTIFIERS];
    bool is_wrong;
};

static size_t place(unsigned part) {
    return (size_t)part * LONG_BYTES;
}

static void register_memory(struct rpma_peer *peer, struct side *side, unsigned char descriptor[DESCRIPTOR_BYTES]) {
    size_t size = 0;
    side->bytes = mmap(NULL, place(PARTS), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (side->bytes == MAP_FAILED)
        bail_out("no memory");
    memset(side->bytes, BEFORE, place(PARTS));
    NEED(CALL(rpma_mr_reg)(peer, side->bytes, place(PARTS), USAGES, &side->local));
    NEED(CALL(rpma_mr_get_descriptor_size)(side->local, &size));
    if (size != DESCRIPTOR_BYTES)
        bail_out("a descriptor has another size");
    NEED(CALL(rpma_mr_get_descriptor)(side->local, descriptor));
}

static void drop_memory(struct side *side) {
    NEED(CALL(rpma_mr_remote_delete)(&side->remote));
    NEED(CALL(rpma_mr_dereg)(&side->local));
    munmap(side->bytes, place(PARTS));
}

static struct rpma_conn_cfg *configuration_for(enum way way) {
    struct rpma_conn_cfg *made = NULL;
    NEED(CALL(rpma_conn_cfg_new)(&made));
    NEED(CALL(rpma_conn_cfg_set_sq_size)(made, QUEUE));
    NEED(CALL(rpma_conn_cfg_set_rq_size)(made, QUEUE));
    NEED(CALL(rpma_conn_cfg_set_cq_size)(made, 2 * QUEUE));
    if (way == BY_THE_CHANNEL) {
        NEED(CALL(rpma_conn_cfg_set_rcq_size)(made, QUEUE));
        NEED(CALL(rpma_conn_cfg_set_compl_channel)(made, true));
    }
    return made;
}

static void get_queues(struct side *side) {
    NEED(CALL(rpma_conn_get_cq)(side->connection, &side->cq));
    NEED(CALL(rpma_conn_get_rcq)(side->connection, &side->receives));
}

/* What a request of this number is to be called, and whether it is to complete. */
static const void *next_identifier(struct side *side, int flags) {
    if (side->posted == IDENTIFIERS)
        bail_out("there are too few identifiers");
    side->flags[side->posted] = flags;
    return REQUEST(side->posted++);
}

static void post_one(struct side *side, enum kind kind, const struct ending *ending) {
    static const char word[8] = "12345678";
    int flags = ending->flags;
    const void *identifier;
    switch (kind) {
    case WRITES:
        identifier = next_identifier(side, flags);
        NEED(CALL(rpma_write)(side->connection, side->remote, place(TARGET), side->local, place(SOURCE), ending->bytes, flags,
                              identifier));
        break;
    case READS:
        identifier = next_identifier(side, RPMA_F_COMPLETION_ALWAYS);
        NEED(CALL(rpma_read)(side->connection, side->local, place(DESTINATION), side->remote, place(TARGET), ending->bytes,
                             RPMA_F_COMPLETION_ALWAYS, identifier));
        break;
    case FLUSHES:
        post_one(side, WRITES, ending);
        identifier = next_identifier(side, RPMA_F_COMPLETION_ALWAYS);
        NEED(CALL(rpma_flush)(side->connection, side->remote, place(TARGET), ending->bytes, RPMA_FLUSH_TYPE_VISIBILITY,
                              RPMA_F_COMPLETION_ALWAYS, identifier));
        break;
    case ATOMICS:
        identifier = next_identifier(side, flags);
        NEED(CALL(rpma_atomic_write)(side->connection, side->remote, place(TARGET), word, flags, identifier));
        break;
    case SENDS:
        identifier = next_identifier(side, flags);
        NEED(CALL(rpma_send)(side->connection, side->local, place(SOURCE), ending->bytes, flags, identifier));
        break;
    default:
        side->is_receive[side->posted % IDENTIFIERS] = true;
        identifier = next_identifier(side, RPMA_F_COMPLETION_ALWAYS);
        NEED(CALL(rpma_recv)(side->connection, side->local, place(DESTINATION), ending->bytes, identifier));
    }
}

/* Many of one kind; or of all kinds, of which those that wait for the other side's program come late. */
static void post(struct side *side, const struct ending *ending) {
    /* A flush brings its write. */
    unsigned count = ending->kind == FLUSHES ? OPERATIONS / 2 : OPERATIONS;
    if (ending->kind != MIXED) {
        for (unsigned each = 0; each < count; each++)
            post_one(side, ending->kind, ending);
        return;
    }
    for (unsigned each = 0; each < OPERATIONS / 2; each++) {
        post_one(side, READS, ending);
        post_one(side, WRITES, ending);
    }
    for (enum kind kind = FLUSHES; kind < MIXED; kind++)
        for (unsigned each = 0; each < 2; each++)
            post_one(side, kind, ending);
    /* Behind a send that finds no receive. */
    post_one(side, SENDS, ending);
    for (unsigned each = 0; each < 2; each++)
        post_one(side, WRITES, ending);
}

static void note(struct side *side, const struct ibv_wc *completion) {
    uint64_t identifier = completion->wr_id;
    bool is_known = identifier < side->posted;
    bool is_wanted = is_known && (side->flags[identifier] == RPMA_F_COMPLETION_ALWAYS || completion->status != IBV_WC_SUCCESS);
    if (!is_wanted) {
        tell("request %lu of %u completes with status %d", (unsigned long)identifier, side->posted, completion->status);
        side->is_wrong = true;
        return;
    }
    bool is_behind = !side->is_receive[identifier] && side->has_failed && identifier > side->first_failed;
    if (completion->status != IBV_WC_SUCCESS && !side->is_receive[identifier] && !is_behind) {
        side->has_failed = true;
        side->first_failed = (unsigned)identifier;
    }
    if (completion->status == IBV_WC_SUCCESS && is_behind) {
        tell("request %lu succeeds behind %u, which failed", (unsigned long)identifier, side->first_failed);
        side->is_wrong = true;
    }
    side->completed[identifier]++;
}

static void take_all(struct side *side, struct rpma_cq *cq) {
    struct ibv_wc completion;
    while (CALL(rpma_cq_get_wc)(cq, 1, &completion, NULL) == 0)
        note(side, &completion);
}

/* Takes completions until the library says that there are no more. */
static void take_until_over(struct side *side, enum way way) {
    struct rpma_cq *which = side->cq;
    int returned;
    if (way == BY_THE_EVENT) {
        enum rpma_conn_event event = next_event(side->connection, PATIENCE_MS);
        side->is_wrong |= event != RPMA_CONN_CLOSED;
        if (event != RPMA_CONN_CLOSED)
            tell("event %d", (int)event);
        take_all(side, side->cq);
        return;
    }
    do {
        returned = way == BY_WAITING ? CALL(rpma_cq_wait)(side->cq)
                                     : CALL(rpma_conn_wait)(side->connection, 0, &which, NULL);
        if (returned == 0)
            take_all(side, which);
    } while (returned == 0);
    side->is_wrong |= returned != RPMA_E_NO_COMPLETION;
}

/*
 * Each request that always completes has done so once, and so has each one from the first that failed on, as the queue is in
 * error then; each other one at most once; and nothing more comes.
 */
static bool has_all(struct side *side) {
    struct ibv_wc completion;
    for (unsigned each = 0; each < side->posted; each++) {
        bool is_behind = side->has_failed && each > side->first_failed;
        unsigned least = is_behind || side->flags[each] == RPMA_F_COMPLETION_ALWAYS;
        if (side->completed[each] < least || side->completed[each] > 1) {
            tell("request %u of %u has %u completions", each, side->posted, side->completed[each]);
            side->is_wrong = true;
        }
    }
    if (CALL(rpma_cq_get_wc)(side->cq, 1, &completion, NULL) == 0) {
        tell("request %lu completes after the end", (unsigned long)completion.wr_id);
        side->is_wrong = true;
    }
    return !side->is_wrong;
}

static bool holds_only_before(const struct side *side, unsigned part) {
    return memchr(side->bytes + place(part), AFTER, LONG_BYTES) == NULL;
}

/* A process that listens, takes one connection and serves it until it is killed. */
static pid_t start_server(enum way way, int *ready) {
    int pipes[2];
    char byte;
    fflush(NULL);
    if (pipe(pipes) != 0)
        bail_out("no pipe");
    pid_t child = fork();
    if (child < 0)
        bail_out("no other process");
    if (child > 0) {
        close(pipes[1]);
        *ready = read(pipes[0], &byte, 1) == 1;
        close(pipes[0]);
        return child;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct rpma_peer *peer = new_peer();
    struct rpma_ep *endpoint = NULL;
    struct rpma_conn *connection = NULL;
    struct side side = {0};
    unsigned char descriptor[DESCRIPTOR_BYTES];
    register_memory(peer, &side, descriptor);
    NEED(CALL(rpma_ep_listen)(peer, options.address, port(PORT_OF_CHILD), &endpoint));
    struct rpma_conn_private_data data = {descriptor, sizeof descriptor};
    if (write(pipes[1], "r", 1) != 1)
        _exit(1);
    struct rpma_conn_cfg *configuration = configuration_for(way);
    struct rpma_conn_req *request = next_request(endpoint, configuration);
    NEED(CALL(rpma_conn_req_connect)(&request, &data, &connection));
    for (;;)
        pause();
}

/* A connection to a process of its own. */
static pid_t connect_to_child(struct rpma_peer *peer, struct side *here, const struct ending *ending) {
    struct rpma_conn_private_data data = {NULL, 0};
    struct rpma_conn_req *request = NULL;
    struct rpma_conn_cfg *configuration = configuration_for(ending->way);
    int is_ready = 0;
    pid_t child = start_server(ending->way, &is_ready);
    if (!is_ready)
        bail_out("a server does not start");
    NEED(CALL(rpma_conn_req_new)(peer, options.address, port(PORT_OF_CHILD), configuration, &request));
    NEED(CALL(rpma_conn_req_connect)(&request, NULL, &here->connection));
    if (next_event(here->connection, PATIENCE_MS) != RPMA_CONN_ESTABLISHED)
        bail_out("a connection was not established");
    NEED(CALL(rpma_conn_get_private_data)(here->connection, &data));
    NEED(CALL(rpma_mr_remote_from_descriptor)(data.ptr, DESCRIPTOR_BYTES, &here->remote));
    NEED(CALL(rpma_conn_cfg_delete)(&configuration));
    get_queues(here);
    return child;
}

static void connect_here(struct rpma_peer *peer, struct side *here, struct side *there, const struct ending *ending,
                         unsigned char descriptors[2][DESCRIPTOR_BYTES]) {
    struct rpma_conn_cfg *configuration = configuration_for(ending->way);
    register_memory(peer, there, descriptors[1]);
    connect_ends(peer, configuration, configuration, &here->connection, &there->connection);
    NEED(CALL(rpma_mr_remote_from_descriptor)(descriptors[1], DESCRIPTOR_BYTES, &here->remote));
    NEED(CALL(rpma_mr_remote_from_descriptor)(descriptors[0], DESCRIPTOR_BYTES, &there->remote));
    NEED(CALL(rpma_conn_cfg_delete)(&configuration));
    get_queues(here);
    get_queues(there);
}

/* Ends the connection and takes what completes, at the ends that have posted anything. */
static void end(struct side *here, struct side *there, pid_t child, const struct ending *ending) {
    if (ending->closer == KILL) {
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    if (ending->closer == DELETION)
        NEED(CALL(rpma_conn_delete)(&here->connection));
    if (ending->closer == HERE || ending->closer == BOTH)
        NEED(CALL(rpma_conn_disconnect)(here->connection));
    if (ending->closer == THERE || ending->closer == BOTH)
        NEED(CALL(rpma_conn_disconnect)(there->connection));
    if (ending->closer != DELETION)
        take_until_over(here, ending->way);
    if (ending->closer == BOTH)
        take_until_over(there, ending->way);
}

static void check_ending(struct rpma_peer *peer, const struct ending *ending) {
    struct side here = {0}, there = {0};
    unsigned char descriptors[2][DESCRIPTOR_BYTES];
    char name[256];
    pid_t child = 0;
    bool is_alone = ending->closer == KILL;
    snprintf(name, sizeof name, "%s amid %s of %zu bytes that complete %s; %s", closer_names[ending->closer],
             kind_names[ending->kind], ending->bytes, ending->flags == RPMA_F_COMPLETION_ALWAYS ? "always" : "on error",
             way_names[ending->way]);
    register_memory(peer, &here, descriptors[0]);
    if (is_alone)
        child = connect_to_child(peer, &here, ending);
    else
        connect_here(peer, &here, &there, ending, descriptors);
    post(&here, ending);
    if (ending->closer == BOTH)
        post(&there, ending);
    double from = now_ms();
    end(&here, &there, child, ending);
    double took_ms = now_ms() - from;
    if (ending->closer != DELETION)
        check(has_all(&here) && (ending->closer != BOTH || has_all(&there)), "%s: one completion for each", name);
    check(took_ms < PATIENCE_MS, "%s: soon", name);
    if (took_ms >= PATIENCE_MS)
        tell("after %.0f ms", took_ms);
    if (!is_alone) {
        memset(here.bytes + place(SOURCE), AFTER, LONG_BYTES);
        memset(here.bytes + place(DESTINATION), AFTER, LONG_BYTES);
        if (ending->way != BY_THE_EVENT || ending->closer != BOTH)
            next_event(there.connection, PATIENCE_MS);
        check(holds_only_before(&there, TARGET) && memchr(here.bytes + place(DESTINATION), BEFORE, LONG_BYTES) == NULL,
              "%s: then the memory is the program's own", name);
        NEED(CALL(rpma_conn_delete)(&there.connection));
        drop_memory(&there);
    }
    NEED(CALL(rpma_conn_delete)(&here.connection));
    drop_memory(&here);
}

/*
 * The last message before an end in order: sent, and not waited for. A device does not say that it has sent it, so that a disconnect gives it a time which a busy
 * emulated machine may need for something else: without that time one of eight arrives.
 */
static void check_last_messages(void) {
    const char *name = "the last message before a connection is closed arrives";
    unsigned arrived = 0;
    if (options.reference) {
        skip("the original flushes it", "%s", name);
        return;
    }
    for (unsigned turn = 0; turn < LAST_MESSAGES; turn++) {
        struct link link;
        struct ibv_wc completion;
        open_link(&link, NULL, NULL);
        struct end *client = &link.client, *server = &link.server;
        NEED(CALL(rpma_recv)(server->connection, server->region.local, 0, SHORT_BYTES, REQUEST(turn)));
        memset(client->region.bytes, (int)turn + 1, SHORT_BYTES);
        int flags = turn % 2 == 0 ? RPMA_F_COMPLETION_ALWAYS : RPMA_F_COMPLETION_ON_ERROR;
        NEED(CALL(rpma_send)(client->connection, client->region.local, 0, SHORT_BYTES, flags, NULL));
        NEED(CALL(rpma_conn_disconnect)(client->connection));
        arrived += next_completion(server->cq, &completion) && completion.status == IBV_WC_SUCCESS &&
                   server->region.bytes[SHORT_BYTES - 1] == turn + 1;
        close_link(&link);
    }
    if (!check(is_device() ? 2 * arrived >= LAST_MESSAGES : arrived == LAST_MESSAGES, "%s", name))
        tell("%u of %u", arrived, (unsigned)LAST_MESSAGES);
}

void check_endings(void) {
    static const int flags[] = {RPMA_F_COMPLETION_ALWAYS, RPMA_F_COMPLETION_ON_ERROR};
    section("endings");
    check_last_messages();
    if (is_device()) {
        skip("a device ends what is under way itself", "each operation has one completion when its connection ends");
        return;
    }
    struct rpma_peer *peer = new_peer();
    NEED(CALL(rpma_log_set_threshold)(RPMA_LOG_THRESHOLD, RPMA_LOG_DISABLED));
    for (enum closer closer = 0; closer < CLOSERS; closer++)
        for (enum kind kind = 0; kind < KINDS; kind++)
            for (unsigned number = 0; number < 2 * 2 * WAYS; number++) {
                struct ending ending = {closer, kind, number / 4, number & 1 ? LONG_BYTES : SHORT_BYTES, flags[number / 2 % 2]};
                bool has_lengths = kind != ATOMICS && kind != RECEIVES;
                bool has_flags = kind != READS && kind != RECEIVES;
                bool is_another = (ending.bytes == SHORT_BYTES || has_lengths) &&
                                  (ending.flags == RPMA_F_COMPLETION_ALWAYS || has_flags) &&
                                  (closer != DELETION || ending.way == BY_WAITING);
                if (is_another)
                    check_ending(peer, &ending);
            }
    NEED(CALL(rpma_log_set_threshold)(RPMA_LOG_THRESHOLD, RPMA_LOG_LEVEL_WARNING));
    delete_peer(&peer);
}
