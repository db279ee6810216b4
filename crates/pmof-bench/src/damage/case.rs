//! One case: a pool is made and written, something of it is damaged, and all of it is read and judged.

use std::{collections::BTreeSet, ops::Range, path::PathBuf, time::Duration};

use anyhow::Context as _;
use pmof::{Event, Events, Pool, PoolError};
use pmof_control::PAGE_BYTES;

use super::{
    cell::{Cell, Extent, Moment, Structure},
    expected::{Expected, Fault, FaultKind},
    farm::Farm,
    image::{Damage, Harm, Image, noise},
};
use crate::soak::Random;

/// Pages of a pool: as many as have words in four sectors, where each replica is to lose another one.
const PAGES: Range<u64> = 64..129;
const PAGES_OF_FOUR_SECTORS: Range<u64> = 193..257;

/// How often places are chosen that must not meet.
const PLACE_TRIES: usize = 200;

/// What a case that is as it must be has shown.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcome {
    /// Pages of replicas that were damaged and are whole again.
    pub(super) healed_pages: u64,
    /// Pages that were refused, since no replica had them.
    pub(super) refused_pages: u64,
    /// Pages that nothing covers and that gave wrong bytes.
    pub(super) uncovered_pages: u64,
    /// Replicas that were left out for what their head lost.
    pub(super) left_out: u64,
    /// The pool was not opened: too few replicas were left.
    pub(super) is_not_opened: bool,
}

/// A case while it runs.
#[derive(Debug)]
pub(super) struct Case<'a> {
    pub(super) cell: Cell,
    pub(super) random: Random,
    pub(super) farm: &'a mut Farm,
    pub(super) name: String,
    /// False for a control: the pool keeps no digests, so that nothing is verified.
    pub(super) has_digests: bool,
    /// Damage is stored past the page cache.
    pub(super) is_direct: bool,
    pub(super) expected: Expected,
    /// The replicas that are damaged.
    pub(super) damaged: Vec<usize>,
    /// Pages that the last writer wrote.
    pub(super) written: BTreeSet<u64>,
    outcome: Outcome,
}

impl<'a> Case<'a> {
    pub(super) fn new(cell: Cell, mut random: Random, farm: &'a mut Farm, name: String) -> Self {
        let mut damaged: Vec<usize> = (0..usize::from(cell.spread.replicas)).collect();
        while damaged.len() > usize::from(cell.spread.damaged) {
            damaged.remove(random.below(damaged.len() as u64) as usize);
        }
        let (expected, written) = (Expected::default(), BTreeSet::new());
        let (has_digests, is_direct, outcome) = (true, false, Outcome::default());
        Self { cell, random, farm, name, has_digests, is_direct, expected, damaged, written, outcome }
    }

    pub(super) fn run(mut self) -> Result<Outcome, Fault> {
        let older = self.make()?;
        let pool = self.prepare()?;
        let before = self.images()?;
        if let Some(pool) = pool {
            self.damage(&before, &older)?;
            self.use_open(pool, &before)?;
        } else {
            if self.cell.moment == Moment::AtRest {
                self.farm.stop();
            }
            self.damage(&before, &older)?;
            self.tear_in_flight(&before)?;
            if self.cell.moment == Moment::AtRest {
                self.farm.restart()?;
            }
        }
        self.judge(&before)
    }

    pub(super) fn files(&self) -> Vec<PathBuf> {
        (0..usize::from(self.cell.spread.replicas)).map(|replica| self.farm.file(replica, &self.name)).collect()
    }

    pub(super) fn images(&self) -> Result<Vec<Image>, Fault> {
        Ok(self.files().iter().map(|file| Image::read(file)).collect::<anyhow::Result<_>>()?)
    }

    fn options(&self) -> pmof::PoolOptions {
        self.farm.options(self.cell.way, self.cell.spread.replicas, &self.name)
    }

    pub(super) fn open(&self) -> Result<Pool, Fault> {
        self.options().open().map_err(|error| Fault::of(FaultKind::Error, "cannot open the pool", &error))
    }

    /// Makes the pool and writes most of it. Returns the files as they were before that.
    pub(super) fn make(&mut self) -> Result<Vec<Image>, Fault> {
        let is_large = matches!(self.cell.structure, Structure::Words | Structure::MovingPage);
        let range = if is_large { PAGES_OF_FOUR_SECTORS } else { PAGES };
        let pages = range.start + self.random.below(range.end - range.start);
        let len_bytes = pages * PAGE_BYTES - self.random.below(PAGE_BYTES);
        let options = self.options().digests(self.has_digests);
        let made = options.create(len_bytes);
        let pool = made.map_err(|error| Fault::of(FaultKind::Error, "cannot make the pool", &error))?;
        let older = self.images()?;
        self.expected.bytes = vec![0; len_bytes as usize];
        // Some of it stays zero, as in pools that are new.
        let zeros = self.random.below(len_bytes)..self.random.below(len_bytes);
        let bytes = noise(len_bytes as usize, &mut self.random);
        for range in [0..zeros.start.min(zeros.end), zeros.end.max(zeros.start)..len_bytes] {
            let part = &bytes[range.start as usize..range.end as usize];
            self.persist(&pool, range.start, part)?;
        }
        self.overwrite(&pool)?;
        close(&pool)?;
        Ok(older)
    }

    fn persist(&mut self, pool: &Pool, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
        if bytes.is_empty() {
            return Ok(());
        }
        pool.persist(offset, bytes).map_err(|error| Fault::of(FaultKind::Error, "a persist failed", &error))?;
        self.expected.bytes[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        self.written.extend(offset / PAGE_BYTES..(offset + bytes.len() as u64).div_ceil(PAGE_BYTES));
        Ok(())
    }

    /// A few writes of any length at any place.
    fn overwrite(&mut self, pool: &Pool) -> Result<(), Fault> {
        self.written.clear();
        // Enough for pages in motion that lie apart.
        let least = if self.cell.structure == Structure::MovingPage { 12 } else { 1 };
        for _ in 0..least + self.random.below(4) {
            let offset = self.random.below(self.expected.bytes.len() as u64);
            let room = self.expected.bytes.len() as u64 - offset;
            let len_bytes = 1 + self.random.below(room.min(3 * PAGE_BYTES));
            let bytes = noise(len_bytes as usize, &mut self.random);
            self.persist(pool, offset, &bytes)?;
        }
        Ok(())
    }

    /// Brings the pool to the moment of the damage. Returns it where it is open then.
    pub(super) fn prepare(&mut self) -> Result<Option<Pool>, Fault> {
        let (is_after_crash, is_open) = (self.cell.structure.is_after_crash(), self.cell.moment.is_open());
        if !is_after_crash && !is_open {
            return Ok(None);
        }
        let pool = self.open()?;
        if is_after_crash {
            self.overwrite(&pool)?;
        }
        if self.cell.moment == Moment::OpenAndRead {
            self.expected.check(&pool, &mut self.random)?;
        }
        if is_open {
            return Ok(Some(pool));
        }
        drop(pool);
        self.farm.wait_closed()?;
        Ok(None)
    }

    /// Damages the replicas of the cell.
    pub(super) fn damage(&mut self, images: &[Image], older: &[Image]) -> Result<(), Fault> {
        let files = self.files();
        for (replica, damage) in self.places(images, older)? {
            let stored =
                if self.is_direct { damage.store_direct(&files[replica]) } else { damage.store(&files[replica]) };
            stored?;
        }
        Ok(())
    }

    /// What is stored where, on the damaged replicas.
    fn places(&mut self, images: &[Image], older: &[Image]) -> Result<Vec<(usize, Damage)>, Fault> {
        let (cell, damaged) = (self.cell, self.damaged.clone());
        let is_apart = !cell.spread.is_same && !cell.structure.is_head();
        for _ in 0..PLACE_TRIES {
            let (seed, mut places, mut met) = (self.random.word(), Vec::new(), BTreeSet::new());
            for replica in &damaged {
                // The same place on each is the same sequence of choices: their files have the same layout.
                let own = if cell.spread.is_same { 0 } else { *replica as u64 };
                let mut random = Random::new(seed.wrapping_add(own));
                for within in self.structures(&images[*replica], &mut random)? {
                    // An older state in all places is an older file: no damage, and what the rules for those are about.
                    let is_partial = !matches!(
                        cell.structure,
                        Structure::AllHeaders | Structure::AllStates | Structure::AllRosters | Structure::Intent
                    );
                    let older = Some(&older[*replica]).filter(|_| is_partial);
                    let damage = Damage::within(&within, cell.extent, &images[*replica], older, &mut random);
                    met.extend(pages_met(cell.structure, &images[*replica], &damage).map(|page| (*replica, page)));
                    places.push((*replica, damage));
                }
            }
            let pages: BTreeSet<u64> = met.iter().map(|(_, page)| *page).collect();
            if !is_apart || pages.len() == met.len() {
                return Ok(places);
            }
        }
        Err(Fault::new(FaultKind::Error, "no places apart were found"))
    }

    /// Where the structure of the cell lies, as many copies of it as are damaged.
    fn structures(&self, image: &Image, random: &mut Random) -> Result<Vec<Range<u64>>, Fault> {
        let mut copies = image.copies(self.cell.structure);
        let one = |range: Option<Range<u64>>| range.map(|range| vec![range]);
        let found = match self.cell.structure {
            Structure::Header | Structure::State | Structure::Roster => {
                let left = 1 + random.below(copies.len() as u64 - 1);
                while copies.len() as u64 > left {
                    copies.remove(random.below(copies.len() as u64) as usize);
                }
                Some(copies)
            }
            Structure::AllHeaders | Structure::AllStates | Structure::AllRosters => Some(copies),
            Structure::Intent => one(Some(image.intent_range())),
            Structure::Words => one(image.word_range(random.below(image.pages()))),
            Structure::Page => {
                let is_good = |page: &u64| !self.has_digests || image.is_protected(*page);
                one(pick((0..image.pages()).filter(is_good), random).map(|page| image.page_range(page)))
            }
            Structure::MovingPage => {
                let moving = self.written.iter().copied().filter(|page| image.is_unprotected(*page));
                one(pick(moving, random).map(|page| image.page_range(page)))
            }
        };
        found.ok_or_else(|| Fault::new(FaultKind::Error, "there is no page as the cell needs it"))
    }

    /// Makes the replicas differ in a page that the writer may have been writing when it died: what the map of write intent is for.
    pub(super) fn tear_in_flight(&mut self, before: &[Image]) -> Result<(), Fault> {
        if self.cell.structure != Structure::Intent || before.len() < 2 {
            return Ok(());
        }
        let replica = self.random.below(before.len() as u64) as usize;
        let moving = self.written.iter().copied().filter(|page| before[replica].is_unprotected(*page));
        let page = pick(moving, &mut self.random).context("a writer that died leaves pages in motion")?;
        let range = before[replica].page_range(page);
        let damage = Damage::within(&range, Extent::Byte, &before[replica], None, &mut self.random);
        damage.store(&self.files()[replica])?;
        self.expected.uncovered.insert(page);
        Ok(())
    }

    /// Reads the pool while it is open, and closes it, or ends as a writer that dies.
    fn use_open(&mut self, pool: Pool, before: &[Image]) -> Result<(), Fault> {
        let mut events = pool.events();
        let harms = self.harms(before)?;
        let mut expected = self.expected_after(&harms, false);
        if self.cell.is_past_verification() {
            expected.uncovered.extend(harms.iter().flat_map(|harm| harm.pages.iter().copied()));
        }
        let found = expected.check(&pool, &mut self.random)?;
        self.outcome.uncovered_pages += found.uncovered;
        check_alarms(&mut events, &harms)?;
        if self.cell.structure == Structure::Intent {
            drop(pool);
            self.farm.wait_closed()?;
            return self.tear_in_flight(before);
        }
        match pool.close() {
            Ok(()) => {}
            // What the close would have stored it could not.
            Err(_) if harms.iter().any(Harm::is_left_out) => {}
            Err(error) => return Err(Fault::of(FaultKind::Error, "the pool was not closed", &error)),
        }
        drop(pool);
        self.farm.wait_closed()?;
        Ok(())
    }

    fn harms(&self, before: &[Image]) -> Result<Vec<Harm>, Fault> {
        let pairs = self.files().into_iter().zip(before);
        Ok(pairs.map(|(file, before)| Ok(before.again(&file)?.harm_since(before))).collect::<anyhow::Result<_>>()?)
    }

    /// What must be read by the damage that was done. `without_left_out`: replicas whose head is lost give nothing.
    fn expected_after(&self, harms: &[Harm], without_left_out: bool) -> Expected {
        let mut expected = self.expected.clone();
        let is_bad = |harm: &Harm, page| harm.pages.contains(&page) || (without_left_out && harm.is_left_out());
        let all: BTreeSet<u64> = harms.iter().flat_map(|harm| harm.pages.iter().copied()).collect();
        expected.lost = all.into_iter().filter(|page| harms.iter().all(|harm| is_bad(harm, *page))).collect();
        expected.uncovered.extend(harms.iter().flat_map(|harm| harm.moving.iter().copied()));
        expected
    }

    /// Opens the pool, and checks what it gives and what it leaves.
    fn judge(mut self, before: &[Image]) -> Result<Outcome, Fault> {
        let harms = self.harms_now(before)?;
        let expected = self.expected_after(&harms, true);
        self.expected = expected;
        let left_out = harms.iter().filter(|harm| harm.is_left_out()).count();
        self.outcome.left_out = left_out as u64;
        let alive = harms.len() - left_out;
        if self.random.below(3) == 0 && left_out == 0 {
            self.check_reader(&harms)?;
        }
        let pool = match self.options().open() {
            Ok(pool) => pool,
            Err(error) if 2 * alive > harms.len() => {
                return Err(Fault::of(FaultKind::LostBytes, "the pool was not opened", &error));
            }
            Err(_) => return self.judge_unopened(alive),
        };
        let mut events = pool.events();
        let found = self.expected.check(&pool, &mut self.random)?;
        self.outcome.refused_pages = found.refused;
        self.outcome.uncovered_pages += found.uncovered;
        // A scrub while pages are lost, or after these are written anew.
        let is_scrubbed_first = self.random.below(2) == 0;
        if is_scrubbed_first {
            self.scrub(&pool)?;
        }
        self.write_after(&pool)?;
        if !is_scrubbed_first {
            self.scrub(&pool)?;
        }
        check_alarms(&mut events, &harms)?;
        let uncovered = self.expected.uncovered.clone();
        for page in uncovered {
            // From here on it is what it is.
            let range = self.expected.range_of(page);
            let read = pool.read(range.start as u64, &mut self.expected.bytes[range]);
            read.map_err(|error| Fault::of(FaultKind::LostBytes, &format!("page {page}"), &error))?;
        }
        close(&pool)?;
        drop(pool);
        self.farm.wait_closed()?;
        self.judge_files(before, &harms)?;
        Ok(self.outcome)
    }

    /// The damage as it is before the pool is opened: a writer that had it open has repaired some of it.
    fn harms_now(&self, before: &[Image]) -> Result<Vec<Harm>, Fault> {
        if !self.cell.moment.is_open() {
            return self.harms(before);
        }
        let mut harms = Vec::new();
        for (file, before) in self.files().into_iter().zip(before) {
            let now = before.again(&file)?;
            let mut harm = Harm { is_header_lost: now.harm_since(before).is_header_lost, ..Harm::default() };
            let joined = |structure| now.copies(structure).iter().flat_map(|range| now.at(range).to_vec()).collect();
            let (states, rosters): (Vec<u8>, Vec<u8>) = (joined(Structure::State), joined(Structure::Roster));
            let (format, count) = (now.header.format, now.header.replica_count);
            harm.is_state_lost = pmof_control::PoolState::read(format, count, &states).is_err();
            harm.is_roster_lost = pmof_control::Roster::read_copies(format, count, &rosters).is_err();
            for page in 0..now.pages() {
                let is_moving = before.is_unprotected(page);
                let is_changed = now.at(&now.page_range(page)) != before.at(&before.page_range(page));
                if now.is_whole(page) == Some(false) {
                    harm.pages.insert(page);
                } else if is_moving && is_changed {
                    harm.moving.insert(page);
                }
            }
            harms.push(harm);
        }
        Ok(harms)
    }

    /// A reader repairs nothing, and gives the same.
    fn check_reader(&mut self, harms: &[Harm]) -> Result<(), Fault> {
        let reader = match self.options().open_read_only() {
            Ok(reader) => reader,
            // After a crash replicas may differ, which a reader cannot settle.
            Err(_) if self.cell.structure.is_after_crash() => return Ok(()),
            Err(error) => return Err(Fault::of(FaultKind::LostBytes, "the pool was not opened for reading", &error)),
        };
        let mut events = reader.events();
        self.expected.check(&reader, &mut self.random)?;
        check_alarms(&mut events, harms)?;
        drop(reader);
        self.farm.wait_closed()?;
        Ok(())
    }

    /// Too few replicas are left to open the pool for writing: a reader that asks for fewer must get everything.
    fn judge_unopened(mut self, alive: usize) -> Result<Outcome, Fault> {
        self.outcome.is_not_opened = true;
        if alive == 0 {
            return Ok(self.outcome);
        }
        let reader = self.options().min_replicas(alive).open_read_only();
        let reader = reader.map_err(|error| Fault::of(FaultKind::LostBytes, "what is left was not opened", &error))?;
        let found = self.expected.check(&reader, &mut self.random)?;
        self.outcome.refused_pages = found.refused;
        self.outcome.uncovered_pages += found.uncovered;
        Ok(self.outcome)
    }

    fn scrub(&mut self, pool: &Pool) -> Result<(), Fault> {
        pool.scrub(&mut |_| ()).map_err(|error| Fault::of(FaultKind::Error, "the scrub failed", &error))?;
        self.expected.check(pool, &mut self.random).map(drop)
    }

    /// Writes a part of a page, and each page that was lost as a whole.
    fn write_after(&mut self, pool: &Pool) -> Result<(), Fault> {
        for page in self.expected.lost.clone() {
            let range = self.expected.range_of(page);
            let mut byte = [0];
            let is_refused = matches!(pool.read(range.start as u64, &mut byte), Err(PoolError::Damaged { .. }));
            if is_refused && range.len() > 1 {
                match pool.persist(range.start as u64 + 1, &[1]) {
                    Err(PoolError::Damaged { .. }) => {}
                    Err(error) => return Err(Fault::of(FaultKind::Error, "a write to a part of a lost page", &error)),
                    Ok(_) => {
                        return Err(Fault::new(FaultKind::LostBytes, "a write to a part of a lost page hid its loss"));
                    }
                }
            }
            let bytes = noise(range.len(), &mut self.random);
            self.persist(pool, range.start as u64, &bytes)?;
            self.expected.lost.remove(&page);
        }
        let offset = self.random.below(self.expected.bytes.len() as u64);
        let (byte, page) = ([self.random.word() as u8], offset / PAGE_BYTES);
        if self.expected.uncovered.contains(&page) {
            return Ok(());
        }
        self.persist(pool, offset, &byte)
    }

    /// All that could be repaired is.
    fn judge_files(&mut self, before: &[Image], harms: &[Harm]) -> Result<(), Fault> {
        let files = self.files();
        for (replica, (before, harm)) in
            before.iter().zip(harms).enumerate().filter(|(_, (_, harm))| !harm.is_left_out())
        {
            let now = before.again(&files[replica])?;
            let fault = |text: String| Err(Fault::new(FaultKind::NotHealed, format!("replica {replica}: {text}")));
            if !now.is_head_whole() {
                return fault("a copy of its header, state or roster is still damaged".into());
            }
            for page in 0..now.pages() {
                let range = self.expected.range_of(page);
                let (begin, is_moving) = (now.page_range(page).start as usize, self.expected.uncovered.contains(&page));
                let is_right = now.bytes[begin..][..range.len()] == self.expected.bytes[range];
                match now.is_whole(page) {
                    Some(true) if is_right => self.outcome.healed_pages += u64::from(harm.pages.contains(&page)),
                    // Replicas that disagree are not protected, and not made equal without a crash.
                    None if is_right || is_moving => {}
                    _ if is_moving => {}
                    Some(true) => {
                        return Err(Fault::new(
                            FaultKind::WrongBytes,
                            format!(
                                "replica {replica}: page {page} is protected, and has other bytes than were written"
                            ),
                        ));
                    }
                    None => {
                        return Err(Fault::new(
                            FaultKind::WrongBytes,
                            format!(
                                "replica {replica}: page {page} is unprotected, and has other bytes than were written"
                            ),
                        ));
                    }
                    Some(false) => return fault(format!("page {page} is still damaged")),
                }
            }
        }
        Ok(())
    }
}

/// The pages that damage concerns.
fn pages_met(structure: Structure, image: &Image, damage: &Damage) -> impl Iterator<Item = u64> {
    let touched = damage.offset..damage.offset + damage.bytes.len() as u64;
    let range_of = move |page: u64| match structure {
        Structure::Words => image.word_range(page).unwrap_or_default(),
        _ => image.page_range(page),
    };
    (0..image.pages()).filter(move |page| {
        let range = range_of(*page);
        range.start < touched.end && touched.start < range.end
    })
}

fn pick(choices: impl Iterator<Item = u64>, random: &mut Random) -> Option<u64> {
    let choices: Vec<u64> = choices.collect();
    let at = random.below(choices.len() as u64) as usize;
    choices.get(at).copied()
}

fn close(pool: &Pool) -> Result<(), Fault> {
    pool.close().map_err(|error| Fault::of(FaultKind::Error, "the pool was not closed", &error))
}

/// Events name no page as damaged that is whole.
fn check_alarms(events: &mut Events, harms: &[Harm]) -> Result<(), Fault> {
    while let Some(event) = events.next_for(Duration::ZERO) {
        let (Event::Healed { range, .. } | Event::Damaged { range, .. }) = &event else { continue };
        let page = range.start / PAGE_BYTES;
        if !harms.iter().any(|harm| harm.pages.contains(&page)) {
            return Err(Fault::new(FaultKind::FalseAlarm, format!("{event}")));
        }
    }
    Ok(())
}
