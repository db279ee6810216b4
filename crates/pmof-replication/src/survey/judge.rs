//! What the answers mean together.

use alloc::{
    string::{String, ToString},
    sync::Arc,
    vec::Vec,
};

use pmof_control::{PoolInfo, PoolName, Role, Roster};
use uuid::Uuid;

use super::{
    State, Surveyed, SurveyedMember, Unsurveyed,
    ask::{Answer, Foreign, first},
};
use crate::{
    asking::{Reason, SiteId},
    electorate::{Electorate, Word},
    lineage::{Agreement, Apart, Found, Outsider, line, quorum, votes_needed},
    opening::{Rules, one_twice},
    place::Place,
};

/// What was found, and the connections to replicas of the pool that a writer has open.
type Judged<P, F> = (Surveyed<P, F>, Vec<(SiteId, PoolName)>);

pub(super) fn judge<P: Place, F>(
    answers: Vec<Answer<P, F>>,
    rules: &impl Rules,
) -> Result<Judged<P, F>, Unsurveyed<P, F>> {
    let Some(first) = first(&answers) else {
        let lost = |answer: Answer<P, F>| answer.told.err().map(|why| (answer.place, why));
        return Err(Unsurveyed::NoneAnswered(answers.into_iter().filter_map(lost).collect()));
    };
    let (pool_uuid, made) = (first.header.pool_uuid, first.header.replica_count);
    let foreign: Vec<_> = answers.iter().map(|answer| answer.why_foreign(first)).collect();
    let electorate = electorate(&answers, &foreign, rules, made);
    let foreign = with_outsiders(&answers, &foreign, &electorate);
    let belonging = answers.iter().zip(&foreign).filter(|(_, why)| why.is_none()).map(|(answer, _)| answer);
    let of_pool: Vec<(&Answer<P, F>, &PoolInfo)> =
        belonging.filter_map(|answer| Some((answer, answer.info()?))).collect();
    let indexes = of_pool.iter().map(|(_, info)| info.header.replica_index).enumerate();
    if let Some((at, other, index)) = one_twice(indexes) {
        let [place, other] = [at, other].map(|at| Arc::clone(&of_pool[at].0.place));
        return Err(Unsurveyed::SameReplica { place, other, index });
    }
    let infos: Vec<_> = of_pool.iter().map(|(_, info)| *info).collect();
    let found = infos.iter().map(|info| Found { index: info.header.replica_index, state: &info.state });
    let found: Vec<_> = found.collect();
    let standing = Standing::of(&found, &electorate, rules);
    let is_witness = |info: &&&PoolInfo| electorate.is_witness(info.header.replica_index, info.header.replica_uuid);
    let size_bytes = infos.iter().find(|info| !is_witness(info)).map_or(0, |info| info.header.size_bytes);
    let writer = infos.iter().find_map(|info| info.open_by.clone());
    let is_open = |(_, info): &&(&Answer<P, F>, &PoolInfo)| info.open_by.is_some();
    let open =
        of_pool.iter().filter(is_open).filter_map(|(answer, info)| Some((answer.site()?, info.name.clone()))).collect();
    let mut standings = infos.iter().zip(&standing.apart);
    let states = answers.iter().zip(&foreign).map(|(answer, why)| match (&answer.told, why) {
        (Err(why), _) => State::Lost(why.clone()),
        (_, Some(Foreign::Reason(Reason::Asynchronous { .. }))) => State::Asynchronous,
        (_, Some(Foreign::Reason(why))) => State::Foreign(why.clone()),
        (_, Some(Foreign::Copy { index, home })) => State::Copy { index: *index, home: Arc::clone(home) },
        (Ok(_), None) => {
            let (info, apart) = standings.next().expect("a replica of the pool has its standing");
            if is_witness(&info) { State::Witness } else { standing.state(*apart, info, electorate.count()) }
        }
    });
    let states: Vec<_> = states.collect();
    let (made_count, count) = (electorate.data_count(), usize::from(electorate.count()));
    let Standing { opening, epoch, mark, is_closed, losses_survived, .. } = standing;
    let surveyed = Surveyed {
        pool_uuid,
        size_bytes,
        made_count,
        witness_count: count - made_count,
        quorum: quorum(count),
        opening,
        epoch,
        mark,
        writer,
        writer_status: None,
        is_closed,
        losses_survived,
        members: members(answers, states, &electorate.roster),
        roster: electorate.roster,
    };
    Ok((surveyed, open))
}

/// The members of the pool, as the replicas say that are of it.
fn electorate<P: Place, F>(
    answers: &[Answer<P, F>],
    foreign: &[Option<Foreign<P>>],
    rules: &impl Rules,
    made: u16,
) -> Electorate {
    let words = answers.iter().zip(foreign).filter_map(|(answer, why)| {
        let info = answer.info().filter(|_| why.is_none())?;
        let found = Found { index: info.header.replica_index, state: &info.state };
        Some(Word { found, replica_uuid: info.header.replica_uuid, roster: answer.roster() })
    });
    rules.electorate(&words.collect::<Vec<_>>(), made, None)
}

/// The same reasons, and those of replicas that are of the pool and no members that count.
fn with_outsiders<P: Place, F>(
    answers: &[Answer<P, F>],
    foreign: &[Option<Foreign<P>>],
    electorate: &Electorate,
) -> Vec<Option<Foreign<P>>> {
    let has = |info: &PoolInfo| electorate.has(info.header.replica_index, info.header.replica_uuid);
    let of_pool = answers.iter().zip(foreign).filter(|(_, why)| why.is_none());
    let of_members: Vec<_> =
        of_pool.filter_map(|(answer, _)| answer.info()).filter(|info| has(info)).map(|info| &info.state).collect();
    let lines: Vec<_> = of_members.iter().map(|state| line(state)).collect();
    let others = of_members.iter().map(|state| state.opening).max().unwrap_or(0);
    let why = |info: &PoolInfo| {
        let index = info.header.replica_index;
        if electorate.is_asynchronous(index, info.header.replica_uuid) {
            return Some(Foreign::Reason(Reason::Asynchronous { index }));
        }
        let outsider = Outsider::of(index, &info.state, &lines);
        let why = Reason::Outside { outsider, index, opening: info.state.opening, others };
        (!has(info)).then_some(Foreign::Reason(why))
    };
    let outsiders = answers.iter().zip(foreign).map(|(answer, known)| match known {
        None => answer.info().and_then(why),
        known => known.clone(),
    });
    outsiders.collect()
}

/// How the replicas of the pool that answer belong together.
struct Standing {
    /// Of each, why it is not in sync.
    apart: Vec<Option<Apart>>,
    is_agreed: bool,
    opening: u64,
    epoch: Uuid,
    mark: u64,
    is_closed: bool,
    losses_survived: Option<usize>,
}

impl Standing {
    fn of(found: &[Found<'_>], electorate: &Electorate, rules: &impl Rules) -> Self {
        let of = |apart: &[(usize, Apart)]| {
            let why = |at: usize| apart.iter().find(|(position, _)| *position == at).map(|(_, apart)| *apart);
            (0..found.len()).map(why).collect()
        };
        let mut agreement = match rules.agree(found, electorate.count(), None) {
            Ok(agreement) => agreement,
            Err(apart) => {
                let newest = found.iter().map(|found| found.state).max_by_key(|state| state.opening);
                let (opening, epoch, mark) =
                    newest.map_or((0, Uuid::nil(), 0), |state| (state.opening, state.epoch.id, state.mark));
                let (apart, is_agreed, is_closed, losses_survived) = (of(&apart), false, false, None);
                return Self { apart, is_agreed, opening, epoch, mark, is_closed, losses_survived };
            }
        };
        agreement.put_stale_behind(found);
        let is_enough = rules.is_enough(electorate, &agreement, found, None);
        let Agreement { base, mark, is_clean: is_closed, .. } = &agreement;
        Self {
            apart: of(&[&agreement.behind[..], &agreement.foreign].concat()),
            is_agreed: true,
            opening: base.opening,
            epoch: base.ancestors.first().map_or(Uuid::nil(), |epoch| epoch.id),
            mark: *mark,
            is_closed: *is_closed,
            losses_survived: if is_enough { losses_survived(&agreement, found, electorate) } else { None },
        }
    }

    fn state<P, F>(&self, apart: Option<Apart>, info: &PoolInfo, made: u16) -> State<P, F> {
        match apart {
            None => State::InSync,
            Some(Apart::CatchingUp { .. }) if info.open_by.is_some() => State::Syncing,
            Some(Apart::CatchingUp { .. }) if self.is_agreed => State::Behind(None),
            Some(apart) if apart.may_catch_up() => State::Behind(Some(Reason::Apart { apart, made })),
            Some(apart) => State::Foreign(Reason::Apart { apart, made }),
        }
    }
}

/// How many members may be lost, whichever, of a pool that opens: one in sync is left then, as many votes as an opening needs, and as many members as have to know
/// of its epoch.
pub(super) fn losses_survived(agreement: &Agreement, found: &[Found<'_>], electorate: &Electorate) -> Option<usize> {
    let is_member = |position: &&usize| !electorate.is_leaving(found[**position].index);
    let in_sync = agreement.in_sync.iter().filter(is_member).count();
    let behind = agreement.behind.iter().filter(|(_, apart)| apart.votes()).map(|(position, _)| position);
    let votes = in_sync + behind.filter(is_member).count();
    let (count, connected) = (usize::from(electorate.count()), in_sync + agreement.behind.len());
    let spare_votes = votes.saturating_sub(votes_needed(count));
    let spare_members = connected.checked_sub(quorum(count))?;
    Some(spare_votes.min(spare_members).min(in_sync.saturating_sub(1)))
}

/// Members at addresses that were asked, and members of the roster that were not.
fn members<P: Place, F>(
    answers: Vec<Answer<P, F>>,
    states: Vec<State<P, F>>,
    roster: &Roster,
) -> Vec<SurveyedMember<P, F>> {
    let is_witness = |index: u16| roster.member(index).is_some_and(|member| member.role == Role::Witness);
    let member = |(answer, state): (Answer<P, F>, State<P, F>)| {
        let url = answer.place.to_string();
        let by_url = || roster.members.iter().find(|member| member.url == url).map(|member| member.index);
        let index = match &state {
            // Its index is that of no member, about which nothing is to be done.
            State::Foreign(Reason::Outside { .. }) | State::Copy { .. } => None,
            State::Foreign(_) => answer.wanted.as_ref().map(|wanted| wanted.index),
            _ => answer.info().map(|info| info.header.replica_index).or_else(by_url),
        };
        let is_witness = index.is_some_and(is_witness);
        let (info, domain) = answer.told.map_or((None, None), |(_, told)| (Some(told.info), told.domain));
        let domain = domain.map_or_else(String::new, |domain| domain.name.to_string());
        SurveyedMember { index, place: Some(answer.place), is_witness, domain, state, info }
    };
    let mut members: Vec<_> = answers.into_iter().zip(states).map(member).collect();
    for member in &roster.members {
        if members.iter().all(|known| known.index != Some(member.index)) {
            let state = match member.role {
                Role::Data | Role::Witness => State::Unnamed,
                Role::Asynchronous => State::Asynchronous,
                Role::Spare => State::Spare,
            };
            let (index, place, domain) =
                (Some(member.index), P::parse(&member.url).map(Arc::new), member.domain.clone());
            let is_witness = member.role == Role::Witness;
            members.push(SurveyedMember { index, place, is_witness, domain, state, info: None });
        }
    }
    members
}
