/*
 * Debian's unmodified libpmemobj and libpmempool on a librpmem: pools with one, two and three remote replicas, clients and targets
 * that are killed, parts that are lost. C11 with the extensions of GNU C:
 *
 *   rpmem-obj [--kills N] [--seed S] [--between LIBRARY] [--keep KEPT] [--pmof PMOF] [--provider NAME] DIRECTORY TARGET
 *
 * DIRECTORY is a stage (stage.h), TARGET what pool sets call the other machine. RPMEM_SSH and RPMEM_CMD say how ssh reaches the stage.
 *
 *   --kills N    kill a client at N moments (default 20)
 *   --seed S     of the work and the moments (default 1)
 *   --between L  a directory with the librpmem.so.1 of between.c: it leaves out persists, which the comparison must find, kills its
 *                process before one, and remembers the last
 *   --pmof P     the program pmof, which makes replicas equal that libpmemobj left different
 *   --provider N the provider of libfabric that RPMEM_PROVIDER names: all data must go over it, by librpmem's log DIRECTORY/log
 *   --keep K     a directory for the parts of a pool whose replicas differ after a kill
 *
 * Which librpmem is judged says LD_LIBRARY_PATH. Output and exit codes are those of rpmem-check.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <libpmempool.h>
#include <limits.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "obj_kills.h"
#include "obj_pool.h"
#include "obj_story.h"

/* A library that breaks its promise omits one of this many persists. */
enum { DROP_EVERY = 50 };

static int sync_pool(const char *set) {
    if (pmempool_sync(set, 0) == 0)
        return 0;
    int status = errno == EAGAIN ? BUSY : 1;
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
    if (strcmp(word, "allocate") == 0)
        return allocate_loose(set, (unsigned)seed, map_between());
    if (strcmp(word, "sync") == 0)
        return sync_pool(set);
    return verify(set, arguments[5]);
}

static void check_life(unsigned replicas) {
    char name[64];
    snprintf(name, sizeof name, "%u remote replica%s", replicas, replicas == 1 ? "" : "s");
    section(name);
    check(make_pool(replicas), "the pool is created");
    double start_ms = now_ms();
    check(run("work", replicas, random_below(UINT32_MAX), 1000) == 0, "1000 steps of work");
    tell("in %.0f ms, %llu transactions", now_ms() - start_ms, (unsigned long long)ledger->committed);
    check(run("verify", replicas, 0, 0) == 0, "all invariants hold in the pool, opened again");
    struct difference found = differences(replicas);
    check(are_same(found), "all bytes in use are the same on each replica");
    tell("%zu bytes where nothing is kept differ", found.free);
    struct parts parts = read_parts(replicas);
    bool linked = true;
    for (unsigned index = 0; index <= replicas; index++)
        linked = are_neighbours(parts.bytes[index], parts.bytes[(index + 1) % (replicas + 1)]) && linked;
    free_parts(&parts);
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
    unsigned char *master = read_part(part_of(path, REPLICAS_MAX, 0));
    const size_t places[] = {8, 140, 5000, 10000, used_run(master), root + 100};
    free(master);
    part_of(path, REPLICAS_MAX, REPLICAS_MAX);
    for (unsigned place = 0; place < sizeof places / sizeof *places; place++) {
        flip(path, places[place]);
        struct difference found = differences(REPLICAS_MAX);
        flip(path, places[place]);
        check(found.header + found.live == 1 && found.first == places[place], "a bit flipped at %zu is found", places[place]);
    }
    check(are_same(differences(REPLICAS_MAX)), "and nothing once it is as before");
    if (between_library == NULL) {
        skip("no --between", "a library that leaves out persists is found");
        return;
    }
    *between = (struct between){.drop_every = DROP_EVERY};
    int status = end_of(start("work", 1, random_below(UINT32_MAX), 300, true));
    check(status == 0, "work with a library that leaves out persists");
    size_t compared = 0;
    unsigned char *replica = read_part(part_of(path, 1, 1));
    check(lost_bytes(replica, 1, &compared) > 0, "which shows in the persists that were acknowledged");
    free(replica);
    /* Opened with it too: the library that is judged would mend the logs. */
    status = end_of(start("verify", 1, 0, 0, true));
    struct difference found = differences(1);
    check(status == 0 && found.live > 0, "the comparison finds it: %zu bytes differ", found.live);
    delete_file("parts/r1-1.0");
    check(run("sync", 1, 0, 0) == 0 && is_whole(1), "the replica is made anew from %s", part_of(path, 1, 0));
}

static void check_target_kills(void) {
    section("targets killed");
    for (unsigned replicas = 1; replicas <= REPLICAS_MAX; replicas++) {
        *ledger = (struct ledger){0};
        unsigned before = targets_started();
        pid_t child = start("work", replicas, random_below(UINT32_MAX), 0, false);
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

/* What librpmem logs of its connections, each on one line: `connection 1 over fabric+tcp-msg with 127.0.0.1:7204 is established`. */
static void check_provider(const char *provider) {
    section("provider of libfabric");
    size_t bytes;
    char over[64], *rest = NULL, *log = (char *)contents("log", &bytes);
    snprintf(over, sizeof over, " over fabric+%s ", provider);
    unsigned connections = 0, carried = 0;
    for (char *line = log == NULL ? NULL : strtok_r(log, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        bool is_carried = strstr(line, over) != NULL;
        if (strstr(line, " is established") == NULL)
            continue;
        connections++;
        carried += is_carried;
        if (!is_carried && connections - carried == 1)
            tell("%s", line);
    }
    free(log);
    check(carried > 0 && carried == connections, "%u of %u connections, to %u targets, went over fabric+%s", carried, connections,
          targets_started(), provider);
}

static _Noreturn void usage(void) {
    fputs("usage: rpmem-obj [--kills N] [--seed S] [--between DIRECTORY] [--keep DIRECTORY] [--pmof PROGRAM] [--provider NAME] DIRECTORY "
          "TARGET\n",
          stderr);
    exit(2);
}

int main(int count, char **arguments) {
    if (count == 8 && strcmp(arguments[1], "--process") == 0)
        return process(arguments + 2);
    static const struct option known[] = {
        {"kills", required_argument, NULL, 'k'},
        {"seed", required_argument, NULL, 's'},
        {"between", required_argument, NULL, 'b'},
        {"keep", required_argument, NULL, 'd'},
        {"pmof", required_argument, NULL, 'p'},
        {"provider", required_argument, NULL, 'r'},
        {NULL, 0, NULL, 0},
    };
    unsigned kills = 20;
    const char *keep = NULL, *pmof = NULL, *provider = NULL;
    for (int option; (option = getopt_long(count, arguments, "", known, NULL)) != -1;) {
        switch (option) {
        case 'k': kills = (unsigned)strtoul(optarg, NULL, 10); break;
        case 's': random_state = strtoull(optarg, NULL, 10); break;
        case 'b': between_library = optarg; break;
        case 'd': keep = optarg; break;
        case 'p': pmof = optarg; break;
        case 'r': provider = optarg; break;
        default: usage();
        }
    }
    if (optind + 2 != count)
        usage();
    stage.directory = arguments[optind];
    stage.target = arguments[optind + 1];
    setvbuf(stdout, NULL, _IOLBF, 0);
    bail_out_after(300 + 3 * kills);
    /* Parts are read again and again: their memory is to stay. */
    mallopt(M_MMAP_THRESHOLD, 2 * PART_BYTES);
    mallopt(M_TRIM_THRESHOLD, INT_MAX);
    ledger = map_ledger();
    between = map_between();
    for (unsigned replicas = 1; replicas <= REPLICAS_MAX; replicas++)
        check_life(replicas);
    check_controls();
    check_losses();
    check_target_kills();
    check_client_kills(kills, keep);
    check_new_runs();
    check_loose_objects(pmof);
    if (provider != NULL)
        check_provider(provider);
    return finish();
}
