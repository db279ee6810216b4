//! Checks a set: reads every replica in full, by itself and in comparison with the first, and changes nothing.

use std::ops::Range;

use pmof_mem::{Declaration, causes};

use crate::{
    Apart, Attributes, Comparison, DIFFERENCES_MAX, Difference, Majority, OpenFor, PoolKind, PoolSet, RemoteReplicas,
    Step, SyncError, distinct,
    error::UNFINISHED,
    misfits,
    sync::{
        Found, Plan, check_kept, check_links, check_newer, check_order, check_replaceable, judge_headerless, look,
        of_files, plan, whole,
    },
    vote::{self, Opinions},
};

/// What was found in a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckReport {
    /// The kind of pool; `None` for signatures that PMDK has no library for, and if no replica tells it.
    pub kind: Option<PoolKind>,
    /// Bytes of each replica that were compared with the first sound one, or that were read if it is the only one.
    pub compared_bytes: u64,
    /// The replica that the others were compared with: the first sound one.
    pub compared_with: Option<usize>,
    /// Every replica, in the order of the set.
    pub replicas: Vec<CheckedReplica>,
    /// Replicas that agree with each other and differ from the first sound one, if they are a majority of the sound ones.
    pub majority: Option<Majority>,
    /// Replicas that differ and were not used together.
    pub apart: Option<Apart>,
    /// Why [`sync`](crate::sync) would refuse the set for a reason other than a majority or replicas that were used apart; `None` if it
    /// would not.
    pub sync_refusal: Option<String>,
}

/// What was found in one replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckedReplica {
    /// Why it was not checked, or not completely: for example, its host was not reached, or another program has it open. Nothing is known about
    /// its contents then.
    pub unchecked: Option<String>,
    /// What is wrong with it by itself, or with its links to the others, one sentence each.
    pub problems: Vec<String>,
    /// It was created and never written: all zeros. This is sound unless another replica holds data.
    pub is_empty: bool,
    /// Where it differs from the first sound replica: the first [`DIFFERENCES_MAX`] places.
    pub mismatches: Vec<Mismatch>,
    /// How many such places there are.
    pub mismatch_count: u64,
    /// Number of places that differ in space that is not in use, which means nothing.
    pub unused_count: u64,
    /// Bytes in such places that differ.
    pub unused_bytes: u64,
    /// Bytes that differ in the runtime state of a program, which replicas do not share.
    pub runtime_bytes: u64,
    /// How many headers of a local replica have a shutdown state with a wrong checksum: it was being written when its program died, or it is
    /// damaged. The next opening writes it anew; nothing of the contents depends on it.
    pub torn_shutdown_states: u64,
}

/// Bytes in which a replica differs from the first sound one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Offset in the pool of the first byte that differs.
    pub offset: u64,
    /// Bytes up to the last one that differs.
    pub len_bytes: u64,
    /// The part of the replica, from 0, and the offset in it; `None` where that is not known.
    pub part: Option<(usize, u64)>,
}

/// What a check knows of one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaState {
    /// It is sound, and the others were compared with it.
    Sound,
    /// It is sound, and equal to the first sound one.
    Equal,
    /// It was created and never written.
    Empty,
    /// It differs from the sound one.
    Differs,
    /// Something is wrong with it by itself, or with its place among the others.
    Unsound,
    /// It was not checked, or not completely.
    Unchecked,
}

impl CheckReport {
    /// Whether all replicas were checked, and nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.is_sound_so_far() && self.unchecked().next().is_none()
    }

    /// Whether nothing is wrong with those that were checked.
    pub fn is_sound_so_far(&self) -> bool {
        let is_sound = |replica: &CheckedReplica| replica.problems.is_empty() && replica.mismatch_count == 0;
        self.replicas.iter().all(is_sound) && (!self.holds_something() || !self.has_empty())
    }

    /// Whether the replica that the others were compared with holds anything.
    pub fn holds_something(&self) -> bool {
        self.compared_with.is_some_and(|first| !self.replicas[first].is_empty)
    }

    /// Whether a replica was created and never written.
    pub fn has_empty(&self) -> bool {
        self.replicas.iter().any(|replica| replica.is_empty)
    }

    /// The replicas that were not checked, by their places in the set, with the reasons.
    pub fn unchecked(&self) -> impl Iterator<Item = (usize, &str)> {
        let replicas = self.replicas.iter().enumerate();
        replicas.filter_map(|(index, replica)| Some((index, replica.unchecked.as_deref()?)))
    }

    /// What is known of the replica at a place in the set.
    pub fn state(&self, index: usize) -> ReplicaState {
        match &self.replicas[index] {
            CheckedReplica { unchecked: Some(_), .. } => ReplicaState::Unchecked,
            replica if !replica.problems.is_empty() => ReplicaState::Unsound,
            replica if replica.is_empty => ReplicaState::Empty,
            replica if replica.mismatch_count > 0 => ReplicaState::Differs,
            _ if self.compared_with == Some(index) => ReplicaState::Sound,
            _ => ReplicaState::Equal,
        }
    }
}

/// Reads every replica in full and compares it with the first sound one.
///
/// If one cannot be checked, because its host is not reached or another program has it open, the others still are.
///
/// Replicas of a pool that was not closed in order may differ in what its next opening repairs, and in locks of libpmemobj, which
/// keeps their state in the first replica only.
///
/// Errors: [`SyncError`] if no replica could be checked. What is wrong with the pool is in the report.
pub fn check(
    set: &PoolSet,
    declaration: Option<Declaration>,
    remotes: &mut dyn RemoteReplicas,
    progress: &mut dyn FnMut(Step),
) -> Result<CheckReport, SyncError> {
    distinct::check_set(set).map_err(of_files)?;
    let checked = vec![CheckedReplica::default(); set.replicas.len()];
    let mut look_at = Look { found: Vec::with_capacity(checked.len()), checked };
    let mut failure = None;
    for (index, spec) in set.replicas.iter().enumerate() {
        match look(index, spec, set, OpenFor::Read, declaration, remotes) {
            Ok(found) => look_at.found.push(found),
            Err(error) => {
                look_at.found.push(Found::Damaged(String::new()));
                look_at.checked[index].unchecked = Some(words(&error));
                failure.get_or_insert(error);
            }
        }
    }
    match failure {
        Some(error) if look_at.checked.iter().all(|replica| replica.unchecked.is_some()) => Err(error),
        _ => look_at.report(set, remotes, progress),
    }
}

/// A replica's failure without its number, which is implied by its place in the report.
fn words(error: &SyncError) -> String {
    match error {
        SyncError::Replica { source, .. } => causes(&**source).to_string(),
        error => causes(error).to_string(),
    }
}

/// A check in progress. A replica that was not checked completely counts as damaged for the rest of it.
struct Look {
    found: Vec<Found>,
    checked: Vec<CheckedReplica>,
}

impl Look {
    fn report(
        mut self,
        set: &PoolSet,
        remotes: &mut dyn RemoteReplicas,
        progress: &mut dyn FnMut(Step),
    ) -> Result<CheckReport, SyncError> {
        let judged = judge_headerless(set, &mut self.found).and_then(|()| check_order(set, &mut self.found));
        if let Err(SyncError::Unlike { index, path }) = &judged {
            let problem =
                format!("{} is another's file, or those of the other replicas in its place are", path.display());
            self.checked[*index].problems.push(problem);
        }
        if let Err(SyncError::UnlikeElsewhere { index, range }) = &judged {
            let Range { start, end } = range;
            let problem = format!(
                "its part with bytes {start} to {end} of the pool is another's file, or those of the other replicas in its place are"
            );
            self.checked[*index].problems.push(problem);
        }
        let misplaced = judged.err().map(|error| error.to_string());
        let plan = plan(set, &mut self.found, None, false);
        let is_linked = plan.as_ref().map_or(true, |plan| plan.is_linked);
        let links = plan.as_ref().map_or(Ok(()), |_| check_links(set, &mut self.found, |_| false));
        let links = links.err().map(|error| causes(&error).to_string());
        let plan = plan.and_then(|plan| {
            self.check_replaceable(set, &plan, remotes)?;
            check_newer(&mut self.found, &plan)
        });
        let refusal = plan.err().map(|error| causes(&error).to_string());
        let headers = self.headers()?;
        for (index, checked) in self.checked.iter_mut().enumerate() {
            checked.problems.extend(misfits(&headers, index).iter().map(ToString::to_string));
        }
        self.take_empty_ones();
        self.count_shutdown_states();
        let (mut compared_with, mut kind, mut compared_bytes) = (None, None, 0);
        let mut opinions = Opinions::default();
        while let Some(first) = self.found.iter().position(|found| matches!(found, Found::Whole(_))) {
            kind = headers[first].and_then(|header| PoolKind::of_signature(&header.signature));
            match self.compare(first, &headers, is_linked, progress) {
                Ok((found, len_bytes)) => {
                    (compared_with, opinions, compared_bytes) = (Some(first), found, len_bytes);
                    break;
                }
                // Start again with the next one.
                Err(error) => {
                    for checked in &mut self.checked {
                        let (unchecked, problems) = (checked.unchecked.take(), std::mem::take(&mut checked.problems));
                        let (is_empty, torn_shutdown_states) = (checked.is_empty, checked.torn_shutdown_states);
                        *checked = CheckedReplica {
                            unchecked,
                            problems,
                            is_empty,
                            torn_shutdown_states,
                            ..CheckedReplica::default()
                        };
                    }
                    self.give_up(error)?;
                }
            }
        }
        self.close();
        let sync_refusal = misplaced.or(links).or_else(|| self.sync_refusal(refusal));
        let Opinions { majority, apart } = opinions;
        let replicas = self.checked;
        Ok(CheckReport { kind, compared_bytes, compared_with, replicas, majority, apart, sync_refusal })
    }

    /// Fails if sync would. If not everything was checked, sync changes nothing.
    fn check_replaceable(
        &mut self,
        set: &PoolSet,
        plan: &Plan,
        remotes: &mut dyn RemoteReplicas,
    ) -> Result<(), SyncError> {
        if self.checked.iter().any(|replica| replica.unchecked.is_some()) {
            return Ok(());
        }
        check_replaceable(set, &mut self.found, plan, remotes)?;
        check_kept(set, &mut self.found, plan, None, remotes)
    }

    /// Records which replicas are empty. If all readable ones are, they are compared like others.
    fn take_empty_ones(&mut self) {
        let holds_something = self.found.iter().any(|found| matches!(found, Found::Whole(_)));
        for (found, checked) in self.found.iter_mut().zip(&mut self.checked) {
            if matches!(found, Found::Empty(_)) {
                checked.is_empty = true;
                *found = match std::mem::replace(found, Found::Damaged(String::new())) {
                    Found::Empty(replica) if !holds_something => Found::Whole(replica),
                    other => other,
                };
            }
        }
    }

    fn count_shutdown_states(&mut self) {
        for (found, checked) in self.found.iter().zip(&mut self.checked) {
            if let Found::Whole(replica) | Found::Empty(replica) = found {
                let states = replica.shutdown_states();
                checked.torn_shutdown_states = states.iter().filter(|state| !state.is_intact()).count() as u64;
            }
        }
    }

    /// The headers of sound replicas; records what is wrong with the others.
    fn headers(&mut self) -> Result<Vec<Option<Attributes>>, SyncError> {
        let mut headers = Vec::with_capacity(self.found.len());
        for index in 0..self.found.len() {
            let own = match &mut self.found[index] {
                Found::Whole(replica) | Found::Empty(replica) => {
                    replica.attributes().map(Some).map_err(|source| SyncError::Replica { index, source })
                }
                Found::Unfinished(_) => {
                    self.checked[index].problems.push(UNFINISHED.to_owned());
                    Ok(None)
                }
                Found::Damaged(_) if self.checked[index].unchecked.is_some() => Ok(None),
                Found::Damaged(reason) => {
                    self.checked[index].problems.push(reason.clone());
                    Ok(None)
                }
            };
            headers.push(match own {
                Ok(own) => own,
                Err(error) => {
                    self.give_up(error)?;
                    None
                }
            });
        }
        Ok(headers)
    }

    /// Compares the others with the first; returns their votes against it, and the number of bytes compared. Fails if the first replica fails.
    fn compare(
        &mut self,
        first: usize,
        headers: &[Option<Attributes>],
        is_linked: bool,
        progress: &mut dyn FnMut(Step),
    ) -> Result<(Opinions, u64), SyncError> {
        let failed = |source| SyncError::Replica { index: first, source };
        let own = headers[first];
        let kind = own.and_then(|own| PoolKind::of_signature(&own.signature));
        // A replica of another pool differs everywhere, and was already reported.
        let is_of =
            |index: usize| headers[index].zip(own).is_some_and(|(one, own)| one.poolset_uuid == own.poolset_uuid);
        let lengths = self.found.iter().filter_map(|found| match found {
            Found::Whole(replica) => Some(replica.len_bytes()),
            _ => None,
        });
        let len_bytes = lengths.min().unwrap_or(0);
        let comparison =
            vote::comparison_with(&mut **whole(&mut self.found[first])?, kind, len_bytes).map_err(failed)?;
        let is_other = |(index, found): &(usize, &Found)| *index != first && matches!(found, Found::Whole(_));
        let others: Vec<_> = self.found.iter().enumerate().filter(is_other).map(|(index, _)| index).collect();
        progress(Step::Total(comparison.len_bytes() * others.len().max(1) as u64));
        let mut done = |bytes| progress(Step::Done(bytes));
        if others.is_empty() {
            comparison.read(whole(&mut self.found[first])?.contents(), &mut done).map_err(failed)?;
        }
        let mut differing = Vec::new();
        for index in others.into_iter().filter(|index| is_of(*index)) {
            match self.compare_one([first, index], &comparison, &mut done) {
                Ok(ranges) => differing.push((index, ranges)),
                Err(error @ SyncError::Replica { index: failed, .. }) if failed == index => self.give_up(error)?,
                Err(error) => return Err(error),
            }
        }
        let opinions = match vote::opinions(&mut self.found, first, is_linked, &differing) {
            Err(error @ SyncError::Replica { index, .. }) if index != first => {
                self.give_up(error)?;
                Opinions::default()
            }
            opinions => opinions?,
        };
        Ok((opinions, comparison.len_bytes()))
    }

    fn compare_one(
        &mut self,
        [first, index]: [usize; 2],
        comparison: &Comparison,
        progress: &mut dyn FnMut(u64),
    ) -> Result<vote::Ranges, SyncError> {
        let found = vote::differences(&mut self.found, [first, index], comparison, progress)?;
        let other = whole(&mut self.found[index])?;
        let mismatch = |difference: &Difference| Mismatch {
            offset: difference.range.start,
            len_bytes: difference.range.end - difference.range.start,
            part: other.locate(difference.range.start),
        };
        let checked = &mut self.checked[index];
        checked.mismatches = found.told.iter().take(DIFFERENCES_MAX).map(mismatch).collect();
        (checked.mismatch_count, checked.unused_count) = (found.count, found.unused_count);
        (checked.unused_bytes, checked.runtime_bytes) = (found.unused_bytes, found.runtime_bytes);
        Ok(found.told.into_iter().map(|difference| difference.range).collect())
    }

    /// Records that a replica could not be checked completely. Nothing is reported about its contents.
    fn give_up(&mut self, error: SyncError) -> Result<(), SyncError> {
        let SyncError::Replica { index, .. } = error else { return Err(error) };
        self.checked[index] = CheckedReplica { unchecked: Some(words(&error)), ..CheckedReplica::default() };
        self.found[index] = Found::Damaged(String::new());
        Ok(())
    }

    /// Releases all replicas. Findings about one that fails now are kept.
    fn close(&mut self) {
        for (found, checked) in self.found.drain(..).zip(&mut self.checked) {
            if let Found::Whole(replica) | Found::Empty(replica) | Found::Unfinished(replica) = found {
                if let Err(error) = replica.close() {
                    checked.unchecked = Some(causes(&*error).to_string());
                }
            }
        }
    }

    fn sync_refusal(&self, planned: Option<String>) -> Option<String> {
        let unchecked = self.checked.iter().position(|replica| replica.unchecked.is_some());
        if let Some(index) = unchecked {
            return Some(format!("replica {index} could not be checked, and nothing is changed until all can be"));
        }
        match &self.checked[..] {
            [alone] if !alone.problems.is_empty() && planned.is_some() => {
                Some("the set has no other replica to restore it from: bring back a copy".to_owned())
            }
            _ => planned,
        }
    }
}
