//! The one-time secret by which a data connection shows that it belongs to a session: how each side proves it.
//!
//! The secret itself never goes over the data path. Each side sends 32 random bytes, and proves with
//! `BLAKE3-keyed(key, label | initiator's nonce | target's nonce)` that it knows the secret; the key is
//! `BLAKE3-derive_key("pmof data path secret v1", secret)`. The target proves first, so the initiator answers only the target.

use std::fmt;

use pmof_control::{NONCE_BYTES, PROOF_BYTES};

/// Bytes of a secret: 128 bits, which cannot be guessed.
pub const SECRET_BYTES: usize = 16;
const _: () = assert!(PROOF_BYTES == blake3::OUT_LEN);

const KEY_CONTEXT: &str = "pmof data path secret v1";

/// A secret that both sides of a session know, good for one connection. Never printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret([u8; SECRET_BYTES]);

/// The side that proves knowledge of the secret: the proofs of the two sides differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prover {
    /// The side that connects.
    Initiator,
    /// The side that listens.
    Target,
}

/// The random bytes of both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonces {
    /// The initiator's.
    pub initiator: [u8; NONCE_BYTES],
    /// The target's.
    pub target: [u8; NONCE_BYTES],
}

impl Secret {
    /// A new one, from the system's random bytes.
    pub fn generate() -> Result<Self, getrandom::Error> {
        random().map(Self)
    }

    /// The secret with these bytes.
    pub fn from_bytes(bytes: [u8; SECRET_BYTES]) -> Self {
        Self(bytes)
    }

    /// Its bytes, to be passed over a private channel.
    pub fn bytes(&self) -> &[u8; SECRET_BYTES] {
        &self.0
    }

    /// What `prover` sends to show that it knows the secret.
    pub fn proof(&self, prover: Prover, nonces: &Nonces) -> [u8; PROOF_BYTES] {
        *self.hash(prover, nonces).as_bytes()
    }

    /// Whether `proof` is that of `prover`. Takes as long for a wrong one as for the right one.
    pub fn is_proven(&self, prover: Prover, nonces: &Nonces, proof: [u8; PROOF_BYTES]) -> bool {
        self.hash(prover, nonces) == blake3::Hash::from_bytes(proof)
    }

    fn hash(&self, prover: Prover, nonces: &Nonces) -> blake3::Hash {
        let label: &[u8; 8] = match prover {
            Prover::Initiator => b"initiate",
            Prover::Target => b"target..",
        };
        let key = blake3::derive_key(KEY_CONTEXT, &self.0);
        blake3::keyed_hash(&key, &[&label[..], &nonces.initiator, &nonces.target].concat())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Random bytes of the system.
pub fn random<const N: usize>() -> Result<[u8; N], getrandom::Error> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_holds_for_its_prover_secret_and_nonces_only() {
        let secret = Secret::from_bytes([7; SECRET_BYTES]);
        let nonces = Nonces { initiator: [1; NONCE_BYTES], target: [2; NONCE_BYTES] };
        let proof = secret.proof(Prover::Initiator, &nonces);
        assert!(secret.is_proven(Prover::Initiator, &nonces, proof));

        assert!(!secret.is_proven(Prover::Target, &nonces, proof), "a target could send it back");
        let other = Secret::from_bytes([8; SECRET_BYTES]);
        assert!(!other.is_proven(Prover::Initiator, &nonces, proof));
        let swapped = Nonces { initiator: nonces.target, target: nonces.initiator };
        assert!(!secret.is_proven(Prover::Initiator, &swapped, proof));
        for bit in 0..PROOF_BYTES * 8 {
            let mut wrong = proof;
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(!secret.is_proven(Prover::Initiator, &nonces, wrong), "bit {bit}");
        }
    }

    #[test]
    fn a_secret_is_not_printed() {
        assert_eq!(format!("{:?}", Secret::from_bytes([7; SECRET_BYTES])), "Secret(..)");
    }
}
