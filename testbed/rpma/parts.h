/* The parts of the program, in the order in which they run. */
#ifndef PARTS_H
#define PARTS_H

void check_forks(void);
void check_strings(void);
void check_logging(void);
void check_devices(void);
void check_configurations(void);
void check_memory(void);
void check_descriptors(void);
void check_orders(void);
void check_deletions(void);
void check_idle(void);
void check_endings(void);
void check_limits(void);
void check_long_write(void);
void check_connecting(void);
void check_lives(void);
void check_arguments(void);
void check_transfers(void);
void check_messages(void);
void check_flushing(void);
void check_errors(void);
void check_waiting(void);
void check_receive_queues(void);
void check_ways(void);
void check_peers(void);
void check_process(void);

#endif
