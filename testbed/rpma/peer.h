/* A client in a process of its own. */
#ifndef PEER_H
#define PEER_H

#include <sys/types.h>

/* Starts this program once more, as a client of the port that connects and stays until it is killed. */
pid_t start_peer(const char *port);

/* What that client does. */
int be_peer(const char *port);

#endif
