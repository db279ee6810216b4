//! What caught up by the map is compared as a whole, while the pool is written: a map that missed a page would go unnoticed otherwise.

use alloc::{vec, vec::Vec};
use core::{ops::Range, time::Duration};

use super::{
    copy::contents,
    driver::{Halt, Halted, Members, Progress, Returns},
    trust::Trust,
};
use crate::{
    comparing::{Contents, Findings, differing_from_source, lacking, settle, source_for},
    epochs,
};

/// Bytes that are compared at once: writers wait so long behind it.
const STEP_BYTES: u64 = 1 << 20;

/// Pause before a comparison that was interrupted begins again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Looks at what differed, which may have been on its way to one of both, before writers are held for one more.
const LOOKS: usize = 3;

/// Compares a member that has caught up with one that was in sync. True: it differs, and is left behind; it is compared as a whole when it returns.
pub async fn verify<D: Returns>(driver: &D, member: &D::Member) -> bool {
    let began = driver.now();
    let is_in_sync = || driver.epochs().is_ok_and(|epochs| epochs.state(member).is_in_sync());
    let found = loop {
        match find_difference(driver, member).await {
            Ok(found) => break found,
            // The one that it was compared with was lost: with another one, or when that is back.
            Err(_) if is_in_sync() && driver.pause(AGAIN_AFTER).await => {}
            // It was lost itself, or the pool was closed: the next catch-up compares it as much as is needed.
            Err(_) => return false,
        }
    };
    match found {
        Difference::None { compared_bytes } => {
            let took = driver.now().saturating_sub(began);
            driver.note(member, Progress::Verified { compared_bytes, took });
            false
        }
        Difference::In(range) => {
            driver.with_trust(Trust::note_difference);
            driver.note(member, Progress::Differs { range });
            driver.interrupt(member, false);
            if let Ok(epochs) = driver.epochs() {
                epochs::settle(&epochs.lock().await).await;
            }
            true
        }
    }
}

/// What a comparison found.
enum Difference {
    None { compared_bytes: u64 },
    In(Range<u64>),
}

async fn find_difference<D: Returns>(driver: &D, member: &D::Member) -> Halted<Difference, D> {
    let mut compared_bytes = 0;
    for step in steps_with_data(driver, member).await? {
        let began = driver.now();
        if let Some(range) = difference_in(driver, member, &step).await? {
            return Ok(Difference::In(range));
        }
        compared_bytes += step.end - step.start;
        // No more than half of the time, so that writers have theirs.
        if !driver.pause(driver.now().saturating_sub(began)).await {
            return Err(Halt::Ended);
        }
    }
    Ok(Difference::None { compared_bytes })
}

async fn difference_in<D: Returns>(driver: &D, member: &D::Member, step: &Range<u64>) -> Halted<Option<Range<u64>>, D> {
    let mut suspects = vec![step.clone()];
    for _ in 0..LOOKS {
        let contents = contents(driver)?;
        let mut differing = Vec::new();
        for suspect in &suspects {
            differing.append(&mut differing_from_source(&*contents, member, suspect).await.ok_or(Halt::Later)?);
        }
        suspects = differing;
        if suspects.is_empty() {
            return Ok(None);
        }
    }
    let pool = driver.pool()?;
    for suspect in suspects {
        // All that was posted before is before the digests on both.
        let held = driver.hold_all(&pool).await?;
        let differing = differing_from_source(&*held, member, &suspect).await.ok_or(Halt::Later)?;
        let lacking = lacking(&*held, member, differing.clone()).await.ok_or(Halt::Later)?;
        if let Some(range) = lacking.first() {
            return Ok(Some(range.clone()));
        }
        drop(held);
        // Others hold what it does: the one that it was compared with has rotted.
        for range in &differing {
            let (began, mut found) = (driver.now(), Findings::default());
            // What fails here is found by the next scrub.
            if settle(&*pool, range, &mut found).await.is_ok() {
                driver.note_scrubbed(range, found, driver.now().saturating_sub(began));
            }
        }
    }
    Ok(None)
}

/// The steps of the pool in which one of both has anything but zeros.
async fn steps_with_data<D: Returns>(driver: &D, member: &D::Member) -> Halted<Vec<Range<u64>>, D> {
    let size_bytes = driver.terms()?.identity.size_bytes;
    // Held no longer than that: members that are lost meanwhile are let go of.
    let contents = contents(driver)?;
    let source = source_for(&*contents, member).ok_or(Halt::Later)?;
    let mut has_data = vec![false; size_bytes.div_ceil(STEP_BYTES) as usize];
    for one in [source, member] {
        for data in contents.data_ranges(one).await.ok_or(Halt::Later)? {
            has_data[(data.start / STEP_BYTES) as usize..data.end.div_ceil(STEP_BYTES) as usize].fill(true);
        }
    }
    let steps = (0..size_bytes).step_by(STEP_BYTES as usize).zip(has_data).filter(|(_, has_data)| *has_data);
    Ok(steps.map(|(start, _)| start..size_bytes.min(start + STEP_BYTES)).collect())
}
