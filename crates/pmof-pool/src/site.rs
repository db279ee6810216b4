//! Where a replica of a native pool is asked for: at a target, or in a directory of this machine.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use pmof_access::ConnectionError;
use pmof_control::{FailureDomain, PoolName, PoolRefusal, Reply, Request};
use pmof_target::LocalTarget;

use crate::{
    ReplicaError,
    target::{PendingReply, TargetConnection, until_free},
};

/// Who answers requests about pools.
#[derive(Clone, Debug)]
pub(crate) enum Site {
    Target(Arc<TargetConnection>),
    Here(Arc<LocalTarget>),
}

/// A request that has no answer yet.
#[derive(Debug)]
pub(crate) enum Asked {
    Sent(PendingReply),
    /// Carried out when the answer is wanted: targets do meanwhile what they were sent.
    Due(Box<Request>),
}

impl Site {
    pub(crate) fn send(&self, request: &Request) -> Result<Asked, ReplicaError> {
        match self {
            Self::Target(target) => target.send(request).map(Asked::Sent),
            Self::Here(_) => Ok(Asked::Due(Box::new(request.clone()))),
        }
    }

    /// The answer, or the refusal as an error.
    pub(crate) fn answer(&self, asked: Asked) -> Result<Reply, ReplicaError> {
        match (self, asked) {
            (Self::Target(target), Asked::Sent(pending)) => target.answer(&pending),
            (Self::Here(here), Asked::Due(request)) => answer_here(here, *request),
            _ => Err(ReplicaError::Unexpected),
        }
    }

    /// The same, at most so long; on this machine the request is carried out now. `None`: there is no answer yet.
    pub(crate) fn answer_within(&self, asked: &Asked, limit: Duration) -> Option<Result<Reply, ReplicaError>> {
        match (self, asked) {
            (Self::Target(target), Asked::Sent(pending)) => target.answer_within(pending, limit),
            (Self::Here(here), Asked::Due(request)) => Some(answer_here(here, Request::clone(request))),
            _ => Some(Err(ReplicaError::Unexpected)),
        }
    }

    /// Asks and waits for the answer.
    pub(crate) fn ask(&self, request: &Request) -> Result<Reply, ReplicaError> {
        self.answer(self.send(request)?)
    }

    /// Asks; again and again for a second where another has open what is asked for, who may be gone.
    pub(crate) fn ask_when_free(&self, request: &Request) -> Result<Reply, ReplicaError> {
        let since = Instant::now();
        until_free(self.ask(request), since, || self.ask(request))
    }

    /// What fails together with it. `None`: it does not say, or it is of a release that is not asked.
    pub(crate) fn failure_domain(&self, asked: Result<Asked, ReplicaError>) -> Option<FailureDomain> {
        match asked.and_then(|asked| self.answer(asked)) {
            Ok(Reply::Domain(domain)) => domain,
            _ => None,
        }
    }

    /// Whether the replica that is open keeps digests of its pages: they are raised before they are written.
    pub(crate) fn keeps_digests(&self) -> bool {
        match self {
            Self::Target(target) => target.keeps_digests(),
            Self::Here(here) => here.keeps_digests(),
        }
    }

    /// Why the connection has ended, if there was one and it has.
    pub(crate) fn why_ended(&self) -> Option<ConnectionError> {
        match self {
            Self::Target(target) => target.why_ended(),
            Self::Here(_) => None,
        }
    }

    /// Ends the connection, where there is one; whoever waits on it is told.
    pub(crate) fn disconnect(&self) {
        if let Self::Target(target) = self {
            target.disconnect();
        }
    }

    /// Who has a pool open for writing, where that was taken from this side.
    pub(crate) fn holder_of(&self, name: &PoolName) -> Option<String> {
        match self {
            Self::Target(target) => target.holder_of(name),
            Self::Here(_) => None,
        }
    }
}

fn answer_here(here: &LocalTarget, request: Request) -> Result<Reply, ReplicaError> {
    match here.answer(request) {
        Reply::Refused { code, text } => Err(ReplicaError::Refused { refusal: PoolRefusal::from_code(code), text }),
        reply => Ok(reply),
    }
}
