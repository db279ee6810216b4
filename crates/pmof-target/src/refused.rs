//! What a target refuses, on its way to the initiator.

use std::fmt;

use pmof_access::RegisterError;
use pmof_control::{Reply, ServiceCode};
use pmof_mem::causes;

use crate::{SetStoreError, StoreError};

/// Why a request is not carried out: a number for programs, and a text for people.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) code: u16,
    pub(crate) text: String,
}

impl Refused {
    pub(crate) fn new(code: ServiceCode, text: impl fmt::Display) -> Self {
        Self { code: code as u16, text: text.to_string() }
    }
}

impl From<RegisterError> for Refused {
    fn from(error: RegisterError) -> Self {
        Self::new(ServiceCode::Register, causes(&error))
    }
}

impl From<SetStoreError> for Refused {
    fn from(error: SetStoreError) -> Self {
        Self { code: error.code(), text: causes(&error).to_string() }
    }
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        Self { code: error.code(), text: causes(&error).to_string() }
    }
}

impl StoreError {
    /// What an initiator is answered that asked for what failed so.
    #[doc(hidden)]
    pub fn reply(self) -> Reply {
        let Refused { code, text } = Refused::from(self);
        Reply::Refused { code, text }
    }
}
