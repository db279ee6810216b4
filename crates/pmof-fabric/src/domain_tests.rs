use super::*;
use crate::{Endpoint, EndpointOptions, Query, list};
use pmof_mem::Memory;

/// Behind a dropped region the addresses of its memory stay until the endpoints that were there are closed, and no longer; the memory itself
/// does not stay, so that a file is let go of.
#[test]
fn addresses_outlive_the_writes_that_may_be_under_way() {
    let Ok(infos) = list(&Query { provider: Some("tcp".to_owned()), ..Query::default() }) else {
        skip_report::skipped!("no libfabric with tcp (apt install libfabric1)");
        return;
    };
    let info = infos.into_iter().next().unwrap();
    let domain = Domain::open(info).unwrap();
    let region = |key| {
        let memory: Arc<dyn Medium> = Arc::new(Memory::anonymous(4096).unwrap());
        (Arc::downgrade(&memory), domain.register(memory, (0, 4096), MrAccess::REMOTE_WRITE, key).unwrap())
    };
    let options = EndpointOptions { operations: 4 };
    let open = || Endpoint::open(&domain, domain.info(), options).unwrap();

    let (memory, registered) = region(1);
    drop(registered);
    assert!(memory.upgrade().is_none());
    assert_eq!(domain.0.retired_count(), 0, "nobody may be writing");

    let before = open();
    let (memory, registered) = region(2);
    drop(registered);
    let after = open();
    assert!(memory.upgrade().is_none(), "others may open its file");
    assert_eq!(domain.0.retired_count(), 1);
    drop(before);
    assert_eq!(domain.0.retired_count(), 0, "the endpoint that came later has no key of it");
    drop(after);
}

/// What its owner unmaps stays lent to the domain.
#[test]
fn borrowed_memory_outlives_them_as_a_whole() {
    let Ok(infos) = list(&Query { provider: Some("tcp".to_owned()), ..Query::default() }) else {
        skip_report::skipped!("no libfabric with tcp (apt install libfabric1)");
        return;
    };
    let domain = Domain::open(infos.into_iter().next().unwrap()).unwrap();
    let endpoint = Endpoint::open(&domain, domain.info(), EndpointOptions { operations: 4 }).unwrap();
    let owner = Memory::anonymous(4096).unwrap();
    // SAFETY: the owner outlives the domain.
    let borrowed = unsafe { Memory::borrow(owner.address(), 4096, None) }.unwrap();
    let borrowed: Arc<dyn Medium> = Arc::new(borrowed);
    let kept = Arc::downgrade(&borrowed);
    drop(domain.register(borrowed, (0, 4096), MrAccess::REMOTE_WRITE, 1).unwrap());
    assert!(kept.upgrade().is_some());
    drop(endpoint);
    assert!(kept.upgrade().is_none());
}

/// Whoever registers may choose another key.
#[test]
fn a_key_in_use_is_told_as_such() {
    let Ok(infos) = list(&Query { provider: Some("tcp".to_owned()), ..Query::default() }) else {
        skip_report::skipped!("no libfabric with tcp (apt install libfabric1)");
        return;
    };
    let domain = Domain::open(infos.into_iter().next().unwrap()).unwrap();
    let register = |key| {
        let memory: Arc<dyn Medium> = Arc::new(Memory::anonymous(4096).unwrap());
        domain.register(memory, (0, 4096), MrAccess::REMOTE_WRITE, key)
    };
    let first = register(7).unwrap();
    assert!(matches!(register(7), Err(RegisterError::KeyInUse { key: 7 })));
    drop(first);
    register(7).unwrap();
}
