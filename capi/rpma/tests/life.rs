//! What comes and goes: connections, threads, handles, processes.

mod support;

use std::{
    ffi::c_int,
    ptr, thread,
    time::{Duration, Instant},
};

use pmof_locks::{Mutex, MutexGuard};
use support::functions::{
    rpma_conn_delete, rpma_conn_disconnect, rpma_conn_get_qp_num, rpma_conn_next_event, rpma_cq_get_wc, rpma_cq_wait,
    rpma_mr_remote_delete, rpma_mr_remote_from_descriptor, rpma_write,
};
use support::{End, INVALID, NO_COMPLETION, NOT_SUPPORTED, Node, close, ok, resources, scale};

/// Descriptors and threads are counted for the whole process, so one test runs at a time.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock()
}

/// Threads end a moment after what they served. There may be fewer than before: those of other tests end too.
fn settles_at(before: (usize, usize)) {
    let start = Instant::now();
    let is_more = |now: (usize, usize)| now.0 > before.0 || now.1 > before.1;
    while is_more(resources()) {
        assert!(start.elapsed() < Duration::from_secs(20), "left behind: {:?} instead of {before:?}", resources());
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn connections_come_and_go() {
    let _one = one_at_a_time();
    let node = Node::new();
    let mut remote = node.remote();
    let cycle = |number| {
        let (asked, accepted) = node.connect();
        asked.persist(remote, node.mr, 512 * (number % 8), number);
        close(asked, accepted);
    };
    cycle(0);
    let before = resources();
    (0..scale(200, 10_000)).for_each(cycle);
    settles_at(before);
    // SAFETY: nobody else uses the handle.
    ok(unsafe { rpma_mr_remote_delete(&raw mut remote) });
}

#[test]
fn many_connections_are_open_at_once() {
    let _one = one_at_a_time();
    let node = Node::new();
    let before = resources();
    let pairs: Vec<(End, End)> = (0..scale(100, 1000)).map(|_| node.connect()).collect();
    let mut remote = node.remote();
    for (number, (asked, _)) in pairs.iter().enumerate() {
        asked.persist(remote, node.mr, 0, number);
    }
    for (asked, accepted) in pairs {
        close(asked, accepted);
    }
    settles_at(before);
    // SAFETY: nobody else uses the handle.
    ok(unsafe { rpma_mr_remote_delete(&raw mut remote) });
}

#[test]
fn threads_have_connections_of_their_own() {
    let _one = one_at_a_time();
    let threads = scale(16, 64);
    let work = |number: usize| {
        let node = Node::new();
        let mut remote = node.remote();
        for round in 0..scale(3, 20) {
            let (asked, accepted) = node.connect();
            for operation in 0..20 {
                asked.persist(remote, node.mr, operation * 512, number << 32 | round << 16 | operation);
            }
            close(asked, accepted);
        }
        // SAFETY: nobody else uses the handle.
        ok(unsafe { rpma_mr_remote_delete(&raw mut remote) });
    };
    thread::scope(|scope| (0..threads).for_each(|number| drop(scope.spawn(move || work(number)))));
}

#[test]
fn one_connection_serves_several_threads() {
    let _one = one_at_a_time();
    let node = Node::new();
    let (asked, accepted) = node.connect();
    let mut remote = node.remote();
    let (threads, each) = (4, 200);
    let cq = asked.cq().expose_provenance();
    let (conn, far, mr) = (asked.0.expose_provenance(), remote.expose_provenance(), node.mr.expose_provenance());
    thread::scope(|scope| {
        for number in 0..threads {
            scope.spawn(move || {
                for operation in 0..each {
                    let context = ptr::without_provenance(number * each + operation + 1);
                    // A full send queue is no error of the test: the collector below makes room.
                    // SAFETY: the handles live until all threads have ended.
                    while unsafe {
                        let (conn, far) =
                            (ptr::with_exposed_provenance_mut(conn), ptr::with_exposed_provenance_mut(far));
                        rpma_write(conn, far, number * 64, ptr::with_exposed_provenance(mr), 0, 64, 3, context)
                    } != 0
                    {
                        thread::yield_now();
                    }
                }
            });
        }
        let mut seen = vec![false; threads * each + 1];
        let start = Instant::now();
        while seen.iter().filter(|seen| **seen).count() < threads * each {
            assert!(start.elapsed() < Duration::from_secs(60), "all complete");
            let (mut done, mut got) = ([const { std::mem::MaybeUninit::uninit() }; 8], 0);
            // SAFETY: room for eight; as many as the call returned were written.
            let code = unsafe {
                rpma_cq_get_wc(ptr::with_exposed_provenance_mut(cq), 8, done.as_mut_ptr().cast(), &raw mut got)
            };
            assert!(code == 0 || code == NO_COMPLETION, "{code}");
            for done in done.iter().take(if code == 0 { got.unsigned_abs() as usize } else { 0 }) {
                // SAFETY: written.
                let done: &pmof_verbs_sys::ibv_wc = unsafe { done.assume_init_ref() };
                assert_eq!(done.status, 0);
                assert!(!std::mem::replace(&mut seen[done.wr_id as usize], true), "once each");
            }
        }
    });
    close(asked, accepted);
    // SAFETY: nobody else uses the handle.
    ok(unsafe { rpma_mr_remote_delete(&raw mut remote) });
}

#[test]
fn deleted_handles_are_refused() {
    let _one = one_at_a_time();
    let node = Node::new();
    let (asked, accepted) = node.connect();
    let (conn, cq) = (asked.0, asked.cq());
    let mut number = 7_u32;
    // SAFETY: handles stay readable after their end, which is what the test is about.
    unsafe {
        ok(rpma_conn_get_qp_num(conn, &raw mut number));
        close(asked, accepted);
        assert_eq!(rpma_conn_get_qp_num(conn, &raw mut number), INVALID);
        assert_eq!(rpma_cq_wait(cq), INVALID, "the queue went with its connection");
        assert_eq!(rpma_conn_disconnect(conn), INVALID);
        let mut again = conn;
        assert_eq!(rpma_conn_delete(&raw mut again), INVALID);
        // A handle of another kind.
        let mut event: c_int = 0;
        assert_eq!(rpma_conn_next_event(node.peer.cast(), &raw mut event), INVALID);
    }
}

#[test]
fn a_forked_child_gets_an_error() {
    let _one = one_at_a_time();
    let node = Node::new();
    let (asked, accepted) = node.connect();
    // SAFETY: the child calls what allocates and logs only, which glibc keeps working after a fork, and ends at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut remote = ptr::null_mut();
        let mut number = 0;
        // SAFETY: all pointers are valid.
        let codes = unsafe {
            let mut conn = asked.0;
            [
                rpma_conn_get_qp_num(asked.0, &raw mut number),
                rpma_conn_delete(&raw mut conn),
                rpma_mr_remote_from_descriptor([0_u8; 24].as_ptr().cast(), 24, &raw mut remote),
            ]
        };
        // The last needs no handle, so it works as ever.
        // SAFETY: ends the child without running what belongs to the parent.
        unsafe { libc::_exit(c_int::from(codes != [INVALID, INVALID, NOT_SUPPORTED]) + 40) };
    }
    let mut status = 0;
    // SAFETY: the child is this process's own.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(libc::WEXITSTATUS(status), 40, "status {status:#x}");
    // The parent's connection is as it was.
    let mut remote = node.remote();
    asked.persist(remote, node.mr, 0, 1);
    close(asked, accepted);
    // SAFETY: nobody else uses the handle.
    ok(unsafe { rpma_mr_remote_delete(&raw mut remote) });
}
