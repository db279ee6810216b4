//! What targets answer to requests, in the messages that are shipped.

use std::time::Duration;

use pmof_control::{
    FailureDomain, Header, OpenFor, PoolFormat, PoolInfo, PoolName, Reply, Request, ServiceCode, USER_FLAGS_BYTES,
    WITNESS_BYTES,
};
use pmof_mem::MediumKind;
use pmof_target::{
    StoreError,
    engine::{Driver, OpenReplica},
};
use uuid::Uuid;

use super::{
    media::{OnMedia, TargetRules},
    plan::PAGES,
    target::{Answer, Target},
    truth::sound,
    world::World,
};
use crate::pages::PAGE_BYTES;

/// Bytes of the pool.
pub(super) const POOL_BYTES: u64 = PAGES as u64 * PAGE_BYTES;

/// The pool that all replicas are of.
pub(super) const POOL_UUID: Uuid = Uuid::from_u128(1);

impl Target {
    fn size_bytes(&self) -> u64 {
        if self.is_witness { WITNESS_BYTES } else { POOL_BYTES }
    }

    /// The header of its file.
    pub(super) fn header(&self) -> Header {
        Header {
            format: PoolFormat::Three,
            layout: pmof_control::FileLayout::default(),
            compatible_features: 0,
            pool_uuid: POOL_UUID,
            replica_uuid: self.replica_uuid,
            size_bytes: self.size_bytes(),
            created_at_unix_s: 0,
            replica_count: self.count.max(self.index + 1),
            replica_index: self.index,
            user_flags: [0; USER_FLAGS_BYTES],
        }
    }

    pub(super) fn info(&self, name: &PoolName) -> PoolInfo {
        PoolInfo {
            name: name.clone(),
            header: self.header(),
            state: self.state.clone(),
            file_len_bytes: self.size_bytes(),
            medium: MediumKind::PageCache,
            promises: [None; 3],
            open_by: self.open_by().map(|connection| connection.to_string()),
        }
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
        let reply = self.reply(connection, request).unwrap_or_else(StoreError::reply);
        match reply.encode(head) {
            Ok(encoded) => Answer::Encoded(encoded),
            Err(error) => {
                self.truth.violate(|| format!("a target cannot say {reply:?}: {error}"));
                Answer::Refused
            }
        }
    }

    fn reply(&mut self, connection: usize, request: Request) -> Result<Reply, StoreError> {
        let number = self.connections[connection].target;
        match request {
            Request::Open { access: OpenFor::Read, .. } => {
                self.check_there(number)?;
                let replica = self.opened(number, OpenFor::Read)?;
                let told = self.told(number, &replica);
                self.connections[connection].reading = Some(replica);
                Ok(told)
            }
            Request::Open { .. } => {
                self.open(connection, None)?;
                Ok(self.told_writer(number))
            }
            Request::TakeOver { silent_ms, claim, .. } => {
                self.take_over(connection, Duration::from_millis(silent_ms), claim)?;
                Ok(self.told_writer(number))
            }
            Request::Info { name } => {
                self.check_there(number)?;
                if self.connections[connection].writer == self.looker() {
                    self.looked.insert(number, sound(&self.targets[number].durable));
                }
                Ok(Reply::Info(Box::new(self.targets[number].info(&name))))
            }
            Request::Create { new, .. } => {
                self.create(connection, &new)?;
                Ok(self.told_writer(number))
            }
            Request::Remove { meant, .. } => {
                self.remove(connection, meant)?;
                Ok(Reply::Removed)
            }
            Request::Domain => Ok(Reply::Domain(self.failure_domain(number))),
            request => {
                let is_written = self.targets[number].open_by() == Some(connection);
                let served = match OpenReplica::<TargetRules>::takes(&request) {
                    true if is_written => self.serve_open(number, &request),
                    true => self.serve_reader(connection, &request),
                    false => None,
                };
                served.unwrap_or_else(|| Ok(Reply::Refused { code: ServiceCode::NotOpen as u16, text: String::new() }))
            }
        }
    }

    /// What a target says of its failure domain.
    fn failure_domain(&self, number: usize) -> Option<FailureDomain> {
        let name = format!("d{}", self.domain(number)?.number).parse().expect("the name of a domain");
        Some(FailureDomain { name, is_declared: true, kernel: None })
    }

    fn told_writer(&mut self, number: usize) -> Reply {
        let replica = self.targets[number].open.as_ref().expect("it is open").replica.clone();
        self.told(number, &replica)
    }

    /// What tells an initiator that a replica is open.
    fn told(&mut self, number: usize, replica: &OpenReplica<TargetRules>) -> Reply {
        let map = replica.map().and_then(|output| OnMedia::new(self, number).perform(output).ok());
        replica.told(Vec::new(), self.failure_domain(number), map.as_deref())
    }
}
