//! Making members equal when a pool is opened behind a writer's death.

use alloc::vec::Vec;
use core::ops::Range;

use super::Compared;

/// The members of a pool that is being opened, and what of them is compared.
pub trait Equalizing {
    /// A digest of a block.
    type Digest: PartialEq;
    /// A failure of the driver's.
    type Failure;

    /// The member that the others are made equal to where no content is on more than half of them, by its number among those compared.
    fn source(&self) -> usize;

    /// Whether epochs say that all members compared have what was acknowledged. Else the source alone has.
    fn has_epochs(&self) -> bool;

    /// Compares the next window. `None`: all are compared.
    ///
    /// # Errors
    /// A member is lost that the opening needs.
    fn compare_next(&mut self) -> impl Future<Output = Result<Option<Compared<Self::Digest>>, Self::Failure>>;

    /// Has these members hold in a block what another one does, or refuses that. Returns the bytes copied.
    ///
    /// # Errors
    /// The member that is read is lost, or the pool is not to be opened where members differ.
    fn make_equal(
        &mut self,
        from: usize,
        block: &Range<u64>,
        to: &[usize],
    ) -> impl Future<Output = Result<u64, Self::Failure>>;

    /// Makes all that was compared as durable as each member can.
    fn make_durable(&mut self) -> impl Future<Output = ()>;

    /// Has all members keep one mark, or sees that none is lost where there are no epochs.
    ///
    /// # Errors
    /// A member is lost that no epoch leaves out.
    fn note_equal(&mut self) -> impl Future<Output = Result<(), Self::Failure>>;
}

/// Compares the members, and copies what most of them hold, or else the source, to the members that differ. Makes all of them durable: what is the same on all may be durable
/// on some, and the program acts on what it reads, from whichever member that comes. Returns the bytes copied.
///
/// # Errors
/// Those of the driver.
pub async fn equalize<E: Equalizing>(driver: &mut E) -> Result<u64, E::Failure> {
    let mut copied_bytes = 0;
    while let Some(compared) = driver.compare_next().await? {
        for block in compared.differing() {
            let source = driver.source();
            let right = if driver.has_epochs() { compared.most_hold(source, block) } else { source };
            let unlike: Vec<_> = compared.unlike(right, block).collect();
            copied_bytes += driver.make_equal(right, &compared.block(block), &unlike).await?;
        }
    }
    driver.make_durable().await;
    // Not before: the source must be known as long as the members differ.
    driver.note_equal().await?;
    Ok(copied_bytes)
}
