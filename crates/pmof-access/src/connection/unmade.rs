//! Why a connection was not established.

use pmof_proto::ConnectionError;

use super::Connection;
use crate::{ConnectError, error::unmade};

impl Connection {
    pub(crate) fn requested_address(&self) -> String {
        self.requested.as_ref().map_or_else(String::new, ToString::to_string)
    }

    pub(crate) fn why_not_established(&self, why: ConnectionError) -> ConnectError {
        let address = self.requested_address();
        match why {
            ConnectionError::TimedOut { limit_ms, .. } => ConnectError::TimedOut { address, timeout_ms: limit_ms },
            ConnectionError::Refused { refusal, private_data } => {
                ConnectError::Refused { address, refusal, private_data }
            }
            why => match &self.link.lock().wire_error {
                Some(error) => unmade(address, error),
                None => ConnectError::Ended { address, why },
            },
        }
    }
}
