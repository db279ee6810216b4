/*
 * The other machine, which is this one: a directory with the pool sets that rpmemd looks up, the parts, and `rpmemd`, a script
 * that notes its process number in `pids` before it becomes the daemon. xtask/src/rpmem/stage.rs makes it.
 */
#ifndef STAGE_H
#define STAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct stage {
    const char *directory;
    const char *target; /* the argument of ssh: [user@]host[:port] */
};

extern struct stage stage;

/* Bytes of a path here, at most. */
enum { PATH_BYTES = 512 };

/* A path below the directory; the buffer is the caller's. Returns it. */
char *path_of(char path[PATH_BYTES], const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Writes a file below the directory, whose name is printf-like; a program where `is_program`. */
void write_file(const char *name, bool is_program, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Writes the pool set `sets/NAME.set` with one part `parts/NAME.0` of this many bytes, and an option line or "". */
void write_set(const char *name, size_t bytes, const char *option);

/* The bytes of a file below the directory; NULL where there is none. The caller frees them. */
unsigned char *contents(const char *name, size_t *bytes);

bool exists(const char *name);

/* Deletes a file below the directory. */
void delete_file(const char *name);

/* How many targets were started so far, the process number of one of them, counted from 0, and that of the last. */
unsigned targets_started(void);
pid_t target_number(unsigned index);
pid_t last_target(void);

/* Whether the process ends within this many milliseconds. */
bool ends_within(pid_t process, unsigned limit_ms);

#endif
