//! A look at a pool that does not open it: which members it has, and in which states they are. It changes nothing and disturbs no writer.

use alloc::{boxed::Box, string::String, sync::Arc, vec::Vec};

use pmof_control::{PoolInfo, Roster, WriterStatus};
use uuid::Uuid;

use crate::{
    asking::{
        Asking, Cause, Exchange, Failure, Reason,
        limits::{READ_ATTEMPTS, READ_PAUSE},
    },
    opening::Rules,
    place::Place,
};

mod ask;
mod copies;
mod judge;
mod several;
#[cfg(test)]
mod tests;

pub use several::{Look, infos, looks, promoted_at, release, remove_unfinished};

/// A look at a pool, on its way to what it found.
pub type Survey<P, F> = Asking<P, F, Result<Surveyed<P, F>, Unsurveyed<P, F>>>;

/// What a look at a pool has found.
#[derive(Debug)]
pub struct Surveyed<P, F> {
    /// The pool.
    pub pool_uuid: Uuid,
    /// Bytes of user data.
    pub size_bytes: u64,
    /// Members that have its data.
    pub made_count: usize,
    /// Members that have none.
    pub witness_count: usize,
    /// Members that must know of an epoch before anything depends on it.
    pub quorum: usize,
    /// Openings for writing and changes of members so far.
    pub opening: u64,
    /// The epoch in force.
    pub epoch: Uuid,
    /// The highest mark.
    pub mark: u64,
    /// The members, as the rosters of the answers have them.
    pub roster: Roster,
    /// Who has it open for writing.
    pub writer: Option<String>,
    /// Its writer's view of the members.
    pub writer_status: Option<WriterStatus>,
    /// All members in sync were closed in order.
    pub is_closed: bool,
    /// How many members may be lost, whichever, so that the pool still opens for writing with all that was acknowledged. `None`: too few are here for that.
    pub losses_survived: Option<usize>,
    /// Members at the named addresses, in their order, then further ones that their rosters name.
    pub members: Vec<SurveyedMember<P, F>>,
}

/// One member of a pool, or a replica that lies where a member was expected.
#[derive(Debug)]
pub struct SurveyedMember<P, F> {
    /// Its index among the members, where that is known.
    pub index: Option<u16>,
    /// Where it is. `None`: it is not known.
    pub place: Option<Arc<P>>,
    /// It has no data.
    pub is_witness: bool,
    /// Its failure domain, as its target names it; empty where that is not known.
    pub domain: String,
    /// Its state.
    pub state: State<P, F>,
    /// What its target says of it.
    pub info: Option<Box<PoolInfo>>,
}

/// The state of a member, by what the members say that answer.
#[derive(Debug)]
pub enum State<P, F> {
    /// It has all that was acknowledged.
    InSync,
    /// It is behind, and a writer copies to it.
    Syncing,
    /// It lacks what was acknowledged. `None`: it was being copied to, and no writer has it open now.
    Behind(Option<Reason>),
    /// It is of another pool, another member or none, or it holds what was never acknowledged.
    Foreign(Reason),
    /// It is a copy of a member's file.
    Copy {
        /// Index of the member.
        index: u16,
        /// Where the member is.
        home: Arc<P>,
    },
    /// It is an asynchronous member.
    Asynchronous,
    /// It is a witness.
    Witness,
    /// It did not answer.
    Lost(Cause<F>),
    /// A spare: no member lies there.
    Spare,
    /// It was not asked: its address is not known, or may not be followed.
    Unnamed,
}

/// Why a look at a pool found nothing to tell.
#[derive(Debug)]
pub enum Unsurveyed<P, F> {
    /// No replica was found.
    NoneAnswered(Vec<(Arc<P>, Cause<F>)>),
    /// Two addresses lead to one replica.
    SameReplica {
        /// The second.
        place: Arc<P>,
        /// The first.
        other: Arc<P>,
        /// Its index.
        index: u16,
    },
}

impl<P: Place + 'static, F: Failure + 'static> Survey<P, F> {
    /// Asks the replicas at `named`, and the members that these name. Silent ones are not awaited once half of the named ones have answered and 600 ms have passed, unless
    /// too few answer to say more.
    pub fn quick(named: Vec<Arc<P>>, rules: impl Rules + 'static) -> Self {
        Self::new(move |exchange| async move {
            let mut attempts = 1..=READ_ATTEMPTS;
            loop {
                let mut surveyed = survey(&exchange, &rules, named.clone(), false).await?;
                // The silent ones may be what is missing.
                if surveyed.losses_survived.is_none() && surveyed.has_silent() {
                    surveyed = survey(&exchange, &rules, named.clone(), true).await?;
                }
                // A writer that changes the epoch just now has told some members and not yet the others.
                if surveyed.losses_survived.is_some() || surveyed.writer.is_none() || attempts.next().is_none() {
                    return Ok(surveyed);
                }
                exchange.sleep(READ_PAUSE).await;
            }
        })
    }

    /// The same once, and all are awaited: for a caller that acts on what it finds.
    pub fn patient(named: Vec<Arc<P>>, rules: impl Rules + 'static) -> Self {
        Self::new(move |exchange| async move { survey(&exchange, &rules, named, true).await })
    }
}

/// Looks at a pool among other questions.
pub(crate) async fn survey<P: Place, F: Failure, R: Rules>(
    exchange: &Exchange<P, F>,
    rules: &R,
    named: Vec<Arc<P>>,
    is_patient: bool,
) -> Result<Surveyed<P, F>, Unsurveyed<P, F>> {
    exchange.timed_apart(ask::Run::new(exchange, rules, is_patient).survey(named)).await
}

impl<P, F: Failure> Surveyed<P, F> {
    fn has_silent(&self) -> bool {
        self.members.iter().any(|member| matches!(&member.state, State::Lost(cause) if cause.is_silence()))
    }

    /// A member that is missing, where too few are here to open the pool.
    pub(crate) fn missing(self) -> Option<(Arc<P>, Cause<F>)> {
        let lost = |member: SurveyedMember<P, F>| match (member.state, member.place) {
            (State::Lost(cause), Some(place)) => Some((place, cause)),
            _ => None,
        };
        if self.losses_survived.is_some() { None } else { self.members.into_iter().find_map(lost) }
    }
}
