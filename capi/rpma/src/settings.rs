//! What the environment says.

use std::{env, ffi::CStr, sync::OnceLock};

use pmof_access::Transport;

use crate::log::{Level, log};

/// The variables that pmof reads, once.
#[derive(Debug)]
pub(crate) struct Settings {
    /// `PMOF_TRANSPORT`: the transport to use, whatever the address.
    pub(crate) transport: Option<Transport>,
    /// `PMOF_STRICT=1`: what the platform contradicts is refused, not only logged.
    pub(crate) is_strict: bool,
    /// `PMOF_TRUST_NETWORK=1`: listen over TCP where other machines reach, although nobody is authenticated.
    pub(crate) trusts_network: bool,
}

/// As the environment was when it was first asked for.
pub(crate) fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| Settings {
        transport: variable("PMOF_TRANSPORT").and_then(|name| match name.as_str() {
            "tcp" => Some(Transport::Tcp),
            "shm" => Some(Transport::Shm),
            "verbs" => Some(Transport::Verbs),
            _ => {
                warn(&format!("PMOF_TRANSPORT={name} is not known (verbs, tcp, shm): the address decides"));
                None
            }
        }),
        is_strict: is_set("PMOF_STRICT"),
        trusts_network: is_set("PMOF_TRUST_NETWORK"),
    })
}

fn warn(text: &str) {
    const SETTINGS: &CStr = c"settings";
    log(Level::Warning, SETTINGS, text);
}

pub(crate) fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

fn is_set(name: &str) -> bool {
    variable(name).is_some_and(|value| value != "0")
}
