//! Two ends of connections in one process, using only the functions of the interface.

#![allow(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod functions;

use std::{
    env,
    ffi::{CStr, CString, c_int, c_void},
    fs, ptr,
};

use pmof_rpma::{Conn, ConnCfg, Cq, Ep, Handle, MrLocal, MrRemote, Peer, rpma_err_2str};

use pmof_verbs_sys::{ibv_context, ibv_wc};

use self::functions::{
    rpma_conn_delete, rpma_conn_disconnect, rpma_conn_get_cq, rpma_conn_next_event, rpma_conn_req_connect,
    rpma_conn_req_new, rpma_cq_get_wc, rpma_cq_wait, rpma_ep_listen, rpma_ep_next_conn_req, rpma_ep_shutdown,
    rpma_flush, rpma_mr_dereg, rpma_mr_get_descriptor, rpma_mr_get_descriptor_size, rpma_mr_reg,
    rpma_mr_remote_from_descriptor, rpma_peer_delete, rpma_peer_new, rpma_utils_get_ibv_context, rpma_write,
};

pub(crate) const USAGE: c_int = 0xFF;
pub(crate) const ALWAYS: c_int = 3;
pub(crate) const VISIBILITY: c_int = 1;
pub(crate) const NOT_SUPPORTED: c_int = -100_001;
pub(crate) const INVALID: c_int = -100_004;
pub(crate) const NO_COMPLETION: c_int = -100_005;

/// How much is done: little in every run, `PMOF_SOAK=1` for the full load.
pub(crate) fn scale(little: usize, all: usize) -> usize {
    if env::var_os("PMOF_SOAK").is_some() { all } else { little }
}

/// Fails the test where a function did.
#[track_caller]
pub(crate) fn ok(code: c_int) {
    // SAFETY: the function gives a C string that lives forever.
    let text = unsafe { CStr::from_ptr(rpma_err_2str(code)) };
    assert_eq!(code, 0, "{}", text.to_string_lossy());
}

/// A peer with registered memory that listens on a port of its own.
pub(crate) struct Node {
    pub(crate) peer: *mut Handle<Peer>,
    pub(crate) ep: *mut Handle<Ep>,
    pub(crate) mr: *mut Handle<MrLocal>,
    host: CString,
    port: CString,
    _memory: Box<[u64]>,
}

// SAFETY: handles may be used from any thread.
unsafe impl Send for Node {}
// SAFETY: the library locks whatever a handle names, so threads may use it at once.
unsafe impl Sync for Node {}

pub(crate) const MEMORY_BYTES: usize = 1 << 16;

/// Where nodes listen: `PMOF_TEST_ADDRESS`, in a machine with devices that of one of them, else this host's own.
fn host() -> CString {
    CString::new(env::var("PMOF_TEST_ADDRESS").unwrap_or_else(|_| "127.0.0.1".to_owned())).unwrap()
}

impl Node {
    pub(crate) fn new() -> Self {
        let host = host();
        let mut memory = vec![0_u64; MEMORY_BYTES / 8].into_boxed_slice();
        let (mut context, mut peer) = (ptr::null_mut::<ibv_context>(), ptr::null_mut());
        let (mut ep, mut mr) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: all pointers are valid; the memory outlives its registration.
        unsafe {
            ok(rpma_utils_get_ibv_context(host.as_ptr(), 0, &raw mut context));
            ok(rpma_peer_new(context, &raw mut peer));
            ok(rpma_mr_reg(peer, memory.as_mut_ptr().cast(), MEMORY_BYTES, USAGE, &raw mut mr));
        }
        // What was free a moment ago may be somebody else's by now.
        let port = (0..100).find_map(|_| {
            let port = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
            let port = CString::new(port.to_string()).unwrap();
            // SAFETY: all pointers are valid.
            (unsafe { rpma_ep_listen(peer, host.as_ptr(), port.as_ptr(), &raw mut ep) } == 0).then_some(port)
        });
        Self { peer, ep, mr, host, port: port.expect("a free port"), _memory: memory }
    }

    /// Where it listens.
    pub(crate) fn port(&self) -> u16 {
        self.port.to_str().unwrap().parse().unwrap()
    }

    /// Both ends of a new connection, the one that asked first.
    pub(crate) fn connect(&self) -> (End, End) {
        self.connect_through(&self.port, ptr::null())
    }

    /// The same, by another port that leads to the node's, with these settings of the end that asks.
    pub(crate) fn connect_through(&self, port: &CStr, settings: *const Handle<ConnCfg>) -> (End, End) {
        let (mut request, mut asked) = (ptr::null_mut(), ptr::null_mut());
        let (mut incoming, mut accepted) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: all pointers are valid.
        unsafe {
            ok(rpma_conn_req_new(self.peer, self.host.as_ptr(), port.as_ptr(), settings, &raw mut request));
            ok(rpma_conn_req_connect(&raw mut request, ptr::null(), &raw mut asked));
            ok(rpma_ep_next_conn_req(self.ep, ptr::null(), &raw mut incoming));
            ok(rpma_conn_req_connect(&raw mut incoming, ptr::null(), &raw mut accepted));
        }
        let (asked, accepted) = (End(asked), End(accepted));
        assert_eq!((asked.event(), accepted.event()), (0, 0), "both are established");
        (asked, accepted)
    }

    /// The node's memory as the other side names it.
    pub(crate) fn remote(&self) -> *mut Handle<MrRemote> {
        remote_of(self.mr)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // SAFETY: the handles are the node's own.
        unsafe {
            ok(rpma_mr_dereg(&raw mut self.mr));
            ok(rpma_ep_shutdown(&raw mut self.ep));
            ok(rpma_peer_delete(&raw mut self.peer));
        }
    }
}

/// One end of a connection.
pub(crate) struct End(pub(crate) *mut Handle<Conn>);

// SAFETY: handles may be used from any thread.
unsafe impl Send for End {}
// SAFETY: the library locks whatever a handle names, so threads may use it at once.
unsafe impl Sync for End {}

impl End {
    pub(crate) fn event(&self) -> c_int {
        let mut event = -1;
        // SAFETY: all pointers are valid.
        ok(unsafe { rpma_conn_next_event(self.0, &raw mut event) });
        event
    }

    pub(crate) fn cq(&self) -> *mut Handle<Cq> {
        let mut cq = ptr::null_mut();
        // SAFETY: all pointers are valid.
        ok(unsafe { rpma_conn_get_cq(self.0, &raw mut cq) });
        cq
    }

    /// The next outcome, waiting for it.
    pub(crate) fn completion(&self) -> ibv_wc {
        let cq = self.cq();
        let mut done = std::mem::MaybeUninit::<ibv_wc>::uninit();
        // SAFETY: all pointers are valid; where the call succeeds the completion was written.
        unsafe {
            ok(rpma_cq_wait(cq));
            ok(rpma_cq_get_wc(cq, 1, done.as_mut_ptr(), ptr::null_mut()));
            done.assume_init()
        }
    }

    /// Writes from `mr` to `remote` and makes it visible there.
    pub(crate) fn persist(
        &self,
        remote: *mut Handle<MrRemote>,
        mr: *mut Handle<MrLocal>,
        offset: usize,
        context: usize,
    ) {
        let op_context = ptr::without_provenance::<c_void>(context);
        // SAFETY: all pointers are valid.
        unsafe {
            ok(rpma_write(self.0, remote, offset, mr, offset, 512, 1, ptr::null()));
            ok(rpma_flush(self.0, remote, offset, 512, VISIBILITY, ALWAYS, op_context));
        }
        let done = self.completion();
        assert_eq!((done.wr_id, done.status), (context as u64, 0));
    }

    pub(crate) fn delete(mut self) {
        // SAFETY: nobody else uses the handle.
        ok(unsafe { rpma_conn_delete(&raw mut self.0) });
    }
}

/// Closes from one end, and takes both away.
pub(crate) fn close(one: End, other: End) {
    // SAFETY: the handle is valid.
    ok(unsafe { rpma_conn_disconnect(one.0) });
    assert_eq!((other.event(), one.event()), (1, 1), "both are told");
    one.delete();
    other.delete();
}

/// Open descriptors and threads of this process.
pub(crate) fn resources() -> (usize, usize) {
    let count = |path| fs::read_dir(path).unwrap().count();
    (count("/proc/self/fd"), count("/proc/self/task"))
}

/// Memory as the other side names it.
pub(crate) fn remote_of(mr: *mut Handle<MrLocal>) -> *mut Handle<MrRemote> {
    let (mut bytes, mut size) = ([0_u8; 64], 0);
    let mut remote = ptr::null_mut();
    // SAFETY: all pointers are valid, and the array has room.
    unsafe {
        ok(rpma_mr_get_descriptor_size(mr, &raw mut size));
        ok(rpma_mr_get_descriptor(mr, bytes.as_mut_ptr().cast()));
        ok(rpma_mr_remote_from_descriptor(bytes.as_ptr().cast(), size, &raw mut remote));
    }
    remote
}
