//! The real `pmof` binary, end to end.

mod copies;
mod hungry;
mod killed;
mod limits;
mod looks;
mod odd;
mod refused;
mod sets;
mod soaks;
mod support;
