//! Which members a pool has and in which states they are, found out without opening it for writing.

use std::sync::Arc;

use pmof_control::{ConsistencyPoint, Forced, PoolInfo, WriterStatus};
use pmof_replication::{
    opening::ShippedRules,
    survey::{State, Survey, Surveyed, SurveyedMember, Unsurveyed},
};
use uuid::Uuid;

use super::{asking::ask, followers::Reading, opened::place};
use crate::{PoolError, PoolUrl, ReplicaError, ReplicaPlace, TargetUrl, error::told, follower::seen, reach::Reach};

/// The state of a member, as the members that answer tell it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum MemberState {
    /// It has all that was acknowledged.
    InSync,
    /// It is behind, and a writer has it open and copies to it what it lacks. How much that is only the writer knows: [`Pool::status`](crate::Pool::status).
    Syncing,
    /// It lacks what was acknowledged, and catches up once a writer reaches it.
    Behind(Arc<ReplicaError>),
    /// It is another pool or another member, or it holds what the others never acknowledged.
    Foreign(Arc<ReplicaError>),
    /// It is an asynchronous member, which counts for nothing.
    Asynchronous {
        /// The consistency point that it is at; of a new one there is none.
        point: Option<Box<ConsistencyPoint>>,
        /// How far its writer was when it heard of it last.
        heard: Option<Box<ConsistencyPoint>>,
        /// The point that it will be at when it is opened next, by a writer, a [promotion](crate::PoolOptions::promote) or a [rollback](crate::PoolOptions::roll_back): what leads there was being
        /// applied. It is so for moments while a writer has the pool; else that was interrupted.
        staged: Option<Box<ConsistencyPoint>>,
        /// It was not found, or not looked for where the error is `None` and so is the point.
        lost: Option<Arc<ReplicaError>>,
    },
    /// It is a witness: it keeps the pool's epochs and none of its bytes.
    Witness,
    /// It was not found.
    Lost(Arc<ReplicaError>),
    /// It is a spare: an address where a member is made in the place of one that is lost for long. Nothing lies there before.
    Spare,
    /// It was not looked for: its address is not known, or would start a program or open a file here.
    Unnamed,
}

/// One member of a pool.
#[derive(Clone, Debug)]
pub struct MemberStatus {
    /// Which replica of the pool it is, where that is known.
    pub index: Option<u16>,
    /// Where it lies, or was found last. `None`: nobody knows.
    pub replica: Option<Arc<ReplicaPlace>>,
    /// Whether it keeps the pool's epochs and none of its bytes, also where it was not found.
    pub is_witness: bool,
    /// Its failure domain, as its target names it; empty where that is not known.
    pub domain: String,
    /// Its state.
    pub state: MemberState,
    /// What its target says of it, where it answers.
    pub info: Option<Box<PoolInfo>>,
}

/// What [`PoolOptions::members`](crate::PoolOptions::members) finds.
#[derive(Clone, Debug)]
pub struct PoolMembers {
    /// The pool.
    pub pool_uuid: Uuid,
    /// Bytes of user data.
    pub size_bytes: u64,
    /// Members that the pool has and that have its data: the replicas that it was made with, unless they were [changed](crate::Pool::add).
    pub made_count: usize,
    /// Members that keep its epochs and none of its bytes.
    pub witness_count: usize,
    /// Members that must know of an epoch before anything depends on it.
    pub quorum: usize,
    /// Openings for writing and changes of members so far.
    pub opening: u64,
    /// The epoch in force.
    pub epoch: Uuid,
    /// The highest mark: raised about once a second while the pool is written.
    pub mark: u64,
    /// The last opening for writing with fewer members than are safe ([`min_replicas`](crate::PoolOptions::min_replicas), or `--force` of a command), until an operator
    /// [knows of it](crate::Pool::clear_forced).
    pub forced: Option<Forced>,
    /// Who has it open for writing.
    pub writer: Option<String>,
    /// Whether all members in sync were closed in order.
    pub is_closed: bool,
    /// How many members, whichever, may be lost now so that the pool still opens for writing with all that was acknowledged. `None`: too few are here for that now. To
    /// read it fewer may be enough, where the number of members is even.
    pub losses_survived: Option<usize>,
    /// Those that were named, in their order, then those that were found by them.
    pub members: Vec<MemberStatus>,
    /// How its writer saw the members a second or so ago, where it has it open over a target that answers.
    pub writer_status: Option<WriterStatus>,
}

impl PoolMembers {
    /// Members that have all that was acknowledged.
    pub fn in_sync_count(&self) -> usize {
        self.members.iter().filter(|member| matches!(member.state, MemberState::InSync)).count()
    }
}

/// The outcome of a look at a pool.
type Answer = Result<Surveyed<PoolUrl, ReplicaError>, Unsurveyed<PoolUrl, ReplicaError>>;

/// Looks at the pool of the replicas that are named, and waits for all of them: the caller acts on what it finds.
pub(super) fn survey(reach: &Reach, named: &[Arc<PoolUrl>]) -> Result<PoolMembers, PoolError> {
    members_of(ask(reach, named.to_vec(), |named| Survey::patient(named, ShippedRules)))
}

/// The same for a caller that only reports it.
pub(super) fn look(reach: &Reach, named: &[Arc<PoolUrl>]) -> Result<PoolMembers, PoolError> {
    let mut found = members_of(ask(reach, named.to_vec(), |named| Survey::quick(named, ShippedRules)))?;
    for member in &mut found.members {
        if let (MemberState::Asynchronous { .. }, Some(place)) = (&member.state, &member.replica) {
            if let Some(url) = place.url().filter(|url| may_be_asked(url, named)) {
                member.state = look_at(reach, url);
            }
        }
    }
    Ok(found)
}

/// Whether a roster's word is enough to ask there.
pub(super) fn may_be_asked(url: &PoolUrl, named: &[Arc<PoolUrl>]) -> bool {
    matches!(url.target, TargetUrl::Address(_)) || named.iter().any(|named| **named == *url)
}

/// What the staging area of an asynchronous member says.
fn look_at(reach: &Reach, url: &PoolUrl) -> MemberState {
    match Reading::without_points(reach, url).and_then(|reading| seen(&reading)) {
        Ok(seen) => {
            let [point, heard, staged] =
                [seen.applied_point(), seen.heard(), seen.staged_point()].map(|point| point.cloned().map(Box::new));
            MemberState::Asynchronous { point, heard, staged, lost: None }
        }
        Err(why) => MemberState::Asynchronous { point: None, heard: None, staged: None, lost: Some(why) },
    }
}

fn members_of(answer: Answer) -> Result<PoolMembers, PoolError> {
    let surveyed = answer.map_err(|refusal| match refusal {
        Unsurveyed::NoneAnswered(lost) => {
            let replicas = lost.into_iter().map(|(url, cause)| (place(&url), told(cause))).collect();
            PoolError::NoneOpened { replicas }
        }
        Unsurveyed::SameReplica { place: url, other, index } => {
            PoolError::SameReplica { replica: place(&url), other: place(&other), index }
        }
    })?;
    Ok(PoolMembers {
        pool_uuid: surveyed.pool_uuid,
        size_bytes: surveyed.size_bytes,
        made_count: surveyed.made_count,
        witness_count: surveyed.witness_count,
        quorum: surveyed.quorum,
        opening: surveyed.opening,
        epoch: surveyed.epoch,
        mark: surveyed.mark,
        forced: surveyed.roster.forced,
        writer: surveyed.writer,
        is_closed: surveyed.is_closed,
        losses_survived: surveyed.losses_survived,
        members: surveyed.members.into_iter().map(member).collect(),
        writer_status: surveyed.writer_status,
    })
}

fn member(surveyed: SurveyedMember<PoolUrl, ReplicaError>) -> MemberStatus {
    let SurveyedMember { index, place: url, is_witness, domain, state, info } = surveyed;
    let state = match state {
        State::InSync => MemberState::InSync,
        State::Syncing => MemberState::Syncing,
        State::Behind(why) => MemberState::Behind(Arc::new(why.map_or(ReplicaError::Behind, ReplicaError::from))),
        State::Foreign(why) => MemberState::Foreign(Arc::new(why.into())),
        State::Copy { index, home } => {
            MemberState::Foreign(Arc::new(ReplicaError::ACopy { index, home: place(&home) }))
        }
        State::Asynchronous => MemberState::Asynchronous { point: None, heard: None, staged: None, lost: None },
        State::Witness => MemberState::Witness,
        State::Lost(cause) => MemberState::Lost(told(cause)),
        State::Spare => MemberState::Spare,
        State::Unnamed => MemberState::Unnamed,
    };
    MemberStatus { index, replica: url.map(|url| place(&url)), is_witness, domain, state, info }
}
