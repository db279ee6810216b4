/* Clients that are killed. */
#ifndef OBJ_KILLS_H
#define OBJ_KILLS_H

/* So many clients at random moments. Of a kill after which replicas differ all is kept in the directory, where it is not NULL. */
void check_client_kills(unsigned kills, const char *keep);

/* Clients that are killed when some replicas have the header of a new run, and others not yet. */
void check_new_runs(void);

/* Clients that are killed when some replicas have an object that is in no log, and others not yet; `pmof` is the program. */
void check_loose_objects(const char *pmof);

#endif
