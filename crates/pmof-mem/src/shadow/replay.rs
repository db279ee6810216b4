//! A trace lived through again, with a crash after every event.

use super::{Event, Exhaustive, model::Model};
use crate::{MediumKind, MemError};

/// One image at one moment of a trace.
#[derive(Clone, Copy, Debug)]
pub struct CrashPoint<'a> {
    /// How many events of the trace had happened.
    pub events_done: usize,
    /// The marks among them, first to last.
    pub marks: &'a [u64],
    /// What the crash left.
    pub image: &'a [u8],
}

/// How much [`for_each_crash_point`] went through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coverage {
    /// Moments at which a crash was tried.
    pub points: u64,
    /// Images over all moments.
    pub images: u64,
    /// `No` if at some moment there were more images than the limit.
    pub exhaustive: Exhaustive,
}

/// Replays `trace` on a medium of `kind` that held `initial`, and calls `check` with each image that a crash could leave
/// before the first event and after every one, at most `limit` a moment (see
/// [`ShadowMedium::crash_images`](super::ShadowMedium::crash_images)). Write-backs are passed over: they change neither
/// images nor marks.
///
/// Stops at the first error of `check` and returns it. Errors of its own: `Unsuitable` as
/// [`ShadowMedium::new`](super::ShadowMedium::new), `OutOfBounds` if the trace is of a longer medium.
pub fn for_each_crash_point<E: From<MemError>>(
    kind: MediumKind,
    initial: &[u8],
    trace: &[Event],
    limit: usize,
    mut check: impl FnMut(CrashPoint<'_>) -> Result<(), E>,
) -> Result<Coverage, E> {
    let mut model = Model::new(kind, initial.to_vec())?;
    let mut marks = Vec::new();
    let mut coverage = Coverage { points: 0, images: 0, exhaustive: Exhaustive::Yes };
    for events_done in 0..=trace.len() {
        if let Some(event) = events_done.checked_sub(1).and_then(|index| trace.get(index)) {
            model.has(event)?;
            model.apply(event);
            match event {
                Event::WriteBack { .. } => continue,
                Event::Mark(value) => marks.push(*value),
                Event::Store { .. } | Event::Fence => {}
            }
        }
        let mut images = model.crash_images(limit);
        coverage.points += 1;
        if images.exhaustive() == Exhaustive::No {
            coverage.exhaustive = Exhaustive::No;
        }
        let mut image = Vec::new();
        while images.next_into(&mut image) {
            coverage.images += 1;
            check(CrashPoint { events_done, marks: &marks, image: &image[..images.len_bytes()] })?;
        }
    }
    Ok(coverage)
}
