//! Settings from the environment.

use std::{ffi::CStr, sync::OnceLock};

use pmof_access::Transport;

use crate::{
    environment::variable,
    log::{Level, log},
};

/// The variables that pmof reads, once per process.
#[derive(Debug)]
pub(crate) struct Settings {
    /// `PMOF_TRANSPORT`: the transport to use, whatever the address.
    pub(crate) transport: Option<Transport>,
    /// `PMOF_WIRE`: the wire protocol of connections over verbs.
    pub(crate) wire: Wire,
    /// `PMOF_STRICT=1`: claims that the platform contradicts are refused, not only logged.
    pub(crate) is_strict: bool,
    /// `PMOF_TRUST_NETWORK=1`: listen over TCP on addresses that other machines can reach, although clients are not authenticated.
    pub(crate) trusts_network: bool,
    /// `PMOF_TRUST_HOST=1`: over TCP, connect to a loopback address whichever user's process listens there; without it only to this user's and root's.
    pub(crate) trusts_host: bool,
}

/// The wire protocol between RDMA devices. Both ends must use the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    /// That of librpma, so that the other end may be librpma.
    Librpma,
    /// Connections of pmof, whose target flushes with its CPU where its device cannot.
    Pmof,
}

/// The settings, read at the first call.
pub(crate) fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| Settings {
        transport: variable("PMOF_TRANSPORT").and_then(|name| match name.as_str() {
            "tcp" => Some(Transport::Tcp),
            "shm" => Some(Transport::Shm),
            "verbs" => Some(Transport::Verbs),
            other => {
                let fabric = Transport::ALL.into_iter().find(|transport| transport.scheme() == other);
                let fabric = fabric.filter(|transport| matches!(transport, Transport::Fabric(_)));
                if fabric.is_none() {
                    warn(&format!(
                        "PMOF_TRANSPORT={name} is not known (verbs, tcp, shm, fabric+PROVIDER): the address decides"
                    ));
                }
                fabric
            }
        }),
        wire: variable("PMOF_WIRE").map_or(Wire::Librpma, |name| match name.as_str() {
            "pmof" => Wire::Pmof,
            "librpma" => Wire::Librpma,
            _ => {
                warn(&format!("PMOF_WIRE={name} is not known (librpma, pmof): librpma"));
                Wire::Librpma
            }
        }),
        is_strict: is_set("PMOF_STRICT"),
        trusts_network: is_set("PMOF_TRUST_NETWORK"),
        trusts_host: is_set("PMOF_TRUST_HOST"),
    })
}

fn warn(text: &str) {
    const SETTINGS: &CStr = c"settings";
    log(Level::Warning, SETTINGS, text);
}

fn is_set(name: &str) -> bool {
    variable(name).is_some_and(|value| value != "0")
}
