//! A keeper of epochs outside of the pool's members, on a machine of its own, and what goes wrong on the way to it.

use std::{collections::BTreeMap, task::Poll};

use pmof_control::PoolState;
use pmof_replication::keeper::{EpochRecord, KeeperError, Kept, Register};

use super::{faults::Fault, names, plan::Control, random::Random};

/// Steps after which a writer gives up a request.
const LIMIT_STEPS: u64 = 80;

/// The keeper, and requests on their way.
pub(super) struct Outside {
    register: Register,
    calls: BTreeMap<u64, Call>,
    last_call: u64,
    random: Random,
    /// It is down until this step.
    down_until: u64,
    /// It fails so many times less often than one of which nothing comes: members join only where epochs begin for a while.
    rarely: usize,
}

/// A member that has joined by an epoch of which its writer does not know whether it is in force.
pub(super) struct LostJoin {
    pub(super) writer: usize,
    pub(super) target: usize,
    /// Persists that were acknowledged before.
    pub(super) acknowledged: u64,
    pub(super) until_step: u64,
    pub(super) is_alone: bool,
}

/// A request, until its writer has given it up for long.
struct Call {
    writer: usize,
    request: Request,
    /// `None`: it is lost.
    arrives_at: Option<u64>,
    /// `None`: the reply is lost.
    returns_at: Option<u64>,
    given_up_at: u64,
    result: Option<Result<(), KeeperError>>,
}

#[derive(Clone, Debug)]
pub(super) enum Request {
    Begin(EpochRecord),
    Confirm(EpochRecord),
    Read,
}

impl Request {
    fn changes(&self) -> bool {
        !matches!(self, Self::Read)
    }

    fn brief(&self) -> String {
        match self {
            Self::Begin(announced) => format!("Begin {}", names::of(&announced.epoch)),
            Self::Confirm(announced) => format!("Confirm {}", names::of(&announced.epoch)),
            Self::Read => "Read".to_owned(),
        }
    }
}

impl Outside {
    /// Of a pool whose replicas are in this state.
    pub(super) fn new(seed: u64, made: &PoolState) -> Self {
        let PoolState { epoch, opening, ref ancestors, .. } = *made;
        let register = Register::new(EpochRecord { epoch, opening, ancestors: ancestors.clone() });
        let mut random = Random::new(seed.rotate_left(24));
        let rarely = [1, 10, 20][random.below(3)];
        Self { register, calls: BTreeMap::new(), last_call: 0, random, down_until: 0, rarely }
    }

    pub(super) fn kept(&self) -> &Kept {
        self.register.kept()
    }

    /// Whether a writer watches it: not each one does.
    pub(super) fn is_watched(&mut self) -> bool {
        self.random.once_in(2)
    }

    /// Whether a request reaches it; else it is down, or the way there is cut.
    pub(super) fn is_reached(&mut self, step: u64) -> bool {
        if self.random.once_in(40 * self.rarely) {
            self.down_until = step + 20 + self.random.below(200) as u64;
        }
        self.down_until <= step && !self.random.once_in(16 * self.rarely)
    }

    /// Sends a request. `reply_rate`: one of so many replies is lost; `None`: nothing goes wrong. Returns its number, and whether it is slow.
    pub(super) fn send(
        &mut self,
        step: u64,
        reply_rate: Option<usize>,
        writer: usize,
        request: Request,
    ) -> (u64, bool) {
        let rarely = self.rarely;
        let mut may = |times| reply_rate.is_some() && self.random.once_in(times);
        let (is_lost, is_reply_lost, is_slow) = (may(20 * rarely), may(reply_rate.unwrap_or(1)), may(3 * rarely));
        let mut way = || 1 + self.random.below(if is_slow { 2 * LIMIT_STEPS as usize } else { 4 }) as u64;
        let arrives_at = step + way();
        let returns_at = (!is_reply_lost).then(|| arrives_at + way());
        let (arrives_at, given_up_at) = ((!is_lost).then_some(arrives_at), step + LIMIT_STEPS);
        self.last_call += 1;
        self.calls.insert(self.last_call, Call { writer, request, arrives_at, returns_at, given_up_at, result: None });
        (self.last_call, is_slow)
    }

    /// Carries out the requests that arrive now. Returns what was done, in words, and what went wrong by that.
    pub(super) fn advance(&mut self, step: u64, control: Option<Control>) -> Vec<(String, Option<Fault>)> {
        let mut done = Vec::new();
        for call in self.calls.values_mut() {
            if call.result.is_some() || call.arrives_at.is_none_or(|at| at > step) {
                continue;
            }
            let result = carry_out(&mut self.register, &call.request, control);
            let is_late = call.given_up_at <= step && result.is_ok() && call.request.changes();
            let text = format!("w{} -> keeper {}: {result:?}", call.writer, call.request.brief());
            done.push((text, is_late.then_some(Fault::KeeperChangedLate)));
            call.result = Some(result);
        }
        let is_on_its_way = |call: &Call| call.result.is_none() && call.arrives_at.is_some();
        self.calls.retain(|_, call| call.given_up_at + LIMIT_STEPS > step || is_on_its_way(call));
        done
    }

    /// The reply to a request, and what went wrong with it.
    pub(super) fn reply(&self, id: u64, step: u64) -> (Poll<Result<(), KeeperError>>, Option<Fault>) {
        let unknown = Poll::Ready(Err(KeeperError::Unknown));
        let Some(call) = self.calls.get(&id) else { return (unknown, None) };
        match &call.result {
            Some(result) if call.returns_at.is_some_and(|at| at <= step) => {
                let is_displaced = matches!(result, Err(KeeperError::Displaced { .. }));
                (Poll::Ready(result.clone()), is_displaced.then_some(Fault::KeeperDisplaced))
            }
            _ if call.given_up_at > step => (Poll::Pending, None),
            Some(Ok(())) if call.request.changes() => (unknown, Some(Fault::KeeperReplyLost)),
            _ => (unknown, None),
        }
    }
}

fn carry_out(register: &mut Register, request: &Request, control: Option<Control>) -> Result<(), KeeperError> {
    match request {
        Request::Read => Ok(()),
        Request::Begin(_) if control == Some(Control::KeeperComparesNothing) => Ok(()),
        Request::Confirm(announced) if control == Some(Control::KeeperComparesNothing) => {
            *register = Register::new(announced.clone());
            Ok(())
        }
        Request::Begin(announced) => register.begin(announced),
        Request::Confirm(announced) => register.confirm(announced),
    }
}
