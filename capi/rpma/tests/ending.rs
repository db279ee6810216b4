//! Waits on a connection that ends with operations under way, while the other side takes nothing.

mod support;

use std::{
    env,
    ffi::{CString, c_int},
    io::{self, Read as _, Write as _},
    mem::MaybeUninit,
    net::{TcpListener, TcpStream},
    ptr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use pmof_rpma::{ConnCfg, Cq, Handle};
use pmof_verbs_sys::ibv_wc;
use support::functions::{
    rpma_conn_cfg_delete, rpma_conn_cfg_new, rpma_conn_cfg_set_compl_channel, rpma_conn_disconnect, rpma_conn_wait,
    rpma_cq_get_wc, rpma_cq_wait, rpma_mr_dereg, rpma_mr_reg, rpma_mr_remote_delete, rpma_write,
};
use support::{ALWAYS, End, NO_COMPLETION, Node, USAGE, ok, remote_of};

/// More than the kernel buffers on the way, so that the last of them are still the library's when the first are read.
const WRITES: usize = 40;
const WRITE_BYTES: usize = 1 << 20;

/// Longer than a wait that looks once takes.
const HELD: Duration = Duration::from_millis(300);

/// A port that leads to another one; while `is_held`, what comes to it is not taken.
fn relay(to: u16, is_held: &Arc<AtomicBool>) -> CString {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let is_held = Arc::clone(is_held);
    thread::spawn(move || -> io::Result<()> {
        let (mut near, _) = listener.accept()?;
        let mut far = TcpStream::connect(("127.0.0.1", to))?;
        let (mut back, mut answers) = (near.try_clone()?, far.try_clone()?);
        thread::spawn(move || io::copy(&mut answers, &mut back));
        let mut bytes = vec![0; 1 << 16];
        loop {
            while is_held.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
            match near.read(&mut bytes)? {
                0 => return Ok(()),
                count => far.write_all(&bytes[..count])?,
            }
        }
    });
    CString::new(port.to_string()).unwrap()
}

/// Takes all outcomes that are there; how many.
fn take(cq: *mut Handle<Cq>) -> usize {
    let mut done = MaybeUninit::<ibv_wc>::uninit();
    // SAFETY: all pointers are valid.
    std::iter::from_fn(|| (unsafe { rpma_cq_get_wc(cq, 1, done.as_mut_ptr(), ptr::null_mut()) } == 0).then_some(()))
        .count()
}

/// Disconnects amid long writes that the other side does not take for a while; gives how many had completed when `wait`, which gives
/// the queue that has something, said that no more would.
fn completed_when_over(is_channel: bool, wait: impl Fn(&End) -> Result<*mut Handle<Cq>, c_int>) -> usize {
    let node = Node::new();
    let is_held = Arc::new(AtomicBool::new(false));
    let mut memory = vec![0_u8; WRITE_BYTES];
    let (mut mr, mut settings) = (ptr::null_mut(), ptr::null_mut::<Handle<ConnCfg>>());
    // SAFETY: all pointers are valid; the memory outlives its registration.
    unsafe {
        ok(rpma_conn_cfg_new(&raw mut settings));
        ok(rpma_conn_cfg_set_compl_channel(settings, is_channel));
        ok(rpma_mr_reg(node.peer, memory.as_mut_ptr().cast(), WRITE_BYTES, USAGE, &raw mut mr));
    }
    let mut remote = remote_of(mr);
    let (asked, accepted) = node.connect_through(&relay(node.port(), &is_held), settings);
    is_held.store(true, Ordering::SeqCst);
    for _ in 0..WRITES {
        // SAFETY: all pointers are valid.
        ok(unsafe { rpma_write(asked.0, remote, 0, mr, 0, WRITE_BYTES, ALWAYS, ptr::null()) });
    }
    let releasing = thread::spawn(move || {
        thread::sleep(HELD);
        is_held.store(false, Ordering::SeqCst);
    });
    // SAFETY: the handle is valid.
    ok(unsafe { rpma_conn_disconnect(asked.0) });
    let mut completed = 0;
    let why = loop {
        match wait(&asked) {
            Ok(cq) => completed += take(cq),
            Err(code) => break code,
        }
    };
    assert_eq!(why, NO_COMPLETION);
    releasing.join().unwrap();
    asked.delete();
    accepted.delete();
    // SAFETY: nobody else uses the handles.
    unsafe {
        ok(rpma_mr_remote_delete(&raw mut remote));
        ok(rpma_mr_dereg(&raw mut mr));
        ok(rpma_conn_cfg_delete(&raw mut settings));
    }
    completed
}

/// In a machine with devices connections are theirs, and no relay of TCP reaches them.
fn is_on_device() -> bool {
    let is_so = env::var_os("PMOF_TEST_ADDRESS").is_some();
    if is_so {
        skip_report::skipped!("a device ends what is under way itself");
    }
    is_so
}

#[test]
fn a_wait_ends_when_every_write_has_its_completion() {
    if is_on_device() {
        return;
    }
    let wait = |end: &End| {
        let cq = end.cq();
        // SAFETY: the handle is valid.
        match unsafe { rpma_cq_wait(cq) } {
            0 => Ok(cq),
            code => Err(code),
        }
    };
    assert_eq!(completed_when_over(false, wait), WRITES);
}

#[test]
fn a_wait_on_a_channel_ends_when_every_write_has_its_completion() {
    if is_on_device() {
        return;
    }
    let wait = |end: &End| {
        let mut cq = ptr::null_mut();
        // SAFETY: all pointers are valid.
        match unsafe { rpma_conn_wait(end.0, 0, &raw mut cq, ptr::null_mut()) } {
            0 => Ok(cq),
            code => Err(code),
        }
    };
    assert_eq!(completed_when_over(true, wait), WRITES);
}
