/* What programs do in several threads. */
#ifndef THREADS_H
#define THREADS_H

/* All without a race. */
void check_threads(void);

/* With races of the program's own, in race_between_calls, race_in_callback and race_in_memory. */
void race_threads(void);

#endif
