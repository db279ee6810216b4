#include "obj_pool.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

struct ledger *ledger;
struct between *between;
const char *between_library;
uint64_t random_state = 1;

uint64_t random_below(uint64_t limit) {
    random_state = random_state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (random_state >> 33) % limit;
}

char *set_of(char path[PATH_BYTES], unsigned replicas) {
    return path_of(path, "local/r%u.set", replicas);
}

char *part_of(char path[PATH_BYTES], unsigned replicas, unsigned index) {
    return index == 0 ? path_of(path, "local/r%u.0", replicas) : path_of(path, "parts/r%u-%u.0", replicas, index);
}

void write_sets(unsigned replicas) {
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

bool make_pool(unsigned replicas) {
    char path[PATH_BYTES];
    write_sets(replicas);
    for (unsigned index = 0; index <= replicas; index++)
        unlink(part_of(path, replicas, index));
    return run("create", replicas, 0, 0) == 0;
}

static void *map(const char *name, size_t bytes) {
    char path[PATH_BYTES];
    int file = open(path_of(path, "%s", name), O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, (off_t)bytes) != 0)
        bail_out("cannot write %s", path);
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (map == MAP_FAILED)
        bail_out("cannot map %s", path);
    close(file);
    return map;
}

struct ledger *map_ledger(void) {
    return map("ledger", sizeof(struct ledger));
}

struct between *map_between(void) {
    return map("between", sizeof(struct between));
}

pid_t start(const char *word, unsigned replicas, uint64_t seed, uint64_t steps, bool is_between) {
    char set[PATH_BYTES], live[PATH_BYTES], shared[PATH_BYTES], seed_text[24], steps_text[24], libraries[4096];
    set_of(set, replicas);
    path_of(live, "live");
    path_of(shared, "between");
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
    if (is_between) {
        const char *judged = getenv("LD_LIBRARY_PATH");
        snprintf(libraries, sizeof libraries, "%s:%s", between_library, judged == NULL ? "" : judged);
        setenv("LD_LIBRARY_PATH", libraries, 1);
        setenv("RPMEM_BETWEEN", shared, 1);
    }
    const char *arguments[] = {"rpmem-obj", "--process", word, stage.directory, set, seed_text, steps_text, live, NULL};
    execv("/proc/self/exe", (char **)arguments);
    _exit(127);
}

int end_of(pid_t child) {
    int status;
    if (waitpid(child, &status, 0) != child)
        bail_out("a process is lost");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

int run(const char *word, unsigned replicas, uint64_t seed, uint64_t steps) {
    return end_of(start(word, replicas, seed, steps, false));
}

int run_patiently(const char *word, unsigned replicas) {
    double deadline = now_ms() + DEATH_MS;
    int status;
    while ((status = run(word, replicas, 0, 0)) == BUSY && now_ms() < deadline)
        usleep(20000);
    return status;
}

bool targets_end(unsigned from) {
    unsigned started = targets_started();
    for (unsigned index = from; index < started; index++)
        if (!ends_within(target_number(index), DEATH_MS))
            return false;
    return true;
}

struct parts read_parts(unsigned replicas) {
    char path[PATH_BYTES];
    struct parts parts = {0};
    for (unsigned index = 0; index <= replicas; index++)
        parts.bytes[index] = read_part(part_of(path, replicas, index));
    return parts;
}

void free_parts(struct parts *parts) {
    for (unsigned index = 0; index <= REPLICAS_MAX; index++)
        free(parts->bytes[index]);
    *parts = (struct parts){0};
}

struct difference differences(unsigned replicas) {
    struct difference sum = {.first = SIZE_MAX};
    char live[PATH_BYTES];
    struct parts parts = read_parts(replicas);
    unsigned char *kinds = kinds_of(parts.bytes[0], path_of(live, "live"));
    for (unsigned index = 1; index <= replicas; index++) {
        struct difference one = compare(parts.bytes[0], parts.bytes[index], kinds);
        sum.header += one.header;
        sum.live += one.live;
        sum.free += one.free;
        if (one.first < sum.first)
            sum.first = one.first;
    }
    free(kinds);
    free_parts(&parts);
    return sum;
}

bool are_same(struct difference found) {
    if (found.header + found.live == 0)
        return true;
    tell("%zu bytes of the header and %zu of what is in use differ, from %zu on", found.header, found.live, found.first);
    return false;
}

bool is_whole(unsigned replicas) {
    return run_patiently("verify", replicas) == 0 && are_same(differences(replicas));
}
