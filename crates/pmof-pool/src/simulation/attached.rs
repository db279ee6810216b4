//! An asynchronous member as its writer reaches it, over a connection that may be cut at any operation.

use super::{
    areas::{Access, Area, Areas},
    faults::Fault,
    random::Random,
    tasks::Shared,
};

/// The memory of a member that a writer is connected to.
pub(super) struct Attached {
    pub(super) world: Shared,
    pub(super) connection: usize,
}

/// The connection ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut;

/// A member that is no longer followed up is closed.
impl Drop for Attached {
    fn drop(&mut self) {
        self.world.borrow_mut().close_here(self.connection);
    }
}

impl Attached {
    /// Something happens to the areas, if it comes there. `partly`: what of it may have happened when it is cut.
    fn act(&self, act: impl FnOnce(&mut Areas), partly: impl FnOnce(&mut Areas, &mut Random)) -> Result<(), Cut> {
        let world = &mut *self.world.borrow_mut();
        let number = world.connections[self.connection].target;
        let is_open = world.is_served(self.connection);
        let Some(areas) = world.targets[number].areas.as_mut().filter(|_| is_open) else { return Err(Cut) };
        match areas.cut_after.as_mut() {
            None => act(areas),
            Some(0) => {
                areas.cut_after = None;
                partly(areas, &mut world.random);
                world.count(Fault::FollowerCut);
                if world.random.once_in(3) {
                    let loses_power = world.random.once_in(2);
                    world.stop(number, loses_power);
                } else {
                    world.end_there(self.connection);
                }
                world.close_here(self.connection);
                return Err(Cut);
            }
            Some(left) => {
                *left -= 1;
                act(areas);
            }
        }
        Ok(())
    }
}

impl Access for Attached {
    type Error = Cut;

    fn read(&self, area: Area, at: u64, into: &mut [u8]) -> Result<(), Cut> {
        self.act(|areas| areas.get(area).read(at, into), |_, _| {})
    }

    fn write(&self, area: Area, at: u64, bytes: &[u8]) -> Result<(), Cut> {
        let part = |areas: &mut Areas, random: &mut Random| {
            // A number is written at once.
            let len_bytes = if bytes.len() == 8 { 8 * random.below(2) } else { random.below(bytes.len() + 1) };
            areas.get(area).write(at, &bytes[..len_bytes]);
        };
        self.act(|areas| areas.get(area).write(at, bytes), part)
    }

    fn flush(&self, area: Area) -> Result<(), Cut> {
        self.act(|areas| areas.get(area).flush(), |_, _| {})
    }

    fn mark(&self, raised: Option<u64>) -> Result<u64, Cut> {
        let mut mark = 0;
        let partly = |areas: &mut Areas, random: &mut Random| _ = areas.raised(raised.filter(|_| random.once_in(2)));
        self.act(|areas| mark = areas.raised(raised), partly)?;
        Ok(mark)
    }
}
