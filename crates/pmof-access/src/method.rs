//! Methods of remote flush.

use std::fmt;

use pmof_mem::{Durability, Promise};
use pmof_proto::{DirectAccess, PostError, RegionKey};

use crate::{RemoteRegion, wire::Wire};

/// How earlier writes of a connection are brought to the level that a flush asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Method {
    /// The FLUSH operation of the devices at both ends (IBTA memory placement extensions).
    NativeFlush,
    /// This side's own CPU stored the bytes into the shared memory, writes them back and fences.
    LocalWriteBack,
    /// A read follows the writes and pushes them out of the target's device (APM). Durable only where the target attests
    /// that inbound writes reach its persistence domain by themselves.
    ReadAfterWrite,
    /// A read follows the records that were appended to a ring and pushes them out of the target's device. Durable where a
    /// read after writes is. For rings only, which know no other method.
    ReadAfterSend,
    /// A message follows the writes; the target's CPU flushes and answers (GPSPM).
    SendAfterWrite,
}

impl Method {
    /// Every method, in the order in which they are tried: those that leave the target's CPU alone first.
    pub const ALL: [Self; 5] =
        [Self::NativeFlush, Self::LocalWriteBack, Self::ReadAfterWrite, Self::ReadAfterSend, Self::SendAfterWrite];

    /// The name that people and scripts read.
    pub fn name(self) -> &'static str {
        match self {
            Self::NativeFlush => "native flush",
            Self::LocalWriteBack => "local write-back",
            Self::ReadAfterWrite => "read-after-write",
            Self::ReadAfterSend => "read-after-send",
            Self::SendAfterWrite => "send-after-write",
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What was found out of the flushes of a connection: the methods of those used last, which do not change as long as it stands.
#[derive(Debug, Default)]
pub(crate) struct FlushMethods {
    /// The only method that the application wants, if it wants one.
    pub(crate) forced: Option<Method>,
    last: Option<(RegionKey, DirectAccess, Durability, (Method, Promise))>,
    /// Whether flushes of the region written last name what was written there.
    names_ranges: Option<(RegionKey, bool)>,
}

impl FlushMethods {
    /// Where the application wants this method only, if it wants one.
    pub(crate) fn forcing(forced: Option<Method>) -> Self {
        Self { forced, ..Self::default() }
    }

    /// The method of a flush of the region to `level`, and the promise behind it.
    #[inline]
    pub(crate) fn find(
        &mut self,
        wire: &mut dyn Wire,
        region: &RemoteRegion,
        level: Durability,
    ) -> Result<(Method, Promise), PostError> {
        match self.last {
            // The same region may be reached by messages alone, too.
            Some((key, direct, of_level, found))
                if key == region.key() && of_level == level && direct == region.direct() =>
            {
                Ok(found)
            }
            _ => self.find_new(wire, region, level),
        }
    }

    #[inline(never)]
    fn find_new(
        &mut self,
        wire: &mut dyn Wire,
        region: &RemoteRegion,
        level: Durability,
    ) -> Result<(Method, Promise), PostError> {
        let found = choose_method(wire, self.forced, region, level)?;
        // Over shm it changes when the region is mapped.
        if !wire.is_local() {
            self.last = Some((region.key(), region.direct(), level, found));
        }
        Ok(found)
    }

    /// Whether a flush that makes direct writes to the region durable has to name them.
    #[inline]
    pub(crate) fn names_ranges(&mut self, wire: &mut dyn Wire, region: &RemoteRegion) -> bool {
        match self.names_ranges {
            Some((key, is_named)) if key == region.key() => is_named,
            _ => {
                let method = choose_method(wire, self.forced, region, Durability::PowerFailure);
                // Flushes to a weaker level name nothing.
                let is_named = matches!(method, Ok((Method::SendAfterWrite | Method::NativeFlush, _)));
                self.names_ranges = Some((region.key(), is_named));
                is_named
            }
        }
    }
}

/// Why no other method flushes a ring.
pub(crate) const RING_METHOD: &str =
    "the target's device puts records where this side does not know: read-after-send alone flushes a ring";

/// The cheapest method that brings a flush of the region to `level`.
pub(crate) fn choose_method(
    wire: &mut dyn Wire,
    forced: Option<Method>,
    region: &RemoteRegion,
    level: Durability,
) -> Result<(Method, Promise), PostError> {
    let is_ring = is_ring(wire, region);
    if let Some(method) = forced.or(is_ring.then_some(Method::ReadAfterSend)) {
        let refused = |why| PostError::MethodRefused { method: method.name(), wanted: level, why };
        return offers(wire, method, region, level, is_ring).map(|promise| (method, promise)).map_err(refused);
    }
    let mut offered = |method| offers(wire, method, region, level, is_ring).ok().map(|promise| (method, promise));
    Method::ALL.into_iter().find_map(&mut offered).ok_or_else(|| region.not_durable(level))
}

/// Why those that are tried before `chosen` are not to be had.
pub(crate) fn passed_over(
    wire: &mut dyn Wire,
    chosen: Method,
    region: &RemoteRegion,
    level: Durability,
) -> Vec<(Method, &'static str)> {
    let is_ring = is_ring(wire, region);
    let before = Method::ALL.into_iter().take_while(|method| *method != chosen);
    before.filter_map(|method| Some((method, offers(wire, method, region, level, is_ring).err()?))).collect()
}

fn is_ring(wire: &mut dyn Wire, region: &RemoteRegion) -> bool {
    wire.direct().is_some_and(|direct| direct.appends_to(region))
}

/// The promise behind a flush by this method, or why there is none.
fn offers(
    wire: &mut dyn Wire,
    method: Method,
    region: &RemoteRegion,
    level: Durability,
    is_ring: bool,
) -> Result<Promise, &'static str> {
    match method {
        Method::SendAfterWrite if is_ring => Err(RING_METHOD),
        Method::SendAfterWrite => region.promise(level).ok_or("the region's medium cannot give this durability"),
        method => match wire.direct() {
            Some(direct) => direct.offers(method, region, level),
            None => Err("the transport of this connection reaches no memory by itself"),
        },
    }
}
