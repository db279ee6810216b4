//! Targets started through ssh: `ssh://[USER@]HOST[:PORT]/POOL`.
//!
//! The initiator runs the plain `ssh` command, which starts `pmof serve --stdio` on the other machine; who may, is up to ssh and the
//! user's configuration of it. Over standard input and output the target hands over a secret for one connection and says
//! where it listens; the initiator connects there, by verbs where both sides have it, else TCP, and proves the secret before
//! anything else. The session ends with either process.

mod greeting;
mod host;
mod session;
mod target;

pub use greeting::{HelloError, StartFailure};
pub use host::{SshHost, SshHostError};
pub use session::{DEFAULT_SSH_COMMAND, DEFAULT_SSH_TIMEOUT, SshError, SshOptions};
pub(crate) use session::{SshSession, Started};
pub use target::{DataPorts, DataPortsError, StdioError, StdioOptions, refuse_stdio, serve_stdio};
