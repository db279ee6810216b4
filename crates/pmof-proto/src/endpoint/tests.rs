//! Tests of the endpoint: two of them in one process, joined by byte pipes, under a virtual clock.

mod budget;
mod crash;
mod deferred;
mod faults;
mod golden;
mod handshake;
mod hostile;
mod messages;
mod operations;
mod ordering;
mod refusals;
mod scenario;
mod shared;
mod support;
mod table;
mod time;
mod violations;
