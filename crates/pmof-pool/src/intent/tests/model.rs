//! Writers that die at every step, members that are lost, lose their caches and come back, and openings that meet some of them: in an extent that no map of the
//! members in sync names, these never differ.

use super::*;

const MEMBERS: usize = 3;
const QUORUM: usize = 2;
const EXTENTS: u64 = 4;
const SESSIONS: usize = 200;

/// What is left out on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Nothing,
    RaisedAfterTheWrite,
    ClearedWithoutAFlush,
    ClearedBeforeALossIsKnown,
    NamedByOneMapAlone,
    ReturnedWithoutAMap,
}

/// The writer is dead.
struct Died;

#[derive(Clone, Debug, Default)]
struct Member {
    /// A number for each extent: as it is read, and what a loss of power leaves of it.
    cached: [u64; EXTENTS as usize],
    durable: [u64; EXTENTS as usize],
    map: u32,
    /// The epoch that it knows durably, and its members.
    epoch: (u64, u32),
    is_in_use: bool,
}

struct World {
    broken: Broken,
    random: u64,
    members: [Member; MEMBERS],
    /// The members of the epoch in force.
    current: u32,
    intent: Intent,
    last_value: u64,
}

impl World {
    fn new(seed: u64, broken: Broken) -> Self {
        let member = Member { epoch: (1, 0b111), is_in_use: true, ..Member::default() };
        let members = std::array::from_fn(|_| member.clone());
        let random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        Self { broken, random, members, current: 0b111, intent: kept(EXTENTS), last_value: 0 }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 20) % limit
    }

    /// The writer may die here.
    fn step(&mut self) -> Result<(), Died> {
        if self.below(25) == 0 { Err(Died) } else { Ok(()) }
    }

    fn in_use(&self) -> Vec<usize> {
        (0..MEMBERS).filter(|member| self.members[*member].is_in_use).collect()
    }

    fn mask(members: &[usize]) -> u32 {
        members.iter().fold(0, |mask, member| mask | 1 << member)
    }

    fn raise(&mut self, words: &Words) -> Result<(), Died> {
        for member in self.in_use() {
            self.step()?;
            self.members[member].map |= words.bits.first().copied().unwrap_or(0);
        }
        self.intent.note_raised(&Missing { words: Some(words.clone()), pages: vec![] });
        Ok(())
    }

    fn write(&mut self) -> Result<(), Died> {
        let extent = self.below(EXTENTS);
        let range = extent * MIB..extent * MIB + 1;
        let words = self.intent.missing(&mut self.intent.lock(), &range).words;
        let words = words.filter(|_| !self.intent.covers(&range));
        if let (Some(words), true) = (&words, self.broken != Broken::RaisedAfterTheWrite) {
            self.raise(words)?;
        }
        self.last_value += 1;
        for member in self.in_use() {
            self.step()?;
            self.members[member].cached[extent as usize] = self.last_value;
        }
        if let (Some(words), true) = (&words, self.broken == Broken::RaisedAfterTheWrite) {
            self.raise(words)?;
        }
        self.intent.covers(&range);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Died> {
        for member in self.in_use() {
            self.step()?;
            self.members[member].durable = self.members[member].cached;
        }
        Ok(())
    }

    /// A new epoch of the members in use, where they are not those of the one in force.
    fn settle(&mut self) -> Result<(), Died> {
        let in_use = self.in_use();
        if Self::mask(&in_use) != self.current && in_use.len() >= QUORUM {
            self.step()?;
            self.begin(&in_use, &in_use);
        }
        Ok(())
    }

    /// `told`: these too know of it, as those that are behind do.
    fn begin(&mut self, in_use: &[usize], told: &[usize]) {
        let number = self.members.iter().map(|member| member.epoch.0).max().unwrap_or(0) + 1;
        self.current = Self::mask(in_use);
        for member in told {
            self.members[*member].epoch = (number, self.current);
        }
    }

    fn lose(&mut self) {
        let member = self.below(MEMBERS as u64) as usize;
        self.members[member].is_in_use = false;
        self.lose_power(member);
    }

    fn lose_power(&mut self, member: usize) {
        if self.below(2) == 0 {
            self.members[member].cached = self.members[member].durable;
        }
    }

    fn bring_back(&mut self) -> Result<(), Died> {
        self.settle()?;
        let in_use = self.in_use();
        let lost = (0..MEMBERS).find(|member| !in_use.contains(member));
        let (Some(lost), Some(source)) = (lost, in_use.first()) else { return Ok(()) };
        if Self::mask(&in_use) != self.current {
            return Ok(());
        }
        self.members[lost].map = u32::MAX;
        self.step()?;
        self.members[lost].cached = self.members[*source].cached;
        self.members[lost].durable = self.members[lost].cached;
        let given = self.broken != Broken::ReturnedWithoutAMap;
        self.members[lost].map = if given { self.intent.all().bits[0] } else { 0 };
        self.step()?;
        self.members[lost].is_in_use = true;
        let in_use = self.in_use();
        self.begin(&in_use, &in_use);
        Ok(())
    }

    fn sweep(&mut self) -> Result<(), Died> {
        let is_settled = Self::mask(&self.in_use()) == self.current;
        if !is_settled && self.broken != Broken::ClearedBeforeALossIsKnown {
            return Ok(());
        }
        let Swept { cleared, cold, .. } = sweep(&self.intent);
        if let Some(stay) = cleared {
            for member in self.in_use() {
                self.step()?;
                self.members[member].map = stay.bits[0];
            }
        }
        if let Some(cold) = cold {
            if self.broken != Broken::ClearedWithoutAFlush {
                self.flush()?;
            }
            self.intent.note_flushed(cold);
        }
        Ok(())
    }

    fn session(&mut self) -> Result<(), Died> {
        loop {
            self.step()?;
            match self.below(20) {
                0..=9 => self.write()?,
                10..=11 => {
                    self.flush()?;
                    self.settle()?;
                }
                12..=16 => self.sweep()?,
                17 => self.lose(),
                _ => self.bring_back()?,
            }
        }
    }

    /// Opens the pool with all of the members or with all but one. False: members in sync differ in an extent that no map names.
    fn open(&mut self) -> Result<bool, Died> {
        for member in 0..MEMBERS {
            self.lose_power(member);
            self.members[member].is_in_use = false;
        }
        let away = self.below(2 * MEMBERS as u64) as usize;
        let here: Vec<usize> = (0..MEMBERS).filter(|member| *member != away).collect();
        let newest = here.iter().map(|member| self.members[*member].epoch).max().unwrap_or_default();
        let is_in_sync = |member: &usize| self.members[*member].epoch == newest && newest.1 >> member & 1 == 1;
        let in_sync: Vec<usize> = here.iter().copied().filter(is_in_sync).collect();
        let Some(source) = in_sync.first().copied() else { return Ok(true) };
        let named = in_sync.iter().fold(0, |named, member| named | self.members[*member].map);
        for extent in (0..EXTENTS).filter(|extent| named >> extent & 1 == 0) {
            let of = |member: &usize| self.members[*member].cached[extent as usize];
            if in_sync.iter().any(|member| of(member) != of(&source)) {
                return Ok(false);
            }
        }
        for member in &in_sync {
            self.members[*member].is_in_use = true;
        }
        if self.broken != Broken::NamedByOneMapAlone {
            for member in &in_sync {
                self.step()?;
                self.members[*member].map |= named;
            }
        }
        self.intent = kept(EXTENTS);
        self.intent.keep(&[named & 0b1111]);
        self.begin(&in_sync, &here);
        for extent in (0..EXTENTS as usize).filter(|extent| named >> extent & 1 == 1) {
            for member in &in_sync {
                self.step()?;
                self.members[*member].cached[extent] = self.members[source].cached[extent];
            }
        }
        self.flush()?;
        Ok(true)
    }
}

/// Whether a run of writers and openings found members in sync that differ where no map says so.
fn is_violated(seed: u64, broken: Broken) -> bool {
    let mut world = World::new(seed, broken);
    for _ in 0..SESSIONS {
        let _ = world.session();
        while let Err(Died) = match world.open() {
            Ok(true) => Ok(()),
            Ok(false) => return true,
            Err(died) => Err(died),
        } {}
    }
    false
}

#[test]
fn members_in_sync_are_equal_where_no_map_says_otherwise() {
    for seed in 0..300 {
        assert!(!is_violated(seed, Broken::Nothing), "seed {seed}");
    }
}

#[test]
fn each_step_that_is_left_out_is_found() {
    use Broken::{
        ClearedBeforeALossIsKnown, ClearedWithoutAFlush, NamedByOneMapAlone, RaisedAfterTheWrite, ReturnedWithoutAMap,
    };
    for broken in
        [RaisedAfterTheWrite, ClearedWithoutAFlush, ClearedBeforeALossIsKnown, NamedByOneMapAlone, ReturnedWithoutAMap]
    {
        assert!((0..300).any(|seed| is_violated(seed, broken)), "{broken:?}");
    }
}
