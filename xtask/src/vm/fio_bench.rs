//! `cargo xtask vm fio-bench`: one unmodified fio over our librpma and over Debian's, in one machine, on the benchmark clock.

use std::{fs, path::Path, process::ExitCode, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;

use super::{librpma::Fio, machine::Machine, running::End, testbed::Testbed};
use crate::capi;

/// For all runs, under emulation.
const TIMEOUT: Duration = Duration::from_mins(30);

/// Beginning of a line of results in the machine's output.
const RESULT_MARK: &str = "fio-bench:";

const BLOCK_BYTES: [u64; 3] = [512, 4096, 65_536];

/// The library of Debian 12 has read-after-write alone; that of 13 cannot register fio's buffers on soft-RoCE.
const LIBRARIES: [&str; 2] = ["debian", "ours"];

/// What the command runs.
#[derive(Debug, Args)]
pub(crate) struct FioBench {
    /// Writes with a flush each that a run measures
    #[arg(long, default_value_t = 500, value_name = "N", value_parser = clap::value_parser!(u32).range(10..))]
    count: u32,
    /// What the writes go to: `malloc`, which flushes to visibility, or the device-DAX, which flushes to persistence
    #[arg(long, default_value = "malloc", value_parser = ["malloc", "devdax"])]
    medium: String,
}

/// What one run of fio measured.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Measured {
    iops: f64,
    mean_us: f64,
    p50_us: f64,
}

impl FioBench {
    pub(super) fn run(&self, testbed: &Testbed) -> Result<ExitCode> {
        let fio = testbed.fio()?;
        let ours = fs::canonicalize(capi::build()?).context("finding the drop-in librpma")?;
        let staged = testbed.run_directory()?;
        let stage = |from: &Path, name: &str| {
            let to = staged.path().join(name);
            fs::copy(from.join("librpma.so.0"), &to).with_context(|| format!("copying from {}", from.display()))?;
            Ok::<_, anyhow::Error>(to)
        };
        let libraries = [stage(&testbed.librpma_of_host_release()?, "librpma-debian")?, stage(&ours, "librpma-ours")?];
        let finished = with_fio(Machine::new(testbed).icount(), &fio, &libraries)?
            .command(self.script())
            .start()?
            .wait(TIMEOUT)?;
        ensure!(finished.end == End::Exited(0), "{}; it wrote: {}", finished.explain(), finished.text());
        println!("{:>6} | {:^32} | {:^32} | p50 ratio | IOPS ratio", "bytes", "Debian's librpma", "ours");
        for bytes in BLOCK_BYTES {
            let [debian, ours] = LIBRARIES.map(|library| measured(&finished.text(), library, bytes));
            let (debian, ours) = (debian?, ours?);
            let show = |Measured { iops, mean_us, p50_us }| format!("p50 {p50_us:8.1} us {iops:7.0}/s {mean_us:6.0}");
            let (p50, iops) = (ours.p50_us / debian.p50_us, ours.iops / debian.iops);
            println!("{bytes:>6} | {:>32} | {:>32} | {p50:9.3} | {iops:10.3}", show(debian), show(ours));
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The libraries in turn, so that what drifts in the machine meets both alike. fio's terse output (its format 3) has the
    /// rate of writes in field 49, the percentiles from field 59 on, and the mean of the latency in field 81.
    fn script(&self) -> String {
        let Self { count, medium } = self;
        let (file, claim) = if medium == "malloc" { ("malloc", 0) } else { ("$PMOF_DEVDAX", 1) };
        let run = |bytes: &u64| format!("run debian {bytes}; run ours {bytes}");
        let runs = BLOCK_BYTES.iter().map(run).collect::<Vec<_>>().join("\n");
        format!(
            "mkdir -p /run/debian /run/ours; cp /host/bin/librpma-debian /run/debian/librpma.so.0
             cp /host/bin/librpma-ours /run/ours/librpma.so.0; cd /run; port=7300
             run() {{
                 port=$((port + 1)); export LD_LIBRARY_PATH=/run/$1:/host/bin
                 common=\"create_serialize=0\\ncreate_on_open=1\\nkb_base=1000\\nthread\\nserverip=$PMOF_WIRE_B\\nport=$port\\nsize=16MiB\\n\"
                 printf \"[global]\\nioengine=librpma_apm_server\\n$common[server]\\nfilename={file}\\ndirect_write_to_pmem={claim}\\ntime_based\\nruntime=365d\\n\" >server.fio
                 printf \"[global]\\nioengine=librpma_apm_client\\n$common[client]\\nrw=randwrite\\nbs=$2\\nsync=1\\niodepth=1\\nnumber_ios={count}\\nlat_percentiles=1\\nclat_percentiles=0\\n\" >client.fio
                 fio server.fio >server.txt 2>&1 & server=$!
                 sleep 1
                 fio --minimal --output=client.txt client.fio >errors.txt 2>&1 || {{ cat errors.txt client.txt server.txt; exit 1; }}
                 wait $server
                 awk -F';' -v of=\"$1 $2\" '$1 == 3 {{ p50 = 0; for (i = 59; i < 79; i++) if (split($i, pair, \"%=\") == 2 && pair[1] + 0 == 50) p50 = pair[2]
                     print \"{RESULT_MARK}\", of, $49, $81, p50 }}' client.txt
             }}
             {runs}"
        )
    }
}

fn with_fio<'a>(machine: Machine<'a>, fio: &Fio, libraries: &[std::path::PathBuf]) -> Result<Machine<'a>> {
    let brought = [fio.binary.clone()].into_iter().chain(fio.libraries()?).chain(libraries.iter().cloned());
    Ok(brought.fold(machine, |machine, file| machine.bring(&file)))
}

/// What a library measured, from the machine's output.
fn measured(text: &str, library: &str, bytes: u64) -> Result<Measured> {
    let bytes = bytes.to_string();
    let numbers = text.lines().filter_map(|line| line.strip_prefix(RESULT_MARK)).find_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let [of, size, iops, mean, p50] = words[..] else { return None };
        (of == library && size == bytes).then(|| [iops, mean, p50].map(str::parse::<f64>))
    });
    match numbers {
        Some([Ok(iops), Ok(mean_us), Ok(p50_us)]) if iops > 0.0 && p50_us > 0.0 => {
            Ok(Measured { iops, mean_us, p50_us })
        }
        found => bail!("no result of {library} with {bytes} bytes ({found:?}): {text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_results_are_found_by_library_and_size() {
        let text = "noise\nfio-bench: debian 512 100 10.5 9\nfio-bench: ours 512 200 5.5 4\n";
        let found = measured(text, "ours", 512).unwrap();
        assert_eq!(found, Measured { iops: 200.0, mean_us: 5.5, p50_us: 4.0 });
        assert!(measured(text, "ours", 4096).is_err());
        assert!(measured("fio-bench: ours 512 0 0 0\n", "ours", 512).is_err(), "nothing was measured");
    }
}
