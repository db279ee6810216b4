/* What is told, and kept, of a kill after which replicas differ. */
#ifndef OBJ_STORY_H
#define OBJ_STORY_H

#include "obj_pool.h"

/* A client that was killed. */
struct killed {
    unsigned number;   /* of the kill */
    unsigned replicas;
    struct ledger ledger;
    struct parts parts; /* as the kill left them */
};

/*
 * Of each range that differs: what lies there, its bytes in each part when the client was killed and now, and the client's last
 * persists of it. Keeps all of it in files of the directory `keep`, where it is not NULL.
 */
void tell_differences(const struct killed *killed, const char *keep);

#endif
