//! A second client, which looks at the pool while its writers write, lose members and change them.

use std::{collections::BTreeSet, sync::Arc};

use pmof_replication::{
    keeper::Kept,
    opening::{Rules, ShippedRules},
    survey::{State, Survey, Surveyed},
};

use super::{
    asking::drive,
    faults::Fault,
    plan::{Control, PAGES, WORDS},
    tasks::{Shared, sleep},
    truth::{Pages, sound},
    world::World,
};
use crate::{
    PoolUrl, ReplicaError,
    electorate::Electorate,
    lineage::{Agreement, Found},
};

type Seen = Surveyed<PoolUrl, ReplicaError>;

/// The rules, of which a control breaks one.
struct Broken(Option<Control>);

impl Rules for Broken {
    fn is_enough(
        &self,
        electorate: &Electorate,
        agreement: &Agreement,
        found: &[Found<'_>],
        kept: Option<&Kept>,
    ) -> bool {
        self.0 == Some(Control::FewSurveyed) || ShippedRules.is_enough(electorate, agreement, found, kept)
    }
}

/// What was so before a look began.
struct Before {
    committed: Pages,
    /// Of the newest roster that was in force.
    roster: (u64, u64),
    /// How often a file was put back to an older copy, which a look may meet alone; `None`: one is such a copy.
    restored_times: Option<u64>,
}

impl Before {
    fn of(world: &World) -> Self {
        let is_restored = world.targets.iter().any(|target| target.restored.is_some());
        let restored_times = (!is_restored).then(|| world.targets.iter().map(|target| target.restored_times).sum());
        Self { committed: world.truth.committed(), roster: world.truth.roster_in_force(), restored_times }
    }

    /// A member in sync has all that was acknowledged before, and no roster was forgotten that was in force.
    fn check(&self, world: &mut World, surveyed: &Seen) {
        let roster = surveyed.roster.age();
        if roster < self.roster {
            world.truth.violate(|| format!("a look finds roster {roster:?}; {:?} was in force", self.roster));
        }
        if self.restored_times.is_none() || Self::of(world).restored_times != self.restored_times {
            return;
        }
        for target in in_sync(world, surveyed) {
            // One that was about to join when it was asked has the rest by now; one that was in sync may have lost its pages since.
            let Some(asked) = world.looked.get(&target).copied() else { continue };
            let (now, committed) = (sound(&world.targets[target].durable), self.committed);
            let has = |held: &Pages, page: usize, word: usize| held[page][word] >= committed[page][word];
            let is_lost = |page, word| !has(&asked, page, word) && !has(&now, page, word);
            if (0..PAGES).any(|page| (0..WORDS).any(|word| is_lost(page, word))) {
                world.truth.violate(|| {
                    format!("a look finds t{target} in sync, with {now:?}; {committed:?} was acknowledged")
                });
            }
        }
    }
}

/// Where the members lie that a look finds in sync.
fn in_sync(world: &World, surveyed: &Seen) -> BTreeSet<usize> {
    let in_sync = surveyed.members.iter().filter(|member| matches!(member.state, State::InSync));
    let target = |place: &Arc<PoolUrl>| world.urls.iter().position(|url| url == place);
    in_sync.filter_map(|member| member.place.as_ref().and_then(target)).collect()
}

/// A process that looks at the pool again and again.
pub(super) async fn look_on(world: Shared) {
    loop {
        let (pause, named) = {
            let world = &mut *world.borrow_mut();
            let known: Vec<_> = (0..world.targets.len()).filter(|target| world.known[*target]).collect();
            let is_whole = world.random.once_in(2);
            let one = known[world.random.below(known.len())];
            (60 + world.random.below(240), if is_whole { known } else { vec![one] })
        };
        sleep(&world, pause).await;
        look(&world, &named).await;
    }
}

/// Looks at the pool. Returns where the members in sync lie; none where too few answer.
pub(super) async fn look(world: &Shared, named: &[usize]) -> BTreeSet<usize> {
    let (process, before, places, rules) = {
        let world = &mut *world.borrow_mut();
        world.looked.clear();
        let places = named.iter().map(|target| Arc::clone(&world.urls[*target])).collect();
        (world.looker(), Before::of(world), places, Broken(world.control))
    };
    let (surveyed, _) = drive(world, process, named, Survey::quick(places, rules)).await;
    let world = &mut *world.borrow_mut();
    let surveyed = surveyed.ok().filter(|surveyed| surveyed.losses_survived.is_some());
    world.count(if surveyed.is_some() { Fault::Surveyed } else { Fault::SurveyedTooFew });
    let Some(surveyed) = surveyed else { return BTreeSet::new() };
    if surveyed.members.iter().any(|member| matches!(member.state, State::Lost(_))) {
        world.count(Fault::SurveyedWithoutAll);
    }
    before.check(world, &surveyed);
    in_sync(world, &surveyed)
}
