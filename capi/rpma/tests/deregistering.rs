//! Memory that is deregistered, and unmapped, while connections are busy with it.

mod support;

use std::{
    ffi::c_void,
    mem::MaybeUninit,
    ptr,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use pmof_locks::Mutex;
use pmof_rpma::{Handle, MrLocal};
use support::functions::{rpma_cq_get_wc, rpma_mr_dereg, rpma_mr_reg, rpma_mr_remote_delete, rpma_read, rpma_write};
use support::{ALWAYS, End, NO_COMPLETION, Node, USAGE, ok, remote_of, scale};

const BYTES: usize = 1 << 20;

/// What is written and read.
const FILL: u8 = 0x5A;

/// What a connection does over and over.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Work {
    /// Writes to the memory from the other side.
    Writes,
    /// Reads from it.
    Reads,
    /// Reads of its owner, into it.
    OwnReads,
    /// Writes of its owner, from it.
    OwnWrites,
}

/// Pages of this process's own.
struct Pages(usize);

impl Pages {
    fn map() -> Self {
        Self(Self::map_at(ptr::null_mut(), 0))
    }

    fn map_at(place: *mut c_void, flags: i32) -> usize {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags);
        // SAFETY: either the kernel chooses the place, or it is that of pages which nobody needs any more.
        let start = unsafe { libc::mmap(place, BYTES, protection, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        start.expose_provenance()
    }

    fn start(&self) -> *mut c_void {
        ptr::with_exposed_provenance_mut(self.0)
    }

    /// Puts other pages there, all zero, or none: then a touch is the end of the process.
    fn replace(&self, by_zeros: bool) {
        if by_zeros {
            Self::map_at(self.start(), libc::MAP_FIXED);
        } else {
            // SAFETY: nobody needs the pages any more.
            assert_eq!(unsafe { libc::mprotect(self.start(), BYTES, libc::PROT_NONE) }, 0);
        }
    }

    fn fill(&self) {
        // SAFETY: mapped, and nobody else uses the pages yet.
        unsafe { self.start().cast::<u8>().write_bytes(FILL, BYTES) };
    }

    fn are_all(&self, byte: u8) -> bool {
        let (start, word): (*const u64, _) = (ptr::with_exposed_provenance(self.0), u64::from_le_bytes([byte; 8]));
        // SAFETY: mapped, and a fault of what is tested is the only writer.
        (0..BYTES / 8).all(|at| unsafe { start.add(at).read_volatile() } == word)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the pages are this value's own.
        unsafe { libc::munmap(self.start(), BYTES) };
    }
}

fn register(node: &Node, pages: &Pages) -> *mut Handle<MrLocal> {
    let mut mr = ptr::null_mut();
    // SAFETY: all pointers are valid; the pages stay until the registration is deleted.
    ok(unsafe { rpma_mr_reg(node.peer, pages.start(), BYTES, USAGE, &raw mut mr) });
    mr
}

/// Longer than anything takes that works, in a machine that shares its processors.
const PATIENCE: Duration = Duration::from_secs(60);

/// As many operations as the queues of a connection hold by default, less two: a device frees places of the one before those of the
/// other are taken, and outcomes for which there is none are lost.
const QUEUE: usize = 8;

/// Posts without end, until something fails or, where the memory is gone, nothing is under way; tells how much was done.
fn work(end: &End, work: Work, remote: usize, mr: &Mutex<Option<usize>>, len: usize, done: &AtomicUsize) {
    let remote = ptr::with_exposed_provenance_mut(remote);
    let is_write = matches!(work, Work::Writes | Work::OwnWrites);
    let (cq, mut under_way) = (end.cq(), 0);
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < PATIENCE, "{work:?}: nothing failed");
        // Nobody may use a registration that is being deleted.
        let mr = mr.lock();
        let local = mr.map(ptr::with_exposed_provenance_mut);
        // SAFETY: the handles are valid; a full queue is no error of the test.
        let posted = local.filter(|_| under_way < QUEUE).map_or(-1, |local| unsafe {
            if is_write {
                rpma_write(end.0, remote, 0, local, 0, len, ALWAYS, ptr::null())
            } else {
                rpma_read(end.0, local, 0, remote, 0, len, ALWAYS, ptr::null())
            }
        });
        let is_over = mr.is_none();
        drop(mr);
        under_way += usize::from(posted == 0);
        let mut completion = MaybeUninit::<pmof_verbs_sys::ibv_wc>::uninit();
        // SAFETY: room for one; written where the call succeeds.
        let (code, status) = unsafe {
            let code = rpma_cq_get_wc(cq, 1, completion.as_mut_ptr(), ptr::null_mut());
            (code, if code == 0 { completion.assume_init().status } else { 0 })
        };
        match (code, posted) {
            (0, _) if status != 0 => return,
            (0, _) => {
                under_way -= 1;
                done.fetch_add(1, Ordering::SeqCst);
            }
            (NO_COMPLETION, _) if is_over && under_way == 0 => return,
            (NO_COMPLETION, 0) => {}
            (NO_COMPLETION, _) => thread::yield_now(),
            _ => panic!("{work:?}: {code}"),
        }
    }
}

/// Deregisters under way, and looks whether anybody touches the pages after that.
fn round(node: &Node, kind: Work, len: usize, number: usize) {
    let (pages, other) = (Pages::map(), Pages::map());
    let (mut mr, mut far_mr) = (register(node, &pages), register(node, &other));
    let (asked, accepted) = node.connect();
    let is_own = matches!(kind, Work::OwnReads | Work::OwnWrites);
    pages.fill();
    other.fill();
    let named = if is_own { far_mr } else { mr };
    let mut remote = remote_of(named);
    let local = if is_own { mr } else { far_mr };
    let (remote_address, local) = (remote.expose_provenance(), Mutex::new(Some(local.expose_provenance())));
    let done = AtomicUsize::new(0);
    thread::scope(|scope| {
        let worker = scope.spawn(|| work(&asked, kind, remote_address, &local, len, &done));
        let start = Instant::now();
        while done.load(Ordering::SeqCst) < 3 + number {
            assert!(start.elapsed() < PATIENCE, "{kind:?} of {len} bytes: nothing is done");
            thread::yield_now();
        }
        if is_own {
            *local.lock() = None;
        }
        // SAFETY: the handle is valid; what was posted goes on meanwhile, which is the test.
        ok(unsafe { rpma_mr_dereg(&raw mut mr) });
        pages.replace(number % 2 == 0);
        worker.join().unwrap();
    });
    if number % 2 == 0 {
        thread::sleep(Duration::from_millis(2));
        assert!(pages.are_all(0), "{kind:?} of {len} bytes, round {number}: written to after deregistering");
    }
    asked.delete();
    accepted.delete();
    // The zeros that lie there now have gone nowhere.
    assert!(other.are_all(FILL), "{kind:?} of {len} bytes, round {number}: read from after deregistering");
    // SAFETY: nobody else uses the handles.
    unsafe {
        ok(rpma_mr_remote_delete(&raw mut remote));
        ok(rpma_mr_dereg(&raw mut far_mr));
    }
}

fn rounds(kind: Work) {
    let node = Node::new();
    // Short ones are copied by the library, long ones by the kernel; the longest take several turns.
    for len in [512, 8192, BYTES] {
        // What is looked for is a race.
        (0..scale(12, 200)).for_each(|number| round(&node, kind, len, number));
    }
}

#[test]
fn writes_of_the_other_side_do_not_reach_memory_that_was_deregistered() {
    rounds(Work::Writes);
}

#[test]
fn reads_of_the_other_side_do_not_either() {
    rounds(Work::Reads);
}

#[test]
fn nor_do_answers_to_own_reads() {
    rounds(Work::OwnReads);
}

#[test]
fn nor_is_anything_sent_from_there() {
    rounds(Work::OwnWrites);
}
