//! `cargo xtask vm bench`: what pmof-access adds to bare verbs calls, in instructions and on the benchmark clock.
//!
//! Two programs with one command line do the same work in the same machine, in turn: `testbed/bare-verbs` and
//! `testbed/persist-bench`. The instruction counter tells what each spent between its marks.

use std::{fmt, process::ExitCode, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use instruction_counter::Spent;

use super::{bare_verbs, machine::Machine, modelled::Referees, running::End, testbed::Testbed};

const BARE: &str = "bare-verbs";
const OURS: &str = "persist-bench";

/// For all rounds of all cases, under emulation and with the counter.
const TIMEOUT: Duration = Duration::from_secs(1800);

/// What the command prints for.
#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// Rounds of each program in each case; the medians count
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// How the programs wait for completions
    #[arg(long, default_value = "event", value_parser = ["event", "poll"])]
    mode: String,
    /// Print one JSON array instead of a table
    #[arg(long)]
    json: bool,
    /// Exit with 1 where a budget is exceeded
    #[arg(long)]
    check: bool,
}

/// One measured case: batches of `batch` writes of `size_bytes` with a flush behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case {
    size_bytes: u32,
    batch: u32,
    /// Batches measured in a round.
    count: u32,
}

const CASES: [Case; 6] = [
    Case { size_bytes: 64, batch: 1, count: 1000 },
    Case { size_bytes: 512, batch: 1, count: 1000 },
    Case { size_bytes: 64 << 10, batch: 1, count: 100 },
    Case { size_bytes: 64, batch: 32, count: 200 },
    Case { size_bytes: 512, batch: 32, count: 200 },
    Case { size_bytes: 64 << 10, batch: 32, count: 12 },
];

/// Kernel instructions of the two differ by no more than this part.
const KERNEL_TOLERANCE: f64 = 0.01;

/// The median time of a batch is at most so many times that of bare verbs.
const P50_RATIO_MAX: f64 = 1.02;

impl Case {
    /// User instructions of a batch are at most so many times those of bare verbs.
    fn user_ratio_max(self) -> f64 {
        if self.batch == 1 { 1.3 } else { 1.1 }
    }
}

/// What one program spent for a batch: medians over the rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cost {
    user: f64,
    kernel: f64,
    p50_ns: f64,
}

/// Both programs in one case.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Compared {
    case: Case,
    ours: Cost,
    bare: Cost,
}

impl Compared {
    /// User instructions that pmof adds to one operation, of which a batch has its writes and one flush.
    fn added_per_operation(&self) -> f64 {
        (self.ours.user - self.bare.user) / f64::from(self.case.batch + 1)
    }

    /// The budgets that are exceeded, in words.
    fn excesses(&self) -> Vec<String> {
        let Case { size_bytes, batch, .. } = self.case;
        let mut excesses = Vec::new();
        let mut check = |what: &str, ratio: f64, least: f64, most: f64| {
            if !(least..=most).contains(&ratio) {
                let budget = if least > 0.0 { format!("{least} to {most}") } else { format!("at most {most}") };
                excesses.push(format!("{size_bytes} B x {batch}: {what} {ratio:.3} times bare verbs, not {budget}"));
            }
        };
        check("user instructions", self.ours.user / self.bare.user, 0.0, self.case.user_ratio_max());
        let kernel = self.ours.kernel / self.bare.kernel;
        check("kernel instructions", kernel, 1.0 - KERNEL_TOLERANCE, 1.0 + KERNEL_TOLERANCE);
        check("the median time", self.ours.p50_ns / self.bare.p50_ns, 0.0, P50_RATIO_MAX);
        excesses
    }

    fn json(&self) -> String {
        let Self { case, ours, bare } = self;
        format!(
            "{{\"size_bytes\":{},\"batch\":{},\"user\":{},\"bare_user\":{},\"kernel\":{},\"bare_kernel\":{},\
             \"p50_ns\":{},\"bare_p50_ns\":{},\"added_user_per_operation\":{:.1}}}",
            case.size_bytes,
            case.batch,
            ours.user.round(),
            bare.user.round(),
            ours.kernel.round(),
            bare.kernel.round(),
            ours.p50_ns,
            bare.p50_ns,
            self.added_per_operation()
        )
    }
}

const HEADING: &str =
    " bytes batch |  user    bare  ratio  added per operation |    kernel      bare  ratio |  p50 us    bare  ratio";

impl fmt::Display for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { case, ours, bare } = self;
        write!(
            f,
            "{:6} {:5} | {:5.0} {:7.0} {:6.2} {:20.0} | {:9.0} {:9.0} {:6.3} | {:7.1} {:7.1} {:6.3}",
            case.size_bytes,
            case.batch,
            ours.user,
            bare.user,
            ours.user / bare.user,
            self.added_per_operation(),
            ours.kernel,
            bare.kernel,
            ours.kernel / bare.kernel,
            ours.p50_ns / 1e3,
            bare.p50_ns / 1e3,
            ours.p50_ns / bare.p50_ns
        )
    }
}

/// One line that a program printed at its end.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    program: String,
    size_bytes: u32,
    batch: u32,
    count: u32,
    p50_ns: u64,
}

impl Line {
    /// `PROGRAM op=write-flush size=64 ...`; `None` for other lines.
    fn parse(text: &str) -> Option<Self> {
        let (program, fields) = text.split_once(" op=write-flush ")?;
        let field = |name: &str| fields.split(' ').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
        Some(Self {
            program: program.to_owned(),
            size_bytes: field("size")?.parse().ok()?,
            batch: field("batch")?.parse().ok()?,
            count: field("count")?.parse().ok()?,
            p50_ns: field("p50_ns")?.parse().ok()?,
        })
    }

    fn is_of(&self, program: &str, case: Case) -> bool {
        self.program == program && (self.size_bytes, self.batch) == (case.size_bytes, case.batch)
    }
}

impl Bench {
    pub(super) fn run(&self, testbed: &Testbed) -> Result<ExitCode> {
        let referees = Referees::build(testbed)?;
        let directory = testbed.run_directory()?;
        let bare = bare_verbs::build(testbed, directory.path())?;
        let log = directory.path().join("marks");
        let finished = Machine::new(testbed)
            .icount()
            .plugin(referees.instruction_counter(&log))
            .bring(&bare)
            .bring(&referees.persist_bench())
            .command(script(self.rounds, &self.mode))
            .start()?
            .wait(TIMEOUT)?;
        ensure!(finished.end == End::Exited(0), "{}; it wrote: {}", finished.explain(), finished.text());
        let spent = instruction_counter::between(&instruction_counter::read_log(&log)?, 1, 2);
        let compared = compare(&finished.text(), &spent, self.rounds as usize)?;
        if self.json {
            println!("[{}]", compared.iter().map(Compared::json).collect::<Vec<_>>().join(",\n "));
        } else {
            println!("Per batch, medians of {} rounds, mode {}:\n{HEADING}", self.rounds, self.mode);
            for case in &compared {
                println!("{case}");
            }
        }
        let excesses: Vec<_> = compared.iter().flat_map(Compared::excesses).collect();
        for excess in &excesses {
            eprintln!("over budget: {excess}");
        }
        Ok(if self.check && !excesses.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

/// The programs in turn, so that what drifts in the machine meets both alike.
fn script(rounds: u32, mode: &str) -> String {
    let case = |case: &Case| format!("run {} {} {}\n", case.size_bytes, case.batch, case.count);
    let cases: String = CASES.iter().map(case).collect();
    format!(
        "run() {{
             for round in $(seq {rounds}); do for program in {BARE} {OURS}; do
                 : >/tmp/port
                 $program server $PMOF_WIRE_B 0 $PMOF_DEVDAX $((64 << 20)) >/tmp/port & server=$!
                 until grep -q listening /tmp/port; do sleep 0.01; kill -0 $server || exit 1; done
                 port=$(sed -n 's/listening //p' /tmp/port)
                 line=$($program client $PMOF_WIRE_A $PMOF_WIRE_B $port --op write-flush --size $1 --batch $2 \\
                     --count $3 --warmup $(($3 / 10 + 2)) --mode {mode}) || exit 1
                 echo \"$program $line\"
                 wait $server || exit 1
             done; done
         }}
         {cases}"
    )
}

/// Puts the programs' lines and the stretches between their marks together, which came in the same order.
fn compare(text: &str, spent: &[Spent], rounds: usize) -> Result<Vec<Compared>> {
    let lines: Vec<_> = text.lines().filter_map(Line::parse).collect();
    let expected = CASES.len() * rounds * 2;
    if (lines.len(), spent.len()) != (expected, expected) {
        bail!("{expected} runs gave {} lines and {} pairs of marks: {text}", lines.len(), spent.len());
    }
    let runs: Vec<_> = lines.iter().zip(spent).collect();
    let cost = |program: &str, case: Case| {
        let of_case: Vec<_> = runs.iter().filter(|(line, _)| line.is_of(program, case)).collect();
        let median_of = |value: fn(&Line, &Spent) -> f64| {
            median(of_case.iter().map(|(line, spent)| value(line, spent)).collect())
                .with_context(|| format!("no run of {program} with {case:?}"))
        };
        Ok::<_, anyhow::Error>(Cost {
            user: median_of(|line, spent| spent.user as f64 / f64::from(line.count))?,
            kernel: median_of(|line, spent| spent.kernel as f64 / f64::from(line.count))?,
            p50_ns: median_of(|line, _| line.p50_ns as f64)?,
        })
    };
    CASES.into_iter().map(|case| Ok(Compared { case, ours: cost(OURS, case)?, bare: cost(BARE, case)? })).collect()
}

pub(super) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines and stretches of one round, in which pmof's program costs so many times the bare one.
    fn round(user: u64, kernel: u64, p50: u64) -> (String, Vec<Spent>) {
        let (mut lines, mut spent) = (vec!["a line of something else".to_owned()], Vec::new());
        for Case { size_bytes, batch, count } in CASES {
            for (program, user, kernel, p50) in [(BARE, 100, 100, 100), (OURS, user, kernel, p50)] {
                lines.push(format!(
                    "{program} op=write-flush size={size_bytes} batch={batch} count={count} mode=event p50_ns={p50} p99_ns=9"
                ));
                let count = u64::from(count);
                spent.push(Spent { user: user * count, kernel: kernel * count });
            }
        }
        (lines.join("\n"), spent)
    }

    fn excesses(user: u64, kernel: u64, p50: u64) -> Vec<String> {
        let (text, spent) = round(user, kernel, p50);
        compare(&text, &spent, 1).unwrap().iter().flat_map(Compared::excesses).collect()
    }

    #[test]
    fn budgets_hold_up_to_their_limits_and_not_beyond() {
        assert_eq!(excesses(110, 101, 102), Vec::<String>::new());
        assert_eq!(excesses(111, 101, 102).len(), 3, "batches of 32 alone");
        assert_eq!(excesses(131, 101, 102).len(), 6);
        assert_eq!(excesses(100, 102, 100).len(), 6);
        assert_eq!(excesses(100, 98, 100).len(), 6, "less work is not the same work");
        let over = excesses(100, 100, 103);
        assert_eq!(over.len(), 6);
        assert_eq!(over[0], "64 B x 1: the median time 1.030 times bare verbs, not at most 1.02");
    }

    #[test]
    fn what_pmof_adds_is_reported_for_each_operation() {
        let (text, spent) = round(166, 100, 100);
        let compared = compare(&text, &spent, 1).unwrap();
        let added = [0, 3].map(|case| format!("{:.2}", compared[case].added_per_operation()));
        assert_eq!(added, ["33.00", "2.00"]);
    }

    #[test]
    fn a_run_without_its_marks_is_an_error() {
        let (text, spent) = round(100, 100, 100);
        assert!(compare(&text, &spent[1..], 1).is_err());
        assert!(compare("", &[], 1).is_err());
        assert!(compare(&text, &spent, 2).is_err());
    }

    #[test]
    fn the_median_is_the_middle_one() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(Vec::new()), None);
    }
}
