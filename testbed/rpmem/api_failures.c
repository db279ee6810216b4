/* What happens when the other side, or the way there, is not as it should be. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "stage.h"
#include "api.h"

/* Every call on a pool whose target was lost fails with this errno, within a second each. */
static void all_fail(RPMEMpool *pool, int code) {
    double start = now_ms();
    char byte;
    FAILS(CALL(rpmem_persist)(pool, HEADER_BYTES, 8, 0, 0), code);
    FAILS(CALL(rpmem_persist)(pool, HEADER_BYTES, 1 << 20, 1, RPMEM_PERSIST_RELAXED), code);
    FAILS(CALL(rpmem_flush)(pool, HEADER_BYTES, 8, 0, 0), code);
    FAILS(CALL(rpmem_drain)(pool, 0, 0), code);
    FAILS(CALL(rpmem_deep_persist)(pool, HEADER_BYTES, 8, 0), code);
    FAILS(CALL(rpmem_read)(pool, &byte, HEADER_BYTES, 1, 0), code);
    FAILS(CALL(rpmem_set_attr)(pool, &attributes), code);
    double took = now_ms() - start;
    check(took < 7000, "seven calls took %.0f ms", took);
}

/* A persist that finds out, within the limit. Returns its errno. */
static int first_failure(RPMEMpool *pool, double limit_ms) {
    double start = now_ms();
    before_failure();
    int returned = 0;
    while (returned == 0 && now_ms() - start < limit_ms)
        returned = CALL(rpmem_persist)(pool, HEADER_BYTES, 64, 0, 0);
    int error = errno;
    double took = now_ms() - start;
    check(returned == -1 && took < limit_ms, "a persist fails after %.0f ms: %s (%s)", took, strerror(error),
          CALL(rpmem_errormsg)());
    return error;
}

static void close_lost(RPMEMpool *pool) {
    double start = now_ms();
    before_failure();
    bool failed = CALL(rpmem_close)(pool) != 0;
    double took = now_ms() - start;
    check(failed, "closing the pool of a lost target says so: %s", CALL(rpmem_errormsg)());
    check(took < 6000, "it took %.0f ms", took);
}

void check_lost_targets(void) {
    section("lost targets");
    write_set("lost", POOL_BYTES, "");
    RPMEMpool *pool = must_create("lost.set", 2);
    WORKS(CALL(rpmem_persist)(pool, HEADER_BYTES, POOL_BYTES - HEADER_BYTES, 0, RPMEM_PERSIST_RELAXED));
    pid_t target = last_target();
    kill(target, SIGKILL);
    check(ends_within(target, 5000), "the target is killed");
    int error = first_failure(pool, 3000);
    check(error == ECONNRESET || error == EPIPE, "the connection was reset");
    all_fail(pool, error);
    close_lost(pool);
    check(part_is("lost", HEADER_BYTES, POOL_BYTES - HEADER_BYTES), "what was persisted is there");

    pool = must_open("lost.set", 2);
    target = last_target();
    /* In the middle of work. */
    pid_t killer = fork();
    if (killer == 0) {
        usleep(50000);
        kill(target, SIGKILL);
        _exit(0);
    }
    error = first_failure(pool, 5000);
    waitpid(killer, NULL, 0);
    FAILS(CALL(rpmem_drain)(pool, 1, 0), error);
    close_lost(pool);
    pool = must_open("lost.set", 2);
    WORKS(CALL(rpmem_persist)(pool, HEADER_BYTES, 64, 0, 0));
    WORKS(CALL(rpmem_close)(pool));

    setenv("PMOF_LOSS_TIMEOUT", "3", 1);
    pool = must_open("lost.set", 2);
    unsetenv("PMOF_LOSS_TIMEOUT");
    target = last_target();
    kill(target, SIGSTOP);
    double start = now_ms();
    error = first_failure(pool, 8000);
    check(error == ECONNRESET && now_ms() - start > 2000, "a target that is stopped is lost after PMOF_LOSS_TIMEOUT");
    FAILS(CALL(rpmem_persist)(pool, HEADER_BYTES, 8, 1, 0), error);
    close_lost(pool);
    kill(target, SIGCONT);
    check(ends_within(target, 5000), "the target ends once it goes on");
}

/* A child that does `work` and gives its result as its exit status. */
static int in_child(int (*work)(RPMEMpool *), RPMEMpool *pool) {
    fflush(stdout);
    pid_t child = fork();
    if (child < 0)
        bail_out("no child");
    if (child == 0)
        _exit(work(pool));
    int status;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

static int persist_errno(RPMEMpool *pool) {
    return CALL(rpmem_persist)(pool, HEADER_BYTES, 8, 0, 0) == 0 ? 0 : errno;
}

static int close_status(RPMEMpool *pool) {
    return CALL(rpmem_close)(pool);
}

static int open_own(RPMEMpool *pool) {
    (void)pool;
    unsigned lanes = 1;
    RPMEMpool *own = CALL(rpmem_open)(stage.target, "own.set", memory, POOL_BYTES, &lanes, NULL);
    if (own == NULL)
        return 1;
    int failed = CALL(rpmem_persist)(own, HEADER_BYTES, 8, 0, 0);
    return failed != 0 || CALL(rpmem_close)(own) != 0 ? 2 : 0;
}

/* As a daemon that has nothing open. */
static int open_without_streams(RPMEMpool *pool) {
    for (int stream = 0; stream < 3; stream++)
        close(stream);
    return open_own(pool);
}

static int open_without_children(RPMEMpool *pool) {
    signal(SIGCHLD, SIG_IGN);
    return open_own(pool);
}

void check_forks(void) {
    section("forks");
    write_set("own", POOL_BYTES, "");
    WORKS(CALL(rpmem_close)(must_create("own.set", 1)));
    write_set("fork", POOL_BYTES, "");
    RPMEMpool *pool = must_create("fork.set", 1);
    check(in_child(persist_errno, pool) == ECANCELED, "a child's persist fails with ECANCELED");
    check(in_child(close_status, pool) == 0, "a child can close it");
    WORKS(CALL(rpmem_persist)(pool, HEADER_BYTES, 8, 0, 0));
    tell("the parent's pool still works");
    check(in_child(open_own, pool) == 0, "a child opens a pool of its own");
    int status = in_child(open_without_streams, pool);
    check(status == 0, "and one with no standard streams (%d)", status);
    status = in_child(open_without_children, pool);
    check(status == 0, "and one whose children nobody waits for (%d)", status);
    WORKS(CALL(rpmem_persist)(pool, HEADER_BYTES, 8, 0, 0));
    WORKS(CALL(rpmem_close)(pool));
}

/* Opens own.set, and closes it where that works. */
static bool opens(void) {
    unsigned lanes = 1024;
    RPMEMpool *pool = CALL(rpmem_open)(stage.target, "own.set", memory, POOL_BYTES, &lanes, NULL);
    return pool != NULL && CALL(rpmem_close)(pool) == 0;
}

static RPMEMpool *open_own_set(void) {
    unsigned lanes = 1024;
    return CALL(rpmem_open)(stage.target, "own.set", memory, POOL_BYTES, &lanes, NULL);
}

/* Has the environment say so until `restore`. */
static char *kept;
static const char *kept_name;
static void say(const char *name, const char *value) {
    kept_name = name;
    kept = getenv(name) == NULL ? NULL : strdup(getenv(name));
    setenv(name, value, 1);
}

static void restore(void) {
    if (kept == NULL)
        unsetenv(kept_name);
    else
        setenv(kept_name, kept, 1);
    free(kept);
}

/* A program in ssh's place. */
static void instead_of_ssh(const char *script) {
    char path[PATH_BYTES];
    write_file("instead", true, "#!/bin/sh\n%s\n", script);
    say("RPMEM_SSH", path_of(path, "instead"));
}

/* Targets that cannot start for a reason that is theirs. */
static void check_configuration(void) {
    const struct {
        const char *line, *arguments;
        int code;
    } cases[] = {
        {"no-such-key = 1", "", EINVAL},
        {"log-level = loud", "", EINVAL},
        {"not even a key", "", EINVAL},
        {"", "--poolset-dir /no/such/directory", ENOENT},
        {"", "--log-file /no/such/directory/log", ENOENT},
    };
    for (unsigned index = 0; index < sizeof cases / sizeof *cases; index++) {
        char command[2 * PATH_BYTES], config[PATH_BYTES];
        write_file("config", false, "%s\n", cases[index].line);
        snprintf(command, sizeof command, "%s/rpmemd --config %s %s", stage.directory, path_of(config, "config"),
                 cases[index].arguments);
        say("RPMEM_CMD", command);
        tell("%s%s", cases[index].line, cases[index].arguments);
        GIVES_NO_POOL(open_own_set(), cases[index].code);
        FAILS(CALL(rpmem_remove)(stage.target, "own.set", 0), cases[index].code);
        restore();
    }
}

void check_environment(void) {
    section("the environment");
    char first[PATH_BYTES], second[PATH_BYTES], both[2 * PATH_BYTES + 4];
    write_file("first", true, "#!/bin/sh\necho first >> %s/turns\nexec %s/rpmemd \"$@\"\n", stage.directory, stage.directory);
    write_file("second", true, "#!/bin/sh\necho second >> %s/turns\nexec %s/rpmemd \"$@\"\n", stage.directory,
               stage.directory);
    snprintf(both, sizeof both, "%s|%s", path_of(first, "first"), path_of(second, "second"));
    say("RPMEM_CMD", both);
    check(opens() && opens() && opens(), "RPMEM_CMD with two commands");
    restore();
    size_t bytes;
    char *turns = (char *)contents("turns", &bytes);
    check(turns != NULL && (strcmp(turns, "first\nsecond\nfirst\n") == 0 || strcmp(turns, "second\nfirst\nsecond\n") == 0),
          "they take turns");
    free(turns);

    say("RPMEM_MAX_NLANES", "3");
    unsigned lanes = 1024;
    RPMEMpool *pool = GIVES_POOL(CALL(rpmem_open)(stage.target, "own.set", memory, POOL_BYTES, &lanes, NULL));
    check(lanes == 3, "RPMEM_MAX_NLANES=3 gives %u lanes", lanes);
    FAILS(CALL(rpmem_drain)(pool, 3, 0), EINVAL);
    WORKS(CALL(rpmem_close)(pool));
    restore();
    say("RPMEM_ENABLE_SOCKETS", "1");
    check(opens(), "RPMEM_ENABLE_SOCKETS=1 harms nothing");
    restore();
    say("RPMEM_WORK_QUEUE_SIZE", "100");
    check(opens(), "RPMEM_WORK_QUEUE_SIZE harms nothing");
    restore();

    tell("not ENOENT, by which a program knows that there is no such set:");
    say("RPMEM_SSH", "/no/such/ssh");
    GIVES_NO_POOL(open_own_set(), ECONNRESET);
    restore();
    say("RPMEM_SSH", "/bin/false");
    GIVES_NO_POOL(open_own_set(), ECONNRESET);
    restore();
    instead_of_ssh("echo 'Permission denied (publickey).' >&2; exit 255");
    GIVES_NO_POOL(open_own_set(), ECONNRESET);
    check(strstr(CALL(rpmem_errormsg)(), "publickey") != NULL, "the message has ssh's own words");
    restore();
    instead_of_ssh("kill -9 $$");
    GIVES_NO_POOL(open_own_set(), ECONNRESET);
    restore();
    instead_of_ssh("head -c 200000 /dev/zero");
    FAILS_EITHER(open_own_set() == NULL ? -1 : 0, ECONNRESET, EPROTONOSUPPORT);
    restore();
    instead_of_ssh("echo 'Welcome!'; for command; do :; done; exec sh -c \"$command\"");
    check(opens(), "a login that prints a banner first");
    restore();
    say("RPMEM_CMD", "/no/such/rpmemd");
    GIVES_NO_POOL(open_own_set(), ECONNRESET);
    FAILS(CALL(rpmem_remove)(stage.target, "own.set", 0), ECONNRESET);
    restore();
    tell("a port where nobody listens:");
    GIVES_NO_POOL(CALL(rpmem_open)("127.0.0.1:1", "own.set", memory, POOL_BYTES, &lanes, NULL), ECONNRESET);
    check_configuration();
    check(opens(), "with the environment as it was, the pool opens");
}
