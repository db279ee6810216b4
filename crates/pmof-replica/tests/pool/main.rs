//! Pools over real connections to targets in this process.

mod budget;
mod busy;
mod changes;
mod domains;
mod epochs;
mod failures;
mod handles;
mod here;
mod intent;
mod interrupted;
mod kept;
mod keys;
mod late;
mod lying;
mod members;
mod readers;
mod reopened;
mod returns;
mod rosters;
mod scrub;
mod slow;
mod stopped;
mod support;
mod takeover;
mod transports;
mod unpublished;
