//! Who is at the other end of a connection.

use std::net::SocketAddr;

/// Who an initiator is, as far as the target knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Identity {
    /// Whoever reached the address: nobody is authenticated there.
    Anonymous,
    /// Whoever proved a secret that was handed over out of band.
    SecretHolder,
    /// Whoever sshd let in, and proved the secret that the target handed over through that session.
    SshUser {
        /// The user as whom sshd started the target.
        user_id: u32,
    },
}

impl Identity {
    /// An initiator at `address`, in words for others whom it is in the way of.
    pub(super) fn at(self, address: Option<SocketAddr>) -> String {
        let initiator =
            address.map_or_else(|| "another initiator".to_owned(), |address| format!("the initiator at {address}"));
        match self {
            Self::Anonymous => initiator,
            Self::SecretHolder => format!("{initiator}, who proved the target's secret"),
            Self::SshUser { user_id } => format!("{initiator}, through ssh as user {user_id}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_a_pool_is_told_with_the_address() {
        let address = Some(SocketAddr::from(([192, 0, 2, 1], 7)));
        assert_eq!(Identity::Anonymous.at(None), "another initiator");
        assert_eq!(Identity::Anonymous.at(address), "the initiator at 192.0.2.1:7");
        assert_eq!(
            Identity::SshUser { user_id: 1000 }.at(address),
            "the initiator at 192.0.2.1:7, through ssh as user 1000"
        );
        let proven = Identity::SecretHolder.at(None);
        assert_eq!(proven, "another initiator, who proved the target's secret");
    }
}
