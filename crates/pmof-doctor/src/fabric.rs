//! libfabric: what the library says of its providers, by way of the caller.

use serde::Serialize;

/// What is known of libfabric on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Libfabric {
    /// This program does not ask.
    #[default]
    NotAsked,
    /// It cannot be used.
    Unusable {
        /// Why, and what to do.
        #[serde(rename = "reason")]
        why: String,
    },
    /// It is installed.
    Found {
        /// Major and minor version.
        version: String,
        /// Its providers.
        providers: Vec<FabricProvider>,
    },
}

/// One provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FabricProvider {
    /// As the library calls it: `tcp;ofi_rxm`.
    pub name: String,
    /// The scheme of its addresses, where pmof has one: `fabric+tcp`.
    pub scheme: Option<String>,
    /// Why it is not used.
    #[serde(rename = "reason")]
    pub why_not: Option<String>,
    /// It says that writes can be asked to reach a persistence domain (`FI_RMA_PMEM`).
    pub claims_persistence: bool,
}

impl FabricProvider {
    /// What it is good for, in a few words.
    pub(crate) fn verdict(&self) -> String {
        if let Some(why) = &self.why_not {
            return format!("not used: {why}");
        }
        let by = match &self.scheme {
            Some(scheme) => format!("{scheme}://, flushed by the target's CPU (send-after-write)"),
            None => "fabric:// where it is the first, flushed by the target's CPU (send-after-write)".to_owned(),
        };
        if self.claims_persistence {
            return format!("{by}; its FI_COMMIT_COMPLETE is not proven and not used");
        }
        by
    }
}
