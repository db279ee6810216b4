//! A row of boots on the same images: each judges the power cut before it, starts the next load, and is cut.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use cache_model::{Choice, Tear};

use super::{
    super::{
        machine::{DiskSource, Machine, Persistence, PortTarget},
        modelled::{Modelled, Referees},
        options,
        running::{End, Running},
        testbed::Testbed,
    },
    Random,
};

/// Boots and loads take seconds; these are for hosts that do much else.
const BOOT: Duration = Duration::from_mins(3);
const FIRST_ACKNOWLEDGEMENT: Duration = Duration::from_secs(75);

/// A load runs at most this long after its first acknowledgement, in milliseconds.
const CUT_WITHIN_MS: u64 = 1500;

/// Bytes of the pool: all of what `pmof soak write` changes.
const POOL_BYTES: u32 = 1 << 20;

/// Where the ledger of the cut before lies in the guest.
const LEDGER: &str = "previous.ledger";

/// Tells what every thread of pmof does, where the machine has not been cut long after a load began.
const WATCH: &str = "{ sleep 50; tail -n 2 /run/target?; for thread in /proc/[0-9]*/task/*; do
    case $(cat $thread/comm) in pmof*)
        echo \"$thread $(cat $thread/comm) $(cat $thread/wchan) $(cut -d ' ' -f 1-4 $thread/syscall)\"; esac; done; }";

/// What the scripts print when the load begins, and where it ends by itself.
const BEGINS: &str = "the load begins";
const ENDED: &str = "the load ended";

/// On what a replica lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Devdax,
    Fsdax,
    File,
}

/// How the replicas are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// With native flush where the place can be registered, which is device-DAX.
    VerbsNative,
    /// From targets that do not offer it.
    Verbs,
    Tcp,
    Shm,
}

/// What is written, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) way: Way,
    pub(super) places: &'static [Place],
    /// Of `--durability`.
    pub(super) durability: &'static str,
    /// Further options of `pmof soak write`.
    pub(super) more: &'static str,
    /// What the guest's firmware says; what is true is that caches are lost.
    pub(super) firmware: Persistence,
}

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
    /// For each replica the acknowledged batches that it lacks something of, and what `pmof soak check` said.
    pub(super) replicas: Vec<(Place, u64, String)>,
}

/// What all boots need.
pub(super) struct Tools<'a> {
    testbed: &'a Testbed,
    referees: Referees,
    pmof: PathBuf,
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
    places: &'static [Place],
    seed: u64,
    ledger: PathBuf,
}

impl Place {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Devdax => "devdax",
            Self::Fsdax => "fsdax",
            Self::File => "file",
        }
    }

    /// The target's root, for the shell.
    fn root(self) -> &'static str {
        match self {
            Self::Devdax => "$PMOF_TMPFS/pools",
            Self::Fsdax => "$PMOF_FSDAX/pools",
            Self::File => "$PMOF_FILE/pools",
        }
    }

    /// Where the pool's bytes are.
    fn pool(self) -> &'static str {
        match self {
            Self::Devdax => "$PMOF_DEVDAX",
            Self::Fsdax => "$PMOF_FSDAX/pools/cut",
            Self::File => "$PMOF_FILE/pools/cut",
        }
    }

    fn device_option(self) -> &'static str {
        if self == Self::Devdax { "--device cut=$PMOF_DEVDAX" } else { "" }
    }
}

impl Way {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::VerbsNative => "verbs, native flush",
            Self::Verbs => "verbs, send-after-write",
            Self::Tcp => "tcp",
            Self::Shm => "shm",
        }
    }

    fn listen(self, replica: usize) -> String {
        match self {
            Self::VerbsNative | Self::Verbs => format!("verbs://$PMOF_WIRE_B:730{replica}"),
            Self::Tcp => format!("tcp://127.0.0.1:730{replica}"),
            Self::Shm => format!("shm:///run/target{replica}.socket"),
        }
    }

    fn url(self, replica: usize) -> String {
        let address = self.listen(replica);
        match self {
            Self::VerbsNative | Self::Verbs => format!("{address}/cut?source=$PMOF_WIRE_A"),
            Self::Tcp => format!("{address}/cut"),
            Self::Shm => format!("{address}?pool=cut"),
        }
    }

    fn target_options(self) -> &'static str {
        match self {
            Self::VerbsNative => "--trust-network",
            Self::Verbs => "--trust-network --no-native-flush",
            Self::Tcp | Self::Shm => "",
        }
    }
}

impl Load {
    /// A load that must survive.
    pub(super) const fn durable(way: Way, places: &'static [Place]) -> Self {
        Self { way, places, durability: "power-failure", more: "", firmware: Persistence::MemCtrl }
    }

    /// The shell's commands that start the targets and the writer.
    fn script(&self, create: bool, seed: u64) -> String {
        let replicas = || self.places.iter().enumerate();
        let targets: String = replicas().map(|(replica, place)| self.target(replica, *place)).collect();
        let pools: Vec<_> = replicas().map(|(replica, _)| format!("--pool \"{}\"", self.way.url(replica))).collect();
        let create = if create { format!("--create {POOL_BYTES}") } else { String::new() };
        let Self { durability, more, .. } = self;
        format!(
            "{targets}
             tries=0
             until [ \"$(cat /run/target? | grep -c '^ready ')\" = {} ]; do
                 tries=$((tries + 1)); [ $tries -le 1200 ] || {{ cat /run/target?; exit 1; }}; sleep 0.05
             done
             echo '{BEGINS}'
             {WATCH} &
             pmof soak write {} {create} --durability {durability} --ledger $PMOF_PORT_LEDGER --seed {seed} {more}
             echo \"{ENDED} with $?\"; cat /run/target?; exit 1\n",
            self.places.len(),
            pools.join(" ")
        )
    }

    /// Starts one target in the background.
    fn target(&self, replica: usize, place: Place) -> String {
        let (root, listen) = (place.root(), self.way.listen(replica));
        let options = [self.way.target_options(), place.device_option()].join(" ");
        format!(
            "mkdir -p {root}; pmof serve --root {root} --listen \"{listen}\" {options} >/run/target{replica} 2>&1 &\n"
        )
    }
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
    /// Acknowledged batches that some replica lacks something of; of two replicas that lack the same it counts both.
    pub(super) fn lost(&self) -> u64 {
        self.replicas.iter().map(|(_, lost, _)| lost).sum()
    }

    /// Whether the cut came between a batch and its acknowledgement.
    pub(super) fn in_flight(&self) -> bool {
        self.issued > self.acknowledged
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{} batches acknowledged of {} issued", self.acknowledged, self.issued)?;
        for (place, lost, said) in &self.replicas {
            match lost {
                0 => write!(to, "; {} has all", place.name())?,
                lost => write!(to, "; {} lost {lost}: {said}", place.name())?,
            }
        }
        Ok(())
    }
}

impl<'a> Tools<'a> {
    /// Builds what is not up to date.
    pub(super) fn build(testbed: &'a Testbed) -> Result<Self> {
        let referees = Referees::build(testbed)?;
        let pmof = options::pmof(testbed, true)?.context("cargo made no release binary of pmof")?;
        Ok(Self { testbed, referees, pmof })
    }
}

impl<'a> Series<'a> {
    /// A row on fresh images.
    pub(super) fn new(tools: &'a Tools<'a>) -> Result<Self> {
        Ok(Self { tools, modelled: Modelled::new(tools.testbed)?, boots: 0, last: None })
    }

    /// Boots, judges the cut before, where there was one, starts the load, and cuts the power at a random moment of it.
    ///
    /// All loads of a row must have the same places: the first makes the pool, the others open what the cuts left.
    pub(super) fn cut(&mut self, load: &Load, survivors: Survivors, random: &mut Random) -> Result<Option<Verdict>> {
        let ledger = self.modelled.directory().join(format!("{}.ledger", self.boots));
        let socket = self.modelled.directory().join("disk");
        let disk = lossy_disk::Server::start(&self.modelled.media().file, &socket, survivors.of_disk())?;
        let seed = random.next() >> 32;
        let script = judge_script(self.last.as_ref()) + &load.script(self.boots == 0, seed);
        let machine = self
            .modelled
            .machine(self.tools.testbed, &self.tools.referees, &self.modelled.options()?)
            .persistence(load.firmware)
            .file_disk(DiskSource::Nbd(socket))
            .port("ledger", PortTarget::File(ledger.clone()));
        let mut running = self.bring(machine)?.command(script).start()?;
        await_load(&mut running, &ledger)?;
        thread::sleep(Duration::from_millis(random.below(CUT_WITHIN_MS)));
        let output = running.cut_power()?.text();
        ensure!(!output.contains(ENDED), "the load ended before the cut: {output}");
        self.modelled.followed()?;
        disk.wait_for_cut()?.context("the machine did not use the lossy disk")?;
        let (choice, tear) = survivors.of_memory();
        self.modelled.power_on(choice, tear)?;
        let verdict = self.last.take().map(|cut| cut.verdict(&output)).transpose()?;
        self.last = Some(Cut { places: load.places, seed, ledger });
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

    /// The machine with the program and the ledger of the cut before.
    fn bring<'b>(&self, machine: Machine<'b>) -> Result<Machine<'b>> {
        let machine = machine.bring(&self.tools.pmof);
        let Some(cut) = &self.last else { return Ok(machine) };
        let named = self.modelled.directory().join(LEDGER);
        fs::copy(&cut.ledger, &named).context("copying the ledger")?;
        Ok(machine.bring(&named))
    }
}

/// The shell's commands that judge a cut: a line for each replica, and one for each complaint of a file system.
fn judge_script(cut: Option<&Cut>) -> String {
    let Some(cut) = cut else { return String::new() };
    let check = |place: &Place| {
        format!(
            "pmof soak check --file {} --ledger /host/bin/{LEDGER} --seed {} >/run/said 2>&1
             echo \"judged {} $? $(tr '\\n' ' ' </run/said)\"\n",
            place.pool(),
            cut.seed,
            place.name()
        )
    };
    let complaints =
        "dmesg | grep -E 'EXT4-fs (error|warning)|JBD2: .*(error|corrupt|abort)' | sed 's/^/complaint /'\n";
    cut.places.iter().map(check).collect::<String>() + complaints
}

/// Waits until the first batch, which writes all of the pool, was acknowledged.
fn await_load(running: &mut Running<'_>, ledger: &Path) -> Result<()> {
    running.wait_for_output(BEGINS, BOOT)?;
    let deadline = Instant::now() + FIRST_ACKNOWLEDGEMENT;
    loop {
        let told = fs::read_to_string(ledger).context("reading the ledger")?;
        if told.contains("ack 0\n") {
            return Ok(());
        }
        let output = || String::from_utf8_lossy(&running.output()).into_owned();
        ensure!(!output().contains(ENDED), "the load failed: {}", output());
        ensure!(
            Instant::now() < deadline,
            "batch 0 was not acknowledged in {FIRST_ACKNOWLEDGEMENT:?}; the ledger: {told:?}; the output: {}",
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
        let mut verdict = Verdict { acknowledged: 0, issued: 0, replicas: Vec::new() };
        for &place in self.places {
            let begin = format!("judged {} ", place.name());
            let line = output.lines().find_map(|line| line.strip_prefix(&begin));
            let (code, said) = line.and_then(|line| line.split_once(' ')).with_context(|| {
                format!("the boot after the cut did not judge {}; its output: {output}", place.name())
            })?;
            let read = |name| number(said, name).with_context(|| format!("pmof soak check said {said}"));
            (verdict.acknowledged, verdict.issued) = (read("acked")?, read("issued")?);
            let (lost, wrong) = (read("lost")?, read("wrong")?);
            ensure!((code == "0") == (wrong == 0), "exit code {code}, and pmof soak check said {said}");
            // Words that nobody issued count as a loss too.
            verdict.replicas.push((place, lost.max(u64::from(wrong > 0)), said.to_owned()));
        }
        ensure!(verdict.acknowledged > 0, "no batch was acknowledged before the cut");
        Ok(verdict)
    }
}

/// A number of a JSON object, by its name.
fn number(json: &str, name: &str) -> Option<u64> {
    let (_, rest) = json.split_once(&format!("\"{name}\":"))?;
    let digits = rest.find(|letter: char| !letter.is_ascii_digit())?;
    rest[..digits].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut() -> Cut {
        Cut { places: &[Place::Devdax, Place::File], seed: 1, ledger: PathBuf::new() }
    }

    fn judged(place: &str, code: u8, wrong: u64, lost: u64) -> String {
        format!("judged {place} {code} {{\"acked\":7,\"issued\":8,\"wrong\":{wrong},\"lost\":{lost}}}\n")
    }

    #[test]
    fn a_verdict_is_that_of_both_replicas() {
        let verdict = cut().verdict(&(judged("devdax", 0, 0, 0) + &judged("file", 1, 9, 2))).unwrap();
        assert_eq!((verdict.acknowledged, verdict.issued, verdict.lost()), (7, 8, 2));
        assert!(verdict.in_flight());
        let foreign = cut().verdict(&(judged("devdax", 0, 0, 0) + &judged("file", 1, 9, 0))).unwrap();
        assert_eq!(foreign.lost(), 1);
    }

    #[test]
    fn a_boot_that_judged_not_everything_is_no_verdict() {
        let good = judged("devdax", 0, 0, 0) + &judged("file", 0, 0, 0);
        assert!(cut().verdict(&good).is_ok());
        for wrong in [
            String::new(),
            judged("devdax", 0, 0, 0),
            judged("devdax", 1, 0, 0) + &judged("file", 0, 0, 0),
            judged("devdax", 0, 1, 1) + &judged("file", 0, 0, 0),
            "judged devdax 1 pmof: no such file\n".to_owned() + &judged("file", 0, 0, 0),
            good.clone() + "complaint EXT4-fs error (device pmem1)\n",
            good.replace("\"acked\":7", "\"acked\":0"),
        ] {
            assert!(cut().verdict(&wrong).is_err(), "{wrong}");
        }
    }
}
