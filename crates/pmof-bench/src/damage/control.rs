//! What the same damage does where nothing is verified: a cell whose control reads what was written proves nothing.

use std::ops::Range;

use anyhow::Context as _;
use pmof_control::{Header, IntentLayout, PoolFormat, PoolState, Roster};

use super::{
    case::Case,
    cell::{Cell, Extent, Moment, Structure},
    expected::Fault,
    farm::Farm,
    image::{Damage, Image},
};
use crate::soak::Random;

/// How often the damage is done anew where it hit what nothing depends on, such as bytes that are reserved.
const TRIES: u64 = 24;

/// What a control shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Control {
    /// Without verification a wrong byte is read, or what is damaged is believed.
    Wrong,
    /// All was right without verification, too.
    Right,
    /// There is none.
    None(&'static str),
}

impl Control {
    /// Runs the control of a cell.
    pub(super) fn run(cell: Cell, seed: u64, farm: &mut Farm, name: &str) -> Result<Self, Fault> {
        if let Some(reason) = reason_for_none(cell) {
            return Ok(Self::None(reason));
        }
        let mut random = Random::new(seed);
        for tries in 0..TRIES {
            let name = format!("{name}-{tries}");
            let case = Case::new(cell, Random::new(random.word()), farm, name.clone());
            let is_wrong = match cell.structure {
                Structure::Page => reads_wrong_bytes(case),
                Structure::Intent if cell.spread.damaged == cell.spread.replicas => leaves_difference(case),
                _ => is_believed(case),
            };
            farm.remove(&name);
            if is_wrong? {
                return Ok(Self::Wrong);
            }
        }
        Ok(Self::Right)
    }
}

fn reason_for_none(cell: Cell) -> Option<&'static str> {
    match cell.structure {
        Structure::MovingPage => Some("nothing is verified there: its cases read what the damage left"),
        Structure::Intent if cell.spread.replicas == 1 => Some("a pool of one replica keeps no map"),
        _ => None,
    }
}

/// A pool of format 3, damaged in the same way: what the replica that is read gives.
fn reads_wrong_bytes(mut case: Case<'_>) -> Result<bool, Fault> {
    case.has_digests = false;
    // The first replica is read.
    case.damaged = (0..case.damaged.len()).collect();
    let older = case.make()?;
    let open = case.prepare()?;
    let images = case.images()?;
    let pool = if let Some(open) = open {
        case.damage(&images, &older)?;
        open
    } else {
        let is_at_rest = case.cell.moment == Moment::AtRest;
        if is_at_rest {
            case.farm.stop();
        }
        case.damage(&images, &older)?;
        if is_at_rest {
            case.farm.restart()?;
        }
        case.open()?
    };
    let mut bytes = vec![0; case.expected.bytes.len()];
    let is_read = pool.read(0, &mut bytes).is_ok();
    drop(pool);
    case.farm.wait_closed()?;
    Ok(is_read && bytes != case.expected.bytes)
}

/// Replicas differ in what their writer was writing when it died, and the words of their maps are taken for words without any bit, as damage can make them: whether they still differ after an opening.
fn leaves_difference(mut case: Case<'_>) -> Result<bool, Fault> {
    case.make()?;
    let open = case.prepare()?;
    drop(open);
    case.farm.wait_closed()?;
    let images = case.images()?;
    for (image, file) in images.iter().zip(case.files()) {
        let range = image.intent_range();
        let clear = IntentLayout::encode(0, 0).to_le_bytes().to_vec();
        Damage { offset: range.start, bytes: clear }.store(&file)?;
    }
    case.tear_in_flight(&images)?;
    let pool = case.open()?;
    pool.close().context("the control's pool was not closed")?;
    drop(pool);
    case.farm.wait_closed()?;
    let torn = case.expected.uncovered.first().copied().unwrap_or_default();
    let images = case.images()?;
    let first = images[0].at(&images[0].page_range(torn));
    Ok(images.iter().any(|image| image.at(&image.page_range(torn)) != first))
}

/// Whether a copy, a word of the map or a word of the digests says something else once its checksum fits what the damage made of it.
fn is_believed(mut case: Case<'_>) -> Result<bool, Fault> {
    case.make()?;
    let images = case.images()?;
    let replica = case.damaged[0];
    let (cell, image) = (case.cell, &images[replica]);
    let random = &mut case.random;
    match cell.structure {
        Structure::Words => {
            let page = random.below(image.pages());
            let range = image.word_range(page).context("a pool with digests")?;
            let damaged = with_damage(image, &Damage::within(&range, cell.extent, image, None, random), &range);
            let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
            Ok(unchecked_word(word(&damaged)) != unchecked_word(word(image.at(&range))))
        }
        Structure::Intent => {
            let range = image.intent_range();
            let damaged = with_damage(image, &Damage::within(&range, cell.extent, image, None, random), &range);
            Ok(damaged[..4] != image.at(&range)[..4])
        }
        _ => {
            let copies = image.copies(cell.structure);
            let range = copies[random.below(copies.len() as u64) as usize].clone();
            let other = other_pool(&mut case)?;
            Ok(is_copy_believed(cell, &range, &images[replica], &other, &mut case.random))
        }
    }
}

/// The file of another pool of the same kind: what a write that went astray leaves.
fn other_pool(case: &mut Case<'_>) -> Result<Image, Fault> {
    let (random, name) = (Random::new(case.random.word()), format!("{}-other", case.name));
    let mut other = Case::new(case.cell, random, case.farm, name.clone());
    other.make()?;
    let image = other.images()?.remove(0);
    case.farm.remove(&name);
    Ok(image)
}

/// One copy of a structure of the head, alone and with a checksum that fits: whether it is taken for another one.
fn is_copy_believed(cell: Cell, range: &Range<u64>, image: &Image, other: &Image, random: &mut Random) -> bool {
    let right = image.at(range).to_vec();
    let mut copy = right.clone();
    let fields = fields(cell.structure);
    match cell.extent {
        Extent::Bit | Extent::Byte => {
            let at = fields.start + random.below((fields.end - fields.start) as u64) as usize;
            copy[at] ^= if cell.extent == Extent::Bit { 1 << random.below(8) } else { 1 + random.below(255) as u8 };
        }
        _ => {
            let len_bytes = (cell.extent.len_bytes() as usize).min(copy.len());
            copy[..len_bytes].copy_from_slice(&other.at(range)[..len_bytes]);
        }
    }
    let checksum_at = copy.len() - 4;
    let checksum = crc32c::crc32c(&copy[..checksum_at]).to_le_bytes();
    copy[checksum_at..].copy_from_slice(&checksum);
    let count = image.header.replica_count;
    // The other copies are blank.
    let alone = |copy: &[u8]| [copy, &vec![0; 3 * copy.len()]].concat();
    match cell.structure {
        Structure::Header | Structure::AllHeaders => Header::decode(&copy).is_ok_and(|header| header != image.header),
        Structure::State | Structure::AllStates => {
            let read = |copy: &[u8]| PoolState::read(PoolFormat::Four, count, &alone(copy)).map(|(state, _)| state);
            read(&copy).is_ok_and(|state| Ok(state) != read(&right))
        }
        _ => {
            let read = |copy: &[u8]| Roster::read_copies(PoolFormat::Four, count, &alone(copy)).map(|kept| kept.roster);
            read(&copy).is_ok_and(|roster| Ok(roster) != read(&right))
        }
    }
}

/// Bytes of a copy that something depends on; the rest is reserved.
fn fields(structure: Structure) -> Range<usize> {
    match structure {
        Structure::Header | Structure::AllHeaders => 32..80,
        Structure::State | Structure::AllStates => 16..49,
        _ => 16..80,
    }
}

/// What a reader that does not check words takes one for: whether the page is protected, and its digest.
fn unchecked_word(word: u64) -> (bool, u64) {
    let is_protected = word >> 63 != 0;
    (is_protected, if is_protected { word & ((1 << 48) - 1) } else { 0 })
}

fn with_damage(image: &Image, damage: &Damage, range: &Range<u64>) -> Vec<u8> {
    let mut bytes = image.bytes.clone();
    bytes[damage.offset as usize..][..damage.bytes.len()].copy_from_slice(&damage.bytes);
    bytes[range.start as usize..range.end as usize].to_vec()
}
