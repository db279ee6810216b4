//! Which members a pool has and in which states they are, found out without opening it for writing.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use pmof_control::{ConsistencyPoint, FailureDomain, Forced, PoolInfo, Reply, Request, Role, Roster, WriterStatus};
use pmof_replication::opening::one_twice;
use uuid::Uuid;

use super::{
    followers::Reading,
    opened::place,
    promoted::promoted,
    rosters::{Told, hear_with_domain},
};
use crate::{
    PoolError, PoolUrl, ReplicaError, ReplicaPlace, TargetUrl,
    electorate::{Electorate, Word},
    follower::seen,
    lineage::{Agreement, Apart, Found, agree, quorum, votes_needed},
    peers::Peers,
    reach::{Reach, grace},
    roster::{FoundMember, elsewhere, lacks, newest, spares_elsewhere},
    together::{Tempo, together},
};

mod copies;
#[cfg(test)]
mod tests;

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

/// What one address has.
struct Answer {
    url: Arc<PoolUrl>,
    /// The member that was looked for there.
    wanted: Option<FoundMember>,
    /// Where a roster has a spare: it counts only if that has become a member.
    may_be_none: bool,
    /// Where the member lies of whose file this is a copy.
    copy_of: Option<Arc<PoolUrl>>,
    info: Result<Box<PoolInfo>, Arc<ReplicaError>>,
    roster: Option<Roster>,
    domain: Option<FailureDomain>,
}

/// A look at a pool takes so long rather than call a member silent that is only slow.
const LOOK_TIME: Duration = Duration::from_millis(600);

/// Asks those that are named, and the members that they name. `is_patient`: all are waited for, because the caller acts on what it finds.
pub(super) fn survey(reach: &Reach, named: &[Arc<PoolUrl>], is_patient: bool) -> Result<PoolMembers, PoolError> {
    let began = Instant::now();
    let mut tempo = Tempo::new(Duration::ZERO);
    let enough = |answers: usize| if is_patient { usize::MAX } else { answers };
    let peers = reach.peers();
    let mut answers = ask_all(
        reach,
        &peers,
        named.iter().map(|url| (Arc::clone(url), None)),
        (enough(named.len().div_ceil(2)), began, &mut tempo),
    );
    if let Some(roster) = roster(&answers).cloned() {
        copies::find(reach, &peers, &roster, &mut answers);
    }
    let mut followed: Option<Roster> = None;
    // Those that are found may know of later members.
    while let Some(roster) = roster(&answers).cloned() {
        if followed.as_ref().is_some_and(|followed| roster.age() <= followed.age()) {
            break;
        }
        let others = elsewhere(&roster, &found(&answers), &asked(&answers));
        let others = others.into_iter().map(|other| (Arc::clone(&other.url), Some(other)));
        answers.extend(ask_all(reach, &peers, others, (enough(0), began, &mut tempo)));
        if lacks(&roster, &found(&answers)) {
            let spares = spares_elsewhere(&roster, &asked(&answers));
            let asked =
                ask_all(reach, &peers, spares.into_iter().map(|url| (url, None)), (enough(0), began, &mut tempo));
            answers.extend(asked.into_iter().map(|asked| Answer { may_be_none: true, ..asked }));
        }
        if let Some(uuid) = first(&answers).map(|first| first.header.pool_uuid) {
            let promoted = promoted(reach, &roster, uuid, &asked(&answers));
            answers.extend(promoted.iter().map(|promoted| ask(reach, &peers, &promoted.url)));
        }
        followed = Some(roster);
    }
    let is_member = |roster: &Roster, found: &FoundMember| {
        let mut members = roster.members.iter().filter(|member| member.role != Role::Spare);
        members.any(|member| member.is(found.index, found.replica_uuid))
    };
    answers.retain(|answer| {
        let found = answer.found().zip(followed.as_ref());
        !answer.may_be_none || found.is_some_and(|(found, roster)| is_member(roster, &found))
    });
    let mut members = judge(answers)?;
    if members.writer.is_some() {
        members.writer_status = writer_status(reach, &peers, &members);
    }
    for member in &mut members.members {
        if let (MemberState::Asynchronous { .. }, Some(place)) = (&member.state, &member.replica) {
            if let Some(url) = place.url().filter(|url| may_be_asked(url, named)) {
                member.state = look_at(reach, url);
            }
        }
    }
    Ok(members)
}

fn found(answers: &[Answer]) -> Vec<FoundMember> {
    answers.iter().filter_map(Answer::found).collect()
}

fn asked(answers: &[Answer]) -> Vec<Arc<PoolUrl>> {
    answers.iter().map(|answer| Arc::clone(&answer.url)).collect()
}

/// What the pool's writer told the first of its members that was told anything.
fn writer_status(reach: &Reach, peers: &Peers, members: &PoolMembers) -> Option<WriterStatus> {
    let open = members.members.iter().filter(|member| member.info.as_ref().is_some_and(|info| info.open_by.is_some()));
    open.filter_map(|member| member.replica.as_ref()?.url()).find_map(|url| {
        let site = reach.site(peers, url).ok()?;
        match site.ask_when_free(&Request::WriterStatus { name: url.name.clone() }).ok()? {
            Reply::WriterStatus(status) => status,
            _ => None,
        }
    })
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

/// The roster that counts, of those that the members of the first pool keep.
fn roster(answers: &[Answer]) -> Option<&Roster> {
    let first = first(answers)?;
    let members = answers.iter().filter(|answer| answer.why_foreign(first).is_none());
    newest(members.filter_map(|answer| answer.roster.as_ref()))
}

/// What says which pool it is.
fn first(answers: &[Answer]) -> Option<&PoolInfo> {
    answers.iter().find_map(|answer| answer.info.as_deref().ok())
}

/// Asks all at once, and does not wait for silent ones once `enough` have answered.
fn ask_all(
    reach: &Reach,
    peers: &Peers,
    places: impl Iterator<Item = (Arc<PoolUrl>, Option<FoundMember>)>,
    (enough, began, tempo): (usize, Instant, &mut Tempo),
) -> Vec<Answer> {
    let (urls, wanted): (Vec<_>, Vec<_>) = places.unzip();
    let (reach, peers) = (reach.clone(), peers.clone());
    tempo.set_grace(grace(&urls).max(LOOK_TIME.saturating_sub(began.elapsed())));
    let answers = together(urls.clone(), (enough, tempo), move |url: Arc<PoolUrl>, given_up| {
        asked_there(&reach.until(given_up), &peers, &url)
    });
    urls.iter().zip(wanted).zip(answers).map(|((url, wanted), asked)| Answer::of(url, wanted, asked)).collect()
}

fn ask(reach: &Reach, peers: &Peers, url: &Arc<PoolUrl>) -> Answer {
    Answer::of(url, None, asked_there(reach, peers, url))
}

fn asked_there(reach: &Reach, peers: &Peers, url: &Arc<PoolUrl>) -> Result<Told, ReplicaError> {
    let site = reach.site(peers, url)?;
    hear_with_domain(&site, url)
}

/// A replica and a copy of it are one replica. `replicas`: the answers of such, and their indexes.
fn check_distinct(answers: &[Answer], replicas: impl Iterator<Item = (usize, u16)>) -> Result<(), PoolError> {
    let Some((at, other, index)) = one_twice(replicas) else { return Ok(()) };
    let [replica, other] = [at, other].map(|at| answers[at].place());
    Err(PoolError::SameReplica { replica, other, index })
}

impl Answer {
    fn of(url: &Arc<PoolUrl>, wanted: Option<FoundMember>, asked: Result<Told, ReplicaError>) -> Self {
        let (info, roster, domain) = match asked {
            Ok((info, roster, domain)) => (Ok(info), roster, domain),
            Err(error) => (Err(Arc::new(error)), None, None),
        };
        Self { url: Arc::clone(url), wanted, may_be_none: false, copy_of: None, info, roster, domain }
    }

    fn found(&self) -> Option<FoundMember> {
        let header = &self.info.as_ref().ok()?.header;
        let (index, replica_uuid) = (header.replica_index, header.replica_uuid);
        Some(FoundMember { index, replica_uuid, url: Arc::clone(&self.url) })
    }

    fn place(&self) -> Arc<ReplicaPlace> {
        place(&self.url)
    }

    /// Whether it is of the pool that the `answers` are looked at for.
    fn is_of(&self, answers: &[Self]) -> bool {
        first(answers).is_some_and(|first| self.why_foreign(first).is_none())
    }

    /// Why what answered is no member of the pool that `first` is of.
    fn why_foreign(&self, first: &PoolInfo) -> Option<ReplicaError> {
        let (header, first) = (&self.info.as_ref().ok()?.header, &first.header);
        if header.pool_uuid != first.pool_uuid {
            return Some(ReplicaError::Mismatch {
                uuid: first.pool_uuid,
                found_uuid: header.pool_uuid,
                size_bytes: first.size_bytes,
                found_bytes: header.size_bytes,
            });
        }
        let found = header.replica_index;
        if let Some(home) = &self.copy_of {
            return Some(ReplicaError::ACopy { index: found, home: place(home) });
        }
        let wanted = self.wanted.as_ref()?;
        let is_member =
            wanted.index == found && (wanted.replica_uuid.is_nil() || wanted.replica_uuid == header.replica_uuid);
        (!is_member).then_some(ReplicaError::NotTheMember { index: wanted.index, found })
    }
}

/// What the answers mean together.
fn judge(answers: Vec<Answer>) -> Result<PoolMembers, PoolError> {
    let Some(first) = first(&answers).cloned() else {
        let lost = |answer: Answer| answer.info.as_ref().err().map(|why| (answer.place(), Arc::clone(why)));
        return Err(PoolError::NoneOpened { replicas: answers.into_iter().filter_map(lost).collect() });
    };
    let mut foreign: Vec<_> = answers.iter().map(|answer| answer.why_foreign(&first).map(Arc::new)).collect();
    let electorate = electorate(&answers, &foreign, first.header.replica_count);
    let has = |info: &PoolInfo| electorate.has(info.header.replica_index, info.header.replica_uuid);
    let of_pool = answers.iter().zip(&foreign).filter(|(_, why)| why.is_none());
    let of_members: Vec<_> = of_pool
        .filter_map(|(answer, _)| answer.info.as_ref().ok())
        .filter(|info| has(info))
        .map(|info| &info.state)
        .collect();
    for (answer, why) in answers.iter().zip(&mut foreign) {
        let header = answer.info.as_ref().ok().map(|info| &info.header);
        let asynchronous =
            header.filter(|header| electorate.is_asynchronous(header.replica_index, header.replica_uuid));
        if let (Some(header), None) = (asynchronous, &why) {
            *why = Some(Arc::new(ReplicaError::Asynchronous { index: header.replica_index }));
        }
        let removed = answer.info.as_ref().ok().filter(|info| !has(info));
        if let (Some(info), None) = (removed, &why) {
            let index = info.header.replica_index;
            *why = Some(Arc::new(ReplicaError::of_no_member(index, &info.state, of_members.iter().copied())));
        }
    }
    let belongs = |position: &usize| foreign[*position].is_none() && answers[*position].info.is_ok();
    let positions: Vec<_> = (0..answers.len()).filter(belongs).collect();
    let infos: Vec<_> = positions.iter().filter_map(|at| answers[*at].info.as_ref().ok()).collect();
    let indexes = infos.iter().map(|info| info.header.replica_index);
    check_distinct(&answers, positions.iter().copied().zip(indexes))?;
    let found: Vec<_> =
        infos.iter().map(|info| Found { index: info.header.replica_index, state: &info.state }).collect();
    let made = electorate.count();
    let (agreement, apart) = match agree(&found, made) {
        Ok(mut agreement) => {
            agreement.put_stale_behind(&found);
            let apart = [&agreement.behind[..], &agreement.foreign].concat();
            (Some(agreement), apart)
        }
        Err(apart) => (None, apart),
    };
    let state = |at: usize| -> MemberState {
        if let Err(why) = &answers[at].info {
            return MemberState::Lost(Arc::clone(why));
        }
        if let Some(why) = &foreign[at] {
            if matches!(**why, ReplicaError::Asynchronous { .. }) {
                return MemberState::Asynchronous { point: None, heard: None, staged: None, lost: None };
            }
            return MemberState::Foreign(Arc::clone(why));
        }
        let of = positions.iter().position(|position| *position == at);
        let header = answers[at].info.as_ref().ok().map(|info| &info.header);
        if header.is_some_and(|header| electorate.is_witness(header.replica_index, header.replica_uuid)) {
            return MemberState::Witness;
        }
        match apart.iter().find(|(position, _)| Some(*position) == of) {
            None => MemberState::InSync,
            Some((position, Apart::CatchingUp { .. })) if agreement.is_some() && infos[*position].open_by.is_none() => {
                MemberState::Behind(Arc::new(ReplicaError::Behind))
            }
            Some((position, apart)) => state_of(*apart, infos[*position], made),
        }
    };
    let states: Vec<_> = (0..answers.len()).map(state).collect();
    let losses_survived = agreement.as_ref().and_then(|agreement| losses_survived(agreement, &found, &electorate));
    let newest_state = found.iter().map(|found| found.state).max_by_key(|state| state.opening);
    let (opening, epoch, mark) = match (&agreement, newest_state) {
        (Some(Agreement { base, mark, .. }), _) => {
            (base.opening, base.ancestors.first().map_or(Uuid::nil(), |epoch| epoch.id), *mark)
        }
        (None, Some(state)) => (state.opening, state.epoch.id, state.mark),
        (None, None) => (0, Uuid::nil(), 0),
    };
    let (writer, is_closed) = (
        infos.iter().find_map(|info| info.open_by.clone()),
        agreement.as_ref().is_some_and(|agreement| agreement.is_clean),
    );
    let (pool_uuid, size_bytes) = (first.header.pool_uuid, size_bytes(infos.iter().map(|info| &***info), &electorate));
    let (made_count, quorum) = (electorate.data_count(), quorum(made.into()));
    let witness_count = usize::from(made) - made_count;
    let members = members(answers, states, &electorate.roster);
    Ok(PoolMembers {
        pool_uuid,
        size_bytes,
        made_count,
        witness_count,
        quorum,
        opening,
        epoch,
        mark,
        forced: electorate.roster.forced,
        writer,
        is_closed,
        losses_survived,
        members,
        writer_status: None,
    })
}

/// The members of the pool, as those say that are of it.
fn electorate(answers: &[Answer], foreign: &[Option<Arc<ReplicaError>>], made: u16) -> Electorate {
    let words = answers.iter().zip(foreign).filter_map(|(answer, why)| {
        let info = answer.info.as_ref().ok().filter(|_| why.is_none())?;
        let found = Found { index: info.header.replica_index, state: &info.state };
        Some(Word { found, replica_uuid: info.header.replica_uuid, roster: answer.roster.as_ref() })
    });
    Electorate::of(&words.collect::<Vec<_>>(), made)
}

/// Those that were asked, and those that nobody could ask.
fn members(answers: Vec<Answer>, states: Vec<MemberState>, roster: &Roster) -> Vec<MemberStatus> {
    let is_witness = |index: u16| roster.member(index).is_some_and(|member| member.role == Role::Witness);
    let mut members: Vec<_> = answers
        .into_iter()
        .zip(states)
        .map(|(answer, state)| {
            let replica = Some(answer.place());
            let url = answer.url.to_string();
            let by_url = || roster.members.iter().find(|member| member.url == url).map(|member| member.index);
            let domain = answer.domain.as_ref().map_or_else(String::new, |domain| domain.name.to_string());
            let info = answer.info.ok();
            let index = match &state {
                // Where it is that of no member, nothing is to be done about one.
                MemberState::Foreign(why) if why.is_of_no_member() || matches!(**why, ReplicaError::ACopy { .. }) => {
                    None
                }
                MemberState::Foreign(_) => answer.wanted.map(|wanted| wanted.index),
                _ => info.as_ref().map(|info| info.header.replica_index).or_else(by_url),
            };
            let is_witness = index.is_some_and(is_witness);
            MemberStatus { index, replica, is_witness, domain, state, info }
        })
        .collect();
    for member in &roster.members {
        if members.iter().all(|status| status.index != Some(member.index)) {
            let replica = member.url.parse().ok().map(|url| Arc::new(ReplicaPlace::Pool(url)));
            let state = match member.role {
                Role::Data | Role::Witness => MemberState::Unnamed,
                Role::Asynchronous => MemberState::Asynchronous { point: None, heard: None, staged: None, lost: None },
                Role::Spare => MemberState::Spare,
            };
            let (index, domain, is_witness) = (Some(member.index), member.domain.clone(), member.role == Role::Witness);
            members.push(MemberStatus { index, replica, is_witness, domain, state, info: None });
        }
    }
    members
}

/// Bytes of user data: of a member that has them, if one answers.
fn size_bytes<'i>(mut infos: impl Iterator<Item = &'i PoolInfo>, electorate: &Electorate) -> u64 {
    let has_data = |info: &&PoolInfo| !electorate.is_witness(info.header.replica_index, info.header.replica_uuid);
    infos.find(has_data).map_or(0, |info| info.header.size_bytes)
}

fn state_of(apart: Apart, info: &PoolInfo, made: u16) -> MemberState {
    let why = || Arc::new(ReplicaError::of(apart, made));
    match apart {
        Apart::CatchingUp { .. } if info.open_by.is_some() => MemberState::Syncing,
        apart if apart.may_catch_up() => MemberState::Behind(why()),
        _ => MemberState::Foreign(why()),
    }
}

/// How many may be lost, whichever: one in sync is left then, as many votes as an opening needs, and as many members as have to know of its epoch.
fn losses_survived(agreement: &Agreement, found: &[Found<'_>], electorate: &Electorate) -> Option<usize> {
    if !electorate.is_enough(agreement, found) {
        return None;
    }
    let is_member = |position: &&usize| !electorate.is_leaving(found[**position].index);
    let in_sync = agreement.in_sync.iter().filter(is_member).count();
    let behind = agreement.behind.iter().filter(|(_, apart)| apart.votes()).map(|(position, _)| position);
    let votes = in_sync + behind.filter(is_member).count();
    let (count, connected) = (usize::from(electorate.count()), in_sync + agreement.behind.len());
    let spare_votes = votes.saturating_sub(votes_needed(count));
    let spare_members = connected.checked_sub(quorum(count))?;
    Some(spare_votes.min(spare_members).min(in_sync.saturating_sub(1)))
}
