#include "obj_kills.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "obj_pool.h"
#include "obj_story.h"

/* Clients are killed before one of their first persists, up to this number; some of these belong to the opening. */
enum { PERSISTS = 1000 };

struct tally {
    unsigned early; /* killed before the pool was open */
    unsigned inconsistent, unlike, forgetful, unrestored, restored, lingering;
    size_t free, compared, lost;
};

/* What was acknowledged must be on each replica as its bytes lie there, before anybody recovers anything. */
static bool have_committed(const struct killed *killed) {
    for (unsigned replica = 1; replica <= killed->replicas; replica++) {
        uint64_t committed = committed_in(killed->parts.bytes[replica]);
        if (committed >= killed->ledger.committed && committed <= killed->ledger.begun)
            continue;
        tell("kill %u: replica %u has %llu transactions, %llu were committed and %llu begun", killed->number, replica,
             (unsigned long long)committed, (unsigned long long)killed->ledger.committed,
             (unsigned long long)killed->ledger.begun);
        return false;
    }
    return true;
}

/* Starts a worker and kills it. Returns how it ended. */
static int work_and_kill(unsigned replicas) {
    uint64_t moment = random_below(4), seed = random_below(UINT32_MAX);
    bool is_between = between_library != NULL;
    bool any_time = moment == 0, at_persist = moment == 1 && is_between;
    *ledger = (struct ledger){0};
    *between = (struct between){.kill_at = at_persist ? 1 + random_below(PERSISTS) : 0};
    pid_t child = start("work", replicas, seed, 0, is_between);
    if (at_persist)
        return end_of(child);
    double deadline = now_ms() + PROCESS_SECONDS * 1000;
    while (!any_time && __atomic_load_n(&ledger->begun, __ATOMIC_RELAXED) == 0 && now_ms() < deadline)
        usleep(200);
    usleep((useconds_t)random_below(any_time ? 150000 : 40000));
    kill(child, SIGKILL);
    return end_of(child);
}

static void recover(const struct killed *killed, struct tally *tally, const char *keep) {
    unsigned replicas = killed->replicas;
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
        tell("kill %u: above", killed->number);
        tally->inconsistent++;
        return;
    }
    struct difference found = differences(replicas);
    tally->free += found.free;
    if (!are_same(found)) {
        tell_differences(killed, tally->unlike < 3 ? keep : NULL);
        tally->unlike++;
    }
    if (killed->ledger.begun == 0)
        return;
    char master[PATH_BYTES];
    unsigned char *part = read_part(part_of(master, replicas, 0));
    if (committed_in(part) < killed->ledger.committed) {
        tell("kill %u: a committed transaction is lost", killed->number);
        tally->forgetful++;
    }
    free(part);
}

static void kill_once(unsigned number, struct tally *tally, const char *keep) {
    struct killed killed = {.number = number, .replicas = number % REPLICAS_MAX + 1};
    unsigned before = targets_started();
    int status = work_and_kill(killed.replicas);
    if (status != 256 + SIGKILL)
        tell("kill %u: the worker ended before, with status %d", number, status);
    if (!targets_end(before)) {
        tell("kill %u: a target goes on", number);
        tally->lingering++;
    }
    killed.ledger = *ledger;
    killed.parts = read_parts(killed.replicas);
    tally->early += ledger->begun == 0;
    tally->forgetful += ledger->begun != 0 && !have_committed(&killed);
    for (unsigned replica = 1; replica <= killed.replicas; replica++)
        tally->lost += lost_bytes(killed.parts.bytes[replica], replica, &tally->compared);
    recover(&killed, tally, keep);
    free_parts(&killed.parts);
}

void check_client_kills(unsigned kills, const char *keep) {
    section("clients killed");
    struct tally tally = {0};
    double start_ms = now_ms();
    for (unsigned number = 0; number < kills; number++)
        kill_once(number, &tally, keep);
    tell("%u kills in %.1f s, %u before the pool was open; %zu bytes where nothing is kept differ", kills,
         (now_ms() - start_ms) / 1e3, tally.early, tally.free);
    check(kills > 0 && tally.early < kills, "%u clients were killed, %u of them at work", kills, kills - tally.early);
    check(tally.forgetful == 0, "what was committed was on each replica when the client was killed");
    if (between_library == NULL)
        skip("no --between", "each byte of the last persists that were acknowledged was there");
    else
        check(tally.lost == 0 && tally.compared > 0, "each byte of the last persists that were acknowledged was there, %zu bytes",
              tally.compared);
    check(tally.lingering == 0, "its targets ended by themselves");
    check(tally.inconsistent == 0, "the pool was consistent when it was opened again");
    check(tally.unlike == 0, "and then all bytes in use were the same on each replica");
    check(tally.unrestored == 0, "%u times the part here was lost too and came back from a replica", tally.restored);
}

/* Whether exactly this many replicas have what the master has in the eight bytes of a chunk's header. */
static bool have_run(const struct parts *parts, unsigned replicas, size_t header, unsigned having) {
    for (unsigned index = 1; index <= replicas; index++)
        if ((memcmp(parts->bytes[0] + header, parts->bytes[index] + header, 8) == 0) != (index <= having))
            return false;
    return true;
}

/* With a new pool: kills a client before it persists a new run at `replica`. */
static void check_new_run(unsigned replicas, unsigned replica) {
    check(make_pool(replicas), "a pool with %u replicas is made", replicas);
    struct killed killed = {.number = replica, .replicas = replicas};
    killed.parts = read_parts(replicas);
    *ledger = (struct ledger){0};
    *between = (struct between){.kill_at_run_of = replica, .run_type = RUN_TYPE};
    between->chunk_headers_begin = chunk_headers(killed.parts.bytes[0], &between->chunk_headers_end);
    free_parts(&killed.parts);
    unsigned before = targets_started();
    int status = end_of(start("work", replicas, random_below(UINT32_MAX), 1000, true));
    check(status == 256 + SIGKILL && targets_end(before), "a client is killed before replica %u has the header of a new run",
          replica);
    killed.ledger = *ledger;
    killed.parts = read_parts(replicas);
    size_t header = between->last[(between->persists - 1) % PERSISTS_KEPT].offset;
    check(have_run(&killed.parts, replicas, header, replica - 1), "so %u of %u have it", replica - 1, replicas);
    check(run_patiently("verify", replicas) == 0, "the pool is consistent");
    struct difference found = differences(replicas);
    if (!check(are_same(found), "and its replicas are the same but for that header, of a run where nothing is"))
        tell_differences(&killed, NULL);
    free_parts(&killed.parts);
    /* Replica 1 becomes the master's, with that header or without. */
    char part[64];
    snprintf(part, sizeof part, "local/r%u.0", replicas);
    delete_file(part);
    check(run("sync", replicas, 0, 0) == 0 && is_whole(replicas), "the part here is lost, and comes back from a replica");
    check(run("work", replicas, random_below(UINT32_MAX), 300) == 0 && is_whole(replicas), "work goes on");
}

void check_new_runs(void) {
    section("clients killed at a new run");
    if (between_library == NULL) {
        skip("no --between", "a client is killed before a replica has the header of a new run");
        return;
    }
    for (unsigned replica = 1; replica <= REPLICAS_MAX; replica++)
        check_new_run(REPLICAS_MAX, replica);
}

/* `pmof pool sync`, which goes by the master. */
static int sync_by_master(const char *pmof, unsigned replicas) {
    char set[PATH_BYTES];
    set_of(set, replicas);
    fflush(stdout);
    pid_t child = fork();
    if (child < 0)
        bail_out("no other process");
    if (child > 0)
        return end_of(child);
    setenv("PMOF_SSH", getenv("RPMEM_SSH"), 1);
    setenv("PMOF_SSH_COMMAND", getenv("RPMEM_CMD"), 1);
    dup2(STDERR_FILENO, STDOUT_FILENO);
    /* The others agree with each other where they lack what a killed client wrote last: this one is to be named. */
    execl(pmof, pmof, "pool", "sync", "--from", "0", set, NULL);
    _exit(127);
}

/*
 * With a new pool: kills a client before it persists at `replica` an object that was allocated for a pointer outside of the pool.
 * Only its bit in the run's bitmap makes it an object, and libpmemobj writes a single word without a log.
 */
static void check_loose_object(unsigned replicas, unsigned replica, const char *pmof) {
    check(make_pool(replicas) && run("work", replicas, random_below(UINT32_MAX), 100) == 0, "a pool with %u replicas is made",
          replicas);
    *between = (struct between){0};
    unsigned before = targets_started();
    int status = end_of(start("allocate", replicas, replica, 0, true));
    check(status == 256 + SIGKILL && targets_end(before), "a client is killed before replica %u has a new object", replica);
    check(run_patiently("verify", replicas) == 0, "the pool is consistent");
    struct difference found = differences(replicas);
    check(found.header == 0 && found.live > 0, "libpmemobj leaves %u of %u without it", replicas + 1 - replica, replicas);
    if (pmof == NULL)
        return skip("no --pmof", "pmof pool sync makes the replicas equal");
    check(sync_by_master(pmof, replicas) == 0 && is_whole(replicas), "pmof pool sync makes the replicas equal");
    check(run("work", replicas, random_below(UINT32_MAX), 100) == 0 && is_whole(replicas), "work goes on");
}

void check_loose_objects(const char *pmof) {
    section("clients killed at an object that is in no log");
    if (between_library == NULL)
        return skip("no --between", "a client is killed before a replica has a new object");
    for (unsigned replica = 1; replica <= 2; replica++)
        check_loose_object(2, replica, pmof);
}
