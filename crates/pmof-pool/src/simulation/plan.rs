//! What a run has, and what runs have in common.

use pmof_replication::keeper::KeptBy;

use super::random::Random;

/// Pages of the pool.
pub(super) const PAGES: usize = 6;

/// Words of each that a loss of power keeps or loses one by one.
pub(super) const WORDS: usize = 2;

/// What a seed's run has.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is something that a run has or does not have")]
pub(super) struct Plan {
    /// Replicas that the pool is made with.
    pub(super) made: usize,
    /// Targets, those that have no replica yet too.
    pub(super) machines: usize,
    pub(super) writers: usize,
    /// Steps in which things go wrong.
    pub(super) chaos_steps: u64,
    /// One thing goes wrong in so many steps.
    pub(super) fault_rate: usize,
    /// The pool's members change; then no file is put back to an older copy: what tells one of another is promised among the same members.
    pub(super) has_changes: bool,
    /// One of the machines has an asynchronous member.
    pub(super) asynchronous: Option<usize>,
    /// Media change bytes by themselves, and programs scrub the pool.
    pub(super) has_rot: bool,
    /// Media change bits of the pages that say which replicas are in sync.
    pub(super) has_state_rot: bool,
    /// Targets are started again with other versions of their programs and files.
    pub(super) has_versions: bool,
    /// It is far away: what is sent to it takes long now and then.
    pub(super) is_far: bool,
    /// Those who write wait where that lags too far.
    pub(super) waits_at_bound: bool,
    /// In the end that is all that is left.
    pub(super) ends_with_promotion: bool,
    /// One of the former writers lives on when that is promoted.
    pub(super) has_former_writer: bool,
    /// Former members are still there when that is promoted.
    pub(super) has_survivors: bool,
    /// What decides which epoch is in force.
    pub(super) keeper: KeptBy,
}

impl Plan {
    pub(super) fn of(seed: u64) -> Self {
        let mut random = Random::new(!seed);
        let (made, writers) = ([2, 3, 3, 5][random.below(4)], 1 + random.below(2));
        let chaos_steps = 200 + random.below(1500) as u64;
        let fault_rate = [15, 30, 60, 120, 240][random.below(5)];
        let has_changes = random.once_in(2);
        let made = if has_changes { 1 + random.below(4) } else { made };
        let chaos_steps = if has_changes { chaos_steps + 400 } else { chaos_steps };
        let machines = if has_changes { made + 2 + random.below(3) } else { made };
        let has_asynchronous = random.once_in(2);
        let asynchronous = has_asynchronous.then_some(machines);
        let machines = machines + usize::from(has_asynchronous);
        let (waits_at_bound, ends_with_promotion) = (random.once_in(3), has_asynchronous && random.once_in(2));
        let is_kept_outside = Random::new(seed.rotate_left(8)).once_in(3);
        let keeper = if is_kept_outside { KeptBy::Outside } else { KeptBy::Members };
        let writers = if is_kept_outside { writers + 1 } else { writers };
        // Of a pool with such a keeper no member is promoted.
        let ends_with_promotion = ends_with_promotion && !is_kept_outside;
        let (is_far, has_rot, has_versions) = (!random.once_in(3), random.once_in(2), random.once_in(4));
        let has_former_writer = ends_with_promotion && !has_changes && !Random::new(seed.rotate_left(56)).once_in(3);
        let has_survivors = ends_with_promotion && !has_changes && Random::new(seed.rotate_left(12)).once_in(2);
        let has_state_rot = Random::new(seed.rotate_left(48)).once_in(2);
        Self {
            made,
            machines,
            writers,
            chaos_steps,
            fault_rate,
            has_changes,
            asynchronous,
            has_rot,
            has_state_rot,
            has_versions,
            is_far,
            waits_at_bound,
            ends_with_promotion,
            has_former_writer,
            has_survivors,
            keeper,
        }
    }

    /// The same where a rule is broken: what can show it happens more often.
    pub(super) fn with(self, control: Option<Control>) -> Self {
        match control {
            Some(Control::MarksNotCompared) => Self { fault_rate: 8, ..self },
            _ => self,
        }
    }
}

/// A rule that is broken on purpose: the checker must notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Control {
    /// A persist is acknowledged before the epoch is durable that leaves out who lacks it.
    AcknowledgedEarly,
    /// A page that was written is not in the map.
    PageNotMarked,
    /// A member that is behind counts as in sync, and is the source.
    BehindAsSource,
    /// An opening takes whom it finds.
    TooFewVotes,
    /// Marks are not compared.
    MarksNotCompared,
    /// A target goes on taking what a writer sends from which another has taken the pool over.
    NotFenced,
    /// What a member lacks of which nobody knows it is not found out by comparing its contents.
    ComparisonSkipped,
    /// A persist that goes on without a slow member is acknowledged before the epoch is durable that leaves it behind.
    SlowAcknowledgedEarly,
    /// Pages are forgotten that a member may lack which was lost before all had flushed them.
    LostForgotten,
    /// One that was removed goes on to vote.
    RemovedVotes,
    /// A change holds as soon as a roster says so.
    AnnouncedHolds,
    /// Whoever names the epoch that a replica is at counts as its writer, also where another has it open and has begun none.
    FoundEpochNames,
    /// A replica that comes back is taken from whoever has it open, a successor too.
    HolderNotJudged,
    /// A witness that is back counts as one that has everything.
    WitnessJoins,
    /// A witness is copied to, as one that has data: an assertion of the library must notice.
    WitnessCaughtUp,
    /// The staging area of an asynchronous member is not flushed.
    StagingNotFlushed,
    /// What is dropped at the bound of the lag is not copied.
    DroppedForgotten,
    /// A point is sent before what is before it is durable on the members in sync.
    PointBeforeFlush,
    /// An asynchronous member that a writer meets lacks nothing that is not remembered, as the writer takes it.
    LeftAtNotCompared,
    /// A former writer goes on to follow a member up that was promoted.
    FormerFollows,
    /// A member that is promoted names itself alone before it has an epoch of its own.
    PromotedByRosterFirst,
    /// What is repaired is made what the wrong copy holds.
    RottenTaken,
    /// A file of another format is read as one of this.
    VersionNotChecked,
    /// A state is written to one slot, in turn.
    StateWrittenOnce,
    /// A look at the pool believes the members that answer, however few.
    FewSurveyed,
    /// The keeper outside of the members swaps what it has without comparing.
    KeeperComparesNothing,
    /// A persist is acknowledged before the keeper has put the epoch in force.
    KeeperNotAwaited,
    /// A swap whose reply did not come is taken for none.
    KeeperUnknownIsNone,
    /// A persist is acknowledged by any member, whatever its terms say.
    TermsNotChecked,
    /// The failure domains of the members that have a persist's bytes are not counted.
    DomainsNotCounted,
    /// A member is left behind although the others are not as many, in as many domains, as a persist is acknowledged by.
    NeededLeftBehind,
    /// A member is left behind as soon as the others are enough.
    LeftBehindEarly,
}

impl Control {
    /// Whether a run can show it.
    pub(super) fn may_show(self, plan: &Plan) -> bool {
        match self {
            Self::MarksNotCompared => {
                !plan.has_changes && plan.asynchronous.is_none() && plan.keeper == KeptBy::Members
            }
            // Where media rot, what a member lacks passes for that.
            Self::LostForgotten => !plan.has_rot,
            Self::RemovedVotes | Self::AnnouncedHolds | Self::WitnessJoins | Self::WitnessCaughtUp => plan.has_changes,
            Self::StagingNotFlushed | Self::DroppedForgotten | Self::PointBeforeFlush | Self::LeftAtNotCompared => {
                plan.asynchronous.is_some()
            }
            Self::FormerFollows => plan.has_former_writer,
            Self::PromotedByRosterFirst => plan.ends_with_promotion,
            Self::RottenTaken => plan.has_rot,
            Self::VersionNotChecked => plan.has_versions,
            Self::StateWrittenOnce => plan.has_state_rot,
            Self::KeeperComparesNothing | Self::KeeperNotAwaited | Self::KeeperUnknownIsNone => {
                plan.keeper == KeptBy::Outside
            }
            Self::FewSurveyed => plan.keeper == KeptBy::Members,
            _ => true,
        }
    }
}

pub(super) const CONTROLS: [Control; 32] = [
    Control::AcknowledgedEarly,
    Control::PageNotMarked,
    Control::BehindAsSource,
    Control::TooFewVotes,
    Control::MarksNotCompared,
    Control::NotFenced,
    Control::ComparisonSkipped,
    Control::SlowAcknowledgedEarly,
    Control::LostForgotten,
    Control::RemovedVotes,
    Control::AnnouncedHolds,
    Control::FoundEpochNames,
    Control::HolderNotJudged,
    Control::WitnessJoins,
    Control::WitnessCaughtUp,
    Control::StagingNotFlushed,
    Control::DroppedForgotten,
    Control::PointBeforeFlush,
    Control::LeftAtNotCompared,
    Control::FormerFollows,
    Control::PromotedByRosterFirst,
    Control::RottenTaken,
    Control::VersionNotChecked,
    Control::StateWrittenOnce,
    Control::FewSurveyed,
    Control::KeeperComparesNothing,
    Control::KeeperNotAwaited,
    Control::KeeperUnknownIsNone,
    Control::TermsNotChecked,
    Control::DomainsNotCounted,
    Control::NeededLeftBehind,
    Control::LeftBehindEarly,
];
