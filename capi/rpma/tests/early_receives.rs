//! Receives that were posted on requests of which no connection comes.

mod support;

use std::{
    env,
    ffi::{CString, c_int, c_void},
    iter,
    net::TcpListener,
    process::Command,
    ptr, thread,
};

use pmof_rpma::{ConnReq, Cq, Handle};
use pmof_verbs_sys::{IBV_WC_WR_FLUSH_ERR, ibv_wc};
use support::functions::{
    rpma_conn_cfg_delete, rpma_conn_cfg_new, rpma_conn_cfg_set_compl_channel, rpma_conn_cfg_set_rcq_size,
    rpma_conn_get_rcq, rpma_conn_req_connect, rpma_conn_req_delete, rpma_conn_req_new, rpma_conn_req_recv,
    rpma_conn_wait, rpma_cq_get_wc, rpma_cq_wait, rpma_ep_next_conn_req,
};
use support::{End, NO_COMPLETION, Node, ok};

const ESTABLISHED: c_int = 0;
const CLOSED: c_int = 1;
const LOST: c_int = 2;
const REJECTED: c_int = 3;
const UNREACHABLE: c_int = 4;
const RECEIVES: usize = 4;

/// Where receives complete, and how that is waited for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Cq,
    Rcq,
    Channel,
}

const WAYS: [Way; 3] = [Way::Cq, Way::Rcq, Way::Channel];

/// Runs a test in a process of its own that uses this transport: the library reads the environment once. True in that process.
fn is_over(transport: &str) -> bool {
    if env::var_os("PMOF_TEST_ADDRESS").is_some() {
        skip_report::skipped!("a device completes receives itself");
        return false;
    }
    if env::var_os("PMOF_TRANSPORT").is_some_and(|set| set == transport) {
        return true;
    }
    let name = thread::current().name().expect("that of the test").to_owned();
    let mut test = Command::new(env::current_exe().unwrap());
    let done = test.args(["--exact", &name, "--nocapture"]).env("PMOF_TRANSPORT", transport).output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&done.stderr));
    false
}

/// A request of the node's, with receives.
fn request(node: &Node, host: &str, port: u16, way: Way) -> *mut Handle<ConnReq> {
    let (host, port) = (CString::new(host).unwrap(), CString::new(port.to_string()).unwrap());
    let (mut settings, mut request) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: all pointers are valid.
    unsafe {
        ok(rpma_conn_cfg_new(&raw mut settings));
        ok(rpma_conn_cfg_set_rcq_size(settings, if way == Way::Cq { 0 } else { 8 }));
        ok(rpma_conn_cfg_set_compl_channel(settings, way == Way::Channel));
        ok(rpma_conn_req_new(node.peer, host.as_ptr(), port.as_ptr(), settings, &raw mut request));
        ok(rpma_conn_cfg_delete(&raw mut settings));
    }
    post_receives(node, request);
    request
}

fn post_receives(node: &Node, request: *mut Handle<ConnReq>) {
    for number in 0..RECEIVES {
        // SAFETY: all pointers are valid; the memory outlives its registration.
        ok(unsafe {
            rpma_conn_req_recv(request, node.mr, number * 64, 64, ptr::without_provenance::<c_void>(number + 1))
        });
    }
}

fn connect(mut request: *mut Handle<ConnReq>) -> End {
    let mut conn = ptr::null_mut();
    // SAFETY: all pointers are valid; nobody else uses the request.
    ok(unsafe { rpma_conn_req_connect(&raw mut request, ptr::null(), &raw mut conn) });
    End(conn)
}

/// Waits for something to take, as `way` has it; where it is, or why there is nothing.
fn wait(end: &End, way: Way) -> Result<*mut Handle<Cq>, c_int> {
    let (mut cq, mut is_receive) = (ptr::null_mut(), false);
    // SAFETY: all pointers are valid.
    let code = unsafe {
        match way {
            Way::Cq => cq = end.cq(),
            Way::Rcq => ok(rpma_conn_get_rcq(end.0, &raw mut cq)),
            Way::Channel => {}
        }
        if way == Way::Channel { rpma_conn_wait(end.0, 0, &raw mut cq, &raw mut is_receive) } else { rpma_cq_wait(cq) }
    };
    if code == 0 { Ok(cq) } else { Err(code) }
}

/// Each receive has one outcome, and nothing follows.
#[track_caller]
fn are_flushed(end: &End, way: Way) {
    for number in 0..RECEIVES {
        let cq = wait(end, way).expect("a receive");
        let mut done = std::mem::MaybeUninit::<ibv_wc>::uninit();
        // SAFETY: all pointers are valid; where the call succeeds the completion was written.
        let done = unsafe {
            ok(rpma_cq_get_wc(cq, 1, done.as_mut_ptr(), ptr::null_mut()));
            done.assume_init()
        };
        assert_eq!((done.wr_id, done.status), (number as u64 + 1, IBV_WC_WR_FLUSH_ERR), "{way:?}");
    }
    assert_eq!(wait(end, way), Err(NO_COMPLETION), "{way:?}");
}

fn without_listener(transport: &str, host: &str, event: c_int) {
    if !is_over(transport) {
        return;
    }
    let node = Node::new();
    for way in WAYS {
        let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        let end = connect(request(&node, host, port, way));
        assert_eq!(end.event(), event);
        are_flushed(&end, way);
        end.delete();
    }
}

#[test]
fn they_complete_where_nobody_listens_over_tcp() {
    without_listener("tcp", "127.0.0.1", REJECTED);
}

#[test]
fn they_complete_where_nobody_listens_over_shm() {
    without_listener("shm", "127.0.0.1", REJECTED);
}

#[test]
fn they_complete_where_no_packet_comes_over_tcp() {
    // The kernel refuses the broadcast address before anything is sent.
    without_listener("tcp", "255.255.255.255", UNREACHABLE);
}

fn with_rejection(transport: &str) {
    if !is_over(transport) {
        return;
    }
    let node = Node::new();
    for way in WAYS {
        let end = connect(request(&node, "127.0.0.1", node.port(), way));
        let mut incoming = ptr::null_mut();
        // SAFETY: all pointers are valid; nobody else uses the request.
        unsafe {
            ok(rpma_ep_next_conn_req(node.ep, ptr::null(), &raw mut incoming));
            ok(rpma_conn_req_delete(&raw mut incoming));
        }
        assert_eq!(end.event(), REJECTED);
        are_flushed(&end, way);
        end.delete();
    }
}

#[test]
fn they_complete_where_the_request_is_deleted_over_tcp() {
    with_rejection("tcp");
}

#[test]
fn they_complete_where_the_request_is_deleted_over_shm() {
    with_rejection("shm");
}

fn with_client_gone(transport: &str) {
    if !is_over(transport) {
        return;
    }
    let node = Node::new();
    let asked = connect(request(&node, "127.0.0.1", node.port(), Way::Cq));
    let mut incoming = ptr::null_mut();
    // SAFETY: all pointers are valid.
    ok(unsafe { rpma_ep_next_conn_req(node.ep, ptr::null(), &raw mut incoming) });
    post_receives(&node, incoming);
    asked.delete();
    let end = connect(incoming);
    let told = iter::repeat_with(|| end.event()).find(|event| *event != ESTABLISHED);
    assert!(matches!(told, Some(CLOSED | LOST)), "{told:?}");
    are_flushed(&end, Way::Cq);
    end.delete();
}

#[test]
fn they_complete_where_the_client_has_gone_over_tcp() {
    with_client_gone("tcp");
}

#[test]
fn they_complete_where_the_client_has_gone_over_shm() {
    with_client_gone("shm");
}
