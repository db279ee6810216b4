//! Flushes: what each medium can give, and that nothing else is ever claimed.

use std::{path::Path, sync::Arc};

use pmof_access::{
    Access, ConnectOptions, Declaration, Durability, Evidence, Flushed, Mechanism, Medium, MediumKind, Memory, Method,
    OperationError, Outcome, PostError, Promise, Refusal, RemoteRegion,
};
use pmof_proto::Descriptor;

use crate::{
    fabric::Fabric,
    pair::{Pair, Setup},
    support::pattern,
};

const LEN_BYTES: u64 = 64 << 10;

fn probed(mechanism: Mechanism) -> Promise {
    Promise { mechanism, evidence: Evidence::Probed }
}

/// Writes, then asks for every level: those promised are reached by the means promised, the others refused when posting.
fn levels_are(pair: &Pair, medium: Memory, kind: MediumKind, promises: [Option<Promise>; 3]) {
    let medium: Arc<dyn Medium> = Arc::new(medium);
    let memory = pair.target.peer.register(Arc::clone(&medium), 0, LEN_BYTES, Access::all()).unwrap();
    let remote = RemoteRegion::from_descriptor(&memory.descriptor()).unwrap();
    assert_eq!(remote.kind(), kind);
    let strongest = Durability::ALL.into_iter().zip(promises).rfind(|(_, promise)| promise.is_some());
    assert_eq!(Some(remote.strongest()), strongest.map(|(level, _)| level));
    let connection = &pair.initiator.connection;
    for (durability, promise) in Durability::ALL.into_iter().zip(promises) {
        assert_eq!(remote.promise(durability), promise);
        let bytes = pattern(40_000, durability as u64);
        connection.write(&remote, 100, &bytes).unwrap();
        let flush = connection.flush(&remote, 100..40_100, durability);
        let Some(promise) = promise else {
            let refused =
                PostError::NotDurable { wanted: durability, strongest: remote.strongest(), medium: kind.to_string() };
            assert_eq!(flush, Err(refused));
            continue;
        };
        // Over shm the region is mapped by and by, and flushes before go by message.
        let Outcome::Flushed(flushed) = pair.initiator.done(flush.unwrap()) else { panic!("no flush") };
        assert_eq!((flushed.durability, flushed.promise), (durability, promise));
        let mut batch = connection.batch();
        batch.by_message(true).write(&remote, 100, &bytes[1..]).unwrap();
        let flush = batch.flush(&remote, 100..40_100, durability).unwrap();
        drop(batch);
        let by_message = Flushed { durability, method: Method::SendAfterWrite, promise };
        assert_eq!(pair.initiator.done(flush), Outcome::Flushed(by_message), "whatever the transport");
        connection.write(&remote, 100, &bytes).unwrap();
        pair.initiator.done(connection.flush(&remote, .., durability).unwrap());
        let mut found = vec![0; bytes.len()];
        medium.read(100, &mut found).unwrap();
        assert!(found == bytes);
    }
    assert!(connection.is_established(), "what is refused when posting harms nobody");
}

pub(crate) fn anonymous_memory_survives_nothing<F: Fabric>() {
    let fabric = F::new();
    let promises = [Some(probed(Mechanism::Store)), None, None];
    levels_are(&fabric.pair(), Memory::anonymous(LEN_BYTES).unwrap(), MediumKind::Anonymous, promises);
}

/// A directory on tmpfs, unless this machine has none.
fn tmpfs() -> Option<tempfile::TempDir> {
    let directory = tempfile::tempdir_in("/dev/shm").ok();
    if directory.is_none() {
        skip_report::skipped!("there is no writable tmpfs at /dev/shm");
    }
    directory
}

pub(crate) fn tmpfs_survives_its_process<F: Fabric>() {
    let fabric = F::new();
    let Some(directory) = tmpfs() else { return };
    let memory = Memory::create(&directory.path().join("a"), LEN_BYTES, None).unwrap();
    let promises = [Some(probed(Mechanism::Store)), Some(probed(Mechanism::Store)), None];
    levels_are(&fabric.pair(), memory, MediumKind::Tmpfs, promises);
}

pub(crate) fn what_was_declared_is_said_to_be<F: Fabric>() {
    let fabric = F::new();
    let Some(directory) = tmpfs() else { return };
    let declared = Some(Declaration::BatteryBacked);
    let memory = Memory::create(&directory.path().join("a"), LEN_BYTES, declared).unwrap();
    let promise = memory.promise(Durability::PowerFailure).unwrap();
    assert_eq!(promise.evidence, Evidence::Declared);
    let promises = [Some(probed(Mechanism::Store)), Some(probed(Mechanism::Store)), Some(promise)];
    levels_are(&fabric.pair(), memory, MediumKind::Tmpfs, promises);
}

pub(crate) fn a_file_survives_loss_of_power<F: Fabric>() {
    let fabric = F::new();
    // The test bed names a directory of its own, since the one of the build is not there.
    let disk = std::env::var_os("PMOF_FILE").unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into());
    let directory = tempfile::tempdir_in(Path::new(&disk)).unwrap();
    let memory = Memory::create(&directory.path().join("a"), LEN_BYTES, None).unwrap();
    if memory.kind() != MediumKind::PageCache {
        skip_report::skipped!("the build directory lies on {}", memory.kind());
        return;
    }
    let promises = [Some(probed(Mechanism::Store)), Some(probed(Mechanism::Store)), Some(probed(Mechanism::FileSync))];
    levels_are(&fabric.pair(), memory, MediumKind::PageCache, promises);
}

pub(crate) fn the_right_to_flush_has_two_strengths<F: Fabric>() {
    let fabric = F::new();
    let pair = fabric.pair();
    let Some(directory) = tmpfs() else { return };
    let medium: Arc<dyn Medium> = Arc::new(Memory::create(&directory.path().join("a"), LEN_BYTES, None).unwrap());
    let connection = &pair.initiator.connection;
    for (access, visible, persistent) in
        [(Access::WRITE, false, false), (Access::FLUSH_VISIBLE, true, false), (Access::FLUSH_PERSISTENT, true, true)]
    {
        let memory = pair.target.peer.register(Arc::clone(&medium), 0, LEN_BYTES, access).unwrap();
        let remote = RemoteRegion::from_descriptor(&memory.descriptor()).unwrap();
        for (level, granted) in [(Durability::Visible, visible), (Durability::ProcessCrash, persistent)] {
            match connection.flush(&remote, .., level) {
                Ok(ticket) => {
                    assert!(granted, "{access:?} {level}");
                    pair.initiator.done(ticket);
                }
                Err(error) => {
                    assert!(!granted && matches!(error, PostError::NoRight { .. }), "{access:?} {level}: {error}");
                }
            }
        }
    }
}

pub(crate) fn the_target_believes_no_forged_promise<F: Fabric>() {
    let fabric = F::new();
    // Whoever forges a descriptor for itself may fool itself, but not the target's CPU.
    let connect = ConnectOptions::default().method(Some(Method::SendAfterWrite));
    let pair = fabric.pair_with(&Setup { connect, ..Setup::default() });
    let memory = pair.target.peer.allocate(LEN_BYTES, Access::all()).unwrap();
    let mut forged = Descriptor::decode(&memory.descriptor()).unwrap();
    forged.promises = [Some(probed(Mechanism::Store)); 3];
    let forged = RemoteRegion::from_descriptor(&forged.encode()).unwrap();
    let ticket = pair.initiator.connection.flush(&forged, .., Durability::PowerFailure).unwrap();
    let error = pair.initiator.outcome(ticket).unwrap_err();
    assert!(matches!(error, OperationError::Refused { refusal: Refusal::NotDurable, .. }), "{error}");
}

pub(crate) fn a_failing_medium_is_never_vouched_for<F: Fabric>() {
    use pmof_mem::{
        ShadowMedium,
        faults::{FailNth, FaultPoint},
    };
    for point in [FaultPoint::Store, FaultPoint::WriteBack, FaultPoint::Fence] {
        let fabric = F::new();
        let pair = fabric.pair();
        let shadow = ShadowMedium::new(LEN_BYTES, MediumKind::FsDax).unwrap();
        let medium = Arc::new(FailNth::new(shadow, point, 1));
        let memory = pair.target.peer.register(Arc::clone(&medium) as _, 0, LEN_BYTES, Access::all()).unwrap();
        let remote = RemoteRegion::from_descriptor(&memory.descriptor()).unwrap();
        let connection = &pair.initiator.connection;
        let mut batch = connection.batch();
        batch.write(&remote, 0, b"lost").unwrap();
        let flush = batch.flush(&remote, .., Durability::PowerFailure).unwrap();
        batch.submit();
        let outcome = pair.initiator.outcome(flush);
        assert!(outcome.is_err(), "{point:?}: {outcome:?}");
        assert!(medium.has_failed());
        assert!(connection.write(&remote, 0, b"more").is_err(), "{point:?}: the connection has ended");
    }
}
