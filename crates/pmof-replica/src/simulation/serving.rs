//! What targets answer to requests, in the messages that are shipped.

use std::rc::Rc;

use pmof_control::{
    Claim, Enclosed, Header, OpenFor, PoolFormat, PoolInfo, PoolRefusal, Reply, Request, Roster, RosterPart,
    USER_FLAGS_BYTES, WITNESS_BYTES,
};
use pmof_mem::MediumKind;
use uuid::Uuid;

use super::{
    plan::PAGES,
    target::{Answer, Replica, Target},
    world::World,
};
use crate::pages::PAGE_BYTES;

/// Bytes of the pool.
const POOL_BYTES: u64 = PAGES as u64 * PAGE_BYTES;

/// The pool that all replicas are of.
pub(super) const POOL_UUID: Uuid = Uuid::from_u128(1);

impl Target {
    fn size_bytes(&self) -> u64 {
        if self.is_witness { WITNESS_BYTES } else { POOL_BYTES }
    }

    fn opened(&self, made: usize) -> Reply {
        let Replica { index, uuid: replica_uuid, state, .. } = self.replica();
        let roster = self.roster.as_deref().cloned();
        Reply::Opened {
            pool_uuid: POOL_UUID,
            replica_uuid,
            size_bytes: self.size_bytes(),
            replica_count: (made as u16).max(index + 1),
            replica_index: index,
            user_flags: [0; USER_FLAGS_BYTES],
            state,
            descriptor: Vec::new(),
            enclosed: Box::new(Enclosed { roster, domain: Some(None), intent: None }),
        }
    }

    fn info(&self, name: &pmof_control::PoolName, made: usize) -> Reply {
        let Replica { index: replica_index, uuid: replica_uuid, state, .. } = self.replica();
        let header = Header {
            format: PoolFormat::Three,
            compatible_features: 0,
            pool_uuid: POOL_UUID,
            replica_uuid,
            size_bytes: self.size_bytes(),
            created_at_unix_s: 0,
            replica_count: (made as u16).max(replica_index + 1),
            replica_index,
            user_flags: [0; USER_FLAGS_BYTES],
        };
        Reply::Info(Box::new(PoolInfo {
            name: name.clone(),
            header,
            state,
            file_len_bytes: self.size_bytes(),
            medium: MediumKind::PageCache,
            promises: [None; 3],
            open_by: self.open_by.map(|connection| connection.to_string()),
        }))
    }
}

impl World {
    /// The reply to a request, as it is sent.
    pub(super) fn serve(&mut self, connection: usize, request: &[u8]) -> Answer {
        let (number, settled) = (self.connections[connection].target, &mut self.connections[connection].version);
        let decoded = settled.decode(request);
        let head = settled.settle(&decoded);
        let request = match decoded {
            Ok((_, request)) if self.targets[number].version.speaks(head.version) => request,
            decoded => {
                self.truth.violate(|| format!("t{number} does not understand {request:?}: {head:?}, {decoded:?}"));
                return Answer::Refused;
            }
        };
        let reply = self
            .reply(connection, &request)
            .unwrap_or_else(|refusal| Reply::Refused { code: code_of(refusal), text: format!("{refusal:?}") });
        match reply.encode(head) {
            Ok(encoded) => Answer::Encoded(encoded),
            Err(error) => {
                self.truth.violate(|| format!("a target cannot say {reply:?}: {error}"));
                Answer::Refused
            }
        }
    }

    fn reply(&mut self, connection: usize, request: &Request) -> Result<Reply, PoolRefusal> {
        let (number, made) = (self.connections[connection].target, self.plan.made);
        let target = &self.targets[number];
        match request {
            Request::Open { access: OpenFor::Write, .. } | Request::TakeOver { .. } => {
                let (takes_over, claim) = match request {
                    Request::TakeOver { silent_ms, claim, .. } => (*silent_ms != u64::MAX, *claim),
                    _ => (false, Claim::None),
                };
                match self.open(connection, takes_over, claim) {
                    Answer::Opened(_) => Ok(self.targets[number].opened(made)),
                    Answer::Busy => Err(PoolRefusal::Busy),
                    _ => Err(PoolRefusal::NotFound),
                }
            }
            Request::Open { .. } if target.is_there => Ok(target.opened(made)),
            Request::Info { name } if target.is_there => Ok(target.info(name, made)),
            Request::Open { .. } | Request::Info { .. } => Err(PoolRefusal::NotFound),
            Request::Roster { offset } => {
                let encoded = target.roster.as_ref().and_then(|roster| roster.encode().ok());
                let encoded = encoded.filter(|_| target.is_there).ok_or(PoolRefusal::NotFound)?;
                Ok(Reply::Roster(RosterPart::of(&encoded, *offset)))
            }
            Request::Domain => Ok(Reply::Domain(None)),
            _ if target.open_by != Some(connection) => Err(PoolRefusal::NotFound),
            Request::SetRoster { offset, part } => {
                let kept = &mut self.connections[connection].roster_parts;
                kept.truncate((*offset).into());
                kept.extend_from_slice(&part.bytes);
                if kept.len() < part.len_bytes.into() {
                    return Ok(Reply::RosterSet);
                }
                let roster = Roster::decode(&std::mem::take(kept)).map_err(|_| PoolRefusal::Failed)?;
                self.keep(number, &Rc::new(roster))
            }
            request => self.tell(number, request),
        }
    }
}

/// The code of a target's store by which an initiator knows this refusal.
fn code_of(refusal: PoolRefusal) -> u16 {
    (0..=u16::MAX).find(|code| PoolRefusal::from_code(*code) == refusal).unwrap_or(u16::MAX)
}
