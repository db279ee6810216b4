//! The real `pmof` binary, end to end.

mod copies;
mod hungry;
mod killed;
mod looks;
mod refused;
mod sets;
mod support;
