//! By the offers of this machine's own library.

use std::ptr;

use pmof_fabric_sys::Fabric;

use super::*;
use crate::{FabricError, Query, info::offers, list, survey};

const ENDPOINTS: &str = "reliable datagram endpoints (FI_EP_RDM)";

/// All offers of these names; `None`, and skipped, where there are none.
fn offers_of(names: &[&str]) -> Option<Vec<Info>> {
    let fabric = match Fabric::load() {
        Ok(fabric) => fabric,
        Err(error) => {
            skip_report::skipped!("{error}");
            return None;
        }
    };
    // SAFETY: no address is asked for, and nothing in particular.
    let mut infos = unsafe { offers(fabric, (ptr::null(), 0), ptr::null()) }.unwrap_or_default();
    infos.retain(|info| names.contains(&info.provider().as_str()));
    if infos.is_empty() {
        skip_report::skipped!("this libfabric has no {}", names.join(" and "));
        return None;
    }
    Some(infos)
}

/// Of libfabric's providers, udp has neither RMA nor an order by itself: `ofi_rxd` makes both from its datagrams.
#[test]
fn bare_datagrams_have_no_rma() {
    let Some(infos) = offers_of(&["udp"]) else { return };
    for info in &infos {
        assert_eq!(lacks(info, EndpointKind::Datagram), [ENDPOINTS, "RMA (FI_RMA)", "ordered delivery (msg_order)"]);
    }
    let survey = survey().unwrap();
    let udp = survey.offers.iter().find(|offer| offer.provider == "udp").unwrap();
    assert_eq!(
        udp.why_not.as_deref(),
        Some("it lacks reliable datagram endpoints (FI_EP_RDM), RMA (FI_RMA), ordered delivery (msg_order)")
    );
}

#[test]
fn what_is_used_lacks_nothing() {
    let Some(infos) = offers_of(&["tcp", "tcp;ofi_rxm"]) else { return };
    for info in &infos {
        let other =
            if info.kind() == EndpointKind::Connected { EndpointKind::Datagram } else { EndpointKind::Connected };
        let endpoints = lacks(info, other);
        assert!(lacks(info, info.kind()).is_empty() && endpoints.len() == 1, "{info:?}: {endpoints:?}");
    }
}

#[test]
fn a_provider_without_the_kind_of_endpoints_is_refused_with_that() {
    if offers_of(&["udp;ofi_rxd"]).is_none() {
        return;
    }
    let query = Query { provider: Some("udp".to_owned()), kind: EndpointKind::Connected, ..Query::default() };
    let error = list(&query).unwrap_err();
    assert!(
        matches!(&error, FabricError::Lacking { provider, kind: EndpointKind::Connected, lacks, .. }
            if provider == "udp" && lacks == "connected endpoints (FI_EP_MSG)"),
        "{error:?}"
    );
    assert!(error.to_string().contains("udp lacks connected endpoints"), "{error}");
}
