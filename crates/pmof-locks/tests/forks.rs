//! Locks in a child of `fork()` whose parent had threads that waited.

use std::{
    sync::{Arc, mpsc},
    thread,
};

use pmof_locks::{Condvar, Mutex};

/// More than a table of waiting threads of so small a process has places for.
const GATES: usize = 100;

#[derive(Default)]
struct Gate {
    is_open: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    fn pass(&self) {
        let mut is_open = self.is_open.lock();
        self.changed.wait_while(&mut is_open, |is_open| !*is_open);
    }

    fn open(&self) {
        *self.is_open.lock() = true;
        self.changed.notify_all();
    }
}

/// Threads of the child get the stacks of its parent's threads.
#[test]
#[cfg_attr(miri, ignore = "miri does not fork")]
fn threads_of_a_child_wait_where_threads_of_its_parent_waited() {
    let gate = Arc::new(Gate::default());
    let (tell, told) = mpsc::channel();
    let waiting: Vec<_> = (0..4)
        .map(|_| {
            let (gate, tell) = (Arc::clone(&gate), tell.clone());
            thread::spawn(move || {
                tell.send(()).unwrap();
                gate.pass();
            })
        })
        .collect();
    for _ in &waiting {
        told.recv().unwrap();
    }
    // Until they wait; one that does not yet makes the test easier.
    thread::sleep(std::time::Duration::from_millis(50));
    forked_child::fork(|| {
        // Each at its own address, by which a table would find it.
        let gates: Vec<_> = std::iter::repeat_with(Gate::default).take(GATES).collect();
        for gate in &gates {
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| gate.pass());
                }
                thread::sleep(std::time::Duration::from_millis(1));
                gate.open();
            });
        }
    })
    .succeed();
    gate.open();
    for thread in waiting {
        thread.join().unwrap();
    }
}
