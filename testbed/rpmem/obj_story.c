#include "obj_story.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "check.h"

/* Of one kill, at most: ranges, bytes of a range, persists of it. */
enum { RANGES_TOLD = 16, BYTES_TOLD = 16, PERSISTS_TOLD = 8 };

/* Ranges with fewer same bytes in between are one. */
enum { GAP = 8 };

/* Hexadecimal digits, in a buffer that the next call but seven writes again. */
static const char *digits(const unsigned char *bytes, size_t count) {
    static char texts[8][2 * BYTES_TOLD + 4];
    static unsigned turn;
    char *text = texts[turn++ % 8], *at = text;
    *text = '\0';
    for (size_t index = 0; index < count && index < BYTES_TOLD; index++)
        at += sprintf(at, "%02x", bytes[index]);
    if (count > BYTES_TOLD)
        sprintf(at, "...");
    return text;
}

/* The object that contains an offset, by the list that verify wrote. */
static void name_object(char name[64], size_t at) {
    char path[PATH_BYTES], found[40];
    unsigned long long offset;
    size_t bytes;
    snprintf(name, 64, "?");
    FILE *file = fopen(path_of(path, "live"), "r");
    if (file == NULL)
        return;
    while (fscanf(file, "%llu %zu %39s", &offset, &bytes, found) == 3)
        if (at >= offset && at < offset + bytes)
            snprintf(name, 64, "%s + %zu", found, at - (size_t)offset);
    fclose(file);
}

/* The oldest number of a persist that is remembered, less one. */
static uint64_t forgotten(void) {
    return between->persists < PERSISTS_KEPT ? 0 : between->persists - PERSISTS_KEPT;
}

size_t lost_bytes(const unsigned char *part, unsigned replica, size_t *compared) {
    bool *is_newer = calloc(PART_BYTES, sizeof *is_newer);
    if (is_newer == NULL)
        bail_out("no memory");
    size_t lost = 0;
    for (uint64_t number = between->persists, oldest = forgotten(); number > oldest; number--) {
        const struct persist *persist = &between->last[(number - 1) % PERSISTS_KEPT];
        if (persist->replica != replica || persist->offset + persist->length > PART_BYTES)
            continue;
        for (size_t index = 0; index < persist->length && index < BYTES_KEPT && persist->acknowledged; index++) {
            size_t at = persist->offset + index;
            if (is_newer[at])
                continue;
            ++*compared;
            if (part[at] != persist->bytes[index] && lost++ == 0)
                tell("replica %u lacks persist %llu of %llu, %llu bytes at %llu", replica, (unsigned long long)number,
                     (unsigned long long)between->persists, (unsigned long long)persist->length,
                     (unsigned long long)persist->offset);
        }
        memset(is_newer + persist->offset, true, persist->length);
    }
    free(is_newer);
    return lost;
}

static void tell_persists(size_t begin, size_t end) {
    uint64_t count = between->persists;
    uint64_t oldest = forgotten();
    unsigned told = 0;
    for (uint64_t number = count; number > oldest && told < PERSISTS_TOLD; number--) {
        const struct persist *persist = &between->last[(number - 1) % PERSISTS_KEPT];
        if (persist->offset >= end || persist->offset + persist->length <= begin)
            continue;
        tell("    persist %llu of %llu, replica %u, %llu bytes at %llu, %s: %s", (unsigned long long)number,
             (unsigned long long)count, persist->replica, (unsigned long long)persist->length,
             (unsigned long long)persist->offset, persist->acknowledged ? "acknowledged" : "not acknowledged",
             digits(persist->bytes, persist->length < BYTES_KEPT ? persist->length : BYTES_KEPT));
        told++;
    }
    if (told == 0)
        tell("    no persist of it among the last %llu", (unsigned long long)(count - oldest));
}

static void tell_range(const struct killed *killed, const struct parts *now, const unsigned char *kinds, size_t begin,
                       size_t end) {
    char name[64] = "";
    size_t headers_end, headers = chunk_headers(now->bytes[0], &headers_end);
    if (kinds[begin] == OBJECT)
        name_object(name, begin);
    if (kinds[begin] == CHUNK_HEADER || kinds[begin] == EMPTY_RUN)
        snprintf(name, sizeof name, "%zu", (begin - headers) / 8);
    tell("  %zu bytes at %zu: %s %s", end - begin, begin, KIND_NAMES[kinds[begin]], name);
    for (unsigned index = 0; index <= killed->replicas; index++)
        tell("    %s %u: %s when killed, now %s", index == 0 ? "master" : "replica", index,
             digits(killed->parts.bytes[index] + begin, end - begin), digits(now->bytes[index] + begin, end - begin));
    tell_persists(begin, end);
}

static bool any_differs(const struct parts *now, unsigned replicas, const unsigned char *kinds, size_t at) {
    for (unsigned index = 1; index <= replicas; index++)
        if (differs(now->bytes[0], now->bytes[index], kinds, at))
            return true;
    return false;
}

static void write_bytes(const char *directory, const char *name, unsigned index, const void *bytes, size_t count) {
    char path[2 * PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s-%u", directory, name, index);
    FILE *file = fopen(path, "w");
    if (file == NULL || fwrite(bytes, 1, count, file) != count || fclose(file) != 0)
        tell("cannot write %s: %s", path, strerror(errno));
}

static void keep_all(const struct killed *killed, const struct parts *now, const unsigned char *kinds, const char *keep) {
    char directory[PATH_BYTES];
    snprintf(directory, sizeof directory, "%s/kill-%u", keep, killed->number);
    if (mkdir(directory, 0755) != 0 && errno != EEXIST) {
        tell("cannot make %s: %s", directory, strerror(errno));
        return;
    }
    for (unsigned index = 0; index <= killed->replicas; index++) {
        write_bytes(directory, "killed", index, killed->parts.bytes[index], PART_BYTES);
        write_bytes(directory, "now", index, now->bytes[index], PART_BYTES);
    }
    write_bytes(directory, "kinds", 0, kinds, PART_BYTES);
    write_bytes(directory, "persists", 0, between, sizeof *between);
    write_bytes(directory, "ledger", 0, &killed->ledger, sizeof killed->ledger);
    tell("  all parts are kept in %s", directory);
}

void tell_differences(const struct killed *killed, const char *keep) {
    char live[PATH_BYTES];
    struct parts now = read_parts(killed->replicas);
    unsigned char *kinds = kinds_of(now.bytes[0], path_of(live, "live"));
    tell("kill %u: %u replicas, %llu transactions begun and %llu committed", killed->number, killed->replicas,
         (unsigned long long)killed->ledger.begun, (unsigned long long)killed->ledger.committed);
    unsigned told = 0;
    for (size_t at = 0; at < PART_BYTES && told < RANGES_TOLD; at++) {
        if (!any_differs(&now, killed->replicas, kinds, at))
            continue;
        size_t end = at + 1;
        for (size_t next = end; next < PART_BYTES && next < end + GAP && kinds[next] == kinds[at]; next++)
            if (any_differs(&now, killed->replicas, kinds, next))
                end = next + 1;
        tell_range(killed, &now, kinds, at, end);
        at = end;
        told++;
    }
    if (keep != NULL)
        keep_all(killed, &now, kinds, keep);
    free(kinds);
    free_parts(&now);
}
