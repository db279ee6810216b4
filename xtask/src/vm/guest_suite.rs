//! The test bed's own tests: what a guest has, how a machine's end is seen, and that a power cut is one.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::{fs::FileExt as _, net::UnixListener},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};

use super::{
    arguments::NVDIMM_ADDRESSES,
    machine::{DiskSource, Machine, Persistence, PortTarget},
    report::Report,
    running::{End, Finished},
    start_two,
    testbed::Testbed,
    tools,
};

const TIMEOUT: Duration = Duration::from_secs(600);
/// Boots take a few seconds; this is for hosts that do much else.
const BOOT: Duration = Duration::from_secs(180);

pub(super) fn run(testbed: &Testbed, report: &mut Report) -> Result<()> {
    self_test(testbed, report)?;
    report.test("an exit code above 127 comes back", exit_code(testbed));
    report.test("a program built on the host runs in the guest", host_program(testbed));
    report.test("a kernel panic is a failure", panic(testbed));
    report.test("a QEMU that aborts leaves what it said, its core and backtraces", aborted(testbed));
    report.test("a guest that does not get to its first process is a failure", no_init(testbed));
    report.test("a guest that cannot be brought up says why", broken_setup(testbed));
    report.test("a time that is over is seen, and the machine dead", timeout(testbed));
    report.test("ports and disks lead to the host's files", ports_and_disks(testbed));
    report.test("eADR and a CPU without clwb can be had", other_platform(testbed));
    report.test("after a power cut synced data is there and other data is not", power_cut(testbed));
    report.test("a machine dies with its xtask", death_of_xtask(testbed));
    report.test("two machines reach each other", two_machines(testbed));
    report.test("the benchmark clock runs", icount(testbed));
    report.test("CXL persistent memory is there", cxl(testbed));
    Ok(())
}

fn run_to_end(machine: Machine<'_>) -> Result<Finished> {
    machine.start()?.wait(TIMEOUT)
}

/// Runs the machine and expects this exit code.
fn expect_exit(machine: Machine<'_>, code: u8) -> Result<String> {
    let finished = run_to_end(machine)?;
    ensure!(finished.end == End::Exited(code), "{}; output: {}", finished.explain(), finished.text());
    Ok(finished.text())
}

/// The checks that run in the guest, each counted.
fn self_test(testbed: &Testbed, report: &mut Report) -> Result<()> {
    let addresses = NVDIMM_ADDRESSES.map(|address| address.to_string()).join(" ");
    run_checks(Machine::new(testbed).environment("NVDIMM_ADDRESSES", &addresses), "selftest.sh", report)
}

/// Runs a script of checks (`testbed/guest/checks.sh`) and counts each check; rows of a table (`row | ...`) are printed.
pub(super) fn run_checks(machine: Machine<'_>, script: &str, report: &mut Report) -> Result<()> {
    run_checks_within(machine, script, TIMEOUT, report)
}

/// The same, for scripts whose checks may take longer than others.
pub(super) fn run_checks_within(
    machine: Machine<'_>,
    script: &str,
    silence: Duration,
    report: &mut Report,
) -> Result<()> {
    let finished = machine.command(format!("bash /host/guest/{script}")).start()?.wait(silence)?;
    let text = finished.text();
    ensure!(finished.end == End::Exited(0), "{}; output: {text}", finished.explain());
    let (mut seen, mut promised, mut seconds) = (0_u32, None, None);
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("ok ") {
            report.timed_test(name, seconds.take(), Ok(()));
            seen += 1;
        } else if let Some(failure) = line.strip_prefix("not ok ") {
            let (name, why) = failure.split_once(": ").unwrap_or((failure, ""));
            report.timed_test(name, seconds.take(), Err(anyhow::Error::msg(why.to_owned())));
            seen += 1;
        } else if let Some(number) = line.strip_prefix("seconds ") {
            seconds = number.parse().ok();
        } else if line.starts_with("row ") {
            println!("{line}");
        } else if let Some(number) = line.strip_prefix("checks ") {
            promised = number.parse().ok();
        }
    }
    ensure!(promised == Some(seen), "{script} made {promised:?} checks and reported {seen}: {text}");
    Ok(())
}

fn exit_code(testbed: &Testbed) -> Result<()> {
    expect_exit(Machine::new(testbed).command("exit 200"), 200).map(drop)
}

fn host_program(testbed: &Testbed) -> Result<()> {
    let program = std::env::current_exe().context("finding xtask's own file")?;
    let name = program.file_name().context("xtask's file has a name")?.to_string_lossy().into_owned();
    let text = expect_exit(Machine::new(testbed).bring(&program).command(format!("{name} --help")), 0)?;
    ensure!(text.contains("cargo xtask"), "its help: {text}");
    Ok(())
}

fn panic(testbed: &Testbed) -> Result<()> {
    let script = "echo before; sleep 0.2; echo 1 >/proc/sys/kernel/sysrq; echo c >/proc/sysrq-trigger; sleep 60";
    let finished = run_to_end(Machine::new(testbed).command(script))?;
    ensure!(matches!(finished.end, End::Crashed(_)), "{}", finished.explain());
    ensure!(finished.text() == "before\n", "output: {}", finished.text());
    let log = finished.kept.context("no log was kept")?.log;
    let kept = fs::read_to_string(&log)?;
    ensure!(kept.contains("sysrq triggered crash"), "the kept log does not show the panic: {}", log.display());
    Ok(())
}

/// Both ways in which a load's machine is waited for must name what an aborted QEMU left.
fn aborted(testbed: &Testbed) -> Result<()> {
    const SAID: &str = "qemu-system-x86_64: an assertion, says the test";
    for newer in [false, true] {
        let machine = Machine::new(testbed).command("echo up; sleep 1000");
        let mut running = if newer { machine.cxl() } else { machine }.start()?;
        running.wait_for_output("up", BOOT)?;
        let process = running.process_id();
        writeln!(fs::File::options().append(true).open(format!("/proc/{process}/fd/2"))?, "{SAID}")?;
        ensure!(Command::new("kill").args(["-ABRT", &process.to_string()]).status()?.success(), "kill failed");
        let told = if newer {
            running.wait(TIMEOUT)?.explain()
        } else {
            running.wait_for_output("never", BOOT).err().context("the output came")?.to_string()
        };
        ensure!(told.contains("signal: 6 (SIGABRT)") && told.contains(SAID), "{told}");
        if let Some((_, core)) = told.split_once("; core: ") {
            let core = PathBuf::from(core.split(';').next().unwrap_or_default());
            let log = fs::read_to_string(core.with_extension("log"))?;
            ensure!(core.exists() && log.contains(SAID), "{told}");
            ensure!(tools::find("gdb").is_none() || log.contains("Thread 1"), "no backtraces: {log}");
        } else {
            ensure!(told.contains("core_pattern"), "neither a core nor why there is none: {told}");
        }
    }
    Ok(())
}

fn no_init(testbed: &Testbed) -> Result<()> {
    let finished = run_to_end(Machine::new(testbed).kernel_argument("rdinit=/none"))?;
    ensure!(matches!(finished.end, End::Crashed(_)), "{}", finished.explain());
    ensure!(
        finished.serial.contains("Kernel panic"),
        "the serial line does not show the panic: {}",
        finished.explain()
    );
    Ok(())
}

fn broken_setup(testbed: &Testbed) -> Result<()> {
    let finished = run_to_end(Machine::new(testbed).kernel_argument("module_blacklist=rdma_rxe"))?;
    let End::SetupFailed(why) = &finished.end else { bail!("{}", finished.explain()) };
    ensure!(why.contains("rdma_rxe"), "{why}");
    Ok(())
}

fn timeout(testbed: &Testbed) -> Result<()> {
    let mut running = Machine::new(testbed).command("echo waiting; sleep 1000").start()?;
    running.wait_for_output("waiting", BOOT)?;
    ensure!(running.output() == b"waiting\n", "output: {}", String::from_utf8_lossy(&running.output()));
    let process = running.process_id();
    let finished = running.wait(Duration::from_millis(500))?;
    ensure!(finished.end == End::TimedOut, "{}", finished.explain());
    ensure!(!is_alive(process), "QEMU's process {process} is still there");
    Ok(())
}

fn ports_and_disks(testbed: &Testbed) -> Result<()> {
    let directory = testbed.run_directory()?;
    let (ledger, disk) = (directory.path().join("ledger, 1"), directory.path().join("disk"));
    fs::File::create(&disk)?.set_len(1 << 20)?;
    // A socket's name is short: relative to the run's directory, which lies beside this one.
    let name = directory.path().file_name().context("a run's directory has a name")?;
    let listener = UnixListener::bind(directory.path().join("s"))?;
    let machine = Machine::new(testbed)
        .port("ledger", PortTarget::File(ledger.clone()))
        .port("live", PortTarget::Socket(Path::new("..").join(name).join("s")))
        .disk("extra", DiskSource::File(disk.clone()))
        .environment("MARK", "it's here")
        .command("for port in $PMOF_PORT_LEDGER $PMOF_PORT_LIVE; do echo \"$MARK\" >$port; done; printf x | dd of=$PMOF_DISK_EXTRA bs=1 seek=4096 conv=fsync");
    expect_exit(machine, 0)?;
    let mut said = String::new();
    listener.accept()?.0.read_to_string(&mut said)?;
    ensure!(said == "it's here\n", "the port's socket: {said}");
    ensure!(fs::read_to_string(&ledger)? == "it's here\n", "the port's file: {}", fs::read_to_string(&ledger)?);
    let mut byte = [0];
    fs::File::open(&disk)?.read_exact_at(&mut byte, 4096)?;
    ensure!(byte == *b"x", "the disk's file has {byte:?}");
    Ok(())
}

fn other_platform(testbed: &Testbed) -> Result<()> {
    let script = "sort -u /sys/bus/nd/devices/region*/persistence_domain; grep -cw clwb /proc/cpuinfo";
    let machine = Machine::new(testbed).command(script);
    let plain = run_to_end(machine.clone())?.text();
    let other = run_to_end(machine.persistence(Persistence::Cpu).cpu("max,-clwb"))?.text();
    ensure!(plain == "memory_controller\n2\n", "the default machine: {plain}");
    ensure!(other == "cpu_cache\n0\n", "the other machine: {other}");
    Ok(())
}

fn power_cut(testbed: &Testbed) -> Result<()> {
    let directory = testbed.run_directory()?;
    let media = testbed.prepared_media()?.copy_to(directory.path())?;
    let script = "for place in $PMOF_FILE $PMOF_FSDAX; do echo synced | dd of=$place/synced conv=fsync; done
                  echo unsynced >$PMOF_FILE/unsynced; echo ready; sleep 1000";
    let mut running = Machine::new(testbed).media(media.clone()).command(script).start()?;
    running.wait_for_output("ready", BOOT)?;
    let finished = running.cut_power()?;
    ensure!(finished.end == End::PowerCut, "{}", finished.explain());
    let script = "cat $PMOF_FILE/synced $PMOF_FSDAX/synced; cat $PMOF_FILE/unsynced; true";
    let text = expect_exit(Machine::new(testbed).media(media).command(script), 0)?;
    ensure!(text.starts_with("synced\nsynced\n"), "synced data is lost: {text}");
    ensure!(!text.contains("unsynced\n"), "data that was not synced is there, so this was no power cut: {text}");
    Ok(())
}

/// Kills an xtask that runs a machine, and watches the machine's process.
fn death_of_xtask(testbed: &Testbed) -> Result<()> {
    let mut xtask = Command::new(std::env::current_exe()?)
        .args(["vm", "run", "--kvm", "off", "--", "echo up; sleep 1000"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting another xtask")?;
    let output = xtask.stdout.take().context("its output is a pipe")?;
    let first = BufReader::new(output).lines().next();
    let machine = machine_of(testbed, xtask.id());
    xtask.kill()?;
    xtask.wait()?;
    ensure!(first.context("it ended without output")?? == "up", "the command's first line was not `up`");
    let machine = machine.context("its machine's process was not found")?;
    let deadline = Instant::now() + Duration::from_secs(10);
    while is_alive(machine) {
        ensure!(Instant::now() < deadline, "QEMU's process {machine} outlived its xtask");
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// The process that works in a run's directory of that xtask.
fn machine_of(testbed: &Testbed, xtask: u32) -> Option<u32> {
    let runs = testbed.logs().with_file_name("runs");
    let works_there = |process: &u32| {
        let directory: PathBuf = fs::read_link(format!("/proc/{process}/cwd")).unwrap_or_default();
        directory.parent() == Some(&runs)
            && directory.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&format!("{xtask}-")))
    };
    let names = fs::read_dir("/proc").ok()?.flatten().map(|entry| entry.file_name());
    names.filter_map(|name| name.to_str()?.parse().ok()).find(works_there)
}

/// Whether the process is there and not a zombie.
fn is_alive(process: u32) -> bool {
    let status = fs::read_to_string(Path::new("/proc").join(process.to_string()).join("status"));
    status.is_ok_and(|status| !status.contains("State:\tZ") && !status.contains("State:\tX"))
}

fn two_machines(testbed: &Testbed) -> Result<()> {
    let shared = testbed.run_directory()?;
    let script = "bash /host/guest/selftest-two.sh";
    let machine = Machine::new(testbed).processors(1).command(script);
    let (first, second) = start_two(machine.clone(), machine, shared.path())?;
    for (number, running) in [(0, first), (1, second)] {
        let finished = running.wait(TIMEOUT)?;
        ensure!(finished.end == End::Exited(0), "{number}: {}; output: {}", finished.explain(), finished.text());
    }
    Ok(())
}

fn icount(testbed: &Testbed) -> Result<()> {
    // Idle time is skipped: the time passes for the guest only.
    let script = "sleep 100; nproc; cut -d. -f1 /proc/uptime";
    let text = expect_exit(Machine::new(testbed).icount().command(script), 0)?;
    let [processors, seconds] = text.lines().collect::<Vec<_>>()[..] else { bail!("output: {text}") };
    ensure!(processors == "1" && seconds.parse::<u32>()? >= 100, "output: {text}");
    Ok(())
}

fn cxl(testbed: &Testbed) -> Result<()> {
    let script = "[ -c $PMOF_CXL ] && [ $PMOF_CXL != $PMOF_DEVDAX ] && ndctl list --bus CXL --regions";
    let text = expect_exit(Machine::new(testbed).cxl().command(script), 0)?;
    ensure!(text.contains("\"persistence_domain\":\"memory_controller\""), "{text}");
    Ok(())
}
