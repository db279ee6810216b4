//! What the engine asks of its driver, and what the driver answers.

use alloc::{boxed::Box, sync::Arc};
use core::time::Duration;

use pmof_control::{OpenFor, Reply, Request};

use crate::keeper::ReadKept;

/// A connection to one address, or an attempt to make one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SiteId(pub(crate) u32);

/// Which question an answer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub(crate) u32);

/// What the driver does.
#[derive(Clone, Debug)]
pub enum Action<P> {
    /// Connects to an address, after it has started a target there where the address says so. Answer: [`Answer::Done`].
    Connect {
        /// The new connection.
        site: SiteId,
        /// The address.
        place: Arc<P>,
        /// The longest that connecting and each request may take, where that is shorter than the driver's own limits.
        limit: Option<Duration>,
    },
    /// Sends a request, after all earlier ones to that site were answered. Answer: [`Answer::Reply`] with anything but a refusal, which is a
    /// failure.
    Send {
        /// Where to.
        site: SiteId,
        /// The request.
        request: Request,
    },
    /// Makes the memory of the replica that was opened there usable, as its [`Reply::Opened`] describes it. Answer: [`Answer::Done`].
    Map {
        /// Where it is open.
        site: SiteId,
        /// What for.
        access: OpenFor,
        /// Its length.
        size_bytes: u64,
    },
    /// Gives up the memory of the replica that is open there: what is mapped cannot be removed.
    Unmap {
        /// Where it is open.
        site: SiteId,
    },
    /// [Reads](crate::keeper::Keeper::read) what the keeper outside of the members has. Answer: [`Answer::Kept`].
    ReadKeeper,
    /// Ends the connection. What is in flight there is never answered.
    Drop {
        /// Which.
        site: SiteId,
    },
}

/// One action, and what its answer is delivered for.
#[derive(Clone, Debug)]
pub struct Question<P> {
    /// Of the answer. [`Action::Unmap`] and [`Action::Drop`] have none.
    pub call: CallId,
    /// What to do.
    pub action: Action<P>,
}

/// What has come of an action that did not fail.
#[derive(Clone, Debug)]
pub enum Answer {
    /// It is done.
    Done,
    /// The target's reply.
    Reply(Box<Reply>),
    /// What the keeper has, or why it is not known.
    Kept(ReadKept),
}
