//! Registration of every kind of memory.

use std::{
    env, fs,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use pmof_mem::{Medium, Memory, ShadowMedium};
use pmof_verbs::{Device, MemoryRegion, MrAccess, ProtectionDomain, RegisterError, VerbsError};

use crate::support::wire;

const LEN_BYTES: u64 = 2 << 20;
const WRITE: MrAccess = MrAccess::REMOTE_WRITE;
const PERSISTENT: MrAccess = MrAccess::REMOTE_WRITE.union(MrAccess::FLUSH_PERSISTENT);
const GLOBAL: MrAccess = MrAccess::REMOTE_WRITE.union(MrAccess::FLUSH_GLOBAL);

/// A file that is gone when dropped.
struct File(PathBuf);

impl File {
    fn new(directory: &str) -> (Self, Arc<dyn Medium>) {
        let directory = env::var(directory).expect("the test bed names its directories");
        let path =
            Path::new(&directory).join(format!("pmof-verbs-{}-{:?}", std::process::id(), std::thread::current().id()));
        let memory = Memory::create(&path, LEN_BYTES, None).unwrap();
        (Self(path), Arc::new(memory))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        fs::remove_file(&self.0).unwrap();
    }
}

fn domain() -> Option<ProtectionDomain> {
    let (a, _) = wire()?;
    Some(Device::by_local_address(a).unwrap().protection_domain().unwrap())
}

fn register(
    domain: &ProtectionDomain,
    memory: &Arc<dyn Medium>,
    access: MrAccess,
) -> Result<MemoryRegion, RegisterError> {
    domain.register(Arc::clone(memory), 0, memory.len_bytes(), access)
}

#[test]
fn persistent_memory_takes_every_flush() {
    let Some(domain) = domain() else { return };
    let path = env::var_os("PMOF_DEVDAX").expect("PMOF_DEVDAX names the persistent memory of the test bed");
    let memory: Arc<dyn Medium> = Arc::new(Memory::open(Path::new(&path), None).unwrap());
    for access in [WRITE, GLOBAL, PERSISTENT, PERSISTENT | GLOBAL, MrAccess::FLUSH_PERSISTENT] {
        let region = domain.register(Arc::clone(&memory), 4096, LEN_BYTES, access).unwrap();
        assert_eq!(region.len_bytes(), LEN_BYTES);
        assert_eq!(region.address(), memory.memory().unwrap().address() + 4096);
    }
}

#[test]
fn ordinary_memory_takes_no_persistent_flush() {
    let Some(domain) = domain() else { return };
    let (_file, tmpfs) = File::new("PMOF_TMPFS");
    let anonymous: Arc<dyn Medium> = Arc::new(Memory::anonymous(LEN_BYTES).unwrap());
    for memory in [anonymous, tmpfs] {
        register(&domain, &memory, WRITE).unwrap();
        register(&domain, &memory, GLOBAL).unwrap();
        let error = register(&domain, &memory, PERSISTENT).unwrap_err();
        assert!(matches!(error, RegisterError::NotPersistent { .. }), "{error:?}");
        assert!(error.is_of_persistence() && error.to_string().contains("devdax"), "{error}");
    }
}

#[test]
fn a_dax_file_cannot_be_pinned() {
    let Some(domain) = domain() else { return };
    let (_file, memory) = File::new("PMOF_FSDAX");
    for access in [WRITE, GLOBAL, PERSISTENT] {
        let error = register(&domain, &memory, access).unwrap_err();
        assert!(matches!(error, RegisterError::CannotPin { .. }) && error.is_of_the_memory(), "{error:?}");
        assert!(error.to_string().contains("send-after-write"), "{error}");
    }
}

#[test]
fn a_page_cached_file_is_registered_for_reading_only() {
    let Some(domain) = domain() else { return };
    let (file, memory) = File::new("PMOF_FILE");
    let error = register(&domain, &memory, WRITE).unwrap_err();
    assert!(matches!(error, RegisterError::PageCached { .. }) && error.is_of_the_memory(), "{error:?}");
    register(&domain, &memory, MrAccess::REMOTE_READ).unwrap();
    let read_only: Arc<dyn Medium> = Arc::new(Memory::open_read_only(&file.0, None).unwrap());
    register(&domain, &read_only, MrAccess::REMOTE_READ).unwrap();
    let error = register(&domain, &read_only, WRITE).unwrap_err();
    assert!(matches!(error, RegisterError::ReadOnly { .. }), "{error:?}");
}

#[test]
fn what_cannot_be_registered_at_all_is_refused() {
    let Some(domain) = domain() else { return };
    let memory: Arc<dyn Medium> = Arc::new(Memory::anonymous(8192).unwrap());
    for (offset, len_bytes) in [(0, 0), (0, 8193), (8192, 1), (u64::MAX, 1), (1, u64::MAX)] {
        let error = domain.register(Arc::clone(&memory), offset, len_bytes, WRITE).unwrap_err();
        assert!(matches!(error, RegisterError::OutOfBounds { .. }), "{error:?}");
    }
    let error = register(&domain, &memory, WRITE | MrAccess::ON_DEMAND).unwrap_err();
    assert!(matches!(error, RegisterError::Unsupported { what: "on-demand paging", .. }), "{error:?}");
    let simulated: Arc<dyn Medium> = Arc::new(ShadowMedium::new(8192, pmof_mem::MediumKind::DevDax).unwrap());
    let error = register(&domain, &simulated, WRITE).unwrap_err();
    assert!(matches!(error, RegisterError::NotMapped { .. }), "{error:?}");
}

#[test]
fn ranges_lie_inside_their_region() {
    let Some(domain) = domain() else { return };
    let memory: Arc<dyn Medium> = Arc::new(Memory::anonymous(8192).unwrap());
    let region = domain.register(memory, 4096, 4096, WRITE).unwrap();
    assert_eq!(region.sge(0, 4096).unwrap().len_bytes(), 4096);
    assert!(region.sge(4096, 0).is_some() && region.sge(4095, 1).is_some());
    for (offset, len_bytes) in [(0, 4097), (4096, 1), (4097, 0), (u64::MAX, 2)] {
        assert_eq!(region.sge(offset, len_bytes), None);
    }
    // Soft-RoCE takes no advice.
    assert!(matches!(region.advise_prefetch(0, 4096, true), Err(VerbsError::Call { call: "ibv_advise_mr", .. })));
    assert!(matches!(region.advise_prefetch(1, 4096, true), Err(VerbsError::OutOfRange { .. })));
}

/// What the child of the next test says where everything is as it should be.
const LIMITED: &str = "PMOF_VERBS_TEST_LIMITED";

#[test]
fn the_limit_on_locked_memory_is_named() {
    let Some((a, _)) = wire() else { return };
    if env::var_os(LIMITED).is_none() {
        // Another process, without the capability that lifts the limit.
        let program = env::current_exe().unwrap();
        let mut child = Command::new("setpriv");
        child.args(["--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock", "prlimit", "--memlock=1048576"]);
        child.arg(program).args(["--exact", "--nocapture", "media::the_limit_on_locked_memory_is_named"]);
        child.env(LIMITED, "1").arg0("setpriv");
        assert!(child.status().unwrap().success());
        return;
    }
    let domain = Device::by_local_address(a).unwrap().protection_domain().unwrap();
    let memory: Arc<dyn Medium> = Arc::new(Memory::anonymous(LEN_BYTES).unwrap());
    let error = register(&domain, &memory, WRITE).unwrap_err();
    assert!(matches!(error, RegisterError::LockLimit { .. }), "{error:?}");
    let message = error.to_string();
    for part in ["2097152 bytes", "1024 KiB", "ulimit -l", "LimitMEMLOCK", "CAP_IPC_LOCK"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    let small: Arc<dyn Medium> = Arc::new(Memory::anonymous(4096).unwrap());
    register(&domain, &small, WRITE).unwrap();
}
