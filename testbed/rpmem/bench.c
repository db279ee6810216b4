/*
 * What a librpmem costs, beside the same bytes over a raw TCP socket on the same processors in the same run:
 *
 *   rpmem-bench [--rounds N] DIRECTORY TARGET
 *
 * DIRECTORY is a stage (stage.h), TARGET the argument of ssh. This program runs on processor 0, targets and the raw echo on processor 1,
 * all polling; a server that is not measured is stopped meanwhile. Then how long it takes to open and close a pool, beside
 * `ssh TARGET true`, with a login for each and with logins over an existing connection.
 *
 * Latencies are medians of a round; the lowest, the median and the highest of all rounds are printed. Exit code 0 if the budgets
 * are kept, else 1.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <getopt.h>
#include <libpmemobj.h>
#include <librpmem.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "stage.h"

enum { OWN_CPU = 0, SERVER_CPU = 1 };
enum { POOL_BYTES = 16 << 20, FIRST_OFFSET = 4096, SPAN_BYTES = 64 << 10 };
enum { RANGE_BYTES = 512, REPLY_BYTES = 8 };
/* Of a round. */
enum { EXCHANGES = 2000, TRANSACTIONS = 500, WARM_UP = 200 };
enum { ROUNDS_MAX = 1000 };

/* The budgets: a persist and a transaction in echoes; opening beyond `ssh true`, and over an existing connection, in ms. */
static const double PERSIST_ECHOES = 1.3, TRANSACTION_ECHOES = 10, OPEN_MORE_MS = 20, OPEN_SHARED_MS = 60;

static void need(bool works, const char *what) {
    if (!works)
        bail_out("%s: %s: %s", what, strerror(errno), rpmem_errormsg());
}

static void run_on(pid_t thread, int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    need(sched_setaffinity(thread, sizeof set, &set) == 0, "sched_setaffinity");
}

static void run_anywhere(void) {
    cpu_set_t set;
    memset(&set, 0xff, sizeof set);
    need(sched_setaffinity(0, sizeof set, &set) == 0, "sched_setaffinity");
}

static void run_threads_on(pid_t process, int cpu) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", (int)process);
    DIR *tasks = opendir(path);
    need(tasks != NULL, path);
    for (struct dirent *task; (task = readdir(tasks)) != NULL;)
        if (task->d_name[0] != '.')
            run_on((pid_t)atoi(task->d_name), cpu);
    closedir(tasks);
}

static int compare(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(double *values, size_t count) {
    qsort(values, count, sizeof *values, compare);
    return count % 2 == 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

/* The median of a round's latencies, in us, of `step`. */
static double round_of(unsigned count, void (*step)(void *), void *of) {
    static double latencies[EXCHANGES];
    for (unsigned index = 0; index < WARM_UP; index++)
        step(of);
    for (unsigned index = 0; index < count; index++) {
        double start = now_ms();
        step(of);
        latencies[index] = (now_ms() - start) * 1e3;
    }
    return median(latencies, count);
}

static void take(int socket, size_t bytes) {
    static char buffer[RANGE_BYTES];
    for (size_t have = 0; have < bytes;) {
        ssize_t some = recv(socket, buffer, bytes - have, MSG_DONTWAIT);
        if (some == 0)
            _exit(0);
        need(some > 0 || errno == EAGAIN || errno == EINTR, "recv");
        have += some > 0 ? (size_t)some : 0;
    }
}

static void give(int socket, size_t bytes) {
    static const char zeroes[RANGE_BYTES];
    need(send(socket, zeroes, bytes, MSG_NOSIGNAL) == (ssize_t)bytes, "send");
}

struct echo {
    int socket;
    pid_t server;
};

static void exchange(void *of) {
    struct echo *echo = of;
    give(echo->socket, RANGE_BYTES);
    take(echo->socket, REPLY_BYTES);
}

static struct echo start_echo(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    need(listener >= 0 && bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 1) == 0 &&
             getsockname(listener, (struct sockaddr *)&address, &length) == 0,
         "a listener");
    fflush(stdout);
    struct echo echo = {.server = fork()};
    need(echo.server >= 0, "fork");
    if (echo.server == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        run_on(0, SERVER_CPU);
        int client = accept(listener, NULL, NULL);
        need(client >= 0, "accept");
        setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        for (;;) {
            take(client, RANGE_BYTES);
            give(client, REPLY_BYTES);
        }
    }
    echo.socket = socket(AF_INET, SOCK_STREAM, 0);
    need(connect(echo.socket, (struct sockaddr *)&address, length) == 0, "connect");
    setsockopt(echo.socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    close(listener);
    return echo;
}

struct remote {
    RPMEMpool *pool;
    pid_t target;
    size_t offset;
};

static void persist(void *of) {
    struct remote *remote = of;
    need(rpmem_persist(remote->pool, remote->offset, RANGE_BYTES, 0, 0) == 0, "rpmem_persist");
    remote->offset += RANGE_BYTES;
    if (remote->offset + RANGE_BYTES > FIRST_OFFSET + SPAN_BYTES)
        remote->offset = FIRST_OFFSET;
}

static void *memory;

static struct remote start_remote(void) {
    struct rpmem_pool_attr attributes = {.signature = {'B', 'E', 'N', 'C', 'H'}, .major = 1, .incompat_features = 2, .uuid = {1}};
    unsigned lanes = 1024;
    write_set("bench", POOL_BYTES, "");
    RPMEMpool *pool = rpmem_create(stage.target, "bench.set", memory, POOL_BYTES, &lanes, &attributes);
    need(pool != NULL, "rpmem_create");
    struct remote remote = {.pool = pool, .target = last_target(), .offset = FIRST_OFFSET};
    need(rpmem_persist(pool, FIRST_OFFSET, POOL_BYTES - FIRST_OFFSET, 0, RPMEM_PERSIST_RELAXED) == 0, "rpmem_persist");
    run_threads_on(remote.target, SERVER_CPU);
    return remote;
}

struct objects {
    PMEMobjpool *pool;
    PMEMoid root;
    pid_t target;
    unsigned char number;
};

struct root {
    unsigned char data[RANGE_BYTES];
    uint64_t number;
};

static void transact(void *of) {
    struct objects *objects = of;
    struct root *root = pmemobj_direct(objects->root);
    TX_BEGIN(objects->pool) {
        pmemobj_tx_add_range(objects->root, 0, RANGE_BYTES);
        pmemobj_tx_add_range(objects->root, RANGE_BYTES, sizeof root->number);
        memset(root->data, ++objects->number, RANGE_BYTES);
        root->number++;
    }
    TX_ONABORT {
        bail_out("a transaction: %s", pmemobj_errormsg());
    }
    TX_END
}

static struct objects start_objects(void) {
    char set[PATH_BYTES];
    write_set("bench-obj", POOL_BYTES, "");
    write_file("local/bench-obj.set", false, "PMEMPOOLSET\n%d %s/local/bench-obj.0\nREPLICA %s bench-obj.set\n", POOL_BYTES,
               stage.directory, stage.target);
    PMEMobjpool *pool = pmemobj_create(path_of(set, "local/bench-obj.set"), "bench", 0, 0600);
    if (pool == NULL)
        bail_out("pmemobj_create: %s", pmemobj_errormsg());
    struct objects objects = {.pool = pool, .root = pmemobj_root(pool, sizeof(struct root)), .target = last_target()};
    run_threads_on(objects.target, SERVER_CPU);
    return objects;
}

/* Lets a server run for a round. */
static double round_with(pid_t server, unsigned count, void (*step)(void *), void *of) {
    kill(server, SIGCONT);
    double us = round_of(count, step, of);
    kill(server, SIGSTOP);
    return us;
}

struct series {
    double values[ROUNDS_MAX];
    unsigned count;
};

static void add(struct series *series, double value) {
    series->values[series->count++] = value;
}

static double print(const char *what, const char *unit, struct series *series) {
    double middle = median(series->values, series->count);
    printf("%-34s %9.2f %9.2f %9.2f %s\n", what, series->values[0], middle, series->values[series->count - 1], unit);
    return middle;
}

static void measure_latency(unsigned rounds) {
    section("latency");
    char command[PATH_BYTES + 16];
    const char *kept = getenv("RPMEM_CMD");
    char *before = strdup(kept == NULL ? "rpmemd" : kept);
    snprintf(command, sizeof command, "%s --busy-poll", before);
    setenv("RPMEM_CMD", command, 1);
    setenv("PMOF_BUSY_POLL", "1", 1);
    struct echo echo = start_echo();
    kill(echo.server, SIGSTOP);
    struct remote remote = start_remote();
    kill(remote.target, SIGSTOP);
    struct objects objects = start_objects();
    kill(objects.target, SIGSTOP);
    run_on(0, OWN_CPU);
    static struct series echoes, persists, transactions, persist_ratios, transaction_ratios;
    for (unsigned index = 0; index < rounds; index++) {
        double floor = round_with(echo.server, EXCHANGES, exchange, &echo);
        double one = round_with(remote.target, EXCHANGES, persist, &remote);
        double transaction = round_with(objects.target, TRANSACTIONS, transact, &objects);
        add(&echoes, floor);
        add(&persists, one);
        add(&transactions, transaction);
        add(&persist_ratios, one / floor);
        add(&transaction_ratios, transaction / floor);
    }
    printf("%-34s %9s %9s %9s\n", "p50 of a round", "least", "median", "most");
    char what[64];
    snprintf(what, sizeof what, "raw TCP, %d bytes there, %d back", RANGE_BYTES, REPLY_BYTES);
    print(what, "us", &echoes);
    print("rpmem_persist, 512 bytes", "us", &persists);
    print("libpmemobj, TX of 512 + 8 bytes", "us", &transactions);
    double ratio = print("rpmem_persist over raw TCP", "", &persist_ratios);
    check(ratio <= PERSIST_ECHOES, "a persist takes at most %.1f echoes", PERSIST_ECHOES);
    ratio = print("transaction over raw TCP", "", &transaction_ratios);
    check(ratio <= TRANSACTION_ECHOES, "a transaction takes at most %.0f echoes", TRANSACTION_ECHOES);
    kill(echo.server, SIGKILL);
    waitpid(echo.server, NULL, 0);
    kill(remote.target, SIGCONT);
    kill(objects.target, SIGCONT);
    need(rpmem_close(remote.pool) == 0, "rpmem_close");
    pmemobj_close(objects.pool);
    run_anywhere();
    unsetenv("PMOF_BUSY_POLL");
    setenv("RPMEM_CMD", before, 1);
    free(before);
}

/* How long `ssh TARGET true` takes. */
static double login_ms(void) {
    char host[128];
    snprintf(host, sizeof host, "%s", stage.target);
    char *port = strchr(host, ':');
    const char *ssh = getenv("RPMEM_SSH");
    if (port == NULL || ssh == NULL)
        bail_out("the target needs a port, and RPMEM_SSH must be set");
    *port++ = '\0';
    fflush(stdout);
    double start = now_ms();
    pid_t child = fork();
    if (child == 0) {
        execl(ssh, ssh, "-T", "-oBatchMode=yes", "-p", port, "--", host, "true", (char *)NULL);
        _exit(127);
    }
    int status;
    need(waitpid(child, &status, 0) == child && status == 0, "ssh");
    return now_ms() - start;
}

static void measure_opening(const char *ssh, unsigned rounds, bool is_shared) {
    char path[PATH_BYTES], what[64];
    setenv("RPMEM_SSH", path_of(path, "%s", ssh), 1);
    section(is_shared ? "opening, logins share a connection" : "opening, a login each");
    (void)login_ms();
    struct series logins = {.count = 0}, opens = {.count = 0}, closes = {.count = 0}, more = {.count = 0};
    for (unsigned index = 0; index < rounds; index++) {
        unsigned lanes = 1024;
        double login = login_ms(), start = now_ms();
        RPMEMpool *pool = rpmem_open(stage.target, "bench.set", memory, POOL_BYTES, &lanes, NULL);
        double opened = now_ms();
        need(pool != NULL, "rpmem_open");
        need(rpmem_close(pool) == 0, "rpmem_close");
        add(&closes, now_ms() - opened);
        add(&opens, opened - start);
        add(&logins, login);
        add(&more, opened - start - login);
    }
    snprintf(what, sizeof what, "ssh %s true", is_shared ? "(shared)" : "(cold)");
    print(what, "ms", &logins);
    double open = print("rpmem_open", "ms", &opens);
    double beyond = print("rpmem_open beyond ssh true", "ms", &more);
    print("rpmem_close", "ms", &closes);
    check(beyond <= OPEN_MORE_MS, "opening takes at most %.0f ms more than ssh true", OPEN_MORE_MS);
    if (is_shared)
        check(open <= OPEN_SHARED_MS, "opening takes at most %.0f ms", OPEN_SHARED_MS);
}

int main(int count, char **arguments) {
    static const struct option known[] = {{"rounds", required_argument, NULL, 'r'}, {NULL, 0, NULL, 0}};
    unsigned rounds = 15;
    for (int option; (option = getopt_long(count, arguments, "", known, NULL)) != -1;)
        rounds = option == 'r' ? (unsigned)strtoul(optarg, NULL, 10) : 0;
    if (optind + 2 != count || rounds == 0 || rounds > ROUNDS_MAX) {
        fputs("usage: rpmem-bench [--rounds N] DIRECTORY TARGET\n", stderr);
        return 2;
    }
    stage.directory = arguments[optind];
    stage.target = arguments[optind + 1];
    setvbuf(stdout, NULL, _IOLBF, 0);
    bail_out_after(60 + 10 * rounds);
    memory = mmap(NULL, POOL_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    need(memory != MAP_FAILED, "mmap");
    memset(memory, 7, POOL_BYTES);
    measure_latency(rounds);
    measure_opening("ssh-cold", rounds, false);
    measure_opening("ssh", rounds, true);
    return finish();
}
