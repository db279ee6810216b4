//! What an offer lacks of what pmof needs.

use pmof_fabric_sys as sys;

use crate::{Info, kind::EndpointKind};

/// Sends stay in order with each other and behind writes, writes with each other, and reads behind writes.
pub(crate) const ORDER: u64 = sys::FI_ORDER_SAS | sys::FI_ORDER_SAW | sys::FI_ORDER_WAW | sys::FI_ORDER_RAW;

/// What the offer lacks for endpoints of this kind, in the words of an error; nothing: none of what is looked at here.
pub(crate) fn lacks(info: &Info, kind: EndpointKind) -> Vec<&'static str> {
    let capabilities = info.capabilities();
    let (sent, received) = info.orders();
    let endpoints = match kind {
        EndpointKind::Datagram => "reliable datagram endpoints (FI_EP_RDM)",
        EndpointKind::Connected => "connected endpoints (FI_EP_MSG)",
    };
    let looked_at = [
        (info.kind_number() == kind.number(), endpoints),
        (capabilities & sys::FI_MSG != 0, "messages (FI_MSG)"),
        (capabilities & sys::FI_RMA != 0, "RMA (FI_RMA)"),
        (sent & received & ORDER == ORDER, "ordered delivery (msg_order)"),
    ];
    looked_at.into_iter().filter(|(has, _)| !has).map(|(_, what)| what).collect()
}

#[cfg(test)]
#[path = "lacks_tests.rs"]
mod tests;
