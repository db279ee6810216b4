//! Who may ask a target for pools, and how a connection shows that it may.

use std::sync::{Mutex, PoisonError};

use super::Admission;
use crate::{
    control::{Reply, Request},
    refusal::{Answer, ServiceCode},
    secret::{NONCE_BYTES, Nonces, Prover, Secret, random},
};

/// What a target asks of all its connections.
#[derive(Debug)]
pub(super) struct Gate {
    /// Whether nothing is asked.
    is_open: bool,
    /// What admits one connection more.
    secret: Mutex<Option<Secret>>,
}

/// How far one connection is.
#[derive(Debug)]
pub(super) enum Visitor {
    /// Nothing was said.
    Stranger,
    /// The target has proven itself.
    Challenged(Nonces),
    /// It may ask.
    Admitted,
}

impl Gate {
    pub(super) fn new(admission: Admission) -> Self {
        match admission {
            Admission::Anyone => Self { is_open: true, secret: Mutex::new(None) },
            Admission::Secret(secret) => Self { is_open: false, secret: Mutex::new(Some(secret)) },
        }
    }

    /// Whether whoever connects may ask.
    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Whether the secret was proven: nobody else is let in.
    pub(super) fn is_used_up(&self) -> bool {
        !self.is_open && self.secret.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// The answer to a request of a connection that was not admitted yet.
    pub(super) fn answer(&self, visitor: &mut Visitor, request: &Request) -> Result<Reply, Answer> {
        let mut secret = self.secret.lock().unwrap_or_else(PoisonError::into_inner);
        match (&*visitor, request) {
            (Visitor::Stranger, Request::Challenge { nonce: initiator }) => {
                let Some(secret) = &*secret else { return Err(used_up()) };
                let failed = |error| refused(format!("the target has no random bytes: {error}"));
                let target: [u8; NONCE_BYTES] = random().map_err(failed)?;
                let nonces = Nonces { initiator: *initiator, target };
                *visitor = Visitor::Challenged(nonces);
                Ok(Reply::Challenged { nonce: target, proof: secret.proof(Prover::Target, &nonces) })
            }
            (Visitor::Challenged(nonces), Request::Prove { proof }) => {
                // Another connection may have proven it since the first step.
                let Some(known) = &*secret else { return Err(used_up()) };
                let is_proven = known.is_proven(Prover::Initiator, nonces, *proof);
                // These nonces are good for one try.
                *visitor = Visitor::Stranger;
                if !is_proven {
                    return Err(refused("the proof of the session's secret is wrong".to_owned()));
                }
                *secret = None;
                *visitor = Visitor::Admitted;
                Ok(Reply::Admitted)
            }
            _ => Err(refused("prove the session's secret first".to_owned())),
        }
    }
}

fn used_up() -> Answer {
    refused("the session's secret was used already: it admits one connection".to_owned())
}

fn refused(text: String) -> Answer {
    Answer { code: ServiceCode::NotAdmitted as u16, text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::SECRET_BYTES;

    const MINE: [u8; NONCE_BYTES] = [1; NONCE_BYTES];

    fn secret(byte: u8) -> Secret {
        Secret::from_bytes([byte; SECRET_BYTES])
    }

    /// Goes through both steps with `known`, and gives the messages of the initiator too.
    fn enter(gate: &Gate, known: Secret) -> Result<(Visitor, Request), Answer> {
        let mut visitor = Visitor::Stranger;
        let reply = gate.answer(&mut visitor, &Request::Challenge { nonce: MINE })?;
        let Reply::Challenged { nonce, .. } = reply else { panic!("{reply:?}") };
        let nonces = Nonces { initiator: MINE, target: nonce };
        let prove = Request::Prove { proof: known.proof(Prover::Initiator, &nonces) };
        gate.answer(&mut visitor, &prove).map(|_| (visitor, prove))
    }

    #[test]
    fn the_right_secret_admits_once() {
        let gate = Gate::new(Admission::Secret(secret(7)));
        assert!(!gate.is_open() && !gate.is_used_up());
        let (visitor, _) = enter(&gate, secret(7)).unwrap();
        assert!(matches!(visitor, Visitor::Admitted));
        assert!(!gate.is_open() && gate.is_used_up());
        let again = enter(&gate, secret(7)).unwrap_err();
        assert!(again.text.contains("used already"), "{}", again.text);
    }

    #[test]
    fn without_a_secret_anyone_may_ask_for_ever() {
        let gate = Gate::new(Admission::Anyone);
        assert!(gate.is_open() && !gate.is_used_up());
    }

    #[test]
    fn a_wrong_secret_does_not_use_it_up() {
        let gate = Gate::new(Admission::Secret(secret(7)));
        assert!(enter(&gate, secret(8)).unwrap_err().text.contains("wrong"));
        assert!(!gate.is_used_up());
        assert!(enter(&gate, secret(7)).is_ok());
    }

    #[test]
    fn a_proof_heard_on_the_way_is_worth_nothing() {
        let gate = Gate::new(Admission::Secret(secret(7)));
        let (_, prove) = enter(&gate, secret(7)).unwrap();
        // The same secret again, as if the target had been started with it: the nonce is another.
        let gate = Gate::new(Admission::Secret(secret(7)));
        let mut visitor = Visitor::Stranger;
        gate.answer(&mut visitor, &Request::Challenge { nonce: MINE }).unwrap();
        assert!(gate.answer(&mut visitor, &prove).unwrap_err().text.contains("wrong"));
    }

    #[test]
    fn of_two_that_were_challenged_one_is_admitted() {
        let gate = Gate::new(Admission::Secret(secret(7)));
        let mut late = Visitor::Stranger;
        let Ok(Reply::Challenged { nonce, .. }) = gate.answer(&mut late, &Request::Challenge { nonce: MINE }) else {
            panic!("refused")
        };
        enter(&gate, secret(7)).unwrap();
        let nonces = Nonces { initiator: MINE, target: nonce };
        let prove = Request::Prove { proof: secret(7).proof(Prover::Initiator, &nonces) };
        assert!(gate.answer(&mut late, &prove).unwrap_err().text.contains("used already"));
    }

    #[test]
    fn a_challenge_is_good_for_one_try() {
        let gate = Gate::new(Admission::Secret(secret(7)));
        let mut visitor = Visitor::Stranger;
        let Ok(Reply::Challenged { nonce, .. }) = gate.answer(&mut visitor, &Request::Challenge { nonce: MINE }) else {
            panic!("refused")
        };
        let nonces = Nonces { initiator: MINE, target: nonce };
        let proof = |known: u8| Request::Prove { proof: secret(known).proof(Prover::Initiator, &nonces) };
        assert!(gate.answer(&mut visitor, &proof(8)).unwrap_err().text.contains("wrong"));
        assert!(gate.answer(&mut visitor, &proof(7)).unwrap_err().text.contains("secret first"));
    }

    #[test]
    fn nothing_is_answered_before() {
        let gate = Gate::new(Admission::Secret(secret(7)));
        for request in
            [Request::Close { in_order: true }, Request::List { after: None }, Request::Prove { proof: [0; 32] }]
        {
            let error = gate.answer(&mut Visitor::Stranger, &request).unwrap_err();
            assert_eq!(error.code, ServiceCode::NotAdmitted as u16);
        }
    }
}
