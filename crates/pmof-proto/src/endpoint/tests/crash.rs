//! What a flush acknowledged is in every image that a crash can leave, and the same check sees a flush that does nothing.

use std::sync::Arc;

use pmof_mem::{
    Durability, Medium, MediumKind, ShadowMedium,
    faults::{HoldFence, SkipFence, SkipWriteBack},
};

use super::support::*;
use crate::{Operation, Outcome, Signal};

/// Crash images looked at, at each point.
const IMAGES: usize = 64;

/// Plays rounds of writes, atomic operations and a flush over `wrapped`, which works on `shadow`; after each round, and amid the next, every
/// crash image must hold what was acknowledged. Returns the first loss.
fn first_loss(shadow: &ShadowMedium, wrapped: Arc<dyn Medium>, level: Durability) -> Option<String> {
    let mut pair = Pair::with_medium(settings(true), wrapped);
    // Without effect on media whose fences are instructions.
    pair.sides[1].endpoint.defer_flushes(true);
    let mut acknowledged: Vec<(u64, Vec<u8>)> = Vec::new();
    for round in 0..8_u64 {
        let mut issued = Vec::new();
        for (index, len) in [8, 100, 1].into_iter().enumerate() {
            let offset = (round * 3 + index as u64) * 256 + 24;
            let bytes = pattern(len, round as u8 + 1);
            pair.post_as(0, write(offset, &bytes), Signal::OnError, 0);
            issued.push((offset, bytes));
        }
        let (offset, value) = ((round * 3) * 256 + 200, round + 1);
        pair.post_as(0, Operation::AtomicWrite { key: KEY, offset, value }, Signal::OnError, 0);
        issued.push((offset, value.to_le_bytes().to_vec()));
        // The words are 0 before.
        let offset = (round * 3 + 1) * 256 + 200;
        let swap = Operation::CompareAndSwap { key: KEY, offset, expected: 0, new: value };
        pair.post_as(0, swap, Signal::OnError, 0);
        issued.push((offset, value.to_le_bytes().to_vec()));
        let offset = (round * 3 + 2) * 256 + 200;
        pair.post_as(0, Operation::FetchAndAdd { key: KEY, offset, addend: value }, Signal::OnError, 0);
        issued.push((offset, value.to_le_bytes().to_vec()));
        pair.run();
        if let Some(loss) = lost(shadow, &acknowledged) {
            return Some(format!("round {round}, before its flush: {loss}"));
        }
        let outcome = pair.outcome(flush(level));
        assert!(matches!(outcome, Ok(Outcome::Flushed(flushed)) if flushed.durability == level), "{outcome:?}");
        acknowledged.append(&mut issued);
        if let Some(loss) = lost(shadow, &acknowledged) {
            return Some(format!("round {round}, after its flush: {loss}"));
        }
    }
    None
}

fn lost(shadow: &ShadowMedium, acknowledged: &[(u64, Vec<u8>)]) -> Option<String> {
    let images = shadow.crash_images(IMAGES);
    images.enumerate().find_map(|(number, image)| {
        let is_lost = |(offset, bytes): &&(u64, Vec<u8>)| {
            let start = (REGION_AT + offset) as usize;
            image[start..start + bytes.len()] != bytes[..]
        };
        let (offset, bytes) = acknowledged.iter().find(is_lost)?;
        Some(format!("image {number} lacks {} bytes at {offset}", bytes.len()))
    })
}

const KINDS: [MediumKind; 4] = [MediumKind::FsDax, MediumKind::DevDax, MediumKind::PageCache, MediumKind::VirtioPmem];

fn shadow(kind: MediumKind) -> Arc<ShadowMedium> {
    Arc::new(ShadowMedium::new(MEDIUM_BYTES, kind).expect("a kind with a persistence domain"))
}

#[test]
fn acknowledged_bytes_survive_every_crash() {
    for kind in KINDS {
        let shadow = shadow(kind);
        let loss = first_loss(&shadow, Arc::clone(&shadow) as _, Durability::PowerFailure);
        assert_eq!(loss, None, "{kind}");
    }
}

#[test]
fn the_check_sees_a_medium_that_does_not_fence() {
    for kind in KINDS {
        let shadow = shadow(kind);
        let loss = first_loss(&shadow, Arc::new(SkipFence(Arc::clone(&shadow))), Durability::PowerFailure);
        assert!(loss.is_some(), "{kind}");
    }
}

/// Flushes of it are handed out.
fn handed_out(medium: impl Medium + 'static) -> Arc<dyn Medium> {
    let handed_out = HoldFence::new(medium, 1);
    handed_out.let_pass(u64::MAX);
    Arc::new(handed_out)
}

#[test]
fn flushes_that_were_handed_out_survive_too_and_the_check_sees_those_that_do_not() {
    for kind in [MediumKind::PageCache, MediumKind::VirtioPmem] {
        let shadow = shadow(kind);
        let loss = first_loss(&shadow, handed_out(Arc::clone(&shadow)), Durability::PowerFailure);
        assert_eq!(loss, None, "{kind}");
        let loss = first_loss(&shadow, handed_out(SkipFence(Arc::clone(&shadow))), Durability::PowerFailure);
        assert!(loss.is_some(), "{kind}");
    }
}

#[test]
fn the_check_sees_a_medium_that_does_not_write_back() {
    for kind in KINDS {
        let shadow = shadow(kind);
        let loss = first_loss(&shadow, Arc::new(SkipWriteBack(Arc::clone(&shadow))), Durability::PowerFailure);
        assert!(loss.is_some(), "{kind}");
    }
}

#[test]
fn the_check_sees_a_flush_to_a_weaker_level() {
    for level in [Durability::Visible, Durability::ProcessCrash] {
        let shadow = shadow(MediumKind::FsDax);
        assert!(first_loss(&shadow, Arc::clone(&shadow) as _, level).is_some(), "{level} promises less");
    }
}

/// Bytes that a device stored past the target's CPU, then a flush by message that names them or not. The first loss.
fn loss_past_the_cpu(kind: MediumKind, is_named: bool) -> Option<String> {
    let shadow = shadow(kind);
    let mut pair = Pair::with_medium(settings(true), Arc::clone(&shadow) as _);
    let mut acknowledged = Vec::new();
    for round in 0..6_u64 {
        let (offset, bytes) = (round * 512 + 40, pattern(100, round as u8 + 1));
        shadow.store(REGION_AT + offset, &bytes).expect("it lies inside");
        if is_named {
            let operation = Operation::WriteBack { key: KEY, offset, len_bytes: bytes.len() as u64 };
            pair.post_as(0, operation, Signal::OnError, 0);
        }
        let outcome = pair.outcome(flush(Durability::PowerFailure));
        assert!(matches!(outcome, Ok(Outcome::Flushed(_))), "{outcome:?}");
        acknowledged.push((offset, bytes));
        if let Some(loss) = lost(&shadow, &acknowledged) {
            return Some(format!("round {round}: {loss}"));
        }
    }
    None
}

#[test]
fn what_was_written_past_the_cpu_survives_once_it_is_named() {
    for kind in KINDS {
        assert_eq!(loss_past_the_cpu(kind, true), None, "{kind}");
        assert!(loss_past_the_cpu(kind, false).is_some(), "{kind}: a flush by message knows only what passed the CPU");
    }
}
