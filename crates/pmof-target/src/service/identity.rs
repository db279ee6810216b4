//! Who is at the other end of a connection.

use std::net::SocketAddr;

use pmof_control::InitiatorProcess;

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
    /// An initiator at `address`, which is that process, in words for others whom it is in the way of.
    pub(super) fn at(self, address: Option<SocketAddr>, process: Option<&InitiatorProcess>) -> String {
        let initiator = match (address, process) {
            (Some(address), Some(process)) => format!("the initiator at {address} ({process})"),
            (Some(address), None) => format!("the initiator at {address}"),
            (None, Some(process)) => format!("the initiator here ({process})"),
            (None, None) => "another initiator".to_owned(),
        };
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
        assert_eq!(Identity::Anonymous.at(None, None), "another initiator");
        assert_eq!(Identity::Anonymous.at(address, None), "the initiator at 192.0.2.1:7");
        let process = InitiatorProcess { process_id: 9, user_id: 1000, program: "orders".to_owned() };
        assert_eq!(
            Identity::SshUser { user_id: 1000 }.at(address, Some(&process)),
            "the initiator at 192.0.2.1:7 (orders, process 9 of user 1000), through ssh as user 1000"
        );
        assert_eq!(Identity::Anonymous.at(None, Some(&process)), "the initiator here (orders, process 9 of user 1000)");
        let proven = Identity::SecretHolder.at(None, None);
        assert_eq!(proven, "another initiator, who proved the target's secret");
    }
}
