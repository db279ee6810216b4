/* Pools with remote replicas on the stage, and processes that use them. */
#ifndef OBJ_POOL_H
#define OBJ_POOL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "between.h"
#include "obj.h"
#include "obj_compare.h"
#include "stage.h"

/* How long one process may take, and how long after its target's death a client lives, at most. */
enum { PROCESS_SECONDS = 60, DEATH_MS = 5000 };

/* What workers tell, and the library between them and librpmem; `library` is where that is, NULL where there is none. */
extern struct ledger *ledger;
extern struct between *between;
extern const char *between_library;

extern uint64_t random_state;
uint64_t random_below(uint64_t limit);

/* Both are files below the stage's directory. */
struct ledger *map_ledger(void);
struct between *map_between(void);

/* The pool with this many remote replicas: its set here, `local/rN.set`, the sets there, and the files of parts, 0 the master's. */
char *set_of(char path[PATH_BYTES], unsigned replicas);
char *part_of(char path[PATH_BYTES], unsigned replicas, unsigned index);
void write_sets(unsigned replicas);
/* Deletes the pool's parts where there are any, and makes the pool. */
bool make_pool(unsigned replicas);

/* Starts this program again, as `--process WORD DIRECTORY SET SEED STEPS LIVE`; with the library between where `is_between`. */
pid_t start(const char *word, unsigned replicas, uint64_t seed, uint64_t steps, bool is_between);
/* The exit status of a process; 256 + signal where one ended it. */
int end_of(pid_t child);
int run(const char *word, unsigned replicas, uint64_t seed, uint64_t steps);
/*
 * Runs again while a local part is still locked (EAGAIN of flock) by the ssh that a killed client was starting. For what a target
 * still holds librpmem itself waits: EBUSY is a failure.
 */
int run_patiently(const char *word, unsigned replicas);
/* Whether the targets from this number on end by themselves. */
bool targets_end(unsigned from);

/* All parts of a pool. */
struct parts {
    unsigned char *bytes[REPLICAS_MAX + 1];
};
struct parts read_parts(unsigned replicas);
void free_parts(struct parts *parts);

/* How all replicas of a pool are unlike its master, added up. */
struct difference differences(unsigned replicas);
bool are_same(struct difference found);
/* Opens the pool, which recovers it, checks it and holds its parts against each other. */
bool is_whole(unsigned replicas);

#endif
