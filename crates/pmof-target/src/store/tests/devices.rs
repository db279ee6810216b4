//! Pools on devices. A file that holds all its blocks goes the same way as a devdax device, which few machines have.

use pmof_mem::{ShadowMedium, causes, shadow::Event};

use super::{
    super::device::{self, Holds, MAKER},
    *,
};

const DEVICE_BYTES: u64 = 1 << 20;

struct Bench {
    root: TempDir,
    device: PathBuf,
    _directory: TempDir,
}

impl Bench {
    /// A root, and beside it a device with these first bytes.
    fn new(first_bytes: &[u8]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let device = directory.path().join("device");
        let mut bytes = vec![0; DEVICE_BYTES as usize];
        bytes[..first_bytes.len()].copy_from_slice(first_bytes);
        fs::write(&device, bytes).expect("a device");
        Self { root: tempfile::tempdir().expect("a directory"), device, _directory: directory }
    }

    fn open(&self, devices: &[(&str, &Path)]) -> Result<PoolStore, StoreError> {
        let devices = devices.iter().map(|(text, path)| (name(text), path.to_path_buf())).collect();
        PoolStore::open(self.root.path(), StoreOptions::default().devices(devices))
    }

    fn store(&self) -> PoolStore {
        self.open(&[("orders", &self.device)]).expect("a store")
    }

    fn first_bytes(&self) -> Vec<u8> {
        fs::read(&self.device).expect("a device")[..HEADER_BYTES].to_vec()
    }
}

fn names(store: &PoolStore) -> Vec<String> {
    store.list(None, 9).expect("a list").iter().map(ToString::to_string).collect()
}

#[test]
fn a_pool_lives_on_its_device() {
    let bench = Bench::new(&[]);
    let store = bench.store();
    assert!(names(&store).is_empty());
    assert!(matches!(open(&store, "orders", OpenFor::Read), Err(StoreError::NotFound { .. })));
    let pool = create(&store, "orders");
    let medium = pool.medium();
    medium.store(pool.data_offset(), b"bytes").expect("a store");
    assert_busy(open(&store, "orders", OpenFor::Write), "the test");
    // Another process, or another store, finds it locked.
    let holder = bench.store().info(&name("orders")).expect("info").open_by.expect("a holder");
    assert!(holder.contains(&format!("process {} ", std::process::id())), "{holder}");
    assert_busy(open(&bench.store(), "orders", OpenFor::Write), &holder);
    assert_busy(store.remove(&name("orders")), "the test");
    drop((pool, medium, store));

    let store = bench.store();
    create(&store, "beside");
    assert_eq!(names(&store), ["beside", "orders"]);
    let after: Vec<_> = store.list(Some(&name("beside")), 9).expect("a list");
    assert_eq!(after, [name("orders")]);
    assert_eq!(entries(bench.root.path()), ["beside"]);
    let info = store.info(&name("orders")).expect("info");
    assert_eq!((info.header.size_bytes, info.file_len_bytes, info.open_by), (SIZE_BYTES, DEVICE_BYTES, None));
    let reader = open(&store, "orders", OpenFor::Read).expect("the pool");
    let mut pool = open(&store, "orders", OpenFor::Write).expect("a reader does not keep it");
    assert_busy(open(&store, "orders", OpenFor::Write), "an opener");
    drop(reader);
    let epoch = Epoch { id: Uuid::from_u128(5), members: 3 };
    pool.begin(epoch, 2, &[]).expect("begun");
    pool.confirm(epoch.id).expect("confirmed");
    let mut bytes = [0; 5];
    pool.medium().read(pool.data_offset(), &mut bytes).expect("a read");
    assert_eq!(&bytes, b"bytes");
    drop(pool);
    assert_eq!(open(&store, "orders", OpenFor::Read).expect("the pool").state().epoch, epoch);

    let exists = store.create(&name("orders"), &new_pool(1), String::new());
    assert!(matches!(exists, Err(StoreError::AlreadyExists { .. })), "{exists:?}");
    store.remove(&name("orders")).expect("removed");
    assert!(bench.first_bytes().iter().all(|byte| *byte == 0));
    assert!(matches!(store.remove(&name("orders")), Err(StoreError::NotFound { .. })));
    // What the last pool held is not in the next one.
    let pool = create(&store, "orders");
    pool.medium().read(pool.data_offset(), &mut bytes).expect("a read");
    assert_eq!(bytes, [0; 5]);
}

#[test]
fn what_is_not_a_pool_is_never_touched() {
    for first_bytes in [&b"PMOFPOO"[..], b"\0\0\0\0\0\0\0\0something", &[0xff; 600]] {
        let bench = Bench::new(first_bytes);
        let before = fs::read(&bench.device).expect("a device");
        let store = bench.store();
        assert!(names(&store).is_empty());
        let path = bench.device.display().to_string();
        for error in [
            store.create(&name("orders"), &new_pool(1), String::new()).map(drop).unwrap_err(),
            open(&store, "orders", OpenFor::Write).map(drop).unwrap_err(),
            store.info(&name("orders")).map(drop).unwrap_err(),
            store.remove(&name("orders")).unwrap_err(),
        ] {
            assert!(matches!(error, StoreError::DeviceInUse { .. }), "{error:?}");
            assert!(error.to_string().contains(&path) && error.to_string().contains("zero its first"), "{error}");
        }
        assert_eq!(fs::read(&bench.device).expect("a device"), before);
    }
}

#[test]
fn a_damaged_pool_is_named_and_kept() {
    let bench = Bench::new(&[]);
    let store = bench.store();
    create(&store, "orders");
    let file = File::options().write(true).open(&bench.device).expect("a device");
    file.write_all_at(&[0xff], 40).expect("a write");
    assert_eq!(names(&store), ["orders"]);
    let before = bench.first_bytes();
    for error in [
        open(&store, "orders", OpenFor::Write).map(drop).unwrap_err(),
        store.info(&name("orders")).map(drop).unwrap_err(),
        store.remove(&name("orders")).unwrap_err(),
    ] {
        assert!(matches!(error, StoreError::Header { source: HeaderError::BadChecksum { .. }, .. }), "{error:?}");
    }
    assert_eq!(bench.first_bytes(), before);
}

#[test]
fn a_pool_has_no_name_before_it_is_published() {
    let bench = Bench::new(&[]);
    let store = bench.store();
    let unpublished = || store.create_unpublished(&name("orders"), &new_pool(SIZE_BYTES)).expect("a pool");
    let pool = unpublished();
    // What a crash would leave now is free.
    assert!(bench.first_bytes().starts_with(b"PMOFMAKE"));
    assert!(names(&store).is_empty());
    assert_busy(store.create(&name("orders"), &new_pool(1), String::new()), MAKER);
    drop(pool);
    assert!(bench.first_bytes().iter().all(|byte| *byte == 0));

    // What a crash leaves between the first mark and the last word, whichever lines of the page arrived.
    let mut left = *b"PMOFMAKE and a part of a header";
    for cut in [8, left.len()] {
        left[cut..].fill(0);
        let file = File::options().write(true).open(&bench.device).expect("a device");
        file.write_all_at(&left, 0).expect("a write");
        assert!(matches!(open(&store, "orders", OpenFor::Read), Err(StoreError::NotFound { .. })));
        let mut pool = unpublished();
        store.publish(&mut pool, "the test".to_owned()).expect("published");
        drop(pool);
        assert_eq!(names(&store), ["orders"]);
        store.remove(&name("orders")).expect("removed");
    }
}

#[test]
fn devices_that_do_not_fit_are_refused() {
    let bench = Bench::new(&[]);
    let store = bench.store();
    let too_large = store.create(&name("orders"), &new_pool(DEVICE_BYTES), String::new());
    assert!(matches!(too_large, Err(StoreError::NoSpace { .. })), "{too_large:?}");
    assert!(bench.first_bytes().iter().all(|byte| *byte == 0));
    store.create(&name("orders"), &new_pool(DEVICE_BYTES - DATA_OFFSET), String::new()).expect("fits");
    open(&store, "orders", OpenFor::Write).expect("it fills the device");
    // A device that shrank.
    File::options().write(true).open(&bench.device).expect("a device").set_len(8192).expect("shorter");
    assert!(matches!(open(&store, "orders", OpenFor::Read), Err(StoreError::SizeMismatch { .. })));

    let device = bench.device.as_path();
    for twice in [&[("a", device), ("b", device)][..], &[("a", device), ("a", Path::new("/dev/null"))]] {
        let error = bench.open(twice).map(drop).unwrap_err();
        assert!(matches!(error, StoreError::DeviceTwice { .. } | StoreError::Memory { .. }), "{error:?}");
    }
    let other = Bench::new(&[]);
    let two = bench.open(&[("orders", device), ("beside", &other.device)]).expect("two names of two devices");
    create(&two, "beside");
    assert_eq!(names(&two), ["beside"]);
    let one_name = bench.open(&[("orders", device), ("orders", &other.device)]).map(drop).unwrap_err();
    assert!(matches!(one_name, StoreError::DeviceTwice { .. }), "{one_name:?}");
    for wrong in ["/dev/null", "/no/such/device", "/tmp"] {
        let error = bench.open(&[("a", Path::new(wrong))]).map(drop).unwrap_err();
        assert!(matches!(error, StoreError::Memory { .. }), "{error:?}");
        assert!(causes(&error).to_string().contains(wrong), "{error}");
    }
    create(&bench.open(&[]).expect("a store"), "taken");
    let taken = bench.open(&[("taken", device)]).map(drop).unwrap_err();
    assert!(matches!(taken, StoreError::AlreadyExists { .. }), "{taken:?}");
}

/// Every state that a crash may leave at any step, as what the device then holds. `keep` picks the steps that are
/// carried out.
fn crash_states(before: &[u8], steps: impl Fn(&ShadowMedium), keep: impl Fn(&Event) -> bool) -> Vec<(Holds, bool)> {
    let recorded = ShadowMedium::from_image(before.to_vec(), MediumKind::DevDax).expect("a medium");
    steps(&recorded);
    let replayed = ShadowMedium::from_image(before.to_vec(), MediumKind::DevDax).expect("a medium");
    let mut states = Vec::new();
    for event in recorded.trace().iter().filter(|event| keep(event)) {
        match event {
            Event::Store { offset, bytes } => replayed.store(*offset, bytes).expect("inside"),
            Event::WriteBack { offset, len_bytes } => replayed.write_back(*offset, *len_bytes).expect("inside"),
            Event::Fence => replayed.fence().expect("a fence"),
            Event::Mark(_) => {}
        }
        for image in replayed.crash_images(200) {
            let (head, page) = image.split_at(HEADER_BYTES);
            let (page, data) = page.split_at(STATE_BYTES);
            let is_new = PoolState::read(PoolFormat::Three, 3, page).is_ok_and(|(state, _)| state == new_state());
            states.push((Holds::of(head), is_new && data.iter().all(|byte| *byte == 0)));
        }
    }
    states
}

fn new_state() -> PoolState {
    PoolState::new(Uuid::from_u128(43), 3)
}

#[test]
fn a_crash_leaves_a_whole_pool_or_a_free_device() {
    let header = new_header(&new_pool(2 * HEADER_BYTES as u64)).expect("it fits");
    let whole = Holds::Pool(header.clone());
    let len_bytes = DATA_OFFSET + 2 * HEADER_BYTES as u64;
    // What an earlier pool left behind its header.
    let free = [vec![0; HEADER_BYTES], vec![7; len_bytes as usize - HEADER_BYTES]].concat();
    let making = |medium: &ShadowMedium| {
        device::make(medium, &header, &new_state(), len_bytes).and_then(|()| device::publish(medium)).expect("made");
    };
    let good = |(holds, is_zero): &(Holds, bool)| *holds == Holds::Nothing || (*holds == whole && *is_zero);
    let made = crash_states(&free, making, |_| true);
    assert!(made.iter().all(good));
    assert_eq!(made.last().map(|(holds, _)| holds), Some(&whole));

    let pool = [&header.encode()[..], &free[HEADER_BYTES..]].concat();
    let wiping = |medium: &ShadowMedium| device::wipe(medium).expect("wiped");
    let known = |(holds, _): &(Holds, bool)| [&Holds::Nothing, &whole].contains(&holds);
    let wiped = crash_states(&pool, wiping, |_| true);
    assert!(wiped.iter().all(known));
    assert_eq!(wiped.last().map(|(holds, _)| holds), Some(&Holds::Nothing));

    // The controls: without write-backs, or without fences, a part of a pool looks whole or foreign.
    for leave_out in [|event: &Event| matches!(event, Event::WriteBack { .. }), |event: &Event| *event == Event::Fence]
    {
        assert!(!crash_states(&free, making, |event| !leave_out(event)).iter().all(good));
        assert!(!crash_states(&pool, wiping, |event| !leave_out(event)).iter().all(known));
    }
}

/// Whatever the device held, and however much: a new pool shows none of it.
#[test]
fn a_new_pool_is_zeroed_to_its_end_and_no_further() {
    let header = new_header(&new_pool(2 * HEADER_BYTES as u64)).expect("it fits");
    let len_bytes = (2 << 20) + 3 * HEADER_BYTES as u64;
    let medium = Memory::anonymous(len_bytes + 1).expect("memory");
    medium.store(0, &vec![7; len_bytes as usize + 1]).expect("a store");
    device::make(&medium, &header, &new_state(), len_bytes).expect("made");
    let mut data = vec![0; (len_bytes + 1 - DATA_OFFSET) as usize];
    medium.read(DATA_OFFSET, &mut data).expect("a read");
    assert_eq!(data.iter().position(|byte| *byte != 0), Some(data.len() - 1), "the first byte that is not zero");
}
