//! A writer over shm that outlives a target: it is stopped, the target is killed and starts again, and a successor takes the pool over before the
//! writer goes on. Targets and writer are processes: this test program again, told by its environment what to do.
//!
//! `PMOF_ORPHAN_ROUNDS=50 cargo nextest run -p pmof-pool --test pool -E 'test(orphans)' --no-capture` does it so often.

use std::{
    env, fs,
    io::{BufRead, BufReader, Read as _, Write},
    os::{fd::AsFd as _, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use pmof_access::{Address, Durability, Method, RemoteRegion};
use pmof_control::{DATA_OFFSET, OpenFor, PoolName, PoolRefusal, Reply, Request, SetName};
use pmof_pool::{Event, PoolOptions};
use pmof_target::{Service, ServiceOptions, StoreOptions};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tempfile::TempDir;

use crate::support::{LONG, RawInitiator, assert_refused, options, read};

const TASK: &str = "PMOF_ORPHAN_TEST_TASK";
const URLS: &str = "PMOF_ORPHAN_TEST_URLS";
const ROOT: &str = "PMOF_ORPHAN_TEST_ROOT";
const ROUNDS: &str = "PMOF_ORPHAN_ROUNDS";
const USUAL_ROUNDS: usize = 4;

const POOL_BYTES: u64 = 2 << 20;
const OF_WRITER: u8 = 0xaa;
const OF_SUCCESSOR: u8 = 0xbb;
const DEVICE_BYTES: u64 = DATA_OFFSET + POOL_BYTES;

fn say(words: &str) {
    println!("\nsaid {words}");
    std::io::stdout().flush().expect("somebody listens");
}

/// Does the other process's work where this is the other process, else nothing.
#[test]
fn other_process() {
    match env::var(TASK).as_deref() {
        Ok("target") => serve(Path::new(&env::var(ROOT).expect("a root"))),
        Ok("writer") => write_on(&env::var(URLS).expect("URLs")),
        Ok("once") => write_once(&env::var(URLS).expect("URLs")),
        Ok("parent") => fork_and_die(&env::var(URLS).expect("URLs")),
        Ok(other) => panic!("unknown task {other}"),
        Err(_) => {}
    }
}

/// Serves the directory over shm until its standard input ends; `orders` lies on a device where there is a file of that name beside the pools.
fn serve(root: &Path) {
    let listen: Address = format!("shm://{}", root.join("socket").display()).parse().expect("an address");
    let device = Some(root.join("device")).filter(|device| device.exists());
    let devices = device.map(|device| (PoolName::new("orders").expect("a name"), device));
    let store = StoreOptions::default().devices(devices.into_iter().collect());
    let service = Service::start(&root.join("pools"), &[listen], ServiceOptions::default().store(store));
    let _service = service.expect("a target");
    say("ready");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

fn of_urls(urls: &str) -> PoolOptions {
    options(urls.split(' '))
}

/// Fills the pool again and again, until it fails. The mapping stays until the standard input ends.
fn write_on(urls: &str) {
    let pool = of_urls(urls).open().expect("the pool");
    let bytes = vec![OF_WRITER; POOL_BYTES as usize];
    let why = loop {
        match pool.persist(0, &bytes) {
            Ok(_) => say("acknowledged"),
            Err(why) => break why,
        }
    };
    say(if why.is_fenced() { "fenced" } else { "failed" });
    say(&format!("{why:?}"));
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// Writes when it is told to, one line each, once a replica has come back.
fn write_once(urls: &str) {
    let pool = of_urls(urls).open().expect("the pool");
    let mut events = pool.events();
    say("open");
    for (number, _) in std::io::stdin().lines().enumerate() {
        // Each attempt that fails while the target starts doubles the pause before the next.
        while !matches!(events.next_for(Duration::from_secs(60)).expect("it comes back"), Event::InSync { .. }) {}
        let receipt = pool.persist(0, &[number as u8 + 1; 64]).expect("a persist");
        assert!(!receipt.is_degraded(), "{receipt}");
        say("whole");
    }
    pool.close().expect("closed");
}

/// Writes, forks a child that lives until the standard input ends, and dies. What a child of a process with other threads does with locks is its own
/// affair: this child only reads.
fn fork_and_die(urls: &str) {
    let pool = of_urls(urls).open().expect("the pool");
    pool.persist(0, &[1; 64]).expect("a persist");
    let _lives_on = forked_child::fork(|| drop(std::io::stdin().read_to_end(&mut Vec::new())));
    say("forked");
    kill_process(rustix::process::getpid(), Signal::KILL).expect("this process");
}

/// A process of this test program. Killed when dropped.
pub(crate) struct Other {
    process: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Other {
    pub(crate) fn start(task: &str, urls: &str, root: &Path) -> Self {
        let mut process = Command::new(env::current_exe().expect("this program"))
            .args(["--exact", "orphans::other_process", "--nocapture"])
            .envs([(TASK, task), (URLS, urls)])
            .env(ROOT, root)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let output = BufReader::new(process.stdout.take().expect("a pipe"));
        Self { input: process.stdin.take(), process, output }
    }

    /// The next words that it said; `None` when it is gone.
    pub(crate) fn hear(&mut self) -> Option<String> {
        let mut line = String::new();
        while self.output.read_line(&mut line).expect("a pipe") > 0 {
            if let Some(words) = line.trim_end().strip_prefix("said ") {
                return Some(words.to_owned());
            }
            line.clear();
        }
        None
    }

    /// Whether a signal ended it.
    pub(crate) fn wait_for_death(&mut self) -> bool {
        self.process.wait().expect("it ends").code().is_none()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("it is there");
    }

    fn stop(&self) {
        self.signal(Signal::STOP);
        waitpid(Some(Pid::from_child(&self.process)), WaitOptions::UNTRACED).expect("it stops");
    }

    fn kill(&mut self) {
        self.process.kill().expect("it is there");
        self.process.wait().expect("it ends");
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // Already gone, unless an assertion failed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A target in a process of its own.
struct Target {
    root: TempDir,
    process: Other,
}

impl Target {
    fn start(has_device: bool) -> Self {
        let root = tempfile::tempdir_in("/dev/shm").expect("a directory");
        fs::create_dir(root.path().join("pools")).expect("a directory");
        if has_device {
            let device = fs::File::create(root.path().join("device")).expect("a file");
            rustix::fs::fallocate(&device, rustix::fs::FallocateFlags::empty(), 0, DEVICE_BYTES).expect("space");
        }
        Self { process: Self::serve(root.path()), root }
    }

    fn serve(root: &Path) -> Other {
        let mut process = Other::start("target", "", root);
        assert_eq!(process.hear().as_deref(), Some("ready"));
        process
    }

    fn kill_and_restart(&mut self) {
        self.process.kill();
        self.process = Self::serve(self.root.path());
    }

    fn url(&self) -> String {
        format!("shm://{}?pool=orders", self.root.path().join("socket").display())
    }

    fn file(&self) -> PathBuf {
        self.root.path().join("pools/orders")
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(self.file()).expect("the pool's file").split_off(DATA_OFFSET as usize)
    }
}

/// A moment that differs from round to round.
fn moment(round: usize) -> Duration {
    Duration::from_micros((round as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 & 0x3ff)
}

/// Stops a writer in the middle of a persist, kills those of `killed` and starts them again; the successor has all three.
fn succeed_a_stopped_writer(targets: &mut [Target], killed: &[usize], round: usize) {
    let urls: Vec<_> = targets.iter().map(Target::url).collect();
    let mut writer = Other::start("writer", &urls.join(" "), Path::new(""));
    assert_eq!(writer.hear().as_deref(), Some("acknowledged"));
    thread::sleep(moment(round));
    writer.stop();
    for at in killed {
        targets[*at].kill_and_restart();
    }

    let new = options(&urls).take_over(Duration::ZERO).open().expect("it is taken over");
    let bytes = vec![OF_SUCCESSOR; POOL_BYTES as usize];
    let receipt = new.persist(0, &bytes).expect("a persist");
    assert_eq!(receipt.replicas.len(), targets.len(), "{receipt}");

    writer.signal(Signal::CONT);
    let words = std::iter::from_fn(|| writer.hear()).find(|words| words != "acknowledged");
    // Whatever it was told first: nothing of it may be told to be durable any more, and nothing of it may be there.
    assert!(matches!(words.as_deref(), Some("fenced" | "failed")), "{killed:?}, round {round}: {words:?}");
    for (at, target) in targets.iter().enumerate() {
        let mut bytes = target.bytes();
        bytes.retain(|byte| *byte != OF_SUCCESSOR);
        let (found, all) = (bytes.len(), bytes.iter().all(|byte| *byte == OF_WRITER));
        assert_eq!(found, 0, "{killed:?}, round {round}: bytes of the old writer in replica {at} ({all})");
    }
    assert!(read(&new, 0, bytes.len()) == bytes);
    new.close().expect("closed");
}

#[test]
fn a_restarted_target_keeps_a_stopped_writer_out() {
    let rounds = env::var(ROUNDS).map_or(USUAL_ROUNDS, |rounds| rounds.parse().expect("a number"));
    let mut targets = [(); 3].map(|()| Target::start(false));
    let urls = targets.each_ref().map(Target::url);
    options(&urls).create(POOL_BYTES).expect("a pool").close().expect("closed");
    for round in 0..rounds {
        for killed in [&[0][..], &[1], &[2], &[0, 1, 2]] {
            succeed_a_stopped_writer(&mut targets, killed, round);
        }
    }
}

#[test]
fn a_writer_that_lives_on_comes_back_to_the_same_file() {
    let mut targets = [(); 3].map(|()| Target::start(false));
    let urls = targets.each_ref().map(Target::url);
    options(&urls).create(POOL_BYTES).expect("a pool").close().expect("closed");
    let mut writer = Other::start("once", &urls.join(" "), Path::new(""));
    assert_eq!(writer.hear().as_deref(), Some("open"));
    for target in &mut targets {
        let inode = |target: &Target| fs::metadata(target.file()).expect("a file").ino();
        let before = inode(target);
        target.kill_and_restart();
        writeln!(writer.input.as_ref().expect("a pipe")).expect("it listens");
        assert_eq!(writer.hear().as_deref(), Some("whole"));
        assert_eq!(inode(target), before, "no copy is made for the same writer");
    }
    drop(writer.input.take());
    assert!(writer.process.wait().expect("it ends").success());
    let pool = options(&urls).open().expect("the pool");
    assert_eq!(read(&pool, 0, 64), [3; 64]);
}

/// It learns of its target's end by the connection, with nothing to write.
#[test]
fn an_idle_writer_unmaps_what_a_dead_target_gave_it() {
    let mut targets = [(); 2].map(|()| Target::start(false));
    let urls = targets.each_ref().map(Target::url);
    options(&urls).create(POOL_BYTES).expect("a pool").close().expect("closed");
    let mut writer = Other::start("once", &urls.join(" "), Path::new(""));
    assert_eq!(writer.hear().as_deref(), Some("open"));
    let file = fs::File::open(targets[0].file()).expect("the pool's file");
    let is_mapped = || pmof_mem::is_mapped_for_writing(file.as_fd()).expect("the kernel says so");
    assert!(is_mapped());
    // Until the opening has told its targets everything.
    thread::sleep(Duration::from_secs(3));
    targets[0].process.kill();
    let (since, until) = (Instant::now(), Instant::now() + LONG);
    while is_mapped() {
        assert!(Instant::now() < until, "it stays mapped");
        thread::sleep(Duration::from_millis(1));
    }
    println!("unmapped after {} ms", since.elapsed().as_millis());
    writer.kill();
}

#[test]
fn a_device_waits_for_the_end_of_a_stopped_writer() {
    let mut target = Target::start(true);
    let url = target.url();
    options([&url]).create(POOL_BYTES).expect("a pool").close().expect("closed");
    let mut writer = Other::start("writer", &url, Path::new(""));
    assert_eq!(writer.hear().as_deref(), Some("acknowledged"));
    writer.stop();
    target.kill_and_restart();
    for take_over in [false, true] {
        let options = options([&url]);
        let error = if take_over { options.take_over(Duration::ZERO) } else { options }.open().map(drop).unwrap_err();
        assert_refused(&error, &url, PoolRefusal::NotFenceable);
        let text = format!("{error:?}");
        assert!(text.contains(&format!("process {} (", writer.process.id())), "{text}");
        assert!(error.is_busy() && text.contains("end that process"), "{text}");
    }
    // Who only reads may.
    drop(options([&url]).open_read_only().expect("a reader"));
    writer.kill();
    options([&url]).open().expect("it is free").close().expect("closed");
}

/// Its parts are named in sets and opened by other programs, so they stay where they are.
#[test]
fn the_parts_of_a_set_stay_in_use_as_long_as_they_are_mapped() {
    let mut target = Target::start(false);
    let part = target.root.path().join("part");
    let set = format!("PMEMPOOLSET\n8M {}\n", part.display());
    fs::write(target.root.path().join("pools/x.set"), set).expect("a set");
    let address: Address =
        format!("shm://{}", target.root.path().join("socket").display()).parse().expect("an address");
    let (name, require) = (|| SetName::new("x.set").expect("a name"), Durability::Visible);
    let map = |initiator: &RawInitiator, opened: Reply| {
        let Reply::SetOpened { descriptor, .. } = opened else { panic!("{opened:?}") };
        let region = RemoteRegion::from_descriptor(&descriptor).expect("a descriptor");
        assert!(initiator.connection.prepare(&region, Duration::from_secs(20)));
        assert!(
            matches!(initiator.connection.flush_method(&region, require), Ok((Method::LocalWriteBack, _))),
            "mapped"
        );
    };
    let opens = || RawInitiator::connect(&address);
    let open = || Request::OpenSet { name: name(), size_bytes: 4096, access: OpenFor::Write, require };

    let orphan = opens();
    let create = Request::CreateSet { name: name(), size_bytes: 4096, attributes: Some([0; 104]), require };
    map(&orphan, orphan.ask(&create));
    assert_eq!(orphan.ask(&Request::KeepSet), Reply::SetKept);
    target.kill_and_restart();
    let Reply::Refused { text, .. } = opens().ask(&open()) else { panic!("it is in use") };
    assert!(text.contains("in use by") && text.contains(&format!("process {} (", std::process::id())), "{text}");
    let file = fs::File::open(&part).expect("the part");
    let lock = || rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive);
    assert!(lock().is_err(), "libpmemobj finds it in use, too");
    drop(orphan);
    lock().expect("no process maps it");
    rustix::fs::flock(&file, rustix::fs::FlockOperation::Unlock).expect("unlocked");

    // A writer that closed the pool keeps no one else out, whether or not it still maps it.
    let closed = opens();
    map(&closed, closed.ask(&open()));
    assert_eq!(closed.ask(&Request::Close { in_order: true }), Reply::Closed);
    let next = opens();
    map(&next, next.ask(&open()));
}
