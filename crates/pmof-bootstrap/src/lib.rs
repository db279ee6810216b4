//! How an initiator and a target meet: targets started through ssh, and the secret by which the data connection shows that it
//! belongs to them.
//!
//! The initiator runs the plain `ssh` command, which starts `pmof serve --stdio` on the other machine; access control is up to ssh and its
//! configuration. Over standard input and output the target passes a secret for one connection and the addresses
//! that it listens on; the initiator connects there, by verbs where both sides have it, else TCP, and proves the secret before
//! anything else. The session ends with either process.
#![forbid(unsafe_code)]

mod greeting;
mod host;
mod secret;
mod session;

pub use greeting::{Greeting, HELLO_BYTES, Hello, HelloError, STDIO_VERSION, StartFailure};
pub use host::{SshHost, SshHostError};
pub use secret::{Nonces, Prover, SECRET_BYTES, Secret, random};
pub use session::{
    DEFAULT_SSH_COMMAND, DEFAULT_SSH_TIMEOUT, SshError, SshOptions, SshSession, Started, provider_named,
};
