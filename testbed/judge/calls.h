/* What the functions of a library were called for. functions.h, of the library's judge, names them all: JUDGED_FUNCTIONS. */
#ifndef CALLS_H
#define CALLS_H

#include "functions.h"

enum function {
#define NAME(function) FUNCTION_##function,
    JUDGED_FUNCTIONS(NAME)
#undef NAME
    FUNCTIONS,
};

/* Every call goes through this macro, which notes it: CALL(rpmem_drain)(pool, 0, 0). */
#define CALL(function) (note_call(FUNCTION_##function), function)

void note_call(enum function function);

/* The source of a call without the macro around it, in a buffer that the next call takes. */
const char *plain(const char *source);

/* How often each function was called: each must have been. */
void check_calls(void);

#endif
