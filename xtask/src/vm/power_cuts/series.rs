//! A row of boots on the same images: each judges the power cut before it, starts the next load, and is cut.

use std::{
    fmt,
    fs::{self, File},
    io::Write as _,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use cache_model::{Choice, Options, Tear};

use super::{
    super::{
        machine::{DiskSource, Machine, PortTarget},
        modelled::{Modelled, Referees},
        options, programs,
        running::{End, Running},
        testbed::{RunDirectory, Testbed},
    },
    Random,
    load::{ARM, BEGINS, DEVDAX_COPY, ENDED, LEDGER, Load, Moment, OPERATIONS_BEGIN, WIPE},
};

/// Boots and loads take seconds; these are for hosts that do much else.
const BOOT: Duration = Duration::from_secs(300);
const FIRST_ACKNOWLEDGEMENT: Duration = Duration::from_secs(75);

/// All operations of a load are done within this time, or the power has gone.
const OPERATIONS: Duration = Duration::from_secs(180);

/// A load runs at most this long after its first acknowledgement, in milliseconds.
const CUT_WITHIN_MS: u64 = 1500;

/// Where the bytes of the device-DAX begin in its image, and how many of them the judge gets: more than any load writes.
const DEVDAX_START: u64 = 2 << 20;
const DEVDAX_BYTES: usize = 12 << 20;

/// What survives of that which had not reached its medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Survivors {
    None,
    All,
    /// Lines and sectors by this seed.
    Random(u64),
    /// Also each eight bytes of a line.
    Torn(u64),
}

/// What a boot found of the cut before it.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) acknowledged: u64,
    pub(super) issued: u64,
    /// Of each replica what of it was acknowledged and is lost, and what `cut-judge` said.
    pub(super) replicas: Vec<(u64, String)>,
}

/// What all boots need.
pub(super) struct Tools<'a> {
    testbed: &'a Testbed,
    referees: Referees,
    /// Programs and libraries of pmof, the loads and the judge.
    brought: Vec<PathBuf>,
    _staged: RunDirectory,
}

/// A row of boots.
pub(super) struct Series<'a> {
    tools: &'a Tools<'a>,
    modelled: Modelled,
    boots: u64,
    last: Option<Cut>,
}

/// A cut that awaits its verdict.
struct Cut {
    load: Load,
    seed: u64,
    ledger: PathBuf,
}

impl Survivors {
    /// They take turns.
    pub(super) fn of_turn(turn: u64, seed: u64) -> Self {
        match turn % 4 {
            0 => Self::None,
            1 => Self::Random(seed),
            2 => Self::All,
            _ => Self::Torn(seed),
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::None => "none survives",
            Self::All => "all survives",
            Self::Random(_) => "random survives",
            Self::Torn(_) => "random survives, torn",
        }
    }

    fn of_memory(self) -> (Choice, Tear) {
        match self {
            Self::None => (Choice::None, Tear::Lines),
            Self::All => (Choice::All, Tear::Lines),
            Self::Random(seed) => (Choice::Random(seed), Tear::Lines),
            Self::Torn(seed) => (Choice::Random(seed), Tear::Words),
        }
    }

    fn of_disk(self) -> lossy_disk::Choice {
        match self {
            Self::None => lossy_disk::Choice::None,
            Self::All => lossy_disk::Choice::All,
            Self::Random(seed) | Self::Torn(seed) => lossy_disk::Choice::Random(seed),
        }
    }
}

impl Verdict {
    /// What was acknowledged and some replica lacks something of; of two replicas that lack the same it counts both.
    pub(super) fn lost(&self) -> u64 {
        self.replicas.iter().map(|(lost, _)| lost).sum()
    }

    /// Whether a replica was behind the others when the power went.
    pub(super) fn is_lagging(&self) -> bool {
        self.replicas.iter().any(|(_, said)| number(said, "lagging") == Some(1))
    }

    /// Whether the cut came between a batch or an operation and its acknowledgement.
    pub(super) fn in_flight(&self) -> bool {
        self.issued > self.acknowledged
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{} acknowledged of {} issued", self.acknowledged, self.issued)?;
        // Of a set that was cut in the middle of a sync; told before `pool check` and after it.
        let is_unfinished = |said: &str| number(said, "unfinished").is_some_and(|unfinished| unfinished > 0);
        let unfinished = self.replicas.iter().filter(|(_, said)| is_unfinished(said)).count() / 2;
        if unfinished > 0 {
            write!(to, ", {unfinished} replicas unfinished")?;
        }
        if self.is_lagging() {
            write!(to, ", one lagged")?;
        }
        self.replicas.iter().filter(|(lost, _)| *lost > 0).try_for_each(|(_, said)| write!(to, "; {said}"))
    }
}

impl<'a> Tools<'a> {
    /// Builds what is not up to date.
    pub(super) fn build(testbed: &'a Testbed) -> Result<Self> {
        let referees = Referees::build(testbed)?;
        let pmof = options::pmof(testbed, true)?.context("cargo made no release binary of pmof")?;
        let staged = testbed.run_directory()?;
        let mut brought = vec![pmof.with_file_name("rpmemd"), pmof];
        brought.extend(programs::cut_programs(testbed, staged.path())?);
        Ok(Self { testbed, referees, brought, _staged: staged })
    }
}

impl<'a> Series<'a> {
    /// A row on fresh images.
    pub(super) fn new(tools: &'a Tools<'a>) -> Result<Self> {
        Ok(Self { tools, modelled: Modelled::new(tools.testbed)?, boots: 0, last: None })
    }

    /// Boots, judges the cut before, where there was one, starts the load, and cuts the power at its moment.
    ///
    /// A load that [goes with](Load::goes_with) the one before opens what the cut left; another one begins on empty media. Its
    /// moment is counted from the acknowledgement of so many batches.
    pub(super) fn cut(
        &mut self,
        load: &Load,
        survivors: Survivors,
        batches: usize,
        random: &mut Random,
    ) -> Result<Option<Verdict>> {
        let ledger = self.modelled.directory().join(format!("{}.ledger", self.boots));
        let socket = self.modelled.directory().join("disk");
        let disk = lossy_disk::Server::start(&self.modelled.media().file, &socket, survivors.of_disk())?;
        let seed = random.next() >> 32;
        let goes_on = self.last.as_ref().is_some_and(|cut| cut.load.goes_with(load));
        let wipe = if goes_on || self.last.is_none() { "" } else { WIPE };
        let script = judge_script(self.last.as_ref()) + wipe + &load.script(!goes_on, seed);
        let cut_after = if let Moment::Model(cut_after) = load.moment { Some(cut_after) } else { None };
        let arm = cut_after.map(|_| ARM);
        let options = Options { locked: load.locked, cut_after, arm, ..self.modelled.options()? };
        let machine = self
            .modelled
            .machine(self.tools.testbed, &self.tools.referees, &options)
            .persistence(load.firmware)
            .file_disk(DiskSource::Nbd(socket))
            .port("ledger", PortTarget::File(ledger.clone()));
        let mut running = self.bring(machine)?.command(script).start()?;
        if load.has_batches() {
            await_load(&mut running, &ledger, batches)?;
        } else {
            running.wait_for_output(OPERATIONS_BEGIN, BOOT)?;
        }
        let output = match load.moment {
            Moment::Random => {
                thread::sleep(Duration::from_millis(random.below(CUT_WITHIN_MS)));
                running.cut_power()?.text()
            }
            Moment::Disk(request) => cut_by_disk(running, &disk, request)?,
            Moment::Model(_) => cut_by_model(running)?,
        };
        ensure!(load.moment != Moment::Random || !output.contains(ENDED), "the load ended before the cut: {output}");
        ensure!(!output.contains(&format!("{ENDED} with 1")), "the load failed before the cut: {output}");
        self.modelled.followed()?;
        disk.wait_for_cut()?.context("the machine did not use the lossy disk")?;
        let (choice, tear) = survivors.of_memory();
        self.modelled.power_on(choice, tear)?;
        let verdict = self.last.take().map(|cut| cut.verdict(&output)).transpose()?;
        self.last = Some(Cut { load: *load, seed, ledger });
        self.boots += 1;
        Ok(verdict)
    }

    /// Boots on what the last cut left and judges it.
    pub(super) fn end(self) -> Result<Verdict> {
        let cut = self.last.as_ref().context("a row has at least one cut")?;
        let machine = Machine::new(self.tools.testbed).media(self.modelled.media().clone());
        let finished = self.bring(machine)?.command(judge_script(Some(cut))).start()?.wait(BOOT)?;
        ensure!(finished.end == End::Exited(0), "{}; its output: {}", finished.explain(), finished.text());
        cut.verdict(&finished.text())
    }

    /// The machine with the programs, the ledger of the cut before, and the bytes of its device-DAX.
    fn bring<'b>(&self, machine: Machine<'b>) -> Result<Machine<'b>> {
        let machine = self.tools.brought.iter().fold(machine, |machine, file| machine.bring(file));
        let Some(cut) = &self.last else { return Ok(machine) };
        let (named, devdax) = (self.modelled.directory().join(LEDGER), self.modelled.directory().join(DEVDAX_COPY));
        fs::copy(&cut.ledger, &named).context("copying the ledger")?;
        let mut bytes = vec![0; DEVDAX_BYTES];
        let image = File::open(&self.modelled.media().devdax).context("opening the image of the device-DAX")?;
        image.read_exact_at(&mut bytes, DEVDAX_START).context("reading the image of the device-DAX")?;
        File::create(&devdax)?.write_all(&bytes)?;
        Ok(machine.bring(&named).bring(&devdax))
    }
}

/// Has the disk go off before a request; or, where the operations end first, cuts the power then.
fn cut_by_disk(running: Running<'_>, disk: &lossy_disk::Server, request: lossy_disk::CutBefore) -> Result<String> {
    const LOOK: Duration = Duration::from_millis(20);
    disk.cut_before(request);
    let deadline = Instant::now() + OPERATIONS;
    while !disk.is_off(LOOK) && !String::from_utf8_lossy(&running.output()).contains(ENDED) {
        ensure!(Instant::now() < deadline, "the disk did not see {request:?} within {OPERATIONS:?}");
    }
    Ok(running.cut_power()?.text())
}

/// Waits until the model has killed the machine; or, where the operations end first, cuts the power then.
fn cut_by_model(mut running: Running<'_>) -> Result<String> {
    if running.wait_for_output(ENDED, OPERATIONS).is_ok() {
        return Ok(running.cut_power()?.text());
    }
    let finished = running.wait(Duration::from_secs(1))?;
    let is_killed = matches!(&finished.end, End::Crashed(how) if how.contains("SIGKILL"));
    ensure!(is_killed, "the model did not cut the power: {}; the output: {}", finished.explain(), finished.text());
    Ok(finished.text())
}

fn judge_script(cut: Option<&Cut>) -> String {
    cut.map(|cut| cut.load.judge_script(cut.seed)).unwrap_or_default()
}

/// Waits until the first batch, which writes all of the pool, was acknowledged, and so many in all.
fn await_load(running: &mut Running<'_>, ledger: &Path, batches: usize) -> Result<()> {
    running.wait_for_output(BEGINS, BOOT)?;
    let deadline = Instant::now() + FIRST_ACKNOWLEDGEMENT;
    loop {
        let told = fs::read_to_string(ledger).context("reading the ledger")?;
        if told.contains("ack 0 0\n") && told.lines().filter(|line| line.starts_with("ack ")).count() >= batches {
            return Ok(());
        }
        let output = || String::from_utf8_lossy(&running.output()).into_owned();
        ensure!(!output().contains(ENDED), "the load failed: {}", output());
        ensure!(
            Instant::now() < deadline,
            "{batches} batches, the first among them, were not acknowledged in {FIRST_ACKNOWLEDGEMENT:?}; the ledger: {told:?}; the output: {}",
            output()
        );
        thread::sleep(Duration::from_millis(2));
    }
}

impl Cut {
    /// Reads what the boot after the cut said of it.
    fn verdict(&self, output: &str) -> Result<Verdict> {
        if let Some(complaint) = output.lines().find(|line| line.starts_with("complaint ")) {
            bail!("a file system is not whole after the cut: {complaint}");
        }
        let all = output.lines().find_map(|line| line.strip_prefix("judged all "));
        let all = all.with_context(|| format!("the boot after the cut did not judge it; its output: {output}"))?;
        let begin = format!("judged {all} ");
        let mut verdict = Verdict { acknowledged: 0, issued: 0, replicas: Vec::new() };
        for said in output.lines().filter_map(|line| line.strip_prefix(&begin)) {
            let read = |name| number(said, name).with_context(|| format!("cut-judge said {said}"));
            verdict.acknowledged = verdict.acknowledged.max(read("acknowledged")?);
            verdict.issued = verdict.issued.max(read("issued")?);
            // Words that nobody issued count as a loss too.
            let lost = read("lost")?.max(u64::from(number(said, "wrong").is_some_and(|wrong| wrong > 0)));
            verdict.replicas.push((lost, said.to_owned()));
        }
        let expected = if verdict.lost() == 0 { "0" } else { "1" };
        ensure!(all == expected, "cut-judge's exit code is {all}, and it said {verdict:?}; the output: {output}");
        let count = self.load.replica_count();
        let is_complete = verdict.lost() > 0 || verdict.replicas.len() >= count;
        ensure!(is_complete, "{count} replicas were to be judged, and these were: {verdict:?}");
        ensure!(!self.load.has_batches() || verdict.acknowledged > 0, "no batch was acknowledged before the cut");
        Ok(verdict)
    }
}

/// A number behind its name and a blank.
fn number(text: &str, name: &str) -> Option<u64> {
    let (_, rest) = text.split_once(&format!(" {name} "))?;
    let end = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{
        super::load::{Place, Program, Way},
        *,
    };

    fn cut() -> Cut {
        let load = Load::durable(Program::Pool, Way::Tcp, &[Place::Devdax, Place::File]);
        Cut { load, seed: 1, ledger: PathBuf::new() }
    }

    fn judged(code: u8, wrong: [u64; 2], lost: [u64; 2]) -> String {
        let line = |at: usize| {
            let (wrong, lost) = (wrong[at], lost[at]);
            format!(
                "judged {code} /{at}: issued 8, acknowledged 7, words 9, unacknowledged 0, wrong {wrong}, lost {lost}, first: x\n"
            )
        };
        line(0) + &line(1) + &format!("judged all {code}\n")
    }

    #[test]
    fn a_verdict_is_that_of_both_replicas() {
        let verdict = cut().verdict(&judged(1, [0, 9], [0, 2])).unwrap();
        assert_eq!((verdict.acknowledged, verdict.issued, verdict.lost()), (7, 8, 2));
        assert!(verdict.in_flight());
        let foreign = cut().verdict(&judged(1, [0, 9], [0, 0])).unwrap();
        assert_eq!(foreign.lost(), 1);
    }

    #[test]
    fn a_boot_that_judged_not_everything_is_no_verdict() {
        let good = judged(0, [0, 0], [0, 0]);
        assert!(cut().verdict(&good).is_ok());
        for wrong in [
            String::new(),
            "judged all 0\n".to_owned(),
            judged(1, [0, 0], [0, 0]),
            judged(0, [0, 1], [0, 1]),
            "judged 2 cut-judge: no such file\njudged all 2\n".to_owned(),
            good.clone() + "complaint EXT4-fs error (device pmem1)\n",
            good.replace("acknowledged 7", "acknowledged 0"),
            good.lines().skip(1).collect::<Vec<_>>().join("\n"),
        ] {
            assert!(cut().verdict(&wrong).is_err(), "{wrong}");
        }
    }
}
