//! The referees' own tests: what a power cut must lose and must keep, in a real guest.

use std::{collections::BTreeMap, fs, fs::File, os::unix::fs::FileExt as _, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use cache_model::{Choice, Counter, CutAfter, Domain, Inbound, Locked, Options, Tear};
use lossy_disk::Server;

use super::{
    bare_verbs,
    machine::{DiskSource, Machine, PortTarget},
    modelled::{Modelled, Referees, shadow},
    report::Report,
    running::End,
    testbed::Testbed,
};

/// A boot takes seconds; this is for hosts that do much else.
const TIMEOUT: Duration = Duration::from_secs(300);

/// What `referee-probe report` must find after a power cut of which no unflushed line survives.
const TABLE: &[(&str, &str)] = &[
    ("plain_store", "zero"),
    ("store_clwb_sfence", "new"),
    ("store_clflushopt_sfence", "new"),
    ("store_clflush", "new"),
    ("movnti_sfence", "new"),
    ("movntdq_sfence", "new"),
    ("vmovntdq_sfence", "new"),
    ("rep_movsb", "zero"),
    ("rep_movsb_clwb_sfence", "new"),
    ("old_under_new", "old"),
    ("across_lines_first", "new"),
    ("across_lines_second", "zero"),
    ("clwb_last_byte", "new"),
    ("clwb_indexed", "new"),
    ("clwb_segment", "new"),
    ("clwb_short", "new"),
    ("locked_after_clwb", "new"),
    ("kernel_store", "zero"),
    ("kernel_store_clwb_sfence", "new"),
    ("clwb_by_other_mapping", "new"),
    ("fsdax_store", "zero"),
    ("fsdax_store_msync", "new"),
    ("fsdax_map_sync_clwb_sfence", "new"),
    ("fsdax_no_map_sync_clwb_sfence", "none"),
    ("disk_write_fdatasync", "new"),
    ("disk_write", "zero"),
];

/// Where the probe's device-DAX rows lie in the image: the name space's own block comes first, then a page a row.
const DEVDAX_START: u64 = 2 << 20;
const PAGE: u64 = 4096;
const PLAIN_STORE: u64 = 0;
const STORE_CLWB_SFENCE: u64 = 1;
const KERNEL_STORE: u64 = 16;
const STEP: u64 = 64;

/// The values that the probe writes, as eight bytes.
pub(super) const NEW: u64 = 0x4e4e_4e4e_4e4e_4e4e;
pub(super) const ZERO: u64 = 0;

const LOSSY_DISK_BYTES: u64 = 1 << 20;

pub(super) fn run(testbed: &Testbed, report: &mut Report) -> Result<()> {
    let referees = Referees::build(testbed)?;
    table(testbed, &referees, report)?;
    for step in STEPS {
        report.test(step.name, step.run(testbed, &referees));
    }
    report.test("domain=eadr: the medium is left alone; a clwb that cannot be followed is counted", {
        eadr_and_unfollowed(testbed, &referees)
    });
    report.test("what a guest wrote to a port is in the host's file when its write has returned", {
        port_before_cut(testbed, &referees)
    });
    bare_verbs::rows(testbed, &referees, report)
}

/// What every run leaves out: what no other suite relies on, and steps that others imply.
pub(super) fn run_soak(testbed: &Testbed, report: &mut Report) -> Result<()> {
    let referees = Referees::build(testbed)?;
    for step in SOAK_STEPS {
        report.test(step.name, step.run(testbed, &referees));
    }
    report.test("inbound=memory: stores of the kernel go to the medium, those of programs do not", {
        inbound(testbed, &referees)
    });
    report.test("the instruction counter counts user and kernel apart", counter(testbed, &referees));
    Ok(())
}

/// One cut of a machine that did everything, and a boot on what was left, with a test for each row.
fn table(testbed: &Testbed, referees: &Referees, report: &mut Report) -> Result<()> {
    let modelled = Modelled::new(testbed)?;
    let (disk, socket) = (modelled.directory().join("lossy.img"), modelled.directory().join("lossy"));
    File::create(&disk)?.set_len(LOSSY_DISK_BYTES)?;
    let server = Server::start(&disk, &socket, lossy_disk::Choice::None)?;
    // The journal must not be written by its timer while the rows are done.
    let machine = modelled
        .machine(testbed, referees, &modelled.options()?)
        .disk("lossy", DiskSource::Nbd(socket))
        .bring(&referees.probe())
        .command(
            "mount -o remount,commit=600 $PMOF_FSDAX && \
             exec referee-probe --devdax $PMOF_DEVDAX --fsdax $PMOF_FSDAX --disk $PMOF_DISK_LOSSY write",
        );
    cut_when_ready(machine)?;
    let unflushed = server.wait_for_cut()?.context("the machine did not use the lossy disk")?;
    report.test("the model followed every write-back", modelled.followed().map(drop));
    report.test("the lossy disk had something to lose", {
        (unflushed.unflushed > 0).then_some(()).context("no sector was unflushed")
    });
    report.test("without the model a plain store outlives the cut", {
        expect(&modelled.media().devdax, PLAIN_STORE, NEW)
    });
    report.test("where all lines survive, so does a plain store", all_survive(&modelled));
    modelled.power_on(Choice::None, Tear::Lines)?;
    let found = Machine::new(testbed)
        .media(modelled.media().clone())
        .disk("lossy", DiskSource::File(disk))
        .bring(&referees.probe())
        .command("exec referee-probe --devdax $PMOF_DEVDAX --fsdax $PMOF_FSDAX --disk $PMOF_DISK_LOSSY report")
        .start()?
        .wait(TIMEOUT)?;
    ensure!(found.end == End::Exited(0), "the boot after the cut: {}", found.explain());
    let text = found.text();
    let rows: BTreeMap<_, _> = text.lines().filter_map(|line| line.split_once(' ')).collect();
    for (name, expected) in TABLE {
        report.test(&format!("after the cut: {name} {expected}"), {
            let found = rows.get(name).copied().unwrap_or("no such row");
            (found == *expected).then_some(()).with_context(|| format!("found {found}"))
        });
    }
    Ok(())
}

fn all_survive(modelled: &Modelled) -> Result<()> {
    let (live, copy) = (&modelled.media().devdax, modelled.directory().join("all.img"));
    super::tools::copy_sparse(&shadow(live), &copy)?;
    let memory = modelled.options()?.ranges[0].length;
    let outcome = cache_model::survivors(live, &copy, memory, Choice::All, Tear::Lines)?;
    ensure!(outcome.survived > 0, "no line differed");
    expect(&copy, PLAIN_STORE, NEW)
}

/// A store, its clwb and its fence, with a machine that ends in between.
struct Step {
    name: &'static str,
    locked_fence: bool,
    locked: Locked,
    arm: u8,
    cut_after: CutAfter,
    /// What the medium holds then. The live image holds the new value always.
    medium: u64,
}

/// The cuts that the suites `power-cuts` and `ring-cuts` rely on.
const STEPS: &[Step] = &[
    Step {
        name: "cut after clwb, before sfence: lost",
        locked_fence: false,
        locked: Locked::Fence,
        arm: 1,
        cut_after: CutAfter::WriteBacks(1),
        medium: ZERO,
    },
    Step {
        name: "cut after sfence: kept",
        locked_fence: false,
        locked: Locked::Fence,
        arm: 1,
        cut_after: CutAfter::Fences(1),
        medium: NEW,
    },
    Step {
        name: "locked=nothing, cut after a locked instruction: lost",
        locked_fence: true,
        locked: Locked::Nothing,
        arm: 2,
        cut_after: CutAfter::Instructions(1),
        medium: ZERO,
    },
];

const SOAK_STEPS: &[Step] = &[
    Step {
        name: "cut after the store: lost",
        locked_fence: false,
        locked: Locked::Fence,
        arm: 1,
        cut_after: CutAfter::Stores(1),
        medium: ZERO,
    },
    Step {
        name: "cut after a locked instruction: kept",
        locked_fence: true,
        locked: Locked::Fence,
        arm: 2,
        cut_after: CutAfter::Instructions(1),
        medium: NEW,
    },
];

impl Step {
    fn run(&self, testbed: &Testbed, referees: &Referees) -> Result<()> {
        let modelled = Modelled::new(testbed)?;
        let options = Options {
            locked: self.locked,
            arm: Some(self.arm),
            cut_after: Some(self.cut_after),
            ..modelled.options()?
        };
        let fence = if self.locked_fence { "--locked" } else { "" };
        let finished = modelled
            .machine(testbed, referees, &options)
            .bring(&referees.probe())
            .command(format!("exec referee-probe --devdax $PMOF_DEVDAX step {fence}"))
            .start()?
            .wait(TIMEOUT)?;
        let killed = matches!(&finished.end, End::Crashed(how) if how.contains("SIGKILL"));
        ensure!(killed, "the machine did not cut itself: {}; it wrote {}", finished.explain(), finished.text());
        modelled.followed()?;
        expect(&modelled.media().devdax, STEP, NEW).context("the live image")?;
        expect(&shadow(&modelled.media().devdax), STEP, self.medium).context("the medium")
    }
}

fn inbound(testbed: &Testbed, referees: &Referees) -> Result<()> {
    let modelled = Modelled::new(testbed)?;
    let options = Options { inbound: Inbound::Memory, ..modelled.options()? };
    cut_when_ready(devdax_rows(testbed, referees, &modelled, &options))?;
    let counters = modelled.followed()?;
    ensure!(counters.get(Counter::StoresInbound) > 0, "no inbound store: {counters}");
    let medium = shadow(&modelled.media().devdax);
    expect(&medium, KERNEL_STORE, NEW)?;
    expect(&medium, PLAIN_STORE, ZERO)?;
    expect(&medium, STORE_CLWB_SFENCE, NEW)
}

fn eadr_and_unfollowed(testbed: &Testbed, referees: &Referees) -> Result<()> {
    let modelled = Modelled::new(testbed)?;
    let options = Options { domain: Domain::Eadr, ..modelled.options()? };
    let machine = devdax_rows(testbed, referees, &modelled, &options);
    cut_when_ready(machine.command("referee-probe unfollowed; exec referee-probe --devdax $PMOF_DEVDAX write"))?;
    let counters = modelled.counters()?;
    ensure!(counters.get(Counter::Unsupported) == 1, "one clwb relative to the instruction: {counters}");
    ensure!(modelled.followed().is_err(), "a machine that was not followed passes for one that was");
    let live = &modelled.media().devdax;
    expect(&shadow(live), STORE_CLWB_SFENCE, ZERO)?;
    expect(live, PLAIN_STORE, NEW)
}

/// Ledgers rely on it. The program tells the host a number before it stores it; the machine cuts itself at a store.
fn port_before_cut(testbed: &Testbed, referees: &Referees) -> Result<()> {
    const CUT_AT: u64 = 1000;
    let modelled = Modelled::new(testbed)?;
    let options = Options { arm: Some(1), cut_after: Some(CutAfter::Stores(CUT_AT)), ..modelled.options()? };
    let told = modelled.directory().join("told");
    let finished = modelled
        .machine(testbed, referees, &options)
        .bring(&referees.probe())
        .port("told", PortTarget::File(told.clone()))
        .command("exec referee-probe --devdax $PMOF_DEVDAX tell $PMOF_PORT_TOLD")
        .start()?
        .wait(TIMEOUT)?;
    let killed = matches!(&finished.end, End::Crashed(how) if how.contains("SIGKILL"));
    ensure!(killed, "the machine did not cut itself: {}; it wrote {}", finished.explain(), finished.text());
    let told = fs::read_to_string(&told)?;
    let last = told.lines().last().unwrap_or_default();
    ensure!(last == CUT_AT.to_string(), "the host's file ends with {last:?}, and store {CUT_AT} has been done");
    expect(&modelled.media().devdax, STEP, CUT_AT).context("the live image")
}

fn counter(testbed: &Testbed, referees: &Referees) -> Result<()> {
    let directory = testbed.run_directory()?;
    let log = directory.path().join("log");
    let finished = Machine::new(testbed)
        .processors(1)
        .plugin(referees.instruction_counter(&log))
        .bring(&referees.probe())
        .command("exec referee-probe count")
        .start()?
        .wait(TIMEOUT)?;
    ensure!(finished.end == End::Exited(0), "{}", finished.explain());
    let marks = instruction_counter::read_log(&log)?;
    let (loops, calls) = (instruction_counter::between(&marks, 1, 2), instruction_counter::between(&marks, 2, 3));
    ensure!(loops.len() == 5 && calls.len() == 5, "five rounds, not {marks:?}");
    // A round may be interrupted, and then has more; the least has not.
    let user = loops.iter().map(|spent| spent.user).min().unwrap_or_default();
    ensure!((2000..2010).contains(&user), "a loop of 2000 instructions counts {user}: {loops:?}");
    let kernel = loops.iter().map(|spent| spent.kernel).min();
    ensure!(kernel == Some(0), "a loop without system calls enters the kernel: {loops:?}");
    ensure!(calls.iter().all(|spent| spent.kernel > 50), "a system call takes no kernel: {calls:?}");
    Ok(())
}

fn devdax_rows<'a>(testbed: &'a Testbed, referees: &Referees, modelled: &Modelled, options: &Options) -> Machine<'a> {
    modelled
        .machine(testbed, referees, options)
        .bring(&referees.probe())
        .command("exec referee-probe --devdax $PMOF_DEVDAX write")
}

pub(super) fn cut_when_ready(machine: Machine<'_>) -> Result<()> {
    let mut running = machine.start()?;
    running.wait_for_output("ready\n", TIMEOUT)?;
    running.cut_power().map(drop)
}

/// Checks the first eight bytes of a row in an image of the device-DAX.
pub(super) fn expect(image: &Path, row: u64, expected: u64) -> Result<()> {
    let mut bytes = [0; 8];
    File::open(image)?.read_exact_at(&mut bytes, DEVDAX_START + row * PAGE)?;
    let found = u64::from_le_bytes(bytes);
    ensure!(found == expected, "row {row} of {} holds {found:#x}, not {expected:#x}", image.display());
    Ok(())
}
