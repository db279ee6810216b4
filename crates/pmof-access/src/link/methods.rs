//! How the operations of a connection get to a region: which method its flushes use, and whether the way is known.

use pmof_mem::{Durability, Promise};
use pmof_proto::{PostError, RegionKey};

use super::LinkCore;
use crate::{
    Method, RemoteRegion,
    method::RING_METHOD,
    wire::{DirectWay, Wire},
};

/// What was found out of the flushes of a connection: the methods of those used last, which do not change while it is established.
#[derive(Debug, Default)]
pub(super) struct FlushMethods {
    /// The only method that the application wants, if it wants one.
    pub(super) forced: Option<Method>,
    last: Option<(RegionKey, Durability, (Method, Promise))>,
    /// Whether flushes of the region written last name what was written there.
    names_ranges: Option<(RegionKey, bool)>,
}

impl FlushMethods {
    /// Where the application wants this method only, if it wants one.
    pub(super) fn forcing(forced: Option<Method>) -> Self {
        Self { forced, ..Self::default() }
    }

    /// The method of a flush of the region to `level`, and the promise behind it.
    #[inline]
    pub(super) fn find(
        &mut self,
        wire: &dyn Wire,
        region: &RemoteRegion,
        level: Durability,
    ) -> Result<(Method, Promise), PostError> {
        match self.last {
            Some((key, of_level, found)) if key == region.key() && of_level == level => Ok(found),
            _ => self.find_new(wire, region, level),
        }
    }

    #[inline(never)]
    fn find_new(
        &mut self,
        wire: &dyn Wire,
        region: &RemoteRegion,
        level: Durability,
    ) -> Result<(Method, Promise), PostError> {
        let found = choose_method(wire, self.forced, region, level)?;
        // Over shm it changes when the region is mapped.
        if wire.direct_way() != DirectWay::Local {
            self.last = Some((region.key(), level, found));
        }
        Ok(found)
    }

    /// Whether a flush of the region to `level` may go by message.
    pub(super) fn check_by_message(
        &self,
        wire: &dyn Wire,
        region: &RemoteRegion,
        level: Durability,
    ) -> Result<(), PostError> {
        let refused = |method: Method, why| PostError::MethodRefused { method: method.name(), wanted: level, why };
        match self.forced {
            Some(method) if method != Method::SendAfterWrite => Err(refused(method, "the flush is to go by message")),
            _ if is_ring(wire, region) => Err(refused(Method::SendAfterWrite, RING_METHOD)),
            _ => region.promise(level).map(|_| ()).ok_or_else(|| region.not_durable(level)),
        }
    }

    /// Whether a flush that makes direct writes to the region durable has to name them.
    #[inline]
    pub(super) fn names_ranges(&mut self, wire: &dyn Wire, region: &RemoteRegion) -> bool {
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

/// The cheapest method that brings a flush of the region to `level`.
pub(super) fn choose_method(
    wire: &dyn Wire,
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
pub(super) fn passed_over(
    wire: &dyn Wire,
    chosen: Method,
    region: &RemoteRegion,
    level: Durability,
) -> Vec<(Method, &'static str)> {
    let is_ring = is_ring(wire, region);
    let before = Method::ALL.into_iter().take_while(|method| *method != chosen);
    before.filter_map(|method| Some((method, offers(wire, method, region, level, is_ring).err()?))).collect()
}

fn is_ring(wire: &dyn Wire, region: &RemoteRegion) -> bool {
    wire.appends_to(region)
}

/// The promise behind a flush by this method, or why there is none.
fn offers(
    wire: &dyn Wire,
    method: Method,
    region: &RemoteRegion,
    level: Durability,
    is_ring: bool,
) -> Result<Promise, &'static str> {
    match method {
        Method::SendAfterWrite if is_ring => Err(RING_METHOD),
        Method::SendAfterWrite => region.promise(level).ok_or("the region's medium cannot give this durability"),
        method => wire.offers(method, region, level),
    }
}

impl LinkCore {
    /// Whether it is known how the region is reached; asking has it found out.
    pub(crate) fn is_reach_known(&self, region: &RemoteRegion) -> bool {
        let is_over = self.endpoint.ended().is_some();
        is_over || self.wire.as_ref().is_none_or(|wire| wire.is_reach_known(region))
    }

    /// The same, and asks the other side at once where it is not known: a driver of many connections looks only at those on which something happens.
    pub(crate) fn asks_reach(&mut self, region: &RemoteRegion) -> bool {
        let is_known = self.is_reach_known(region);
        if !is_known {
            self.submit();
        }
        is_known
    }
}
