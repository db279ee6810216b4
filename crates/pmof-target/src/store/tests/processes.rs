//! Stores in several processes, some of them killed. The other process is this test program again, told by its
//! environment what to do.

use std::{
    env,
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdout, Command, Stdio},
    time::Duration,
};

use super::*;

const TASK: &str = "PMOF_STORE_TEST_TASK";
const ROOT: &str = "PMOF_STORE_TEST_ROOT";

/// Does the other process's work where this is the other process, else nothing.
#[test]
fn other_process() {
    let (Ok(task), Ok(root)) = (env::var(TASK), env::var(ROOT)) else { return };
    let store = store_at(Path::new(&root));
    let say = |word: String| {
        println!("\nsaid {word}");
        io::stdout().flush().expect("somebody listens");
    };
    match &*task {
        "hold" => {
            let _pool = open(&store, "orders", OpenFor::Write).expect("the pool");
            say("holding".to_owned());
            thread::sleep(Duration::from_secs(60));
        }
        "create" => {
            for number in 0.. {
                store.create(&name(&format!("p{number}")), &new_pool(1 << 20), String::new()).expect("a pool");
                say(format!("p{number}"));
            }
        }
        other => panic!("unknown task {other}"),
    }
}

struct Other {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Other {
    fn start(task: &str, root: &Path) -> Self {
        let mut process = Command::new(env::current_exe().expect("this program"))
            .args(["--exact", "store::tests::processes::other_process", "--nocapture"])
            .env(TASK, task)
            .env(ROOT, root)
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let output = BufReader::new(process.stdout.take().expect("a pipe"));
        Self { process, output }
    }

    /// The next word it said; `None` when it is gone.
    fn hear(&mut self) -> Option<String> {
        let mut line = String::new();
        while self.output.read_line(&mut line).expect("a pipe") > 0 {
            if let Some(word) = line.trim_end().strip_prefix("said ") {
                return Some(word.to_owned());
            }
            line.clear();
        }
        None
    }

    fn kill(&mut self) {
        self.process.kill().expect("killed");
        self.process.wait().expect("gone");
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // Already gone, unless an assertion failed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_writer_in_another_process_holds_the_pool_until_it_dies() {
    let (root, store) = fresh();
    drop(create(&store, "orders"));
    let mut other = Other::start("hold", root.path());
    assert_eq!(other.hear().as_deref(), Some("holding"));
    let holder = store.info(&name("orders")).expect("info").open_by.expect("a holder");
    assert!(holder.contains(&format!("process {} ", other.process.id())), "{holder}");
    assert_busy(open(&store, "orders", OpenFor::Write), &holder);
    assert_busy(store.remove(&name("orders")), &holder);
    other.kill();
    open(&store, "orders", OpenFor::Write).expect("the lock died with its process");
}

#[test]
fn a_process_killed_while_creating_leaves_whole_pools_only() {
    for round in 0..8 {
        let (root, _store) = fresh();
        let mut other = Other::start("create", root.path());
        let mut acknowledged = vec![other.hear().expect("a first pool")];
        thread::sleep(Duration::from_micros(700 * round));
        other.kill();
        acknowledged.extend(std::iter::from_fn(|| other.hear()));

        let store = store_at(root.path());
        let names = store.list(None, usize::MAX).expect("a list");
        let all: Vec<_> = names.iter().map(|name| name.as_str().to_owned()).collect();
        assert_eq!(entries(root.path()), all, "nothing but pools is left");
        assert!(acknowledged.iter().all(|pool| all.contains(pool)), "every acknowledged pool is there");
        assert!(all.len() <= acknowledged.len() + 1, "at most one was on its way");
        for pool in &names {
            let pool = store.open_pool(pool, OpenFor::Write, String::new()).expect("a whole pool");
            assert_eq!(pool.data_len_bytes(), 1 << 20);
        }
    }
}
