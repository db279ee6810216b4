//! The `pmof` command.
fn main() {}
