//! What a flush of each type asks of the kernel that serves the memory: over TCP, on a file that a program mapped.

mod support;

use std::{
    fs,
    os::fd::AsRawFd as _,
    path::{Path, PathBuf},
    ptr,
};

use pmof_access::{Medium as _, MediumKind, Memory};
use pmof_rpma::{Handle, MrLocal, MrRemote};
use support::functions::{
    rpma_conn_apply_remote_peer_cfg, rpma_flush, rpma_mr_dereg, rpma_mr_reg, rpma_mr_remote_delete,
    rpma_peer_cfg_delete, rpma_peer_cfg_new, rpma_peer_cfg_set_direct_write_to_pmem, rpma_write,
};
use support::{ALWAYS, End, MEMORY_BYTES, Node, USAGE, VISIBILITY, close, ok, remote_of};
use syscall_recorder::{Call, Verdict, observe, record};

const PERSISTENT: i32 = 0;
const EIO: i32 = 5;

/// A file of this length, mapped and registered.
struct Mapped {
    path: PathBuf,
    address: *mut libc::c_void,
    mr: *mut Handle<MrLocal>,
    remote: *mut Handle<MrRemote>,
}

impl Mapped {
    fn new(node: &Node, directory: &Path) -> Self {
        let path = directory.join("pool");
        fs::write(&path, vec![0; MEMORY_BYTES]).unwrap();
        let file = fs::File::options().read(true).write(true).open(&path).unwrap();
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a mapping of its own, of a file of this length.
        let address =
            unsafe { libc::mmap(ptr::null_mut(), MEMORY_BYTES, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert_ne!(address, libc::MAP_FAILED);
        let mut mr = ptr::null_mut();
        // SAFETY: all pointers are valid; the mapping outlives its registration.
        ok(unsafe { rpma_mr_reg(node.peer, address, MEMORY_BYTES, USAGE, &raw mut mr) });
        Self { path, address, mr, remote: remote_of(mr) }
    }

    /// Writes, flushes, and gives the status of the flush.
    fn flush(&self, from: &End, node: &Node, flush_type: i32) -> u32 {
        // SAFETY: all pointers are valid.
        unsafe {
            ok(rpma_write(from.0, self.remote, 0, node.mr, 0, 512, 1, ptr::null()));
            ok(rpma_flush(from.0, self.remote, 0, 512, flush_type, ALWAYS, ptr::null()));
        }
        from.completion().status
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: nobody else uses the handles, and nothing the mapping once it is not registered any more.
        unsafe {
            ok(rpma_mr_remote_delete(&raw mut self.remote));
            ok(rpma_mr_dereg(&raw mut self.mr));
            libc::munmap(self.address, MEMORY_BYTES);
        }
    }
}

/// Has one end believe that the other writes to persistent memory directly, which persistent flushes ask for.
fn claim_direct_write(end: &End) {
    let mut configuration = ptr::null_mut();
    // SAFETY: all pointers are valid.
    unsafe {
        ok(rpma_peer_cfg_new(&raw mut configuration));
        ok(rpma_peer_cfg_set_direct_write_to_pmem(configuration, true));
        ok(rpma_conn_apply_remote_peer_cfg(end.0, configuration));
        ok(rpma_peer_cfg_delete(&raw mut configuration));
    }
}

/// A directory whose files need fdatasync, unless the build lies where none does.
fn on_disk() -> Option<tempfile::TempDir> {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let kind = Memory::create(&directory.path().join("probe"), 4096, None).unwrap().kind();
    if kind == MediumKind::PageCache {
        return Some(directory);
    }
    skip_report::skipped!("the build directory lies on {kind}");
    None
}

#[test]
fn a_persistent_flush_has_the_file_synced_and_one_to_visibility_has_not() {
    let Some(directory) = on_disk() else { return };
    // A call that is recorded and does nothing tells the flushes apart.
    let mark = || fs::rename("/no/such/file", "/no/such/file").expect_err("there is none");
    let act = || {
        let node = Node::new();
        let mapped = Mapped::new(&node, directory.path());
        let (asked, accepted) = node.connect();
        claim_direct_write(&asked);
        let path = mapped.path.clone();
        // The first one flushes whatever was there.
        for flush_type in [PERSISTENT, PERSISTENT, VISIBILITY, PERSISTENT] {
            assert_eq!(mapped.flush(&asked, &node, flush_type), 0);
            mark();
        }
        drop(mapped);
        close(asked, accepted);
        path
    };
    let Ok((path, calls)) = observe(act).inspect_err(|error| skip_report::skipped!("{error}")) else { return };
    let stretches = calls.split(|call| matches!(call, Call::Rename(..)));
    let syncs: Vec<_> = stretches.map(|calls| calls.iter().filter(|call| call.is_sync_of(&path)).count()).collect();
    assert_eq!(syncs, [1, 1, 0, 1, 0], "{calls:?}");
}

#[test]
fn a_persistent_flush_that_the_medium_refused_fails() {
    let Some(directory) = on_disk() else { return };
    let path = directory.path().join("pool");
    let judge = |call: &Call| if call.is_sync_of(&path) { Verdict::Fail(EIO) } else { Verdict::Pass };
    let act = || {
        let node = Node::new();
        let mapped = Mapped::new(&node, directory.path());
        let (asked, accepted) = node.connect();
        claim_direct_write(&asked);
        let statuses = [VISIBILITY, PERSISTENT].map(|flush_type| mapped.flush(&asked, &node, flush_type));
        drop(mapped);
        asked.delete();
        accepted.delete();
        statuses
    };
    let Ok(([visible, persistent], _)) = record(judge, act).inspect_err(|error| skip_report::skipped!("{error}"))
    else {
        return;
    };
    assert_eq!(visible, 0);
    assert_ne!(persistent, 0, "it was not persistent");
}
