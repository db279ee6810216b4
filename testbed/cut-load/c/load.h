/*
 * What a load writes and reports, as testbed/cut-judge/pattern.md says; for the loads in C. The judge and the loads in Rust have
 * their own.
 */
#ifndef LOAD_H
#define LOAD_H

#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Ends the program with a line that says why. */
__attribute__((noreturn, format(printf, 1, 2))) static void bail_out(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

#define GOLDEN UINT64_C(0x9e3779b97f4a7c15)

/* Ranges of one batch, at most. */
enum { RANGES_MAX = 320 };

struct range {
    size_t first; /* word of the area */
    size_t words;
};

/* One stream: its key, the words of its area, and the memory where its words are made. */
struct stream {
    unsigned number;
    uint64_t key;
    uint64_t area;
    unsigned char *bytes;
    uint64_t batch;
};

static uint64_t mix(uint64_t z) {
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static void stream_init(struct stream *stream, uint64_t seed, unsigned number, unsigned char *bytes, size_t area_bytes) {
    stream->number = number;
    stream->key = mix(seed + number * GOLDEN + 1);
    stream->area = area_bytes / 8;
    stream->bytes = bytes;
    stream->batch = 0;
}

static uint64_t draw(const struct stream *stream, uint64_t k) {
    return mix(mix(stream->key ^ ~stream->batch) + k * GOLDEN);
}

static size_t scattered(const struct stream *stream, uint64_t count, struct range ranges[RANGES_MAX]) {
    uint64_t slot = stream->area / count, most = slot / 2 < 64 ? slot / 2 : 64;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t words = 1 + draw(stream, 4 + 2 * i) % most;
        ranges[i] = (struct range){.first = i * slot + draw(stream, 5 + 2 * i) % (slot - words), .words = words};
    }
    return count;
}

/* Puts the words of the stream's next batch into its memory, and gives its ranges. */
static size_t next_batch(struct stream *stream, struct range ranges[RANGES_MAX]) {
    size_t count = 1;
    uint64_t shape = draw(stream, 1) % 8;
    if (stream->batch == 0) {
        ranges[0] = (struct range){.first = 0, .words = stream->area};
    } else if (shape == 0) {
        ranges[0] = (struct range){.first = 0, .words = 1};
    } else if (shape <= 3) {
        uint64_t words = 1 + draw(stream, 2) % (UINT64_C(1) << draw(stream, 3) % 13);
        ranges[0] = (struct range){.first = draw(stream, 4) % (stream->area - words + 1), .words = words};
    } else if (shape <= 6) {
        count = scattered(stream, 2 + draw(stream, 2) % 7, ranges);
    } else {
        count = draw(stream, 3) % 8 == 0 ? 257 + draw(stream, 2) % 64 : 9 + draw(stream, 2) % 24;
        scattered(stream, count, ranges);
    }
    uint64_t key = mix(stream->key + stream->batch);
    for (size_t i = 0; i < count; i++)
        for (size_t index = ranges[i].first; index < ranges[i].first + ranges[i].words; index++) {
            uint64_t word = mix(key ^ index);
            memcpy(stream->bytes + 8 * index, &word, 8); /* x86-64 is little-endian */
        }
    return count;
}

/* A line of the ledger, in one call: a cut leaves all of it, or a part without its end. */
static void tell(int ledger, const char *what, unsigned stream, uint64_t batch) {
    char line[64];
    int length = snprintf(line, sizeof line, "%s %u %llu\n", what, stream, (unsigned long long)batch);
    if (write(ledger, line, (size_t)length) != length)
        bail_out("cannot write to the ledger");
}

static int open_ledger(const char *path) {
    int ledger = open(path, O_WRONLY | O_APPEND | O_CREAT | O_SYNC | O_NOCTTY, 0644);
    if (ledger < 0)
        bail_out("cannot open the ledger %s", path);
    return ledger;
}

#endif
