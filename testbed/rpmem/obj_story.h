/* What is printed and kept of a kill after which replicas differ. */
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
 * Of the persists that are remembered and that this replica acknowledged, the bytes that its part lacks, where no later persist
 * covers them; prints the first. Adds to `compared` how many were looked at.
 */
size_t lost_bytes(const unsigned char *part, unsigned replica, size_t *compared);

/*
 * Prints for each range that differs: what is there, its bytes in each part when the client was killed and now, and the client's last
 * persists of it. Keeps all of it in files of the directory `keep`, where it is not NULL.
 */
void tell_differences(const struct killed *killed, const char *keep);

#endif
