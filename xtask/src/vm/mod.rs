//! The test bed: virtual machines with RDMA devices and persistent memory. See `testbed/README.md`.

use std::{
    fs,
    path::Path,
    process::{Command, ExitCode},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Subcommand;

mod arguments;
mod bare_verbs;
mod bench;
mod bench_report;
mod built_modules;
mod components;
mod core_dump;
mod cpio;
mod devices;
mod fio_bench;
mod guest_suite;
mod kvm;
mod launch;
pub(crate) mod librpma;
mod librpma_suite;
mod machine;
mod media;
mod modelled;
mod options;
mod packages;
mod pools;
mod power_cuts;
mod programs;
mod recipe;
mod record;
mod referees;
mod report;
mod ring_cuts;
mod running;
mod suites;
pub(crate) mod testbed;
pub(crate) mod tools;

use machine::{Link, Machine, Mode};
use options::Options;
use running::{End, Finished};
use testbed::Testbed;
pub(crate) use tools::missing;

/// `cargo xtask vm`.
#[derive(Debug, Subcommand)]
pub(crate) enum Vm {
    /// Make the guest, its images, the newer QEMU and the sysroot, where they are not there or their recipe has changed
    Build,
    /// Boot a guest and run a command in it; its output and its exit code are the chore's
    ///
    /// One COMMAND word is a bash script; several are a program and its arguments. Exit code 124 where the time is
    /// over, 125 where the machine fails.
    Run {
        #[command(flatten)]
        options: Options,
        /// Start two machines with a link between them; `PMOF_VM` is 0 or 1, both see one directory as /shared
        #[arg(long)]
        two: bool,
        /// Seconds until the machine is killed
        #[arg(long, default_value_t = 300, value_name = "SECONDS")]
        timeout: u64,
        /// The command
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Boot a guest and print what it shows of itself, as a platform for the tests of pmof-doctor
    Record {
        #[command(flatten)]
        options: Options,
        /// One line that says what the machine is
        title: String,
    },
    /// Boot a guest and give a prompt in it; `exit` ends the machine
    Shell {
        #[command(flatten)]
        options: Options,
    },
    /// Count what pmof adds to bare verbs calls: instructions, and time on the benchmark clock
    Bench(bench::Bench),
    /// Measure one unmodified fio over Debian's librpma and over ours, over verbs and on the benchmark clock
    FioBench(fio_bench::FioBench),
    /// Measure `pmof report` over verbs and TCP in a machine, beside Debian's librpma
    Report(bench_report::BenchReport),
    /// Run the suites that need machines; the last line is `N passed, N failed, N skipped`
    Test {
        /// Only the suite with this name
        #[arg(long, value_name = "NAME")]
        only: Option<String>,
        /// The suites that are left out otherwise, and none of the others
        #[arg(long, conflicts_with = "only")]
        soak: bool,
        /// Print the names of the suites and end
        #[arg(long)]
        list: bool,
    },
    /// Cut the power of machines in the middle of loads, and look for what was acknowledged
    ///
    /// Prints a line for each cut and a table; exit status 1 where anything acknowledged was lost.
    PowerCuts {
        /// How many times
        #[arg(long, default_value_t = 200, value_name = "COUNT")]
        cuts: u64,
        /// Repeats what is written, when the power is cut and what survives; not what the scheduler makes of it
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Only the combinations whose names have this text; may be given several times
        #[arg(long, value_name = "TEXT")]
        only: Vec<String>,
    },
}

/// The exit code for a time that is over, as timeout(1) has it, and for a machine that fails.
const TIMED_OUT: u8 = 124;
const FAILED: u8 = 125;

/// Reading a few hundred files takes a second or two; the rest is the boot.
const RECORD_TIMEOUT: Duration = Duration::from_secs(300);

/// Longer than any work at a prompt.
const SHELL_TIMEOUT: Duration = Duration::from_secs(7 * 24 * 60 * 60);

impl Vm {
    pub(crate) fn run(self) -> Result<ExitCode> {
        if let Some(reason) = missing() {
            bail!("the test bed cannot run: {reason}");
        }
        let testbed = Testbed::new(|line| eprintln!("test bed: {line}"))?;
        match self {
            Self::Build => build(&testbed),
            Self::Run { options, two, timeout, command } => {
                let machine = options.machine(&testbed)?.command(script(&command));
                let timeout = Duration::from_secs(timeout);
                if two { run_two(&testbed, &machine, timeout) } else { run_one(machine, timeout) }
            }
            Self::Record { options, title } => {
                let script = record::script(testbed.workspace(), &title)?;
                run_one(options.machine(&testbed)?.command(script), RECORD_TIMEOUT)
            }
            Self::Shell { options } => shell(options.machine(&testbed)?),
            Self::PowerCuts { cuts, seed, only } => power_cuts::many(&testbed, cuts, seed, &only),
            Self::Bench(bench) => bench.run(&testbed),
            Self::FioBench(bench) => bench.run(&testbed),
            Self::Report(report) => report.run(&testbed),
            Self::Test { only, soak, list } => {
                let choice = match &only {
                    Some(name) => suites::Choice::Only(name),
                    None if soak => suites::Choice::Soaks,
                    None => suites::Choice::Every,
                };
                suites::run(&testbed, choice, list)
            }
        }
    }
}

fn build(testbed: &Testbed) -> Result<ExitCode> {
    let start = Instant::now();
    let guest = testbed.guest()?;
    testbed.prepared_media()?;
    testbed.qemu10()?;
    let sysroot = testbed.sysroot()?;
    let kvm = if kvm::works(testbed)? { "used where nothing needs emulation" } else { "not usable here" };
    println!("guest: {}\nsysroot: {}\nKVM: {kvm}", guest.root_image.display(), sysroot.display());
    println!("ready after {:.1} s", start.elapsed().as_secs_f64());
    Ok(ExitCode::SUCCESS)
}

/// One word is a script, several are a program and its arguments.
fn script(command: &[String]) -> String {
    match command {
        [script] => script.clone(),
        words => words.iter().map(|word| machine::quote(word)).collect::<Vec<_>>().join(" "),
    }
}

fn run_one(machine: Machine<'_>, timeout: Duration) -> Result<ExitCode> {
    let finished = machine.show_output("").start()?.wait(timeout)?;
    Ok(ExitCode::from(report("", &finished)))
}

/// Runs one command in two machines at the same time; the exit code is that of the first that is not 0.
fn run_two(testbed: &Testbed, machine: &Machine<'_>, timeout: Duration) -> Result<ExitCode> {
    let shared = testbed.run_directory()?;
    let (first, second) =
        start_two(machine.clone().show_output("0: "), machine.clone().show_output("1: "), shared.path())?;
    let deadline = Instant::now() + timeout;
    let codes = [("0: ", first), ("1: ", second)].map(|(prefix, running)| {
        let left = deadline.saturating_duration_since(Instant::now());
        running.wait(left).map(|finished| report(prefix, &finished))
    });
    let [first, second] = codes;
    let (first, second) = (first?, second?);
    Ok(ExitCode::from(if first == 0 { second } else { first }))
}

/// Starts two machines with a link between them and a directory that both see as `/shared`.
fn start_two<'a>(
    first: Machine<'a>,
    second: Machine<'a>,
    shared: &Path,
) -> Result<(running::Running<'a>, running::Running<'a>)> {
    // Sockets have short names: relative to the runs' directories, which lie beside this one.
    let name = shared.file_name().context("the shared directory has a name")?;
    let socket = Path::new("..").join(name).join("link");
    fs::create_dir(shared.join("both"))?;
    let both = shared.join("both");
    let first = first.shared(&both).link(Link::Listen(socket.clone())).start()?;
    let deadline = Instant::now() + Duration::from_secs(20);
    while !shared.join("link").exists() {
        ensure!(Instant::now() < deadline, "the first machine's QEMU does not listen: it may not know -netdev stream");
        std::thread::sleep(Duration::from_millis(5));
    }
    let second = second.shared(&both).link(Link::Connect(socket)).start()?;
    Ok((first, second))
}

fn report(prefix: &str, finished: &Finished) -> u8 {
    match finished.end {
        End::Exited(code) => code,
        End::TimedOut => {
            eprintln!("{prefix}test bed: {}", finished.explain());
            TIMED_OUT
        }
        _ => {
            eprintln!("{prefix}test bed: {}", finished.explain());
            FAILED
        }
    }
}

fn shell(machine: Machine<'_>) -> Result<ExitCode> {
    let size = tools::run(Command::new("sh").args(["-c", "stty size </dev/tty"])).unwrap_or_default();
    let mut machine = machine.mode(Mode::Shell);
    if let [rows, columns] = size.split_whitespace().collect::<Vec<_>>()[..] {
        machine = machine.environment("testbed_rows", rows).environment("testbed_columns", columns);
    }
    eprintln!("test bed: booting; `exit` ends the machine");
    let finished = machine.start()?.wait(SHELL_TIMEOUT)?;
    Ok(ExitCode::from(report("", &finished)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_word_is_a_script_and_several_are_words() {
        let words = |words: &[&str]| script(&words.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(words(&["echo $A; ls"]), "echo $A; ls");
        assert_eq!(words(&["echo", "a b", "it's"]), r"'echo' 'a b' 'it'\''s'");
    }
}
