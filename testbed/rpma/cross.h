/* Two processes, each with a librpma of its own. */
#ifndef CROSS_H
#define CROSS_H

/* Listens on the first port, and takes the client's sessions one by one. */
void cross_server(void);

/* Connects for each of them; with `options.pmem` set, the server's memory must be persistent. */
void cross_client(void);

/* Accepts this many connections of one client, or makes them: each may cost two descriptors and no thread. */
void many_server(unsigned count);
void many_client(unsigned count);

/* So many writes of 64 bytes, each with a flush to visibility and its completion. */
void cost_server(void);
void cost_client(unsigned writes, unsigned reads);

#endif
