//! `pmof pool export` and `pmof pool import`: backups of pools as streams.

pub(crate) mod export;
pub(crate) mod format;
pub(crate) mod import;
mod input;
mod reader;
mod source;
mod writer;

#[cfg(test)]
mod tests;
