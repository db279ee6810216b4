//! `cargo xtask fio floor`: fio over a librpma and TCP, beside raw exchanges of the same bytes.

use std::{
    env, fmt, fs,
    net::Ipv4Addr,
    path::PathBuf,
    process::{Command, ExitCode},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde_json::Value;

use super::cell_run::{Medium, Setting, free_ports, wait_for_both};
use crate::{capi, release, suites::program_file, vm::testbed::Testbed};

/// For one run of fio.
const TIMEOUT: Duration = Duration::from_secs(120);

const BLOCK_BYTES: [u32; 3] = [512, 4096, 65_536];

/// Ordinary memory of the server. It stays in the caches, as what the floors move does.
const MEMORY_BYTES: u64 = 1 << 20;

/// The release binary that has the floors, from the root of the workspace.
const PMOF: &str = "target/release/pmof";

/// Options of `fio floor`.
#[derive(Debug, Args)]
pub(crate) struct Floor {
    /// Rounds, each of which measures everything once; the medians count
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// Writes with a flush each, and exchanges, in a round
    #[arg(long, default_value_t = 4000, value_name = "N", value_parser = clap::value_parser!(u32).range(100..))]
    count: u32,
    /// The directory with the librpma.so.0 that is measured; ours, where cargo xtask capi puts it, otherwise
    #[arg(long, value_name = "DIRECTORY")]
    library: Option<PathBuf>,
}

/// One round with one block size: medians of latencies in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Round {
    fio: f64,
    /// pmof's own persist of as many bytes, both ends polling.
    persist: f64,
    /// The bytes there and eight back, both ends polling.
    polling: f64,
    /// The same where both ends sleep in the kernel.
    blocking: f64,
}

/// Medians over the rounds; ratios are those within a round.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Line {
    bytes: u32,
    round: Round,
    to_polling: f64,
    to_blocking: f64,
}

const HEADING: &str = " bytes | fio over tcp, us | pmof's persist | raw, polling | ratio | raw, blocking | ratio";

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, round, to_polling, to_blocking } = self;
        let Round { fio, persist, polling, blocking } = round;
        write!(
            f,
            "{bytes:6} | {fio:16.1} | {persist:14.1} | {polling:12.1} | {to_polling:5.2} | {blocking:13.1} | {to_blocking:5.2}"
        )
    }
}

impl Line {
    fn of(bytes: u32, rounds: &[Round]) -> Result<Self> {
        let middle = |value: fn(&Round) -> f64| median(rounds.iter().map(value).collect());
        let round = Round {
            fio: middle(|round| round.fio)?,
            persist: middle(|round| round.persist)?,
            polling: middle(|round| round.polling)?,
            blocking: middle(|round| round.blocking)?,
        };
        let to_polling = middle(|round| round.fio / round.polling)?;
        let to_blocking = middle(|round| round.fio / round.blocking)?;
        Ok(Self { bytes, round, to_polling, to_blocking })
    }
}

impl Floor {
    pub(super) fn run(&self, testbed: &Testbed) -> Result<ExitCode> {
        let here = env::current_dir().context("finding the current directory")?;
        let library = here.join(self.library.clone().unwrap_or_else(capi::directory));
        ensure!(
            library.join("librpma.so.0").exists(),
            "no librpma.so.0 in {}: run cargo xtask capi",
            library.display()
        );
        let fio = testbed.fio()?;
        let directory = here.join("target/fio").join(format!("floor-{}", std::process::id()));
        fs::create_dir_all(&directory).with_context(|| format!("making {}", directory.display()))?;
        let libraries = fio.library_path(&library);
        let setting = Setting {
            fio: fio.binary,
            server_libraries: libraries.clone(),
            client_libraries: libraries,
            transport: "tcp".to_owned(),
            address: Ipv4Addr::LOCALHOST.into(),
            medium: Medium::Directory(directory.clone()),
            directory,
        };
        let outcome = self.measure(&setting);
        fs::remove_dir_all(&setting.directory).context("removing the files of the run")?;
        outcome
    }

    fn measure(&self, setting: &Setting) -> Result<ExitCode> {
        release::build(".".as_ref())?;
        let mut rounds = BLOCK_BYTES.map(|bytes| (bytes, Vec::new()));
        for number in 1..=self.rounds {
            for (bytes, rounds) in &mut rounds {
                rounds.push(self.round(setting, *bytes)?);
            }
            eprintln!("round {number} of {}", self.rounds);
        }
        println!(
            "Medians of {} rounds of {} writes with a flush each, at 127.0.0.1; the raw exchange is the bytes there and 8 back:",
            self.rounds, self.count
        );
        println!("{HEADING}");
        for (bytes, rounds) in &rounds {
            println!("{}", Line::of(*bytes, rounds)?);
        }
        Ok(ExitCode::SUCCESS)
    }

    fn round(&self, setting: &Setting, bytes: u32) -> Result<Round> {
        let polling = self.bench(bytes, &[])?;
        let fio = self.fio(setting, bytes)?;
        let blocking = self.bench(bytes, &["--waiting", "adaptive"])?;
        let number =
            |report: &Value, field: &str| report[field].as_f64().with_context(|| format!("no {field} in {report}"));
        Ok(Round {
            fio,
            persist: number(&polling, "p50_us")?,
            polling: number(&polling, "floor_p50_us")?,
            blocking: number(&blocking, "floor_p50_us")?,
        })
    }

    fn bench(&self, bytes: u32, more: &[&str]) -> Result<Value> {
        let mut command = Command::new(program_file(PMOF));
        command.args(["bench", "latency", "--transport", "tcp", "--json", "--rounds", "1"]);
        command.args(["--size", &bytes.to_string(), "--count", &self.count.to_string()]).args(more);
        let output = command.output().context("starting pmof bench")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "pmof bench latency: {}: {errors}", output.status);
        serde_json::from_slice(&output.stdout).context("the JSON of pmof bench")
    }

    /// The median latency of a write and its flush, in microseconds.
    fn fio(&self, setting: &Setting, bytes: u32) -> Result<f64> {
        let port = free_ports(setting.address, 1)?;
        let side = |name: &str, more: &[String]| {
            let mut arguments = vec![
                format!("--name={name}"),
                format!("--ioengine=librpma_apm_{name}"),
                "--create_serialize=0".to_owned(),
                "--thread=1".to_owned(),
                "--eta=never".to_owned(),
                format!("--serverip={}", setting.address),
                format!("--port={port}"),
            ];
            arguments.extend_from_slice(more);
            arguments
        };
        // Ends that the scheduler puts onto one processor wait for each other's turns.
        let [first, second] =
            two_processors(&fs::read_to_string("/proc/self/status").context("reading /proc/self/status")?)?;
        let memory = format!("--size={MEMORY_BYTES}");
        let words =
            ["--create_on_open=1".to_owned(), "--filename=malloc".to_owned(), format!("--cpus_allowed={second}")];
        let server = side("server", &[&[memory], &words[..]].concat());
        let report = setting.directory.join("floor-client.json");
        let words = ["--rw=randwrite", "--sync=1", "--iodepth=1", "--output-format=json", "--lat_percentiles=1"];
        let mut more: Vec<_> = words.map(str::to_owned).into();
        more.push(format!("--output={}", report.display()));
        more.push(format!("--bs={bytes}"));
        more.push(format!("--cpus_allowed={first}"));
        // Blocks are written again and again.
        more.push("--norandommap=1".to_owned());
        more.push(format!("--io_size={}", u64::from(bytes) * u64::from(self.count)));
        let client = side("client", &more);
        let mut server = setting.start("floor-server", &setting.server_libraries, server)?;
        setting.wait_for_listeners(port, 1, &mut server)?;
        let mut client = setting.start("floor-client", &setting.client_libraries, client)?;
        let ends = wait_for_both([&mut client, &mut server], Instant::now() + TIMEOUT)?;
        ensure!(ends == [Some(true); 2], "fio failed (client, server: {ends:?}){}", setting.last_words("floor"));
        let json = fs::read_to_string(&report).with_context(|| format!("reading {}", report.display()))?;
        latency_us(&json)
    }
}

/// The first two processors that this process may use, as the floors take them; from `/proc/self/status`, as in `0-1,4`.
fn two_processors(status: &str) -> Result<[u32; 2]> {
    let list =
        status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).context("no list of processors")?;
    let mut found = Vec::new();
    for range in list.trim().split(',') {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        found.extend((from.parse::<u32>()?..=to.parse()?).take(2));
    }
    match found[..] {
        [first, second, ..] => Ok([first, second]),
        _ => anyhow::bail!("this process may use one processor: {}; two ends need one each", list.trim()),
    }
}

/// The median of the latency of writes, in microseconds, from fio's report.
fn latency_us(json: &str) -> Result<f64> {
    let start = json.find('{').context("fio wrote no JSON")?;
    let report: Value = serde_json::from_str(&json[start..]).context("fio's JSON")?;
    let median_ns = report["jobs"][0]["write"]["lat_ns"]["percentile"]["50.000000"].as_f64();
    Ok(median_ns.filter(|found| *found > 0.0).context("no median in fio's report")? / 1e3)
}

fn median(mut values: Vec<f64>) -> Result<f64> {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().context("no rounds")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_those_within_a_round() {
        let round = |fio, polling| Round { fio, persist: 1.0, polling, blocking: 2.0 * polling };
        // A slow round is slow for both.
        let line = Line::of(512, &[round(30.0, 10.0), round(90.0, 30.0), round(32.0, 8.0)]).unwrap();
        assert_eq!((line.round.fio, line.round.polling), (32.0, 10.0));
        assert_eq!((line.to_polling, line.to_blocking), (3.0, 1.5));
        Line::of(512, &[]).unwrap_err();
    }

    #[test]
    fn processors_are_read_from_the_kernels_list() {
        let of = |list| two_processors(&format!("Name:\tx\nCpus_allowed_list:\t{list}\nMems_allowed:\t1\n"));
        assert_eq!(of("0-7").unwrap(), [0, 1]);
        assert_eq!(of("2,5-6").unwrap(), [2, 5]);
        assert!(of("3").unwrap_err().to_string().contains("one processor"));
    }

    #[test]
    fn the_median_is_taken_from_the_report() {
        let json = r#"hint {"jobs": [{"write": {"lat_ns": {"mean": 9, "percentile": {"50.000000": 17500}}}}]}"#;
        assert!((latency_us(json).unwrap() - 17.5).abs() < 1e-9);
        assert!(latency_us(&json.replace("17500", "0")).is_err());
    }
}
