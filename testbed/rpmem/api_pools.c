/* Pools as a whole: arguments, sets, headers, removal, a second opener. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "stage.h"
#include "api.h"

/* Both ways to get a pool must refuse this with the errno; neither may start a target. */
static void refused(const char *what, const char *target, const char *set, void *address, size_t bytes, unsigned *lanes, int code) {
    unsigned before = targets_started();
    tell("%s", what);
    GIVES_NO_POOL(CALL(rpmem_create)(target, set, address, bytes, lanes, &attributes), code);
    struct rpmem_pool_attr attr;
    GIVES_NO_POOL(CALL(rpmem_open)(target, set, address, bytes, lanes, &attr), code);
    check(targets_started() == before, "%s: no target was started", what);
}

void check_arguments(void) {
    section("arguments");
    unsigned lanes = 1, none = 0;
    const char *target = stage.target;
    refused("target NULL", NULL, "a.set", memory, POOL_BYTES, &lanes, EINVAL);
    refused("set NULL", target, NULL, memory, POOL_BYTES, &lanes, EINVAL);
    refused("memory NULL", target, "a.set", NULL, POOL_BYTES, &lanes, EINVAL);
    refused("nlanes NULL", target, "a.set", memory, POOL_BYTES, NULL, EINVAL);
    refused("no lanes", target, "a.set", memory, POOL_BYTES, &none, EINVAL);
    refused("size 0", target, "a.set", memory, 0, &lanes, EINVAL);
    refused("size no multiple of a page", target, "a.set", memory, POOL_BYTES - 8, &lanes, EINVAL);
    refused("size beyond the address space", target, "a.set", memory, SIZE_MAX & ~(size_t)4095, &lanes, EINVAL);
    refused("memory not at a page", target, "a.set", memory + 8, POOL_BYTES - 4096, &lanes, EINVAL);
    const char *targets[] = {"",       "@host", "user@",  "host:",      "host:0",     "host:65536", "host:ssh",
                             "::1",    "[::1",  "[::1]x", "-oUser=x",   "a b",        "host;true",  "$(true)",
                             "a\nb",   "u@-l",  "`a`",    "host\xff:22", "user@host:1:2"};
    for (unsigned index = 0; index < sizeof targets / sizeof *targets; index++)
        refused(targets[index], targets[index], "a.set", memory, POOL_BYTES, &lanes, EINVAL);
    static char long_name[8192];
    memset(long_name, 'n', sizeof long_name - 1);
    const char *sets[] = {"", "/etc/passwd", "/", "..", "../a.set", "a/../../a.set", "a/..", "a\nb", "\xff.set", long_name};
    for (unsigned index = 0; index < sizeof sets / sizeof *sets; index++)
        refused(index < 9 ? sets[index] : "a long name", target, sets[index], memory, POOL_BYTES, &lanes, EINVAL);
    check(lanes == 1, "nlanes stays as it was where nothing was opened");
    tell("no pool");
    FAILS(CALL(rpmem_close)(NULL), EINVAL);
    FAILS(CALL(rpmem_set_attr)(NULL, &attributes), EINVAL);
    FAILS(CALL(rpmem_persist)(NULL, 4096, 8, 0, 0), EINVAL);
    FAILS(CALL(rpmem_flush)(NULL, 4096, 8, 0, 0), EINVAL);
    FAILS(CALL(rpmem_drain)(NULL, 0, 0), EINVAL);
    FAILS(CALL(rpmem_deep_persist)(NULL, 4096, 8, 0), EINVAL);
    char byte;
    FAILS(CALL(rpmem_read)(NULL, &byte, 4096, 1, 0), EINVAL);
    FAILS(CALL(rpmem_remove)(NULL, "a.set", 0), EINVAL);
    FAILS(CALL(rpmem_remove)(target, NULL, 0), EINVAL);
    FAILS(CALL(rpmem_remove)(target, "../a.set", 0), EINVAL);
    FAILS(CALL(rpmem_remove)("-l", "a.set", 0), EINVAL);
    FAILS(CALL(rpmem_remove)(target, "a.set", 4), EINVAL);
    FAILS(CALL(rpmem_remove)(target, "a.set", -1), EINVAL);
}

static RPMEMpool *create(const char *set, size_t bytes, const struct rpmem_pool_attr *attr) {
    unsigned lanes = 1;
    return CALL(rpmem_create)(stage.target, set, memory, bytes, &lanes, attr);
}

static RPMEMpool *open_pool(const char *set, size_t bytes, struct rpmem_pool_attr *attr) {
    unsigned lanes = 1;
    return CALL(rpmem_open)(stage.target, set, memory, bytes, &lanes, attr);
}

void check_sets(void) {
    section("sets");
    const struct rpmem_pool_attr none = {0};
    GIVES_NO_POOL(create("missing.set", POOL_BYTES, &attributes), ENOENT);
    GIVES_NO_POOL(open_pool("missing.set", POOL_BYTES, NULL), ENOENT);
    GIVES_NO_POOL(create("no/such/directory.set", POOL_BYTES, &attributes), ENOENT);

    write_set("small", 2 << 20, "");
    GIVES_NO_POOL(create("small.set", POOL_BYTES, &attributes), EFBIG);
    check(!exists("parts/small.0"), "nothing is left of a pool that was too small");

    write_set("plain", POOL_BYTES, "");
    GIVES_NO_POOL(open_pool("plain.set", POOL_BYTES, NULL), ENOENT);
    GIVES_NO_POOL(create("plain.set", POOL_BYTES, NULL), EINVAL);
    GIVES_NO_POOL(create("plain.set", POOL_BYTES, &none), EINVAL);
    check(!exists("parts/plain.0"), "nothing is left of pools that were refused");
    unsigned lanes = UINT32_MAX;
    struct rpmem_pool_attr attr;
    RPMEMpool *pool =
        GIVES_POOL(CALL(rpmem_create)(stage.target, "plain.set", memory, POOL_BYTES, &lanes, &attributes));
    check(lanes >= 1 && lanes <= 1024, "of 2^32 - 1 lanes %u were given", lanes);
    WORKS(CALL(rpmem_close)(pool));
    GIVES_NO_POOL(create("plain.set", POOL_BYTES, &attributes), EEXIST);
    tell("a part under the least length, and one that is a directory");
    write_set("least", (2 << 20) - 4096, "");
    GIVES_NO_POOL(create("least.set", 4096, &attributes), EINVAL);
    write_file("sets/directory.set", false, "PMEMPOOLSET\n4M %s/parts\n", stage.directory);
    GIVES_NO_POOL(create("directory.set", POOL_BYTES, &attributes), EINVAL);
    pool = GIVES_POOL(open_pool("plain.set", POOL_BYTES, &attr));
    check(memcmp(&attr, &attributes, sizeof attr) == 0, "open gives the attributes that create was given");
    WORKS(CALL(rpmem_close)(pool));
    pool = GIVES_POOL(open_pool("plain.set", POOL_BYTES / 2, NULL));
    check(pool != NULL, "a pool opens for less memory than it has");
    WORKS(CALL(rpmem_close)(pool));
    memset(&attr, 0xee, sizeof attr);
    GIVES_NO_POOL(open_pool("small.set", POOL_BYTES, &attr), ENOENT);
    check(((unsigned char *)&attr)[0] == 0xee, "attributes stay as they were where nothing was opened");

    write_set("bare", POOL_BYTES, "OPTION NOHDRS");
    GIVES_NO_POOL(create("bare.set", POOL_BYTES, &attributes), EINVAL);
    pool = GIVES_POOL(create("bare.set", POOL_BYTES, &none));
    WORKS(CALL(rpmem_persist)(pool, 0, POOL_BYTES, 0, RPMEM_PERSIST_RELAXED));
    check(part_is("bare", 0, POOL_BYTES), "a pool without header is written from its first byte to its last");
    FAILS(CALL(rpmem_set_attr)(pool, &attributes), EINVAL);
    WORKS(CALL(rpmem_set_attr)(pool, NULL));
    WORKS(CALL(rpmem_set_attr)(pool, &none));
    WORKS(CALL(rpmem_close)(pool));
    GIVES_NO_POOL(create("bare.set", POOL_BYTES, &none), EEXIST);
    tell("without a header nothing says whose it is, and nothing of it is changed:");
    check(part_is("bare", 0, POOL_BYTES), "what was written is there");
    memset(&attr, 0xee, sizeof attr);
    pool = GIVES_POOL(open_pool("bare.set", POOL_BYTES, &attr));
    check(memcmp(&attr, &none, sizeof attr) == 0, "a pool without header opens with attributes of zeroes");
    WORKS(CALL(rpmem_deep_persist)(pool, 0, 8, 0));
    WORKS(CALL(rpmem_close)(pool));

    write_set("single", POOL_BYTES, "OPTION SINGLEHDR");
    GIVES_NO_POOL(create("single.set", POOL_BYTES, &attributes), EINVAL);
    struct rpmem_pool_attr single = attributes;
    single.incompat_features |= 1;
    pool = GIVES_POOL(create("single.set", POOL_BYTES, &single));
    WORKS(CALL(rpmem_set_attr)(pool, NULL));
    WORKS(CALL(rpmem_close)(pool));
    pool = GIVES_POOL(open_pool("single.set", POOL_BYTES, &attr));
    check(memcmp(&attr, &none, sizeof attr) == 0, "attributes of zeroes are taken, also by a set with SINGLEHDR");
    WORKS(CALL(rpmem_close)(pool));

    write_file("sets/broken.set", false, "PMEMPOOLSET\n4M relative/path\n");
    GIVES_NO_POOL(create("broken.set", POOL_BYTES, &attributes), EINVAL);
    write_file("sets/no.set", false, "not a set at all");
    GIVES_NO_POOL(create("no.set", POOL_BYTES, &attributes), EINVAL);
    write_file("sets/empty.set", false, "%s", "");
    GIVES_NO_POOL(create("empty.set", POOL_BYTES, &attributes), EINVAL);
    write_file("sets/two.set", false, "PMEMPOOLSET\n4M %s/parts/two.0\nREPLICA\n4M %s/parts/two.1\n", stage.directory,
               stage.directory);
    GIVES_NO_POOL(create("two.set", POOL_BYTES, &attributes), EINVAL);
    write_file("sets/far.set", false, "PMEMPOOLSET\n4M %s/parts/far.0\nREPLICA host other.set\n", stage.directory);
    GIVES_NO_POOL(create("far.set", POOL_BYTES, &attributes), EINVAL);
    write_file("sets/nowhere.set", false, "PMEMPOOLSET\n4M %s/no-such-directory/part\n", stage.directory);
    GIVES_NO_POOL(create("nowhere.set", POOL_BYTES, &attributes), ENOENT);

    /* Two parts, of which each has a header, make one pool. */
    write_file("sets/parts.set", false, "PMEMPOOLSET\n2M %s/parts/parts.0\n4M %s/parts/parts.1\n", stage.directory,
               stage.directory);
    pool = GIVES_POOL(create("parts.set", POOL_BYTES, &attributes));
    WORKS(CALL(rpmem_persist)(pool, HEADER_BYTES, POOL_BYTES - HEADER_BYTES, 0, RPMEM_PERSIST_RELAXED));
    WORKS(CALL(rpmem_close)(pool));
    pool = GIVES_POOL(open_pool("parts.set", POOL_BYTES, NULL));
    unsigned char *back = malloc(POOL_BYTES);
    WORKS(CALL(rpmem_read)(pool, back, 0, POOL_BYTES, 0));
    check(memcmp(back + HEADER_BYTES, memory + HEADER_BYTES, POOL_BYTES - HEADER_BYTES) == 0,
          "two parts give back what was written over their border");
    free(back);
    WORKS(CALL(rpmem_close)(pool));
    delete_file("parts/parts.1");
    GIVES_NO_POOL(open_pool("parts.set", POOL_BYTES, NULL), ENOENT);
}

/* Attributes are the caller's: whatever bytes they are, they come back. */
static void check_any_attributes(void) {
    struct rpmem_pool_attr any[4], attr;
    for (unsigned index = 0; index < 4; index++)
        any[index] = attributes;
    any[0].incompat_features |= 1U << 31;
    any[1].ro_compat_features = UINT32_MAX;
    any[2].compat_features = 0xfffffffe;
    memset(&any[3], 0xa5, sizeof any[3]);
    any[3].incompat_features = 0xa5a5a5a4; /* each part has a header */
    for (unsigned index = 0; index < 4; index++) {
        char name[32], set[40];
        snprintf(name, sizeof name, "any%u", index);
        snprintf(set, sizeof set, "%s.set", name);
        write_set(name, POOL_BYTES, "");
        RPMEMpool *pool = GIVES_POOL(create(set, POOL_BYTES, &any[index]));
        WORKS(CALL(rpmem_persist)(pool, HEADER_BYTES, 64, 0, 0));
        WORKS(CALL(rpmem_close)(pool));
        pool = GIVES_POOL(open_pool(set, POOL_BYTES, &attr));
        check(memcmp(&attr, &any[index], sizeof attr) == 0, "attributes %u come back as they were given", index);
        WORKS(CALL(rpmem_set_attr)(pool, &any[(index + 1) % 4]));
        WORKS(CALL(rpmem_close)(pool));
        pool = GIVES_POOL(open_pool(set, POOL_BYTES, &attr));
        check(memcmp(&attr, &any[(index + 1) % 4], sizeof attr) == 0, "and so do others that were set");
        WORKS(CALL(rpmem_close)(pool));
    }
}

/* A file of this many bytes, all a hole, or with one nonzero byte. */
static void give_file(const char *name, size_t bytes, long at) {
    char path[PATH_BYTES];
    FILE *file = fopen(path_of(path, "%s", name), "w");
    if (file == NULL || ftruncate(fileno(file), (off_t)bytes) != 0)
        bail_out("cannot make %s", path);
    if (at >= 0 && (fseek(file, at, SEEK_SET) != 0 || fputc(0x77, file) == EOF))
        bail_out("cannot write %s", path);
    if (fclose(file) != 0)
        bail_out("cannot write %s", path);
}

/* Part files that were made beforehand. */
static void check_given_parts(void) {
    size_t bytes;
    const struct rpmem_pool_attr none = {0};
    write_set("given", POOL_BYTES, "");
    give_file("parts/given.0", POOL_BYTES, 1 << 20);
    GIVES_NO_POOL(CALL(rpmem_create)(stage.target, "given.set", memory, POOL_BYTES, &(unsigned){0}, &attributes), EINVAL);
    GIVES_NO_POOL(create("given.set", POOL_BYTES, NULL), EINVAL);
    unsigned char *part = contents("parts/given.0", &bytes);
    check(part != NULL && bytes == POOL_BYTES && part[0] == 0 && part[1 << 20] == 0x77, "a file that was there stays");
    free(part);
    GIVES_NO_POOL(create("given.set", POOL_BYTES, &attributes), EEXIST);
    give_file("parts/given.0", POOL_BYTES, -1);
    RPMEMpool *pool = GIVES_POOL(create("given.set", POOL_BYTES, &attributes));
    unsigned char byte = 0x77;
    WORKS(CALL(rpmem_read)(pool, &byte, 1 << 20, 1, 0));
    check(byte == 0, "a file of zeros becomes a part");
    GIVES_NO_POOL(create("given.set", POOL_BYTES, &attributes), EBUSY);
    WORKS(CALL(rpmem_close)(pool));
    GIVES_NO_POOL(create("given.set", POOL_BYTES, &attributes), EEXIST);
    const struct {
        size_t bytes;
        long at;
        int code;
    } cases[] = {{POOL_BYTES, 0, EEXIST}, {POOL_BYTES, 4095, EEXIST}, {POOL_BYTES, POOL_BYTES - 1, EEXIST}, {POOL_BYTES - 4096, -1, EINVAL}, {0, -1, EINVAL}};
    for (unsigned index = 0; index < sizeof cases / sizeof *cases; index++) {
        give_file("parts/given.0", cases[index].bytes, cases[index].at);
        GIVES_NO_POOL(create("given.set", POOL_BYTES, &attributes), cases[index].code);
    }
    WORKS(CALL(rpmem_remove)(stage.target, "given.set", RPMEM_REMOVE_FORCE));
    check(!exists("parts/given.0"), "an empty file is removed with force");
    give_file("parts/given.0", POOL_BYTES, -1);
    FAILS(CALL(rpmem_remove)(stage.target, "given.set", 0), EINVAL);
    WORKS(CALL(rpmem_remove)(stage.target, "given.set", RPMEM_REMOVE_FORCE));
    check(!exists("parts/given.0"), "and so is one of holes");
    write_set("taken", POOL_BYTES, "OPTION NOHDRS");
    give_file("parts/taken.0", POOL_BYTES, 0);
    GIVES_NO_POOL(create("taken.set", POOL_BYTES, &none), EEXIST);
    FAILS(CALL(rpmem_remove)(stage.target, "taken.set", 0), EINVAL);
    check(exists("parts/taken.0"), "without a header it is nobody's to take");
    WORKS(CALL(rpmem_remove)(stage.target, "taken.set", RPMEM_REMOVE_FORCE));
    check(!exists("parts/taken.0"), "but by force");
}

void check_headers(void) {
    section("headers");
    check_any_attributes();
    check_given_parts();
    struct rpmem_pool_attr attr, changed = attributes;
    changed.major = 7;
    memset(changed.uuid, 0x55, sizeof changed.uuid);
    memset(changed.user_flags, 0x66, sizeof changed.user_flags);
    write_set("header", POOL_BYTES, "");
    RPMEMpool *pool = must_create("header.set", 1);
    WORKS(CALL(rpmem_persist)(pool, HEADER_BYTES, 4096, 0, 0));
    WORKS(CALL(rpmem_set_attr)(pool, &changed));
    unsigned char header[HEADER_BYTES];
    WORKS(CALL(rpmem_read)(pool, header, 0, sizeof header, 0));
    check(memcmp(header, changed.signature, sizeof changed.signature) == 0 && header[8] == 7,
          "the header as it is read begins with signature and major version");
    WORKS(CALL(rpmem_close)(pool));
    pool = GIVES_POOL(open_pool("header.set", POOL_BYTES, &attr));
    check(memcmp(&attr, &changed, sizeof attr) == 0, "attributes that were set are there after the pool was opened anew");
    check(part_is("header", HEADER_BYTES, 4096), "and the data is what it was");
    WORKS(CALL(rpmem_set_attr)(pool, NULL));
    tell("attributes of NULL, that is of zeroes:");
    WORKS(CALL(rpmem_close)(pool));
    size_t bytes;
    unsigned char *part = contents("parts/header.0", &bytes);
    check(part != NULL && part[0] == 0 && part[8] == 0, "the header's signature and version are zeroes then");
    free(part);

    write_set("damaged", POOL_BYTES, "");
    WORKS(CALL(rpmem_close)(must_create("damaged.set", 1)));
    char path[PATH_BYTES];
    FILE *file = fopen(path_of(path, "parts/damaged.0"), "r+");
    if (file == NULL || fseek(file, 30, SEEK_SET) != 0 || fputc(0x7f, file) == EOF || fclose(file) != 0)
        bail_out("cannot damage %s", path);
    GIVES_NO_POOL(open_pool("damaged.set", POOL_BYTES, NULL), EINVAL);
}

void check_removing(void) {
    section("removing");
    FAILS(CALL(rpmem_remove)(stage.target, "missing.set", 0), ENOENT);
    FAILS(CALL(rpmem_remove)(stage.target, "broken.set", RPMEM_REMOVE_FORCE), EINVAL);
    write_set("gone", POOL_BYTES, "");
    FAILS(CALL(rpmem_remove)(stage.target, "gone.set", 0), ENOENT);
    WORKS(CALL(rpmem_remove)(stage.target, "gone.set", RPMEM_REMOVE_FORCE));
    RPMEMpool *pool = must_create("gone.set", 1);
    FAILS(CALL(rpmem_remove)(stage.target, "gone.set", 0), EBUSY);
    FAILS(CALL(rpmem_remove)(stage.target, "gone.set", RPMEM_REMOVE_FORCE), EBUSY);
    WORKS(CALL(rpmem_persist)(pool, HEADER_BYTES, 8, 0, 0));
    WORKS(CALL(rpmem_close)(pool));
    WORKS(CALL(rpmem_remove)(stage.target, "gone.set", 0));
    check(!exists("parts/gone.0") && exists("sets/gone.set"), "the part is gone, the set is there");
    pool = must_create("gone.set", 1);
    WORKS(CALL(rpmem_close)(pool));
    WORKS(CALL(rpmem_remove)(stage.target, "gone.set", RPMEM_REMOVE_FORCE | RPMEM_REMOVE_POOL_SET));
    check(!exists("parts/gone.0") && !exists("sets/gone.set"), "both are gone");
}

void check_second_opener(void) {
    section("a second opener");
    write_set("held", POOL_BYTES, "");
    RPMEMpool *pool = must_create("held.set", 1);
    pid_t holder = last_target();
    GIVES_NO_POOL(open_pool("held.set", POOL_BYTES, NULL), EBUSY);
    char process[32];
    snprintf(process, sizeof process, "process %d", (int)holder);
    check(strstr(CALL(rpmem_errormsg)(), process) != NULL, "the message names the holder, %s", process);
    WORKS(CALL(rpmem_persist)(pool, HEADER_BYTES, 8, 0, 0));
    WORKS(CALL(rpmem_close)(pool));
    check(ends_within(holder, 5000), "the target ends with its pool");
    pool = GIVES_POOL(open_pool("held.set", POOL_BYTES, NULL));
    WORKS(CALL(rpmem_close)(pool));
}
