/*
 * Debian's unmodified libpmemobj and libpmempool on a librpmem: pools with one, two and three remote replicas, clients and targets
 * that are killed, parts that are lost. C11 with the extensions of GNU C:
 *
 *   rpmem-obj [--kills N] [--seed S] [--broken LIBRARY] DIRECTORY TARGET
 *
 * DIRECTORY is a stage (stage.h), TARGET what pool sets call the other machine. RPMEM_SSH and RPMEM_CMD say how ssh reaches the stage.
 *
 *   --kills N   kill a client at N moments (default 20)
 *   --seed S    of the work and the moments (default 1)
 *   --broken L  a directory with a librpmem.so.1 that leaves out some persists: the comparison must find it
 *
 * Which librpmem is judged says LD_LIBRARY_PATH. Output and exit codes are those of rpmem-check.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <libpmempool.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "obj.h"
#include "stage.h"

/* How long one process may take, and how long after its target's death a client lives, at most. */
enum { PROCESS_SECONDS = 60, DEATH_MS = 5000 };

static struct ledger *ledger;
static const char *broken_library;
static uint64_t random_state;

static uint64_t random_below(uint64_t limit) {
    random_state = random_state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (random_state >> 33) % limit;
}

/* The pool with so many remote replicas: its set here, `local/rN.set`, and the sets there. */
static char *set_of(char path[PATH_BYTES], unsigned replicas) {
    return path_of(path, "local/r%u.set", replicas);
}

static char *master_of(char path[PATH_BYTES], unsigned replicas) {
    return path_of(path, "local/r%u.0", replicas);
}

static char *replica_of(char path[PATH_BYTES], unsigned replicas, unsigned replica) {
    return path_of(path, "parts/r%u-%u.0", replicas, replica);
}

static void write_sets(unsigned replicas) {
    char text[4 * PATH_BYTES], name[PATH_BYTES];
    int length = snprintf(text, sizeof text, "PMEMPOOLSET\n%d %s/local/r%u.0\n", PART_BYTES, stage.directory, replicas);
    for (unsigned replica = 1; replica <= replicas; replica++) {
        length += snprintf(text + length, sizeof text - (size_t)length, "REPLICA %s r%u-%u.set\n", stage.target, replicas,
                           replica);
        snprintf(name, sizeof name, "r%u-%u", replicas, replica);
        write_set(name, PART_BYTES, "");
    }
    snprintf(name, sizeof name, "local/r%u.set", replicas);
    write_file(name, false, "%s", text);
}

/* Starts this program again, as `--process WORD SET SEED STEPS LIVE`. */
static pid_t start(const char *word, unsigned replicas, uint64_t seed, uint64_t steps, const char *library) {
    char set[PATH_BYTES], live[PATH_BYTES], seed_text[24], steps_text[24];
    set_of(set, replicas);
    path_of(live, "live");
    snprintf(seed_text, sizeof seed_text, "%llu", (unsigned long long)seed);
    snprintf(steps_text, sizeof steps_text, "%llu", (unsigned long long)steps);
    fflush(stdout);
    pid_t child = fork();
    if (child < 0)
        bail_out("no other process");
    if (child > 0)
        return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(PROCESS_SECONDS);
    if (library != NULL)
        setenv("LD_LIBRARY_PATH", library, 1);
    const char *arguments[] = {"rpmem-obj", "--process", word, stage.directory, set, seed_text, steps_text, live, NULL};
    execv("/proc/self/exe", (char **)arguments);
    _exit(127);
}

static struct ledger *map_ledger(void) {
    char path[PATH_BYTES];
    int file = open(path_of(path, "ledger"), O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, sizeof(struct ledger)) != 0)
        bail_out("cannot write %s", path);
    struct ledger *map = mmap(NULL, sizeof *map, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (map == MAP_FAILED)
        bail_out("cannot map %s", path);
    close(file);
    return map;
}

static int sync_pool(const char *set) {
    if (pmempool_sync(set, 0) == 0)
        return 0;
    int status = errno == EBUSY || errno == EAGAIN ? BUSY : 1;
    printf("# pmempool_sync: %s: %s\n", strerror(errno), pmempool_errormsg());
    return status;
}

/* What a process of ours does. */
static int process(char **arguments) {
    const char *word = arguments[0], *set = arguments[2];
    uint64_t seed = strtoull(arguments[3], NULL, 10), steps = strtoull(arguments[4], NULL, 10);
    stage.directory = arguments[1];
    if (strcmp(word, "create") == 0)
        return create_pool(set);
    if (strcmp(word, "work") == 0)
        return work(set, seed, steps, map_ledger());
    if (strcmp(word, "sync") == 0)
        return sync_pool(set);
    return verify(set, arguments[5]);
}

/* The exit status of a process; 256 + signal where one ended it. */
static int end_of(pid_t child) {
    int status;
    if (waitpid(child, &status, 0) != child)
        bail_out("a process is lost");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

static int run(const char *word, unsigned replicas, uint64_t seed, uint64_t steps) {
    return end_of(start(word, replicas, seed, steps, NULL));
}

/* As it is tried again by those who were told that somebody has the pool open still: one who was killed, or his ssh. */
static int run_patiently(const char *word, unsigned replicas) {
    double deadline = now_ms() + DEATH_MS;
    int status;
    while ((status = run(word, replicas, 0, 0)) == BUSY && now_ms() < deadline)
        usleep(20000);
    return status;
}

/* Whether the targets from this number on end by themselves. */
static bool targets_end(unsigned from) {
    unsigned started = targets_started();
    for (unsigned index = from; index < started; index++)
        if (!ends_within(target_number(index), DEATH_MS))
            return false;
    return true;
}

/* How all replicas of a pool are unlike its master, added up. */
static struct difference differences(unsigned replicas) {
    struct difference sum = {.first = SIZE_MAX};
    char master[PATH_BYTES], replica[PATH_BYTES], live[PATH_BYTES];
    for (unsigned index = 1; index <= replicas; index++) {
        struct difference one = compare_parts(master_of(master, replicas), replica_of(replica, replicas, index),
                                              path_of(live, "live"));
        sum.header += one.header;
        sum.live += one.live;
        sum.free += one.free;
        if (one.first < sum.first)
            sum.first = one.first;
    }
    return sum;
}

static bool are_same(struct difference found) {
    if (found.header + found.live == 0)
        return true;
    tell("%zu bytes of the header and %zu of what is in use differ, from %zu on", found.header, found.live, found.first);
    return false;
}

/* Opens the pool, which recovers it, checks it and holds its parts against each other. */
static bool is_whole(unsigned replicas) {
    return run_patiently("verify", replicas) == 0 && are_same(differences(replicas));
}

static void check_life(unsigned replicas) {
    char name[64];
    snprintf(name, sizeof name, "%u remote replica%s", replicas, replicas == 1 ? "" : "s");
    section(name);
    write_sets(replicas);
    check(run("create", replicas, 0, 0) == 0, "the pool is created");
    double start_ms = now_ms();
    check(run("work", replicas, random_below(UINT32_MAX), 1000) == 0, "1000 steps of work");
    tell("in %.0f ms, %llu transactions", now_ms() - start_ms, (unsigned long long)ledger->committed);
    check(run("verify", replicas, 0, 0) == 0, "all invariants hold in the pool, opened again");
    struct difference found = differences(replicas);
    check(are_same(found), "all bytes in use are the same on each replica");
    tell("%zu bytes where nothing is kept differ", found.free);
    char part[PATH_BYTES], next[PATH_BYTES];
    bool linked = true;
    master_of(part, replicas);
    for (unsigned replica = 1; replica <= replicas; replica++) {
        linked = are_neighbours(part, replica_of(next, replicas, replica)) && linked;
        memcpy(part, next, sizeof part);
    }
    linked = are_neighbours(part, master_of(next, replicas)) && linked;
    check(linked, "the headers name each other in a ring");
}

/* Changes one byte of a file. */
static void flip(const char *path, size_t at) {
    int file = open(path, O_RDWR);
    unsigned char byte;
    if (file < 0 || pread(file, &byte, 1, (off_t)at) != 1)
        bail_out("cannot read %s", path);
    byte ^= 0x10;
    if (pwrite(file, &byte, 1, (off_t)at) != 1)
        bail_out("cannot write %s", path);
    close(file);
}

static void check_controls(void) {
    section("controls");
    char path[PATH_BYTES], live[PATH_BYTES];
    unsigned long long root;
    FILE *file = fopen(path_of(live, "live"), "r");
    if (file == NULL || fscanf(file, "%llu", &root) != 1)
        bail_out("cannot read %s", live);
    fclose(file);
    const size_t places[] = {8, 140, 5000, 10000, root + 100};
    replica_of(path, REPLICAS_MAX, REPLICAS_MAX);
    for (unsigned place = 0; place < sizeof places / sizeof *places; place++) {
        flip(path, places[place]);
        struct difference found = differences(REPLICAS_MAX);
        flip(path, places[place]);
        check(found.header + found.live == 1 && found.first == places[place], "a bit flipped at %zu is found", places[place]);
    }
    check(are_same(differences(REPLICAS_MAX)), "and nothing once it is as before");
    if (broken_library == NULL) {
        skip("no --broken", "a library that leaves out persists is found");
        return;
    }
    char library[4096];
    const char *ours = getenv("LD_LIBRARY_PATH");
    snprintf(library, sizeof library, "%s:%s", broken_library, ours == NULL ? "" : ours);
    int status = end_of(start("work", 1, random_below(UINT32_MAX), 300, library));
    check(status == 0, "work with a library that leaves out persists");
    /* Opened with it too: the library that is judged would mend the logs. */
    status = end_of(start("verify", 1, 0, 0, library));
    struct difference found = differences(1);
    check(status == 0 && found.live > 0, "the comparison finds it: %zu bytes differ", found.live);
    char master[PATH_BYTES];
    delete_file("parts/r1-1.0");
    check(run("sync", 1, 0, 0) == 0 && is_whole(1), "the replica is made anew from %s", master_of(master, 1));
}

struct tally {
    unsigned early; /* killed before the pool was open */
    unsigned inconsistent, unlike, forgetful, unrestored, restored, lingering;
    size_t free;
};

/* What was acknowledged must be on each replica as its bytes lie there, before anybody recovers anything. */
static bool have_committed(unsigned replicas) {
    char path[PATH_BYTES];
    for (unsigned replica = 1; replica <= replicas; replica++) {
        uint64_t committed = committed_in(replica_of(path, replicas, replica));
        if (committed >= ledger->committed && committed <= ledger->begun)
            continue;
        tell("replica %u has %llu transactions, %llu were committed and %llu begun", replica, (unsigned long long)committed,
             (unsigned long long)ledger->committed, (unsigned long long)ledger->begun);
        return false;
    }
    return true;
}

static void kill_once(unsigned number, struct tally *tally) {
    unsigned replicas = number % REPLICAS_MAX + 1;
    *ledger = (struct ledger){0};
    unsigned before = targets_started();
    pid_t child = start("work", replicas, random_below(UINT32_MAX), 0, NULL);
    /* One in four at any time from its start, the others while it works. */
    bool any_time = random_below(4) == 0;
    double deadline = now_ms() + PROCESS_SECONDS * 1000;
    while (!any_time && __atomic_load_n(&ledger->begun, __ATOMIC_RELAXED) == 0 && now_ms() < deadline)
        usleep(200);
    usleep((useconds_t)random_below(any_time ? 150000 : 40000));
    kill(child, SIGKILL);
    int status = end_of(child);
    if (status != 256 + SIGKILL)
        tell("kill %u: the worker ended before, with status %d", number, status);
    if (!targets_end(before)) {
        tell("kill %u: a target goes on", number);
        tally->lingering++;
    }
    bool is_early = ledger->begun == 0;
    tally->early += is_early;
    if (!is_early && !have_committed(replicas)) {
        tell("kill %u: above", number);
        tally->forgetful++;
    }
    uint64_t committed = ledger->committed;
    if (random_below(5) == 0) {
        /* The client's machine is lost with its part: the pool comes back from a replica, as it was left. */
        char part[64];
        snprintf(part, sizeof part, "local/r%u.0", replicas);
        delete_file(part);
        bool restored = run_patiently("sync", replicas) == 0;
        tally->restored += restored;
        tally->unrestored += !restored;
    }
    if (run_patiently("verify", replicas) != 0) {
        tell("kill %u: above", number);
        tally->inconsistent++;
        return;
    }
    char master[PATH_BYTES];
    if (!is_early && committed_in(master_of(master, replicas)) < committed) {
        tell("kill %u: a committed transaction is gone", number);
        tally->forgetful++;
    }
    struct difference found = differences(replicas);
    tally->free += found.free;
    if (!are_same(found)) {
        tell("kill %u: above", number);
        tally->unlike++;
    }
}

static void check_client_kills(unsigned kills) {
    section("clients killed");
    struct tally tally = {0};
    double start_ms = now_ms();
    for (unsigned number = 0; number < kills; number++)
        kill_once(number, &tally);
    tell("%u kills in %.1f s, %u before the pool was open; %zu bytes where nothing is kept differ", kills,
         (now_ms() - start_ms) / 1e3, tally.early, tally.free);
    check(kills > 0 && tally.early < kills, "%u clients were killed, %u of them at work", kills, kills - tally.early);
    check(tally.forgetful == 0, "what was committed was on each replica when the client was killed");
    check(tally.lingering == 0, "its targets ended by themselves");
    check(tally.inconsistent == 0, "the pool was consistent when it was opened again");
    check(tally.unlike == 0, "and then all bytes in use were the same on each replica");
    check(tally.unrestored == 0, "%u times the part here was lost too and came back from a replica", tally.restored);
}

static void check_target_kills(void) {
    section("targets killed");
    for (unsigned replicas = 1; replicas <= REPLICAS_MAX; replicas++) {
        *ledger = (struct ledger){0};
        unsigned before = targets_started();
        pid_t child = start("work", replicas, random_below(UINT32_MAX), 0, NULL);
        double deadline = now_ms() + PROCESS_SECONDS * 1000;
        while (__atomic_load_n(&ledger->committed, __ATOMIC_RELAXED) == ledger->begun && now_ms() < deadline)
            usleep(200);
        usleep((useconds_t)random_below(40000));
        if (targets_started() != before + replicas)
            bail_out("%u targets were started for %u replicas", targets_started() - before, replicas);
        kill(last_target(), SIGKILL);
        double killed_ms = now_ms();
        int status = end_of(child);
        double took_ms = now_ms() - killed_ms;
        check(status != 0 && took_ms < DEATH_MS, "libpmemobj ends its process (status %d), after %.0f ms", status, took_ms);
        check(is_whole(replicas), "the pool with %u replicas is whole when it was opened again", replicas);
    }
}

static void check_losses(void) {
    section("lost parts");
    for (unsigned replicas = 1; replicas <= REPLICAS_MAX; replicas++) {
        char part[64];
        snprintf(part, sizeof part, "local/r%u.0", replicas);
        delete_file(part);
        check(run("verify", replicas, 0, 0) == 1, "without its part here, the pool does not open");
        check(run("sync", replicas, 0, 0) == 0, "pmempool_sync brings the part here back from a remote replica");
        check(is_whole(replicas), "the pool is whole");
        snprintf(part, sizeof part, "parts/r%u-%u.0", replicas, replicas);
        delete_file(part);
        check(run("verify", replicas, 0, 0) == 1, "without the part of replica %u, the pool does not open", replicas);
        check(run("sync", replicas, 0, 0) == 0, "pmempool_sync makes it anew");
        check(is_whole(replicas), "the pool is whole");
        check(run("work", replicas, random_below(UINT32_MAX), 100) == 0 && is_whole(replicas), "work goes on");
    }
}

static _Noreturn void usage(void) {
    fputs("usage: rpmem-obj [--kills N] [--seed S] [--broken DIRECTORY] DIRECTORY TARGET\n", stderr);
    exit(2);
}

int main(int count, char **arguments) {
    if (count == 8 && strcmp(arguments[1], "--process") == 0)
        return process(arguments + 2);
    static const struct option known[] = {
        {"kills", required_argument, NULL, 'k'},
        {"seed", required_argument, NULL, 's'},
        {"broken", required_argument, NULL, 'b'},
        {NULL, 0, NULL, 0},
    };
    unsigned kills = 20;
    random_state = 1;
    for (int option; (option = getopt_long(count, arguments, "", known, NULL)) != -1;) {
        switch (option) {
        case 'k': kills = (unsigned)strtoul(optarg, NULL, 10); break;
        case 's': random_state = strtoull(optarg, NULL, 10); break;
        case 'b': broken_library = optarg; break;
        default: usage();
        }
    }
    if (optind + 2 != count)
        usage();
    stage.directory = arguments[optind];
    stage.target = arguments[optind + 1];
    setvbuf(stdout, NULL, _IOLBF, 0);
    bail_out_after(300 + 3 * kills);
    ledger = map_ledger();
    for (unsigned replicas = 1; replicas <= REPLICAS_MAX; replicas++)
        check_life(replicas);
    check_controls();
    check_losses();
    check_target_kills();
    check_client_kills(kills);
    return finish();
}
