//! Who may ask a target for pools, and how a connection shows that it may.

use pmof_locks::Mutex;

use pmof_bootstrap::{Nonces, Prover, Secret, random};
use pmof_control::{NONCE_BYTES, Reply, Request, ServiceCode};

use super::Identity;
use crate::refused::Refused;

/// Who may ask for pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Admission {
    /// Whoever connects.
    #[default]
    Anyone,
    /// The first connection that proves a secret, and no other ever after. To all others nothing is told.
    Secret {
        /// What it proves.
        secret: Secret,
        /// Who it then is.
        identity: Identity,
    },
}

/// What a target asks of all its connections.
#[derive(Debug)]
pub(super) struct Authenticator {
    /// Whether nothing is asked.
    admits_anyone: bool,
    /// Whoever proves this is the next, and the last, to be admitted, as this identity.
    secret: Mutex<Option<(Secret, Identity)>>,
}

/// How far one connection is.
#[derive(Debug)]
pub(super) enum Authentication {
    /// Nothing was said.
    Unauthenticated,
    /// The target has proven itself.
    Challenged(Nonces),
    /// It may ask.
    Authenticated(Identity),
}

impl Authenticator {
    pub(super) fn new(admission: Admission) -> Self {
        match admission {
            Admission::Anyone => Self { admits_anyone: true, secret: Mutex::new(None) },
            Admission::Secret { secret, identity } => {
                Self { admits_anyone: false, secret: Mutex::new(Some((secret, identity))) }
            }
        }
    }

    /// Whether whoever connects may ask.
    pub(super) fn admits_anyone(&self) -> bool {
        self.admits_anyone
    }

    /// Whether the secret was proven: nobody else is admitted.
    pub(super) fn is_used_up(&self) -> bool {
        !self.admits_anyone && self.secret.lock().is_none()
    }

    /// Where a new connection begins.
    pub(super) fn begin(&self) -> Authentication {
        if self.admits_anyone {
            Authentication::Authenticated(Identity::Anonymous)
        } else {
            Authentication::Unauthenticated
        }
    }

    /// The answer to a request of a connection that is not authenticated yet.
    pub(super) fn answer(&self, state: &mut Authentication, request: &Request) -> Result<Reply, Refused> {
        let mut secret = self.secret.lock();
        match (&*state, request) {
            (Authentication::Unauthenticated, Request::Challenge { nonce: initiator }) => {
                let Some((secret, _)) = &*secret else { return Err(used_up()) };
                let failed = |error| refused(format!("the target has no random bytes: {error}"));
                let target: [u8; NONCE_BYTES] = random().map_err(failed)?;
                let nonces = Nonces { initiator: *initiator, target };
                *state = Authentication::Challenged(nonces);
                Ok(Reply::Challenged { nonce: target, proof: secret.proof(Prover::Target, &nonces) })
            }
            (Authentication::Challenged(nonces), Request::Prove { proof }) => {
                // Another connection may have proven it since the first step.
                let Some((known, identity)) = *secret else { return Err(used_up()) };
                let is_proven = known.is_proven(Prover::Initiator, nonces, *proof);
                // These nonces are good for one try.
                *state = Authentication::Unauthenticated;
                if !is_proven {
                    return Err(refused("the proof of the session's secret is wrong".to_owned()));
                }
                *secret = None;
                *state = Authentication::Authenticated(identity);
                Ok(Reply::Admitted)
            }
            _ => Err(refused("prove the session's secret first".to_owned())),
        }
    }
}

fn used_up() -> Refused {
    refused("the session's secret was used already: it admits one connection".to_owned())
}

fn refused(text: String) -> Refused {
    Refused::new(ServiceCode::NotAdmitted, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pmof_bootstrap::SECRET_BYTES;

    const SSH: Identity = Identity::SshUser { user_id: 1000 };
    const MINE: [u8; NONCE_BYTES] = [1; NONCE_BYTES];

    fn secret(byte: u8) -> Secret {
        Secret::from_bytes([byte; SECRET_BYTES])
    }

    fn admission(secret: Secret) -> Admission {
        Admission::Secret { secret, identity: SSH }
    }

    /// Goes through both steps with `known`, and gives the messages of the initiator too.
    fn enter(authenticator: &Authenticator, known: Secret) -> Result<(Authentication, Request), Refused> {
        let mut state = Authentication::Unauthenticated;
        let reply = authenticator.answer(&mut state, &Request::Challenge { nonce: MINE })?;
        let Reply::Challenged { nonce, .. } = reply else { panic!("{reply:?}") };
        let nonces = Nonces { initiator: MINE, target: nonce };
        let prove = Request::Prove { proof: known.proof(Prover::Initiator, &nonces) };
        authenticator.answer(&mut state, &prove).map(|_| (state, prove))
    }

    #[test]
    fn the_right_secret_admits_once() {
        let authenticator = Authenticator::new(admission(secret(7)));
        assert!(!authenticator.admits_anyone() && !authenticator.is_used_up());
        assert!(matches!(authenticator.begin(), Authentication::Unauthenticated));
        let (state, _) = enter(&authenticator, secret(7)).unwrap();
        assert!(matches!(state, Authentication::Authenticated(SSH)));
        assert!(!authenticator.admits_anyone() && authenticator.is_used_up());
        let again = enter(&authenticator, secret(7)).unwrap_err();
        assert!(again.text.contains("used already"), "{}", again.text);
    }

    #[test]
    fn without_a_secret_anyone_may_ask_for_ever() {
        let authenticator = Authenticator::new(Admission::Anyone);
        assert!(authenticator.admits_anyone() && !authenticator.is_used_up());
        assert!(matches!(authenticator.begin(), Authentication::Authenticated(Identity::Anonymous)));
    }

    #[test]
    fn a_wrong_secret_does_not_use_it_up() {
        let authenticator = Authenticator::new(admission(secret(7)));
        assert!(enter(&authenticator, secret(8)).unwrap_err().text.contains("wrong"));
        assert!(!authenticator.is_used_up());
        assert!(enter(&authenticator, secret(7)).is_ok());
    }

    #[test]
    fn a_proof_heard_on_the_way_is_worth_nothing() {
        let authenticator = Authenticator::new(admission(secret(7)));
        let (_, prove) = enter(&authenticator, secret(7)).unwrap();
        // The same secret again, as if the target had been started with it: the nonce is another.
        let authenticator = Authenticator::new(admission(secret(7)));
        let mut state = Authentication::Unauthenticated;
        authenticator.answer(&mut state, &Request::Challenge { nonce: MINE }).unwrap();
        assert!(authenticator.answer(&mut state, &prove).unwrap_err().text.contains("wrong"));
    }

    #[test]
    fn of_two_that_were_challenged_one_is_admitted() {
        let authenticator = Authenticator::new(admission(secret(7)));
        let mut late = Authentication::Unauthenticated;
        let Ok(Reply::Challenged { nonce, .. }) = authenticator.answer(&mut late, &Request::Challenge { nonce: MINE })
        else {
            panic!("refused")
        };
        enter(&authenticator, secret(7)).unwrap();
        let nonces = Nonces { initiator: MINE, target: nonce };
        let prove = Request::Prove { proof: secret(7).proof(Prover::Initiator, &nonces) };
        assert!(authenticator.answer(&mut late, &prove).unwrap_err().text.contains("used already"));
    }

    #[test]
    fn a_challenge_is_good_for_one_try() {
        let authenticator = Authenticator::new(admission(secret(7)));
        let mut state = Authentication::Unauthenticated;
        let Ok(Reply::Challenged { nonce, .. }) = authenticator.answer(&mut state, &Request::Challenge { nonce: MINE })
        else {
            panic!("refused")
        };
        let nonces = Nonces { initiator: MINE, target: nonce };
        let proof = |known: u8| Request::Prove { proof: secret(known).proof(Prover::Initiator, &nonces) };
        assert!(authenticator.answer(&mut state, &proof(8)).unwrap_err().text.contains("wrong"));
        assert!(authenticator.answer(&mut state, &proof(7)).unwrap_err().text.contains("secret first"));
    }

    #[test]
    fn nothing_is_answered_before() {
        let authenticator = Authenticator::new(admission(secret(7)));
        for request in
            [Request::Close { in_order: true }, Request::List { after: None }, Request::Prove { proof: [0; 32] }]
        {
            let error = authenticator.answer(&mut Authentication::Unauthenticated, &request).unwrap_err();
            assert_eq!(error.code, ServiceCode::NotAdmitted as u16);
        }
    }
}
