//! `cargo xtask vm fio-bench`: one unmodified fio over our librpma and over Debian's, in one machine, on the benchmark clock.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use instruction_counter::Spent;

use super::{bench::median, machine::Machine, modelled::Referees, running::End, testbed::Testbed};
use crate::capi;

/// For all runs, under emulation and with the counter.
const TIMEOUT: Duration = Duration::from_secs(1800);

/// Begins the line before fio's report in the machine's output: library, block size, count, and the median latency in
/// nanoseconds, of all that fio logged. That of its report is the middle of a step of one or two percent.
const RESULT_MARK: &str = "fio-bench:";

/// The library of Debian 12: that of 13 cannot register fio's buffers on soft-RoCE.
const DEBIAN: &str = "debian";
const OURS: &str = "ours";

const BLOCK_BYTES: [u32; 3] = [512, 4096, 65_536];

/// Ours may take so many times as long as Debian's, and spend so many times its user instructions.
const TIME_RATIO_MAX: f64 = 1.02;
const USER_RATIO_MAX: f64 = 1.1;

/// What the command runs.
#[derive(Debug, Args)]
pub(crate) struct FioBench {
    /// Rounds of each library with each block size; the medians count
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// Writes with a flush each in a round; of 64 KiB a fourth of them
    #[arg(long, default_value_t = 800, value_name = "N", value_parser = clap::value_parser!(u32).range(400..=4000))]
    count: u32,
    /// What the writes go to: `malloc`, which flushes to visibility, or the device-DAX, which flushes to persistence
    #[arg(long, default_value = "malloc", value_parser = ["malloc", "devdax"])]
    medium: String,
    /// Exit with 1 where a budget is exceeded
    #[arg(long)]
    check: bool,
}

/// What one run of fio measured.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Measured {
    count: f64,
    iops: f64,
    mean_ns: f64,
    p50_ns: f64,
    /// Of the whole machine while fio's client ran.
    spent: Spent,
}

/// Medians over the rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cost {
    iops: f64,
    mean_ns: f64,
    p50_ns: f64,
    /// Instructions of programs for one write and flush, on both sides: mostly fio's client, which spins.
    user: f64,
}

/// Both libraries with one block size.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Compared {
    bytes: u32,
    debian: Cost,
    ours: Cost,
}

impl Compared {
    fn ratios(&self) -> [(&'static str, f64, f64); 4] {
        let Self { debian, ours, .. } = self;
        [
            ("the median latency", ours.p50_ns / debian.p50_ns, TIME_RATIO_MAX),
            ("the mean latency", ours.mean_ns / debian.mean_ns, TIME_RATIO_MAX),
            ("the time of an operation", debian.iops / ours.iops, TIME_RATIO_MAX),
            ("user instructions", ours.user / debian.user, USER_RATIO_MAX),
        ]
    }

    /// The budgets that are exceeded, in words.
    fn excesses(&self) -> Vec<String> {
        let over = self.ratios().into_iter().filter(|(_, ratio, most)| ratio > most);
        over.map(|(what, ratio, most)| format!("{} B: {what} {ratio:.3} times Debian's, not {most}", self.bytes))
            .collect()
    }
}

const HEADING: &str =
    " bytes |  p50 us  Debian  ratio | mean us  Debian  ratio |    IOPS  Debian  ratio |    user  Debian  ratio";

impl fmt::Display for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, debian, ours } = self;
        write!(f, "{bytes:6}")?;
        let columns = [
            (ours.p50_ns / 1e3, debian.p50_ns / 1e3, 1),
            (ours.mean_ns / 1e3, debian.mean_ns / 1e3, 1),
            (ours.iops, debian.iops, 0),
            (ours.user, debian.user, 0),
        ];
        for (ours, debian, digits) in columns {
            write!(f, " | {ours:7.digits$} {debian:7.digits$} {:6.3}", ours / debian)?;
        }
        Ok(())
    }
}

impl FioBench {
    pub(super) fn run(&self, testbed: &Testbed) -> Result<ExitCode> {
        let fio = testbed.fio()?;
        let referees = Referees::build(testbed)?;
        let ours = fs::canonicalize(capi::build()?).context("finding the drop-in librpma")?;
        let staged = testbed.run_directory()?;
        let log = staged.path().join("marks");
        let mut machine = Machine::new(testbed).icount().plugin(referees.instruction_counter(&log));
        for (library, directory) in [(DEBIAN, testbed.librpma_of_host_release()?), (OURS, ours)] {
            machine = machine.bring(&stage(&directory, staged.path(), library)?);
        }
        let brought = [fio.binary.clone(), referees.probe()].into_iter().chain(fio.libraries()?);
        let machine = brought.fold(machine, |machine, file| machine.bring(&file));
        let finished = machine.command(self.script()).start()?.wait(TIMEOUT)?;
        ensure!(finished.end == End::Exited(0), "{}; it wrote: {}", finished.explain(), finished.text());
        let spent = instruction_counter::between(&instruction_counter::read_log(&log)?, 1, 2);
        let compared = compare(&finished.text(), &spent)?;
        println!(
            "{} writes with a flush each to {}, medians of {} rounds:\n{HEADING}",
            self.count, self.medium, self.rounds
        );
        for line in &compared {
            println!("{line}");
        }
        let excesses: Vec<_> = compared.iter().flat_map(Compared::excesses).collect();
        for excess in &excesses {
            eprintln!("over budget: {excess}");
        }
        Ok(if self.check && !excesses.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    /// The libraries in turn, so that what drifts in the machine meets both alike. Each twice: what a tenth of the writes cost is
    /// taken off, and with it what fio's beginning and end do.
    ///
    /// Servers have no limit of time (`time_based`): idle time is skipped on this clock, and one that waits for its year to pass
    /// never ends.
    fn script(&self) -> String {
        let Self { rounds, medium, .. } = self;
        let (file, claim) = if medium == "malloc" { ("malloc", 0) } else { ("$PMOF_DEVDAX", 1) };
        let runs = BLOCK_BYTES.iter().flat_map(|bytes| {
            let count = self.count / if *bytes > 4096 { 4 } else { 1 };
            let of_count = move |count| [DEBIAN, OURS].map(|library| format!("run {library} {bytes} {count}\n"));
            [count / 10, count].into_iter().flat_map(of_count)
        });
        let runs: String = runs.collect();
        format!(
            "for library in {DEBIAN} {OURS}; do
                 mkdir -p /run/$library; cp /host/bin/librpma-$library /run/$library/librpma.so.0
             done
             cd /run; port=7300
             run() {{
                 port=$((port + 1)); export LD_LIBRARY_PATH=/run/$1:/host/bin
                 common=\"create_serialize=0\\ncreate_on_open=1\\nkb_base=1000\\nthread\\nclocksource=clock_gettime\\nserverip=$PMOF_WIRE_B\\nport=$port\\nsize=64MiB\\n\"
                 printf \"[global]\\nioengine=librpma_apm_server\\n$common[server]\\nfilename={file}\\ndirect_write_to_pmem={claim}\\n\" >server.fio
                 printf \"[global]\\nioengine=librpma_apm_client\\n$common[client]\\nrw=randwrite\\nbs=$2\\nsync=1\\niodepth=1\\nnumber_ios=$3\\nwrite_lat_log=client\\n\" >client.fio
                 fio server.fio >server.txt 2>&1 & server=$!
                 until rdma resource show cm_id | grep -q \":$port \"; do sleep 0.1; kill -0 $server || {{ cat server.txt; exit 1; }}; done
                 referee-probe mark-begin
                 fio --eta=never --output-format=json --output=client.txt client.fio >errors.txt 2>&1 || {{ cat errors.txt client.txt server.txt; exit 1; }}
                 referee-probe mark-end
                 wait $server
                 median=$(cut -d, -f2 client_lat.1.log | tr -d \" \" | sort -n | sed -n \"$((($3 + 1) / 2))p\")
                 echo \"{RESULT_MARK} $1 $2 $3 $median\"; tr -d '\\n' <client.txt; echo
             }}
             for round in $(seq {rounds}); do
             {runs}
             done"
        )
    }
}

/// What is brought is a file of this name, not a link to it.
fn stage(directory: &Path, into: &Path, library: &str) -> Result<PathBuf> {
    let to = into.join(format!("librpma-{library}"));
    fs::copy(directory.join("librpma.so.0"), &to).with_context(|| format!("copying from {}", directory.display()))?;
    Ok(to)
}

/// Puts fio's reports and the stretches between the marks together, which came in the same order.
fn compare(text: &str, spent: &[Spent]) -> Result<Vec<Compared>> {
    let lines: Vec<_> = text.lines().collect();
    let marked = lines.windows(2).filter_map(|pair| Some((pair[0].strip_prefix(RESULT_MARK)?.trim(), pair[1])));
    let mut runs = Vec::new();
    for (number, (of, report)) in marked.enumerate() {
        let words = of.rsplit_once(' ').and_then(|(of, p50_ns)| Some((of.rsplit_once(' ')?, p50_ns)));
        let ((of, count), p50_ns) = words.with_context(|| format!("a run without its count and median: {of}"))?;
        let spent = *spent.get(number).with_context(|| format!("run {number} has no marks"))?;
        runs.push((of, measured(count.parse()?, p50_ns.parse()?, report, spent)?));
    }
    ensure!(runs.len() == spent.len(), "{} runs and {} pairs of marks: {text}", runs.len(), spent.len());
    BLOCK_BYTES
        .into_iter()
        .map(|bytes| {
            let cost = |library| cost(&runs, &format!("{library} {bytes}"));
            Ok(Compared { bytes, debian: cost(DEBIAN)?, ours: cost(OURS)? })
        })
        .collect()
}

fn measured(count: f64, p50_ns: f64, report: &str, spent: Spent) -> Result<Measured> {
    let start = report.find('{').context("fio wrote no JSON")?;
    let report: serde_json::Value = serde_json::from_str(&report[start..]).context("fio's JSON")?;
    let write = &report["jobs"][0]["write"];
    let number = |value: &serde_json::Value, name| value.as_f64().filter(|found| *found > 0.0).context(name);
    ensure!(write["total_ios"].as_f64() == Some(count), "{} writes instead of {count}", write["total_ios"]);
    Ok(Measured {
        count,
        iops: number(&write["iops"], "IOPS in fio's report")?,
        mean_ns: number(&write["lat_ns"]["mean"], "a mean in fio's report")?,
        p50_ns,
        spent,
    })
}

/// The medians of one library and block size: times of the long runs, instructions by their difference from the short ones.
fn cost(runs: &[(&str, Measured)], of: &str) -> Result<Cost> {
    let of_case = || runs.iter().filter(|(name, _)| *name == of).map(|(_, measured)| measured);
    let longest = of_case().map(|run| run.count).fold(0.0, f64::max);
    let (long, short): (Vec<_>, Vec<_>) = of_case().partition(|run| run.count >= longest);
    let middle = |runs: &[&Measured], value: fn(&Measured) -> f64| {
        median(runs.iter().map(|run| value(run)).collect()).with_context(|| format!("no run of {of}"))
    };
    let count = longest - middle(&short, |run| run.count)?;
    let each =
        |value: fn(&Measured) -> f64| Ok::<_, anyhow::Error>((middle(&long, value)? - middle(&short, value)?) / count);
    Ok(Cost {
        iops: middle(&long, |run| run.iops)?,
        mean_ns: middle(&long, |run| run.mean_ns)?,
        p50_ns: middle(&long, |run| run.p50_ns)?,
        user: each(|run| run.spent.user as f64)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a machine writes whose library takes so long, and what it spends for it.
    fn round(times: [u64; 2], user: [u64; 2]) -> (String, Vec<Spent>) {
        let (mut text, mut spent) = ("noise\n".to_owned(), Vec::new());
        for bytes in BLOCK_BYTES {
            for count in [10_u64, 100] {
                for (number, library) in [DEBIAN, OURS].into_iter().enumerate() {
                    let (time, rate) = (times[number], 1e9 / times[number] as f64);
                    let line = format!(
                        "{RESULT_MARK} {library} {bytes} {count} {time}\nNote: x{{\"jobs\": [{{\"write\": {{\"total_ios\": {count}, \
                         \"iops\": {rate}, \"lat_ns\": {{\"mean\": {time}}}}}}}]}}\n"
                    );
                    text.push_str(&line);
                    spent.push(Spent { user: 5000 + user[number] * count, kernel: 70_000 + 9 * count });
                }
            }
        }
        (text, spent)
    }

    #[test]
    fn what_fio_does_once_is_not_counted() {
        let (text, spent) = round([1000, 1010], [200, 210]);
        let compared = compare(&text, &spent).unwrap();
        assert_eq!(compared.len(), 3);
        for one in compared {
            assert_eq!((one.debian.user, one.ours.user), (200.0, 210.0));
            assert_eq!((one.debian.p50_ns, one.ours.mean_ns), (1000.0, 1010.0));
            assert_eq!(one.excesses(), Vec::<String>::new());
        }
    }

    #[test]
    fn budgets_are_kept_or_named() {
        let (text, spent) = round([1000, 1030], [200, 221]);
        let excesses: Vec<_> = compare(&text, &spent).unwrap().iter().flat_map(Compared::excesses).collect();
        assert_eq!(excesses.len(), 12);
        assert_eq!(excesses[3], "512 B: user instructions 1.105 times Debian's, not 1.1");
    }

    #[test]
    fn a_run_that_is_missing_is_an_error() {
        let (text, spent) = round([1, 1], [1, 1]);
        assert!(compare(&text, &spent[1..]).is_err());
        assert!(compare("", &[]).is_err());
        assert!(compare(&text.replace("\"total_ios\": 100", "\"total_ios\": 99"), &spent).is_err());
    }
}
