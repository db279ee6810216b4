//! Regions on the medium that `PMOF_MEDIUM` names: `devdax`, `fsdax`, `tmpfs` or `file`, at the places that the test bed
//! names; else anonymous memory.

use std::{
    env,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use pmof_access::{Access, Medium, Memory, Peer, Region};

/// Regions begin at pages, as allocations do.
const PAGE_BYTES: u64 = 4096;

/// One medium that all regions of the run share, each with bytes of its own.
pub(crate) struct Chosen {
    memory: Arc<dyn Medium>,
    taken_bytes: AtomicU64,
}

/// The medium that the environment names, if it does.
pub(crate) fn chosen() -> Option<&'static Chosen> {
    static CHOSEN: OnceLock<Option<Chosen>> = OnceLock::new();
    CHOSEN.get_or_init(|| env::var("PMOF_MEDIUM").ok().map(|name| Chosen::open(&name))).as_ref()
}

impl Chosen {
    fn open(name: &str) -> Self {
        let place = |variable: &str| PathBuf::from(env::var_os(variable).expect("the test bed names its media"));
        let memory = match name {
            "devdax" => Memory::open(&place("PMOF_DEVDAX"), None),
            "fsdax" => create(&place("PMOF_FSDAX")),
            "tmpfs" => create(&place("PMOF_TMPFS")),
            "file" => create(&place("PMOF_FILE")),
            other => panic!("no medium {other}"),
        };
        Self { memory: Arc::new(memory.expect("the medium can be opened")), taken_bytes: AtomicU64::new(0) }
    }

    pub(crate) fn register(&self, owner: &Peer, len_bytes: u64, access: Access) -> Region {
        let size_bytes = len_bytes.next_multiple_of(PAGE_BYTES);
        let whole_bytes = self.memory.len_bytes();
        // Where the medium has been used up, old regions are long gone: it is used from the start again.
        let next = |taken: u64| if taken + size_bytes <= whole_bytes { taken } else { 0 };
        let taken =
            self.taken_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| Some(next(taken) + size_bytes));
        let at = taken.map_or(0, next);
        let zeros = vec![0; (1 << 20).min(len_bytes as usize)];
        for start in (0..len_bytes).step_by(zeros.len().max(1)) {
            let part = (len_bytes - start).min(zeros.len() as u64) as usize;
            self.memory.store(at + start, &zeros[..part]).expect("zeroes fit");
        }
        owner.register(Arc::clone(&self.memory), at, len_bytes, access).expect("a region")
    }
}

/// A file that is gone with the machine.
fn create(directory: &Path) -> Result<Memory, pmof_mem::MemError> {
    let path = directory.join(format!("conformance-{}", std::process::id()));
    let memory = Memory::create(&path, 192 << 20, None);
    // The mapping keeps the bytes.
    let _ = std::fs::remove_file(path);
    memory
}
