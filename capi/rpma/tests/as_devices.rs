//! What programs see over TCP and shm is what they see of a device.

mod support;

use std::{
    env,
    ffi::{CString, c_void},
    process::Command,
    ptr, slice, thread,
};

use pmof_rpma::{ConnReq, Handle, PrivateData};
use support::functions::{
    rpma_conn_get_private_data, rpma_conn_req_connect, rpma_conn_req_get_private_data, rpma_conn_req_new,
    rpma_conn_req_recv, rpma_ep_next_conn_req, rpma_mr_remote_delete, rpma_read, rpma_recv, rpma_send, rpma_write,
};
use support::{ALWAYS, End, INVALID, Node, close, ok};

/// What the connection manager carries, always all of it.
const REQUEST_BYTES: usize = 56;
const ANSWER_BYTES: usize = 196;

/// Runs a test in a process of its own for each transport: the library reads the environment once. True in such a process.
fn is_over_each() -> bool {
    if env::var_os("PMOF_TEST_ADDRESS").is_some() || env::var_os("PMOF_TEST_OVER").is_some() {
        return true;
    }
    let name = thread::current().name().expect("that of the test").to_owned();
    for transport in ["tcp", "shm"] {
        let mut test = Command::new(env::current_exe().unwrap());
        test.args(["--exact", &name, "--nocapture"]).env("PMOF_TRANSPORT", transport).env("PMOF_TEST_OVER", transport);
        let done = test.output().unwrap();
        let said = String::from_utf8_lossy(&done.stdout);
        let errors = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success() && said.contains("1 passed"), "over {transport}: {said}{errors}");
    }
    false
}

fn bytes_of(data: PrivateData) -> Vec<u8> {
    if data.ptr.is_null() {
        return vec![0; usize::from(data.len)];
    }
    // SAFETY: the library says that so many bytes lie there.
    unsafe { slice::from_raw_parts(data.ptr.cast::<u8>(), usize::from(data.len)) }.to_vec()
}

const NONE: PrivateData = PrivateData { ptr: ptr::null_mut(), len: 0 };

fn of_connection(end: &End) -> (bool, Vec<u8>) {
    let mut data = NONE;
    // SAFETY: all pointers are valid.
    ok(unsafe { rpma_conn_get_private_data(end.0, &raw mut data) });
    (data.ptr.is_null(), bytes_of(data))
}

/// `sent` with as many zeros behind it as a device has.
fn padded(sent: &[u8], len_bytes: usize) -> Vec<u8> {
    let mut bytes = sent.to_vec();
    bytes.resize(len_bytes, 0);
    bytes
}

/// A connection whose request and answer carry these bytes; without any the program gives none.
fn exchange(node: &Node, asks: &mut [u8], answers: &mut [u8]) {
    let (host, port) = (CString::new("127.0.0.1").unwrap(), CString::new(node.port().to_string()).unwrap());
    let given = |bytes: &mut [u8]| PrivateData { ptr: bytes.as_mut_ptr().cast(), len: bytes.len() as u8 };
    let pointer = |data: &PrivateData| if data.len == 0 { ptr::null() } else { ptr::from_ref(data) };
    let (asks_data, answers_data) = (given(asks), given(answers));
    let (mut request, mut asked) = (ptr::null_mut::<Handle<ConnReq>>(), ptr::null_mut());
    let (mut incoming, mut accepted) = (ptr::null_mut::<Handle<ConnReq>>(), ptr::null_mut());
    let mut data = NONE;
    // SAFETY: all pointers are valid.
    unsafe {
        ok(rpma_conn_req_new(node.peer, host.as_ptr(), port.as_ptr(), ptr::null(), &raw mut request));
        ok(rpma_conn_req_get_private_data(request, &raw mut data));
        assert!(data.ptr.is_null() && data.len == 0, "a request of one's own has none");
        ok(rpma_conn_req_connect(&raw mut request, pointer(&asks_data), &raw mut asked));
        ok(rpma_ep_next_conn_req(node.ep, ptr::null(), &raw mut incoming));
        ok(rpma_conn_req_get_private_data(incoming, &raw mut data));
        assert!(!data.ptr.is_null());
        assert_eq!(bytes_of(data), padded(asks, REQUEST_BYTES));
        ok(rpma_conn_req_connect(&raw mut incoming, pointer(&answers_data), &raw mut accepted));
    }
    let (asked, accepted) = (End(asked), End(accepted));
    assert_eq!(of_connection(&asked), (true, Vec::new()), "nothing is known before the event");
    assert_eq!((asked.event(), accepted.event()), (0, 0), "both are established");
    assert_eq!(of_connection(&asked), (false, padded(answers, ANSWER_BYTES)));
    assert_eq!(of_connection(&accepted), (false, padded(asks, REQUEST_BYTES)), "it keeps the request's");
    close(asked, accepted);
}

#[test]
fn private_data_is_as_long_as_a_devices() {
    if !is_over_each() {
        return;
    }
    let node = Node::new();
    exchange(&node, &mut [], &mut []);
    exchange(&node, &mut [7; 3], &mut [9; 24]);
    exchange(&node, &mut [7; REQUEST_BYTES], &mut [9; ANSWER_BYTES]);
}

/// A device refuses memory that was registered in another protection domain. It does so when it comes to the operation; here posting fails.
#[test]
fn memory_of_another_peer_is_refused() {
    if env::var_os("PMOF_TEST_ADDRESS").is_some() {
        skip_report::skipped!("a device refuses it by a completion");
        return;
    }
    if !is_over_each() {
        return;
    }
    let (node, other) = (Node::new(), Node::new());
    let (asked, accepted) = node.connect();
    let mut remote = node.remote();
    let context = ptr::without_provenance::<c_void>(1);
    // SAFETY: all pointers are valid.
    unsafe {
        assert_eq!(rpma_write(asked.0, remote, 0, other.mr, 0, 64, ALWAYS, context), INVALID);
        assert_eq!(rpma_write(asked.0, remote, 0, other.mr, 0, 0, ALWAYS, context), INVALID);
        assert_eq!(rpma_read(asked.0, other.mr, 0, remote, 0, 64, ALWAYS, context), INVALID);
        assert_eq!(rpma_send(asked.0, other.mr, 0, 64, ALWAYS, context), INVALID);
        assert_eq!(rpma_recv(accepted.0, other.mr, 0, 64, context), INVALID);
        let (host, port) = (CString::new("127.0.0.1").unwrap(), CString::new(node.port().to_string()).unwrap());
        let mut request = ptr::null_mut::<Handle<ConnReq>>();
        ok(rpma_conn_req_new(node.peer, host.as_ptr(), port.as_ptr(), ptr::null(), &raw mut request));
        assert_eq!(rpma_conn_req_recv(request, other.mr, 0, 64, context), INVALID);
        ok(support::functions::rpma_conn_req_delete(&raw mut request));
    }
    // Nothing was posted, and the connection goes on.
    asked.persist(remote, node.mr, 0, 5);
    // SAFETY: all pointers are valid.
    ok(unsafe { rpma_mr_remote_delete(&raw mut remote) });
    close(asked, accepted);
}
