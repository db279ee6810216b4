//! One member of the pool: its target, and over tcp the relay that its connections go through.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use pmof::ReplicaState;
use pmof_access::Transport;
use pmof_console::{children::Target, words};
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
        /// The pool lost it.
        is_noticed: bool,
    },
    /// It has what was taken away, and the pool is to bring it back.
    Returning {
        since: Instant,
        /// It was paused, which the pool has not told of.
        is_unnoticed: bool,
    },
}

impl State {
    /// `has_returned`: the pool told since the fault that it is in sync. A target that is paused while nobody asks it for anything is not lost: what it
    /// was asked in that time it answers now, or its time is up within `limit`.
    fn is_back(&self, has_returned: bool, limit: Duration) -> Option<Back> {
        let Self::Returning { since, is_unnoticed } = self else { return None };
        let after = since.elapsed();
        if has_returned {
            return Some(Back::Returned(after));
        }
        (*is_unnoticed && after > limit).then_some(Back::Unnoticed)
    }
}

/// How a member came to be in sync again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Back {
    /// The pool brought it back, so long after it was given back.
    Returned(Duration),
    /// The pool never lost it.
    Unnoticed,
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
    /// It caught up by what it was known to lack, and has yet to be compared as a whole.
    pub(super) is_unverified: bool,
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
        let options = ["relay", "--delay-us", "0"];
        let helper = Helper::start(&[&options[..], &["--listen", &self.listen, "--to", &self.to]].concat(), 1)?;
        self.listen = helper.addresses()[0].to_string();
        self.helper = Some(helper);
        Ok(())
    }
}

impl Member {
    /// The `index`-th, with its pool and its socket under `directory`.
    pub(super) fn start(directory: &Path, socket_directory: &Path, transport: Transport, index: u8) -> Result<Self> {
        let root = directory.join(index.to_string());
        std::fs::create_dir(&root).with_context(|| format!("cannot make {}", root.display()))?;
        // Addresses of their own: an initiator's socket comes from another one and never takes the port of a target that is gone.
        let listen = match transport {
            Transport::Shm => format!("shm://{}", socket_directory.join(format!("{index}.sock")).display()),
            other => format!("{}://127.0.1.{}:0", other.scheme(), index + 1),
        };
        let target = Target::start(&root, &listen, &[])?;
        let (url, relay) = match transport {
            Transport::Tcp => {
                let to = socket_address(target.address())?.to_string();
                let mut relay = Relay { listen: format!("127.0.2.{}:0", index + 1), to, helper: None };
                relay.start()?;
                (format!("tcp://{}/{POOL_NAME}", relay.listen), Some(relay))
            }
            // What libfabric sends would go past a relay.
            _ => (words::pool_url(transport, target.address(), POOL_NAME), None),
        };
        let state = State::InSync;
        Ok(Self { root, target, relay, url, state, returns: 0, returns_before: 0, is_unverified: false })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// The pool lost it.
    pub(super) fn note_loss(&mut self) {
        self.is_unverified = false;
        match &mut self.state {
            // Nothing is done to others before it is back.
            State::InSync => self.state = State::Returning { since: Instant::now(), is_unnoticed: false },
            State::Away { is_noticed, .. } => *is_noticed = true,
            State::Returning { is_unnoticed, .. } => *is_unnoticed = false,
        }
    }

    /// Whether it is in sync again, which it is by its status.
    pub(super) fn is_back(&self, status: &ReplicaState, limit: Duration) -> Option<Back> {
        let has_returned = self.returns > self.returns_before;
        if matches!(status, ReplicaState::InSync) { self.state.is_back(has_returned, limit) } else { None }
    }

    pub(super) fn is_in_sync(&self) -> bool {
        matches!(self.state, State::InSync)
    }

    /// Takes something away from it.
    pub(super) fn inflict(&mut self, fault: u64, kind: Kind, until: Instant) -> Result<()> {
        self.returns_before = self.returns;
        // Over shared memory a writer asks a target for nothing but marks, one a second.
        let is_noticed = !self.is_in_sync() || kind != Kind::Pause;
        self.state = State::Away { fault, kind, until, is_noticed };
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
    pub(super) fn restore(&mut self, kind: Kind, is_noticed: bool) -> Result<()> {
        match kind {
            Kind::Kill => self.target = Target::start(&self.root, self.target.address(), &[])?,
            Kind::Pause => signal(self.target.process_id(), Signal::CONT)?,
            Kind::Cut => self.relay.as_mut().map_or(Ok(()), Relay::start)?,
        }
        self.state = State::Returning { since: Instant::now(), is_unnoticed: !is_noticed };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_that_nobody_noticed_is_over() {
        let given_back = |is_unnoticed| State::Returning { since: Instant::now(), is_unnoticed };
        let hour = Duration::from_secs(3600);
        assert_eq!(given_back(true).is_back(false, Duration::ZERO), Some(Back::Unnoticed));
        assert_eq!(given_back(true).is_back(false, hour), None, "it may be lost yet");
        assert_eq!(
            given_back(false).is_back(false, Duration::ZERO),
            None,
            "the pool lost it, and has to bring it back"
        );
        assert!(matches!(given_back(false).is_back(true, hour), Some(Back::Returned(_))));
        assert_eq!(State::InSync.is_back(true, Duration::ZERO), None);
    }
}
