//! A writer in another process that is stopped, loses the pool, and is continued. The other process is this test program again, told by its
//! environment what to do.
//!
//! `PMOF_TAKEOVER_ROUNDS=200 cargo nextest run -p pmof-pool --test pool -E 'test(stopped)' --no-capture` does it so often, and says how long takeovers
//! took.

use std::{
    env, fs,
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use pmof_control::DATA_OFFSET;
use pmof_pool::{Pool, PoolError, ReplicaError};
use pmof_target::ServiceOptions;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::{
    support::{options, read},
    takeover::Target,
};

const URL: &str = "PMOF_TAKEOVER_TEST_URL";
const ROUNDS: &str = "PMOF_TAKEOVER_ROUNDS";
const USUAL_ROUNDS: usize = 20;

const POOL_BYTES: u64 = 1 << 20;

/// One write: long enough that a stop often comes in the middle of it.
const WRITE_BYTES: usize = 128 << 10;

/// Does the other process's work where this is the other process, else nothing: writes one number after the other, all over the range, and says
/// which were acknowledged.
#[test]
fn other_process() {
    let Ok(url) = env::var(URL) else { return };
    let pool = options([&url]).open().expect("the pool");
    let mut output = std::io::stdout().lock();
    for number in 1_u64.. {
        let Err(why) = pool.persist(0, &of_number(number)) else {
            writeln!(output, "\nacknowledged {number}").and_then(|()| output.flush()).expect("somebody listens");
            continue;
        };
        let verdict = match why.replica_error() {
            Some(ReplicaError::Fenced { successor }) if why.is_fenced() => format!("fenced {successor}"),
            _ => format!("failed {why:?}"),
        };
        // It stays so.
        let again = pool.persist(0, &of_number(number)).map(drop).map_err(|error| error.is_fenced());
        writeln!(output, "\n{verdict}, again {again:?}").and_then(|()| output.flush()).expect("somebody listens");
        // The mapping stays until here.
        return;
    }
}

fn of_number(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(WRITE_BYTES / 8)
}

struct Writer {
    process: Child,
    output: BufReader<ChildStdout>,
    acknowledged: u64,
}

impl Writer {
    fn start(url: &str) -> Self {
        let mut process = Command::new(env::current_exe().expect("this program"))
            .args(["--exact", "stopped::other_process", "--nocapture"])
            .env(URL, url)
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let output = BufReader::new(process.stdout.take().expect("a pipe"));
        Self { process, output, acknowledged: 0 }
    }

    /// Takes in what it said, until it has said that something was acknowledged `count` times, or that it ended: with which words.
    fn hear(&mut self, mut count: u64) -> Option<String> {
        let mut line = String::new();
        while self.output.read_line(&mut line).expect("a pipe") > 0 {
            let said = line.trim_end();
            if let Some(number) = said.strip_prefix("acknowledged ") {
                self.acknowledged = number.parse().expect("a number");
                count -= 1;
                if count == 0 {
                    return None;
                }
            } else if said.starts_with("fenced") || said.starts_with("failed") {
                return Some(said.to_owned());
            }
            line.clear();
        }
        Some("nothing".to_owned())
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    fn stop(&self) {
        kill_process(self.pid(), Signal::STOP).expect("it is there");
        waitpid(Some(self.pid()), WaitOptions::UNTRACED).expect("it stops");
    }

    fn go_on(&self) {
        kill_process(self.pid(), Signal::CONT).expect("it is there");
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Already gone, unless an assertion failed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A moment that differs from round to round.
fn moment(round: usize) -> Duration {
    Duration::from_micros((round as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 & 0x3ff)
}

/// One round; how long the takeover took.
fn take_over_from_stopped(url: &str, file: &std::path::Path, round: usize) -> Duration {
    let mut writer = Writer::start(url);
    assert_eq!(writer.hear(1 + round as u64 % 4), None, "it writes");
    thread::sleep(moment(round));
    writer.stop();

    let began = Instant::now();
    let new = options([url]).take_over(Duration::ZERO).open().expect("it is taken over");
    let took = began.elapsed();
    let found = read(&new, 0, WRITE_BYTES);
    let numbers: Vec<_> = found.chunks(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes"))).collect();
    let (least, most) = (*numbers.iter().min().expect("some"), *numbers.iter().max().expect("some"));
    let own = vec![0xff; WRITE_BYTES];
    new.persist(0, &own).expect("a persist");

    writer.go_on();
    let words = writer.hear(u64::MAX).expect("it hears of it");
    // Whenever it was told: nothing was acknowledged that its successor did not find.
    let acknowledged = writer.acknowledged;
    assert!(acknowledged <= least && most <= acknowledged + 1, "round {round}: {acknowledged} of {least} to {most}");
    assert!(words.starts_with("fenced") && words.ends_with(", again Err(true)"), "round {round}: {words}");
    writer.process.wait().expect("it ends");
    drop(writer);

    assert!(read(&new, 0, WRITE_BYTES) == own, "round {round}: something was written");
    let bytes = fs::read(file).expect("the pool's file");
    assert!(bytes[DATA_OFFSET as usize..][..WRITE_BYTES] == own, "round {round}: in the file");
    new.close().expect("closed");
    took
}

fn take_over_again_and_again(is_shm: bool) -> Result<(), PoolError> {
    let rounds = env::var(ROUNDS).map_or(USUAL_ROUNDS, |rounds| rounds.parse().expect("a number"));
    for directory in [env!("CARGO_TARGET_TMPDIR"), "/dev/shm"] {
        let target = Target::with(tempfile::tempdir_in(directory).expect("a directory"), ServiceOptions::default());
        let url = &target.urls("orders")[usize::from(is_shm)];
        Pool::close(&options([url]).create(POOL_BYTES)?)?;
        let file = target.root.path().join("pools/orders");
        let mut took: Vec<_> = (0..rounds).map(|round| take_over_from_stopped(url, &file, round)).collect();
        took.sort_unstable();
        let (median, longest) = (took[took.len() / 2], took[took.len() - 1]);
        eprintln!("{rounds} takeovers of {url}: median {median:?}, longest {longest:?}");
    }
    Ok(())
}

#[test]
fn a_stopped_writer_is_taken_over_over_tcp() {
    take_over_again_and_again(false).unwrap();
}

#[test]
fn a_stopped_writer_is_taken_over_over_shm() {
    take_over_again_and_again(true).unwrap();
}
