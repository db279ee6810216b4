//! The real `pmof` binary, end to end.

mod advice;
mod advised;
mod alerts;
mod asked;
mod asynchronous;
mod backups;
mod changed;
mod copies;
mod fabric;
mod filtered;
mod flushed;
mod foreign;
mod heeded;
mod hungry;
mod interrupted;
mod json;
mod killed;
mod limits;
mod logs;
mod looks;
mod metrics;
mod named;
#[path = "../names/mod.rs"]
mod names;
mod odd;
mod planned;
mod rds;
mod refused;
mod released;
mod removed;
mod scrubbed;
mod served;
mod sets;
mod signals;
mod soaks;
mod status;
mod strays;
mod support;
mod systemd;
#[cfg(all(feature = "fabric", feature = "verbs"))]
mod torn;
mod transcripts;
mod users;
mod written;
