//! One member of the pool: its target, and over tcp the relay that its connections go through.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context, Result};
use pmof_console::{children::Target, words::TransportName};
use pmof_control::{HEADER_BYTES, Header};
use rustix::process::Signal;
use serde::Serialize;

use super::{POOL_NAME, records::COLD};
use crate::bench::{Helper, signal, socket_address};

/// What happens to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    /// SIGKILL of its target, which is started again.
    Kill,
    /// SIGSTOP of its target for longer than the loss timeout, then SIGCONT.
    Pause,
    /// All its connections end, and none is made, until its relay is there again.
    Cut,
}

/// What a member does at the moment.
#[derive(Clone, Copy, Debug)]
pub(super) enum State {
    InSync,
    Away {
        fault: u64,
        kind: Kind,
        until: Instant,
    },
    /// It has what was taken away, and the pool is to bring it back.
    Returning {
        since: Instant,
    },
}

#[derive(Debug)]
pub(super) struct Member {
    root: PathBuf,
    target: Target,
    relay: Option<Relay>,
    url: String,
    pub(super) state: State,
    /// How often the pool told that it is in sync again, and how often it had when the last fault was made.
    pub(super) returns: u64,
    returns_before: u64,
}

/// The relay of a member, which has the same address each time.
#[derive(Debug)]
struct Relay {
    listen: String,
    to: String,
    helper: Option<Helper>,
}

impl Relay {
    fn start(&mut self) -> Result<()> {
        let parent = std::process::id().to_string();
        let options = ["relay", "--exit-with-parent", &parent, "--delay-us", "0"];
        let helper = Helper::start(&[&options[..], &["--listen", &self.listen, "--to", &self.to]].concat(), 1)?;
        self.listen = helper.addresses()[0].to_string();
        self.helper = Some(helper);
        Ok(())
    }
}

impl Member {
    /// The `index`-th, with its pool and its socket under `directory`.
    pub(super) fn start(
        directory: &Path,
        socket_directory: &Path,
        transport: TransportName,
        index: u8,
    ) -> Result<Self> {
        let root = directory.join(index.to_string());
        std::fs::create_dir(&root).with_context(|| format!("cannot make {}", root.display()))?;
        // Addresses of their own: an initiator's socket comes from another one and never takes the port of a target that is gone.
        let listen = match transport {
            TransportName::Shm => format!("shm://{}", socket_directory.join(format!("{index}.sock")).display()),
            _ => format!("tcp://127.0.1.{}:0", index + 1),
        };
        let target = Target::start(&root, &listen, &[])?;
        let (url, relay) = if transport == TransportName::Shm {
            (format!("{listen}?pool={POOL_NAME}"), None)
        } else {
            let to = socket_address(target.address())?.to_string();
            let mut relay = Relay { listen: format!("127.0.2.{}:0", index + 1), to, helper: None };
            relay.start()?;
            (format!("tcp://{}/{POOL_NAME}", relay.listen), Some(relay))
        };
        let state = State::InSync;
        Ok(Self { root, target, relay, url, state, returns: 0, returns_before: 0 })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn is_in_sync(&self) -> bool {
        matches!(self.state, State::InSync)
    }

    /// Whether the pool told since the last fault that it is in sync.
    pub(super) fn has_returned(&self) -> bool {
        self.returns > self.returns_before
    }

    /// Takes something away from it.
    pub(super) fn inflict(&mut self, fault: u64, kind: Kind, until: Instant) -> Result<()> {
        self.returns_before = self.returns;
        self.state = State::Away { fault, kind, until };
        match kind {
            Kind::Kill => self.target.kill(),
            Kind::Pause => signal(self.target.process_id(), Signal::STOP),
            Kind::Cut => {
                if let Some(relay) = &mut self.relay {
                    relay.helper = None;
                }
                Ok(())
            }
        }
    }

    /// Gives it back.
    pub(super) fn restore(&mut self, kind: Kind) -> Result<()> {
        match kind {
            Kind::Kill => self.target = Target::start(&self.root, self.target.address(), &[])?,
            Kind::Pause => signal(self.target.process_id(), Signal::CONT)?,
            Kind::Cut => self.relay.as_mut().map_or(Ok(()), Relay::start)?,
        }
        self.state = State::Returning { since: Instant::now() };
        Ok(())
    }

    /// Changes a byte that nobody writes any more, and of which no map of written pages knows: as if a catch-up had left out its page.
    pub(super) fn spoil(&self) -> Result<()> {
        let path = self.root.join(POOL_NAME);
        let file: File =
            OpenOptions::new().read(true).write(true).open(&path).context("cannot open the member's file")?;
        let mut head = vec![0; HEADER_BYTES];
        file.read_exact_at(&mut head, 0).context("cannot read the member's header")?;
        let at = Header::decode(&head)?.data_offset() + COLD.start + 12_345;
        let mut byte = [0];
        file.read_exact_at(&mut byte, at)?;
        file.write_all_at(&[byte[0] ^ 1], at).context("cannot write the member's file")
    }
}
