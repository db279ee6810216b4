/*
 * Calls each function of librpmem, with what it is made for and with what it must refuse, and says of each call whether it did as
 * its manual says. C11 with the extensions of GNU C, against librpmem.h:
 *
 *   rpmem-check [--valgrind] DIRECTORY TARGET
 *
 * DIRECTORY is a stage (stage.h), TARGET the argument of ssh. RPMEM_SSH and RPMEM_CMD say how ssh reaches the stage.
 *
 *   --valgrind  it runs under valgrind, where a program that cannot be started looks otherwise
 *
 * Which librpmem is judged says LD_LIBRARY_PATH. The output is that of the Test Anything Protocol, with how often each function was
 * called, and the counts as the last line. Exit code 0: no check failed; 1: one did; 2: usage; 3: what the rest depends on failed,
 * or something took longer than it may.
 */
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "check.h"
#include "stage.h"
#include "api.h"

/* All of it, under valgrind on a busy machine. */
enum { ALL_SECONDS = 400 };

unsigned char *memory;
bool under_valgrind;

const struct rpmem_pool_attr attributes = {
    .signature = {'T', 'E', 'S', 'T', 'P', 'O', 'O', 'L'},
    .major = 6,
    .compat_features = 0,
    .incompat_features = 2, /* the checksum covers 2 KiB of the header */
    .poolset_uuid = {1, 2, 3},
    .uuid = {4, 5, 6},
    .next_uuid = {7, 8, 9},
    .prev_uuid = {10, 11, 12},
    .user_flags = {13, 14, 15},
};

bool check_success(int returned, const char *call) {
    bool passed = check(returned == 0, "%s works", plain(call));
    if (!passed)
        tell("returned %d, %s: %s", returned, strerror(errno), rpmem_errormsg());
    return passed;
}

RPMEMpool *check_pool(RPMEMpool *pool, const char *call) {
    if (!check(pool != NULL, "%s works", plain(call)))
        tell("%s: %s", strerror(errno), rpmem_errormsg());
    return pool;
}

/* Puts a message in the place of the next, by a call that fails in a way of its own. */
static char message_before[256];
void before_failure(void) {
    (void)CALL(rpmem_remove)("marker", "marker", 0x5000);
    snprintf(message_before, sizeof message_before, "%s", CALL(rpmem_errormsg)());
    errno = 0;
}

static bool failed_with(int code, int other, const char *name) {
    int error = errno;
    const char *message = CALL(rpmem_errormsg)();
    bool is_new = message[0] != '\0' && strcmp(message, message_before) != 0;
    bool passed = check((error == code || error == other) && is_new, "%s", plain(name));
    if (passed)
        tell("%s", message);
    else
        tell("errno %d (%s), message: %s", error, strerror(error), message);
    return passed;
}

bool check_failure_either(int returned, int code, int other, const char *name) {
    if (returned != 0)
        return failed_with(code, other, name);
    check(false, "%s", plain(name));
    tell("it works");
    return false;
}

bool check_failure(int returned, int code, const char *name) {
    return check_failure_either(returned, code, code, name);
}

bool check_no_pool(RPMEMpool *pool, int code, const char *name) {
    return check_failure(pool == NULL ? -1 : 0, code, name);
}

RPMEMpool *must_create(const char *set, unsigned lanes) {
    RPMEMpool *pool = CALL(rpmem_create)(stage.target, set, memory, POOL_BYTES, &lanes, &attributes);
    if (pool == NULL)
        bail_out("rpmem_create of %s: %s", set, rpmem_errormsg());
    return pool;
}

RPMEMpool *must_open(const char *set, unsigned lanes) {
    RPMEMpool *pool = CALL(rpmem_open)(stage.target, set, memory, POOL_BYTES, &lanes, NULL);
    if (pool == NULL)
        bail_out("rpmem_open of %s: %s", set, rpmem_errormsg());
    return pool;
}

bool part_is(const char *name, size_t offset, size_t length) {
    char part[PATH_BYTES];
    size_t bytes;
    snprintf(part, sizeof part, "parts/%s.0", name);
    unsigned char *there = contents(part, &bytes);
    bool same = there != NULL && offset + length <= bytes && memcmp(there + offset, memory + offset, length) == 0;
    free(there);
    return same;
}

static void *message_of_new_thread(void *to) {
    snprintf(to, 64, "%s", CALL(rpmem_errormsg)());
    return NULL;
}

static void check_versions(void) {
    section("versions and messages");
    check(CALL(rpmem_errormsg)()[0] == '\0', "no message before any failure");
    TRUE(CALL(rpmem_check_version)(RPMEM_MAJOR_VERSION, RPMEM_MINOR_VERSION) == NULL);
    TRUE(CALL(rpmem_check_version)(1, 0) == NULL);
    const unsigned others[][2] = {{0, 0}, {0, 3}, {1, 4}, {1, UINT32_MAX}, {2, 0}, {UINT32_MAX, 0}};
    for (unsigned other = 0; other < sizeof others / sizeof *others; other++) {
        const char *why = CALL(rpmem_check_version)(others[other][0], others[other][1]);
        check(why != NULL && why[0] != '\0', "version %u.%u is refused: %s", others[other][0], others[other][1], why);
    }
    before_failure();
    char other[64] = "?";
    pthread_t thread;
    if (pthread_create(&thread, NULL, message_of_new_thread, other) != 0 || pthread_join(thread, NULL) != 0)
        bail_out("no thread");
    check(message_before[0] != '\0' && other[0] == '\0', "messages are those of their thread");
    const char *kept = CALL(rpmem_errormsg)();
    (void)CALL(rpmem_close)(NULL);
    check(kept == CALL(rpmem_errormsg)() && strcmp(kept, message_before) != 0,
          "a message's place stays good, and takes the next one: %s", kept);
    check(sizeof(struct rpmem_pool_attr) == 104, "attributes take 104 bytes");
}

int main(int count, char **arguments) {
    int next = 1;
    if (next < count && strcmp(arguments[next], "--valgrind") == 0) {
        under_valgrind = true;
        next++;
    }
    if (next + 2 != count) {
        fputs("usage: rpmem-check [--valgrind] DIRECTORY TARGET\n", stderr);
        return 2;
    }
    stage.directory = arguments[next];
    stage.target = arguments[next + 1];
    setvbuf(stdout, NULL, _IOLBF, 0);
    bail_out_after(ALL_SECONDS);
    memory = mmap(NULL, POOL_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        bail_out("no memory");
    srandom(1);
    for (size_t at = 0; at < POOL_BYTES; at++)
        memory[at] = (unsigned char)random();
    check_versions();
    check_arguments();
    check_sets();
    check_headers();
    check_removing();
    check_copies();
    check_ranges();
    check_lanes();
    check_second_opener();
    check_lost_targets();
    check_forks();
    check_environment();
    check_calls();
    munmap(memory, POOL_BYTES);
    return finish();
}
