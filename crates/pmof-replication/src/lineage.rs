//! Which replicas belong together: decided only from their states, without input or output.
//!
//! Each opening for writing has an epoch with a random name, and each replica keeps the epochs that led to its own. So two
//! replicas are at the same epoch, or one is older than the other, or they were written separately.

use alloc::{collections::BTreeSet, vec::Vec};

use pmof_control::{ANCESTORS_MAX, Epoch, PoolState, REPLICAS_MAX};
use uuid::Uuid;

use crate::keeper::{EpochRecord, KeeperError, Kept};

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

/// Replicas that must have an epoch before anything depends on it: any two openings have met one of them.
pub fn quorum(made: usize) -> usize {
    // Of two, one that says that the other is left behind is enough, and one that does not say so opens nothing alone.
    if made <= 2 { 1 } else { made / 2 + 1 }
}

/// One replica that was found.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// Which replica of the pool it is.
    pub index: u16,
    /// What it keeps of its openings.
    pub state: &'a PoolState,
}

/// Replicas that belong together, and where a new epoch goes on from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// What the next epoch descends from.
    pub base: Base,
    /// The members of the epoch that are here.
    pub in_sync: Vec<usize>,
    /// Those that have to catch up with them, and why.
    pub behind: Vec<(usize, Apart)>,
    /// Those that hold what the others never acknowledged: they are no part of the pool, and nothing of them is overwritten.
    pub foreign: Vec<(usize, Apart)>,
    /// The last opening was closed in order on all of those in sync, so that they are equal.
    pub is_clean: bool,
    /// The position of one that has everything that was acknowledged: one that was closed in order, if any, else one with the highest mark.
    pub source: usize,
    /// The highest mark of those that remember what they were told.
    pub mark: u64,
    /// Those in sync whose mark no crash explains, by their positions, and why: maybe all of them.
    pub stale: Vec<(usize, Apart)>,
    /// Those in sync that were not told the highest mark of these, by their positions, and what they are for a writer: maybe none.
    late: Vec<(usize, Apart)>,
}

/// What the next epoch descends from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    /// Openings before.
    pub opening: u64,
    /// Confirmed epochs before, the latest first.
    pub ancestors: Vec<Epoch>,
    /// Epochs that were announced behind those; none that was found knows whether they were confirmed. Those that an opening gave up which may not have
    /// come in force itself have no members: any may have confirmed them.
    pub announced: Vec<Epoch>,
}

impl Agreement {
    /// Has those catch up whose mark no crash explains. For a writer: a reader may have come while marks were raised, and they tell it only
    /// whom to read first.
    pub fn put_stale_behind(&mut self, found: &[Found<'_>]) {
        let stale = core::mem::take(&mut self.stale);
        self.in_sync.retain(|position| !stale.iter().any(|(of, _)| of == position));
        if !self.in_sync.contains(&self.source) {
            let newest = self.in_sync.iter().rev().max_by_key(|position| found[**position].state.mark);
            self.source = newest.copied().unwrap_or(self.source);
        }
        self.behind.extend(stale);
    }

    /// Has those catch up that were not told the last mark: either the writer died while it raised that, or they are older copies, and
    /// what they lack was acknowledged. They vote. For a writer that takes the pool, behind [`put_stale_behind`](Self::put_stale_behind):
    /// in its epoch a reader would take them for members in sync, before they are made so.
    pub fn put_late_behind(&mut self) {
        let late = core::mem::take(&mut self.late);
        let late: Vec<_> = late.into_iter().filter(|(of, _)| self.in_sync.contains(of)).collect();
        self.in_sync.retain(|position| !late.iter().any(|(of, _)| of == position));
        self.behind.extend(late);
    }

    /// Those whose word on the epochs counts, by their positions.
    pub fn voters(&self) -> impl Iterator<Item = usize> {
        let behind = self.behind.iter().filter(|(_, apart)| apart.votes()).map(|(position, _)| *position);
        self.in_sync.iter().copied().chain(behind)
    }

    /// Whether those in sync have all that was ever acknowledged, and nobody else can go on without them: so many of `members` vote that any two sets of
    /// so many and of those that know of an epoch meet; or, where one is a quorum, all members of the newest epoch are here, and of those that may be newer.
    /// Elsewhere a member does not know whether a quorum has confirmed its epoch: after its writer's death the others may go on from the one before.
    /// `is_of_members`: the newest epoch found is one of these members, and not from before they were changed.
    pub fn is_enough(&self, found: &[Found<'_>], members: u64, is_of_members: bool) -> bool {
        let is_member = |position: &usize| members & (1 << found[*position].index) != 0;
        let votes = self.voters().filter(is_member).count();
        let is_here = |index: u16| self.in_sync.iter().any(|position| found[*position].index == index);
        let of_epoch = self.base.ancestors.first();
        let has_all = of_epoch.is_some_and(|epoch| all_of(epoch, &is_here));
        // One that was announced may have been confirmed at a member that is not here.
        let is_found = |index: u16| found.iter().any(|found| found.index == index);
        let all = Epoch { id: Uuid::nil(), members };
        let mut announced = self.base.announced.iter().map(|epoch| if epoch.members == 0 { &all } else { epoch });
        let is_newest = announced.all(|epoch| all_of(epoch, &is_found));
        let count = members.count_ones() as usize;
        let is_known = quorum(count) == 1 && has_all && is_newest && is_of_members;
        !self.in_sync.is_empty() && (votes >= votes_needed(count) || is_known)
    }
}

/// Whether so it is of all members of an epoch.
fn all_of(epoch: &Epoch, is: &dyn Fn(u16) -> bool) -> bool {
    (0..REPLICAS_MAX).all(|index| !epoch.has(index) || is(index))
}

/// Replicas that vote which an opening needs.
pub fn votes_needed(made: usize) -> usize {
    made - quorum(made) + 1
}

impl Base {
    /// The base of what follows `state`, which its members have confirmed.
    pub fn after(epoch: Epoch, opening: u64, ancestors: &[Epoch]) -> Self {
        let ancestors = core::iter::once(epoch).chain(ancestors.iter().copied()).take(ANCESTORS_MAX).collect();
        Self { opening, ancestors, announced: Vec::new() }
    }
}

/// Why a replica does not belong to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Apart {
    /// The others went on without it.
    LeftBehind {
        /// Its last opening.
        opening: u64,
        /// Theirs.
        newest: u64,
    },
    /// It knows that it is behind the others: it was catching up with them, or has yet to begin.
    CatchingUp {
        /// Its last opening.
        opening: u64,
    },
    /// It took part in a later opening, and yet holds the state of an earlier one: its file is an older copy.
    RolledBack {
        /// The opening of its state.
        opening: u64,
        /// The later one.
        newest: u64,
    },
    /// It is at the same opening as the others and lacks what was acknowledged in it: its file is an older copy, or its medium lost
    /// what it had called durable.
    Stale {
        /// Its last opening, and theirs.
        opening: u64,
        /// Its mark.
        mark: u64,
        /// The highest mark of the others.
        newest: u64,
    },
    /// It went on without most of the replicas, which are there and know nothing of that.
    WithoutMajority {
        /// Its last opening.
        opening: u64,
        /// Theirs.
        others: u64,
        /// Members of its last epoch.
        members: u32,
    },
    /// It and the others were written separately.
    Diverged {
        /// Its last opening.
        opening: u64,
        /// Theirs.
        others: u64,
        /// The others were most of the pool's replicas.
        majority: bool,
    },
}

/// A replica's line of epochs, without the one that was only announced, or abandoned.
struct Line<'a> {
    epoch: Epoch,
    opening: u64,
    ancestors: &'a [Epoch],
    /// The replica knows that it is behind `epoch`.
    is_behind: bool,
    mark: u64,
}

impl<'a> Line<'a> {
    /// An epoch that nobody has confirmed was never written under: the replica still is at the one before.
    fn of(found: &Found<'a>, confirmed: &BTreeSet<Uuid>) -> Self {
        let PoolState { epoch, opening, ancestors, mark, .. } = found.state;
        let is_behind = found.state.is_behind_own(found.index);
        let mut line = Self { epoch: *epoch, opening: *opening, ancestors, is_behind, mark: *mark };
        while let Some((parent, older)) = line.ancestors.split_first().filter(|_| !confirmed.contains(&line.epoch.id)) {
            // What was announced beside it is no ancestor of the parent.
            let siblings = older.iter().take_while(|epoch| parent.members != 0 && epoch.members == 0).count();
            let (opening, ancestors) = (line.opening.saturating_sub(1), &older[siblings..]);
            line = Self { epoch: *parent, opening, ancestors, is_behind: found.state.is_behind, ..line };
        }
        line
    }

    /// Epochs that came after `older` on this line, the own one included. `None`: `older` is not on it.
    fn since(&self, older: Uuid) -> Option<impl Iterator<Item = &Epoch>> {
        let steps = self.ancestors.iter().position(|epoch| epoch.id == older)?;
        Some(core::iter::once(&self.epoch).chain(&self.ancestors[..steps]))
    }
}

impl Apart {
    /// Whether the replica may catch up with the others: it holds nothing acknowledged that they lack.
    pub fn may_catch_up(&self) -> bool {
        matches!(self, Self::LeftBehind { .. } | Self::CatchingUp { .. } | Self::RolledBack { .. } | Self::Stale { .. })
    }

    /// Whether it remembers what it was told of views, so that its word on them counts.
    pub fn votes(&self) -> bool {
        matches!(self, Self::LeftBehind { .. } | Self::CatchingUp { .. })
    }
}

/// Whether a replica of the pool has never had anything that was acknowledged, as far as it remembers: it was made for nothing.
pub fn was_never_in_sync(index: u16, state: &PoolState) -> bool {
    let is_blank = state.opening == 1 && state.mark == 0 && !state.is_behind;
    let epochs = core::iter::once(&state.epoch).chain(&state.ancestors);
    (is_blank && state.ancestors.is_empty()) || { epochs }.all(|epoch| !epoch.has(index))
}

/// What a replica that is no member of the pool has in common with the members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outsider {
    /// Nothing but the identity: it was made of a copy of the pool, or the members of it; or it parted longer ago than either remembers.
    Unrelated,
    /// It went on after it had parted from them: it confirmed an epoch of its own behind one that they know.
    WentOn,
    /// It is where it was when a pool was made of an asynchronous member: no member of the epoch before is one of the next.
    Superseded,
    /// It is where they left it, as far as is known.
    Left,
}

impl Outsider {
    /// `members`: of each the epochs that it knows, the latest first.
    pub fn of(index: u16, state: &PoolState, members: &[Vec<Epoch>]) -> Self {
        let own: BTreeSet<Uuid> = line(state).iter().map(|epoch| epoch.id).collect();
        let known: BTreeSet<Uuid> = members.iter().flatten().map(|epoch| epoch.id).collect();
        if members.is_empty() {
            Self::Left
        } else if known.is_disjoint(&own) {
            Self::Unrelated
        } else if state.is_confirmed && state.epoch.has(index) && !known.contains(&state.epoch.id) {
            Self::WentOn
        } else if members.iter().any(|line| was_promoted_behind(line, &own)) {
            Self::Superseded
        } else {
            Self::Left
        }
    }
}

/// The epochs that a replica knows, the latest first.
pub fn line(state: &PoolState) -> Vec<Epoch> {
    core::iter::once(&state.epoch).chain(&state.ancestors).copied().collect()
}

/// Whether a pool was made of an asynchronous member behind the epochs of `own`: whoever goes on otherwise was a member of the epoch before.
fn was_promoted_behind(line: &[Epoch], own: &BTreeSet<Uuid>) -> bool {
    // One that was given up has no members.
    let with_members: Vec<_> = line.iter().filter(|epoch| epoch.members != 0).collect();
    let since = with_members.iter().position(|epoch| own.contains(&epoch.id)).map_or(0, |at| at + 1);
    with_members[..since].windows(2).any(|next| next[0].members & next[1].members == 0)
}

/// Which of the replicas found belong together, and which have to catch up. An error where nothing says which of them count: each that does
/// not belong to the others, by its position, and why. `made`: members that the pool has.
pub fn agree(found: &[Found<'_>], made: u16) -> Result<Agreement, Vec<(usize, Apart)>> {
    let confirmed = confirmed(found);
    let lines: Vec<_> = found.iter().map(|found| Line::of(found, &confirmed)).collect();
    let is_head = |line: &Line<'_>| !lines.iter().any(|other| other.since(line.epoch.id).is_some());
    let heads: Vec<&Line<'_>> = lines.iter().filter(|line| is_head(line)).collect();
    let main = match heads.as_slice() {
        [first, others @ ..] if others.iter().all(|other| other.epoch.id == first.epoch.id) => Some(*first),
        // Members that are not here may know better: only those that are at it now count.
        _ => heads.iter().copied().find(|head| is_majority_at(&lines, head.epoch.id, made)),
    };
    match main {
        None => Err(diverged(&heads, &lines)),
        Some(main) if majority_knows_nothing_of(main, &lines, made) => Err(without_majority(main, &lines)),
        Some(main) => agreement(found, &lines, main),
    }
}

/// The same where a keeper outside of the members has the epoch in force: those of its members that are here are in sync, however few they are.
///
/// # Errors
/// The members that are here, none of which has everything.
pub fn agree_by(kept: &Kept, found: &[Found<'_>]) -> Result<Agreement, Vec<(usize, Apart)>> {
    let EpochRecord { epoch, opening, ancestors } = &kept.in_force;
    let main = Line { epoch: *epoch, opening: *opening, ancestors, is_behind: false, mark: 0 };
    agreement(found, &lines_by(kept, found), &main)
}

/// Whether the keeper has not lost changes, as far as the members that are here know.
///
/// # Errors
/// [`KeeperError::PutBack`].
pub fn check_kept(kept: &Kept, found: &[Found<'_>]) -> Result<(), KeeperError> {
    let newest = kept.in_force.epoch.id;
    let lines = lines_by(kept, found);
    match lines.iter().find(|line| line.epoch.id != newest && line.since(newest).is_some()) {
        None => Ok(()),
        Some(line) => Err(KeeperError::PutBack { known: line.epoch.id }),
    }
}

fn lines_by<'a>(kept: &Kept, found: &[Found<'a>]) -> Vec<Line<'a>> {
    let mut confirmed = confirmed(found);
    confirmed.extend(kept.in_force.line());
    found.iter().map(|found| Line::of(found, &confirmed)).collect()
}

/// Epochs that may have been written under.
pub fn confirmed(found: &[Found<'_>]) -> BTreeSet<Uuid> {
    let (mut built_upon, mut abandoned) = (BTreeSet::new(), BTreeSet::new());
    let mut alone = Vec::new();
    for Found { state, .. } in found {
        alone.extend(state.is_confirmed.then_some(&state.epoch));
        for (index, epoch) in state.ancestors.iter().enumerate() {
            match epoch.members {
                // An opening that went on without it has met so many replicas that nothing was acknowledged under it, nor ever will be.
                0 => _ = abandoned.insert(epoch.id),
                _ if index == 0 && !state.is_confirmed => alone.push(epoch),
                _ => _ = built_upon.insert(epoch.id),
            }
        }
    }
    // Generations of the first format have no members.
    let counts = |epoch: &&&Epoch| epoch.members == 0 || !abandoned.contains(&epoch.id);
    built_upon.extend(alone.iter().filter(counts).map(|epoch| epoch.id));
    built_upon
}

fn agreement(found: &[Found<'_>], lines: &[Line<'_>], main: &Line<'_>) -> Result<Agreement, Vec<(usize, Apart)>> {
    let (mut in_sync, mut behind, mut foreign) = (Vec::with_capacity(found.len()), Vec::new(), Vec::new());
    for (position, (found, line)) in found.iter().zip(lines).enumerate() {
        match beside(main, line, found) {
            None => in_sync.push(position),
            Some(apart) if apart.may_catch_up() => behind.push((position, apart)),
            Some(apart) => foreign.push((position, apart)),
        }
    }
    if in_sync.is_empty() {
        // Only those that are not here have everything.
        behind.append(&mut foreign);
        return Err(behind);
    }
    let is_at_rest = |position: &usize| {
        let state = found[*position].state;
        !state.is_open && state.epoch.id == main.epoch.id
    };
    let mark_of = |position: &usize| found[*position].state.mark;
    // Of equal ones, the first.
    let source = in_sync.iter().rev().max_by_key(|position| (is_at_rest(position), mark_of(position)));
    let source = source.copied().unwrap_or(0);
    let voters = behind.iter().filter(|(_, apart)| apart.votes()).map(|(position, _)| position);
    let newest = in_sync.iter().chain(voters).map(mark_of).max().unwrap_or(0);
    let opening = main.opening;
    // The writer has raised a mark on all in use before it raises it again, or tells one that is behind.
    let stale = in_sync.iter().filter(|position| mark_of(position).saturating_add(1) < newest);
    let stale = stale.map(|position| (*position, Apart::Stale { opening, mark: mark_of(position), newest })).collect();
    let highest = mark_of(&source);
    let late = in_sync.iter().filter(|position| !is_at_rest(position) && mark_of(position) < highest);
    let late = late.map(|position| (*position, Apart::CatchingUp { opening })).collect();
    // One that was announced here may have been confirmed on a replica that is not here, and nothing was acknowledged under it: among the
    // ancestors, behind the parent, it says so when that replica comes back. So do those that an opening before this one found.
    let given_up = found.iter().zip(lines).filter(|(found, line)| found.state.epoch.id != line.epoch.id);
    let given_up: Vec<_> =
        given_up.filter(|(_, line)| line.epoch.id == main.epoch.id).map(|(found, _)| found.state).collect();
    let earlier =
        given_up.iter().flat_map(|state| state.ancestors.iter().skip(1).take_while(|epoch| epoch.members == 0));
    let mut base = Base::after(main.epoch, opening, main.ancestors);
    let unconfirmed = given_up.iter().filter(|state| !state.is_confirmed).map(|state| &state.epoch);
    base.announced = unconfirmed.chain(earlier.clone()).copied().collect();
    for epoch in given_up.iter().map(|state| &state.epoch).chain(earlier) {
        if base.ancestors.iter().all(|known| known.id != epoch.id) {
            base.ancestors.insert(1, Epoch { members: 0, ..*epoch });
        }
    }
    base.ancestors.truncate(ANCESTORS_MAX);
    Ok(Agreement {
        base,
        is_clean: in_sync.iter().all(is_at_rest),
        in_sync,
        behind,
        foreign,
        source,
        mark: newest,
        stale,
        late,
    })
}

/// What a replica that comes back is to the pool whose epochs are `line`, the one in force first, at this `opening`. `None`: it is at that one.
pub fn of_returning(found: &Found<'_>, line: &[Epoch], opening: u64) -> Option<Apart> {
    let (epoch, ancestors) = line.split_first()?;
    let main = Line { epoch: *epoch, opening, ancestors, is_behind: false, mark: 0 };
    let state = found.state;
    let mut confirmed: BTreeSet<_> = line.iter().map(|epoch| epoch.id).collect();
    if state.is_confirmed {
        confirmed.insert(state.epoch.id);
    }
    confirmed.extend(state.ancestors.iter().filter(|epoch| epoch.members != 0).map(|epoch| epoch.id));
    beside(&main, &Line::of(found, &confirmed), found)
}

/// Whether the main line was written by a minority while most of the pool's replicas, which are here, are where it left them. Those that
/// are behind there stand for nothing that could be gone on from, and older copies not where they were left.
fn majority_knows_nothing_of(main: &Line<'_>, lines: &[Line<'_>], made: u16) -> bool {
    let most_are_at = |epoch: Uuid| {
        let standing = || lines.iter().filter(|line| line.epoch.id == epoch && !line.is_behind);
        let newest = standing().map(|line| line.mark).max().unwrap_or(0);
        2 * standing().filter(|line| line.mark.saturating_add(1) >= newest).count() > usize::from(made)
    };
    let is_left = |line: &Line<'_>| {
        let later = main.since(line.epoch.id);
        later.is_some_and(|mut later| later.all(|epoch| !epoch.is_majority(made)))
    };
    lines.iter().any(|line| is_left(line) && most_are_at(line.epoch.id))
}

/// Whether most of the pool's members are here and at this epoch.
fn is_majority_at(lines: &[Line<'_>], epoch: Uuid, made: u16) -> bool {
    2 * lines.iter().filter(|line| line.epoch.id == epoch).count() > usize::from(made)
}

fn without_majority(main: &Line<'_>, lines: &[Line<'_>]) -> Vec<(usize, Apart)> {
    let others = lines.iter().filter(|line| line.epoch.id != main.epoch.id).map(|line| line.opening).max().unwrap_or(0);
    let members = main.epoch.members.count_ones();
    let apart = Apart::WithoutMajority { opening: main.opening, others, members };
    let of_main = lines.iter().enumerate().filter(|(_, line)| line.epoch.id == main.epoch.id);
    of_main.map(|(position, _)| (position, apart)).collect()
}

/// Why a replica is not in sync with the main line; `None`: it is.
fn beside(main: &Line<'_>, line: &Line<'_>, found: &Found<'_>) -> Option<Apart> {
    let (opening, newest, index) = (line.opening, main.opening, found.index);
    if line.epoch.id == main.epoch.id {
        return line.is_behind.then_some(Apart::CatchingUp { opening });
    }
    // What it knows of may be among the later ones, where an epoch was abandoned.
    let took_part = |epoch: &Epoch| epoch.has(index) && found.state.ancestors.iter().all(|own| own.id != epoch.id);
    Some(match main.since(line.epoch.id).map(|mut later| later.any(took_part)) {
        Some(true) => Apart::RolledBack { opening, newest },
        Some(false) => Apart::LeftBehind { opening, newest },
        // Of several lines, the main one is a majority's.
        None => Apart::Diverged { opening, others: newest, majority: true },
    })
}

/// None of the lines is a majority's: nothing says which of them counts.
fn diverged(heads: &[&Line<'_>], lines: &[Line<'_>]) -> Vec<(usize, Apart)> {
    let of = |(position, line): (usize, &Line<'_>)| {
        let is_head = heads.iter().any(|head| head.epoch.id == line.epoch.id);
        let others = heads.iter().filter(|head| head.epoch.id != line.epoch.id).map(|head| head.opening).max();
        let others = others.unwrap_or(0);
        is_head.then_some((position, Apart::Diverged { opening: line.opening, others, majority: false }))
    };
    lines.iter().enumerate().filter_map(of).collect()
}
