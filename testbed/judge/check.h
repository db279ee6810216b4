/* Counting checks, one line each. */
#ifndef CHECK_H
#define CHECK_H

#include <stdbool.h>

/* The part of the program that the next checks belong to. */
void section(const char *name);

/* One check, one line. The name is printf-like. Returns `passed`. */
bool check(bool passed, const char *name, ...) __attribute__((format(printf, 2, 3)));

#define TRUE(condition) check((condition), "%s", #condition)

/* A check that is left out, with the reason. */
void skip(const char *reason, const char *name, ...) __attribute__((format(printf, 2, 3)));

/* A line of information that checks nothing. */
void tell(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Ends the program; the checks so far do not count as done. */
_Noreturn void bail_out(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Has the program end after so long. */
void bail_out_after(unsigned seconds);

/* The plan and the counts; the exit code of the program. */
int finish(void);

/* Milliseconds of a clock that only goes on. */
double now_ms(void);

#endif
