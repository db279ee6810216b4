//! Where a replica was made: in the UUID that transform and sync give to a new one, so that the pool set file that it was taken out of is
//! not taken for the one that it is in.
//!
//! Such a UUID is of version 8 (RFC 9562): random, but for its last 6 bytes, which are the first of the BLAKE3 digest of the place as
//! the set names it. PMDK gives random ones, of version 4, and takes any. A replica may be moved: its place then only tells
//! something where the replica itself is not there to be looked at.

use std::os::unix::ffi::OsStrExt as _;

use uuid::{Builder, Uuid, Version};

use crate::ReplicaSpec;

/// Where the digest begins in a UUID.
const PLACE: usize = 10;

/// A new UUID for a replica that is made at this place of a set.
pub(crate) fn new_uuid_at(spec: &ReplicaSpec) -> [u8; 16] {
    let mut bytes = *Uuid::new_v4().as_bytes();
    bytes[PLACE..].copy_from_slice(&digest(spec));
    Builder::from_custom_bytes(bytes).into_uuid().to_bytes_le()
}

/// Whether a UUID, as it is stored, says that its replica was made at another place.
pub(crate) fn is_made_elsewhere(uuid: &[u8; 16], spec: &ReplicaSpec) -> bool {
    let uuid = Uuid::from_bytes_le(*uuid);
    uuid.get_version() == Some(Version::Custom) && uuid.as_bytes()[PLACE..] != digest(spec)
}

/// Whether a UUID, as it is stored, says that its replica was made at this place.
pub(crate) fn is_made_at(uuid: &[u8; 16], spec: &ReplicaSpec) -> bool {
    Uuid::from_bytes_le(*uuid).get_version() == Some(Version::Custom) && !is_made_elsewhere(uuid, spec)
}

fn digest(spec: &ReplicaSpec) -> [u8; 6] {
    let mut hasher = blake3::Hasher::new();
    // Neither a path nor a host's name has a zero in it.
    let mut name = |bytes: &[u8]| {
        hasher.update(bytes).update(&[0]);
    };
    match spec {
        ReplicaSpec::Local(parts) => parts.iter().for_each(|part| name(part.path.as_os_str().as_bytes())),
        ReplicaSpec::Remote(remote) => {
            name(remote.node.as_bytes());
            name(remote.set.as_os_str().as_bytes());
        }
    }
    let mut place = [0; 6];
    place.copy_from_slice(&hasher.finalize().as_bytes()[..6]);
    place
}
