//! A target without a service: what a process asks of pools in a directory of its own machine.

use std::{ops::Range, path::Path, sync::Arc};

use pmof_control::{OpenFor, PoolName, Reply, Request, ServiceCode};
use pmof_locks::Mutex;
use pmof_mem::Medium;
use pmof_pool_set::boot_of_this_machine;

use crate::{
    OpenPool, PoolStore, StoreError, StoreOptions,
    domain::failure_domain,
    refused::Refused,
    requests::{self, Served, not_open},
    store::OpenTerms,
};

/// The pools of one directory, or the one on a device, for this process: it answers as the [`Service`](crate::Service) of a target there
/// would, one initiator that has at most one of them open. The formats, locks and judgements are a target's, so that a target may serve the
/// same files before and after, and others of the directory meanwhile.
///
/// A pool that is open stays locked until this and all that has its [memory](Self::memory) is dropped.
#[derive(Debug)]
pub struct LocalTarget {
    pools: PoolStore,
    open: Mutex<Option<OpenPool>>,
}

impl LocalTarget {
    /// That of the pool `name` in the existing `directory`, or on the device of that name there.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn open(directory: &Path, name: Option<&PoolName>, mut options: StoreOptions) -> Result<Self, StoreError> {
        if let Some(name) = name {
            let path = directory.join(name.as_str());
            if is_device(&path) {
                options.devices.push((name.clone(), path));
            }
        }
        Ok(Self { pools: PoolStore::open(directory, options)?, open: Mutex::default() })
    }

    /// Does what is asked and answers it, with [`Reply::Refused`] where it cannot be done.
    pub fn answer(&self, request: Request) -> Reply {
        let answered = self.carry_out(request);
        answered.unwrap_or_else(|Refused { code, text }| Reply::Refused { code, text })
    }

    /// The memory of the pool that is open, and the range of it that is the user's.
    pub fn memory(&self) -> Option<(Arc<dyn Medium>, Range<u64>)> {
        let open = self.open.lock();
        let pool = open.as_ref()?;
        Some((pool.served_medium(), pool.data_offset()..pool.data_offset() + pool.data_len_bytes()))
    }

    /// Whether the pool that is open keeps digests of its pages.
    pub fn keeps_digests(&self) -> bool {
        self.open.lock().as_ref().is_some_and(|pool| pool.header().layout.digests().is_some())
    }

    fn carry_out(&self, request: Request) -> Result<Reply, Refused> {
        match request {
            Request::Create { name, new, publish_on_close } => {
                self.hold(|| requests::create(&self.pools, &name, (&new, publish_on_close), holder()))
            }
            Request::Open { name, access, require, may_be_older } => {
                let terms = OpenTerms { access, require, may_be_older };
                self.hold(|| self.pools.open_pool_before(&name, terms, holder(), &|| ()))
            }
            // Another process is not ended by a request; what this one had open is closed with its memory.
            Request::TakeOver { name, require, .. } => {
                let terms = OpenTerms { access: OpenFor::Write, require, may_be_older: false };
                self.hold(|| self.pools.open_pool_before(&name, terms, holder(), &|| ()))
            }
            Request::Close { in_order } => {
                if let Some(pool) = self.open.lock().take().filter(|_| in_order) {
                    requests::close(&self.pools, pool, holder())?;
                }
                Ok(Reply::Closed)
            }
            Request::Digest { offset, len_bytes, block_bytes } => {
                self.bytes()?.digest(offset, len_bytes, block_bytes)?.finish()
            }
            Request::Data { offset } => self.bytes()?.data(offset),
            Request::Boot => requests::about_boot(boot_of_this_machine()),
            Request::Domain => Ok(Reply::Domain(failure_domain(None))),
            // There is nobody else who could ask.
            Request::TellStatus { .. } => Ok(Reply::StatusTold),
            Request::WriterStatus { .. } => Ok(Reply::WriterStatus(None)),
            Request::Begin { .. }
            | Request::Confirm { .. }
            | Request::Mark { .. }
            | Request::RaiseIntent { .. }
            | Request::ClearIntent { .. }
            | Request::Intent { .. }
            | Request::Roster { .. }
            | Request::SetRoster { .. }
            | Request::Pages(_) => {
                let mut open = self.open.lock();
                requests::about_state(&self.pools, open.as_mut().ok_or_else(not_open)?, request)
            }
            _ => requests::about_store(&self.pools, request),
        }
    }

    fn hold(&self, open: impl FnOnce() -> Result<OpenPool, StoreError>) -> Result<Reply, Refused> {
        let mut held = self.open.lock();
        if let Some(pool) = &*held {
            let text = format!("pool {} is open; close it first", pool.name());
            return Err(Refused::new(ServiceCode::AlreadyOpen, text));
        }
        let pool = open()?;
        Ok(held.insert(pool).told(Vec::new(), failure_domain(None)))
    }

    fn bytes(&self) -> Result<Served, Refused> {
        self.open.lock().as_ref().map(Served::of_pool).ok_or_else(not_open)
    }
}

fn holder() -> String {
    format!("this process ({})", std::process::id())
}

/// Whether it is a devdax device; all else the store judges itself.
fn is_device(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt as _;
    std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_char_device())
}

#[cfg(test)]
mod tests {
    use pmof_control::{Epoch, NewPool, PoolRefusal};
    use pmof_mem::{Durability, Medium as _};
    use uuid::Uuid;

    use super::*;

    fn name() -> PoolName {
        PoolName::new("orders").unwrap()
    }

    fn new() -> NewPool {
        NewPool {
            pool_uuid: Uuid::from_bytes([7; 16]),
            size_bytes: 10_000,
            epoch: Uuid::from_bytes([8; 16]),
            replica_index: 0,
            replica_count: 1,
            require: Durability::ProcessCrash,
            user_flags: [3; 16],
            protection: None,
        }
    }

    fn local(directory: &Path) -> LocalTarget {
        LocalTarget::open(directory, Some(&name()), StoreOptions::default()).unwrap()
    }

    fn open(access: OpenFor) -> Request {
        Request::Open { name: name(), access, require: Durability::ProcessCrash, may_be_older: false }
    }

    fn refusal(reply: &Reply) -> PoolRefusal {
        match reply {
            Reply::Refused { code, .. } => PoolRefusal::from_code(*code),
            other => panic!("{other:?}"),
        }
    }

    /// What a target answers, this answers: the same file, state and refusals.
    #[test]
    fn a_pool_is_made_written_closed_and_opened_again() {
        let directory = tempfile::tempdir().unwrap();
        let here = local(directory.path());
        assert!(here.memory().is_none());
        assert_eq!(refusal(&here.answer(open(OpenFor::Write))), PoolRefusal::NotFound);
        let made = here.answer(Request::Create { name: name(), new: new(), publish_on_close: false });
        assert!(matches!(&made, Reply::Opened { user_flags: [3, ..], descriptor, .. } if descriptor.is_empty()));
        let (memory, data) = here.memory().unwrap();
        assert_eq!(data.end - data.start, 10_000);
        memory.store(data.start, b"bytes").unwrap();
        memory.write_back(data.start, 5).unwrap();
        let elsewhere = local(directory.path());
        let busy = elsewhere.answer(open(OpenFor::Write));
        assert_eq!(refusal(&busy), PoolRefusal::Busy);
        assert!(format!("{busy:?}").contains(&format!("process {}", std::process::id())), "{busy:?}");
        let epoch = Epoch { id: Uuid::from_bytes([9; 16]), members: 1 };
        assert_eq!(here.answer(Request::Begin { opening: 2, epoch, ancestors: vec![] }), Reply::Begun);
        assert_eq!(here.answer(Request::Confirm { epoch: epoch.id }), Reply::Confirmed);
        assert_eq!(here.answer(Request::Mark { mark: 5 }), Reply::Marked);
        let boot = here.answer(Request::Boot);
        assert!(matches!(boot, Reply::Boot { .. }) && elsewhere.answer(Request::Boot) == boot, "{boot:?}");
        let digest = Request::Digest { offset: 0, len_bytes: 10_000, block_bytes: 10_000 };
        let Reply::Digests { digests } = here.answer(digest.clone()) else { panic!("no digests") };
        assert_eq!(here.answer(Request::Close { in_order: true }), Reply::Closed);
        drop((here, memory));

        assert!(matches!(elsewhere.answer(open(OpenFor::Read)), Reply::Opened { state, .. }
            if !state.is_open && state.epoch == epoch && state.mark == 5));
        assert_eq!(elsewhere.answer(digest), Reply::Digests { digests });
        assert_eq!(elsewhere.answer(Request::Close { in_order: false }), Reply::Closed);
        assert_eq!(elsewhere.answer(Request::Remove { name: name(), meant: None }), Reply::Removed);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_was_not_closed_and_has_no_name_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        let here = local(directory.path());
        here.answer(Request::Create { name: name(), new: new(), publish_on_close: true });
        drop(here);
        let here = local(directory.path());
        assert_eq!(refusal(&here.answer(open(OpenFor::Read))), PoolRefusal::NotFound);
        here.answer(Request::Create { name: name(), new: new(), publish_on_close: true });
        assert_eq!(here.answer(Request::Close { in_order: true }), Reply::Closed);
        assert!(matches!(local(directory.path()).answer(Request::Info { name: name() }), Reply::Info(_)));
    }

    /// Another process may have removed the pool, or put an older copy in its place.
    #[test]
    fn a_pool_that_has_lost_its_name_is_not_closed_in_order() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("orders");
        let here = local(directory.path());
        here.answer(Request::Create { name: name(), new: new(), publish_on_close: false });
        std::fs::rename(&path, directory.path().join("away")).unwrap();
        let closed = here.answer(Request::Close { in_order: true });
        let replaced = StoreError::Replaced { name: name() };
        assert_eq!(closed, Reply::Refused { code: replaced.code(), text: replaced.to_string() });
        let state = |path| {
            let bytes: Vec<u8> = std::fs::read(path).unwrap();
            let header = pmof_control::Header::decode(&bytes[..pmof_control::HEADER_BYTES]).unwrap();
            let page = &bytes[pmof_control::STATE_OFFSET as usize..][..pmof_control::STATE_BYTES];
            pmof_control::PoolState::read(header.format, header.replica_count, page).unwrap().0
        };
        assert!(state(directory.path().join("away")).is_open, "nor does the file say so");
    }

    #[test]
    fn what_only_a_service_does_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let here = local(directory.path());
        assert!(matches!(here.answer(Request::Mark { mark: 1 }), Reply::Refused { .. }));
        here.answer(Request::Create { name: name(), new: new(), publish_on_close: false });
        for request in [Request::KeepSet, Request::Prove { proof: [0; 32] }, open(OpenFor::Write)] {
            assert!(matches!(here.answer(request), Reply::Refused { .. }));
        }
    }
}
