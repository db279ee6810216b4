//! Programs for librpma over verbs, with our library and with Debian's: what both do alike is what the judges expect; and with one
//! of them on either side, since both speak the same over the wire.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result, ensure};

use super::{
    devices::{parts, report_part, script_of_part},
    librpma::Fio,
    machine::Machine,
    report::Report,
    running::End,
    testbed::Testbed,
};
use crate::{capi, counts::Runner};

/// Time for one machine with all that it runs.
const TIMEOUT: Duration = Duration::from_secs(1500);

/// One program in a machine; its last line are its counts.
struct Run {
    /// Without an apostrophe: a shell writes it.
    what: String,
    script: String,
}

/// The cells of fio's matrix that an emulated machine does in a minute: each engine with each access, on device-DAX; a soak has those on
/// ordinary memory.
const CELLS: &str = "4096 B, depth 8, 1 threads, medium";
const SOAK_CELLS: &str = "4096 B, depth 8, 1 threads, dram";

/// Those of two libraries: writes of all four engines, on both.
const CELLS_OF_TWO: &str = " write 4096 B, depth 8, 1 threads";

/// Connections that one process has at once, in every run and in the soak; and of Debian's library, whose time for as many is told
/// beside ours.
const CONNECTIONS: u32 = 200;
const SOAK_CONNECTIONS: u32 = 1000;
const TIMED_CONNECTIONS: u32 = 256;

pub(super) fn run(testbed: &Testbed, report: &mut Report) -> Result<()> {
    run_in(testbed, &every(), report)
}

/// What every run leaves out.
pub(super) fn run_soak(testbed: &Testbed, report: &mut Report) -> Result<()> {
    run_in(testbed, &soak(), report)
}

fn every() -> Vec<Run> {
    let mut runs = vec![
        of_debian("Debian 13: each function", "--reference --pmem $PMOF_DEVDAX $PMOF_WIRE_B"),
        check("ours: each function", "--pmem $PMOF_DEVDAX $PMOF_WIRE_B"),
        Run {
            what: "ours: connecting and flushing, IPv6".to_owned(),
            script:
                "rpma-check --only connecting $PMOF_IPV6 && rpma-check --only flushing --pmem $PMOF_DEVDAX $PMOF_IPV6"
                    .to_owned(),
        },
        Run {
            what: "ours, connections of pmof: each function".to_owned(),
            script: "PMOF_WIRE=pmof rpma-check --pmem $PMOF_DEVDAX $PMOF_WIRE_B".to_owned(),
        },
        engines("ours", "ours", CELLS),
    ];
    for libraries in [("debian", "ours"), ("ours", "debian")] {
        runs.extend(two_ends(libraries, "device-DAX", "--pmem $PMOF_DEVDAX"));
    }
    // fio's clients register ordinary memory for persistent flushes, which librpma 1.3 passes on to a device that refuses it.
    runs.push(engines("debian", "ours", CELLS_OF_TWO));
    runs.push(engines("ours", "debian12", CELLS_OF_TWO));
    runs.extend(many_connections("ours", CONNECTIONS));
    runs
}

fn soak() -> Vec<Run> {
    let mut runs = vec![
        of_debian("Debian 13: each function, IPv6", "--reference --pmem $PMOF_DEVDAX $PMOF_IPV6"),
        check("ours: each function, IPv6", "--pmem $PMOF_DEVDAX $PMOF_IPV6"),
    ];
    for libraries in [("debian", "ours"), ("ours", "debian")] {
        runs.extend(two_ends(libraries, "DRAM", ""));
    }
    for (medium, pmem) in [("DRAM", ""), ("device-DAX", "--pmem $PMOF_DEVDAX")] {
        runs.extend(two_ends(("ours", "ours"), medium, pmem));
    }
    runs.push(engines("ours", "ours", SOAK_CELLS));
    runs.extend(many_connections("debian", TIMED_CONNECTIONS));
    runs.extend(many_connections("ours", SOAK_CONNECTIONS));
    runs.push(Run { what: "instructions of calls, beside Debian's".to_owned(), script: COST.to_owned() });
    runs
}

fn check(what: &str, arguments: &str) -> Run {
    Run { what: what.to_owned(), script: format!("rpma-check {arguments}") }
}

fn of_debian(what: &str, arguments: &str) -> Run {
    Run { what: what.to_owned(), script: format!("LD_LIBRARY_PATH=/run/debian rpma-check {arguments}") }
}

/// Engines of fio, a library on either side.
fn engines(server: &str, client: &str, cells: &str) -> Run {
    Run {
        what: format!("server {server}, client {client}: engines of fio"),
        script: format!(
            "cd /run && xtask fio matrix --fio /host/bin/fio --library /run/{client} --server-library /run/{server} \
             --transport verbs --address $PMOF_WIRE_B --medium $PMOF_DEVDAX --only '{cells}'"
        ),
    }
}

fn many_connections(library: &str, count: u32) -> [Run; 2] {
    two_ends((library, library), &format!("{count} connections"), &format!("--many {count}"))
}

/// Each library in a directory of its own, and what fio needs beside it.
const DIRECTORIES: &str = "for library in ours debian debian12; do mkdir -p /run/$library; cp /host/bin/*.so* /run/$library/; done; \
     for library in debian debian12; do cp /host/bin/librpma-$library.so.0 /run/$library/librpma.so.0; done";

/// User instructions of an operation and of collecting its completion, the provider's among them: at most 1.2 times those of Debian's library.
const COST: &str = r##"
cost() {
    export LD_LIBRARY_PATH=/run/$1
    rpma-check --end server --port 7500 --$2 100 $PMOF_WIRE_B >/run/server.log 2>&1 &
    sleep 1
    valgrind --tool=callgrind --callgrind-out-file=/run/cost --toggle-collect=rpma_write --toggle-collect=rpma_flush \
        --toggle-collect=rpma_read --toggle-collect=rpma_cq_get_wc \
        rpma-check --end client --port 7500 --$2 100 $PMOF_WIRE_B >/run/client.log 2>&1 || tail -n 3 /run/client.log >&2
    wait
    sed -n "s/^summary: //p" /run/cost
}
passed=0 failed=0
for operation in writes reads; do
    ours=$(cost ours $operation) debian=$(cost debian $operation)
    echo "# 100 $operation: $ours instructions, Debian's $debian"
    if [ "${ours:-0}" -gt 0 ] && [ $((10 * ours)) -le $((12 * ${debian:-0})) ]; then
        echo "ok $operation take at most 1.2 times the instructions"
        passed=$((passed + 1))
    else
        echo "not ok $operation take at most 1.2 times the instructions"
        failed=$((failed + 1))
    fi
done
echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
"##;

/// The client, and then what the server said.
fn two_ends((server, client): (&str, &str), of: &str, options: &str) -> [Run; 2] {
    let end = |end, library| {
        format!("LD_LIBRARY_PATH=/run/{library} rpma-check --end {end} --port 7500 {options} $PMOF_WIRE_B")
    };
    let (serve, connect) = (end("server", server), end("client", client));
    let what = format!("server {server}, client {client}, {of}");
    [
        Run {
            what: format!("{what}: the client"),
            script: format!("({serve} >/run/server.log 2>&1; echo $? >/run/server.exit) & sleep 0.5; {connect}"),
        },
        Run {
            what: format!("{what}: the server"),
            script: "for turn in 1 2 3 4 5 6 7 8 9 10; do [ -e /run/server.exit ] || sleep 1; done; \
                     cat /run/server.log; exit=$(cat /run/server.exit); rm -f /run/server.exit; exit $exit"
                .to_owned(),
        },
    ]
}

/// fio, what it is linked to, and this program, which runs it.
fn with_fio<'a>(machine: Machine<'a>, fio: &Fio) -> Result<Machine<'a>> {
    let xtask = std::env::current_exe().context("finding xtask's own file")?;
    let brought = [fio.binary.clone(), xtask].into_iter().chain(fio.libraries()?);
    Ok(brought.fold(machine, |machine, file| machine.bring(&file)))
}

/// Runs all in one machine that has every library.
fn run_in(testbed: &Testbed, runs: &[Run], report: &mut Report) -> Result<()> {
    let staged = testbed.run_directory()?;
    let ours = fs::canonicalize(capi::build()?).context("finding the drop-in librpma")?;
    let libraries = [
        ("librpma.so.0", ours),
        ("librpma-debian.so.0", testbed.librpma_reference()?),
        ("librpma-debian12.so.0", testbed.librpma_of_host_release()?),
    ];
    let program = testbed.build_rpma_check(staged.path())?;
    let mut machine = with_fio(Machine::new(testbed).bring(&program), &testbed.fio()?)?;
    for (name, directory) in libraries {
        // What is brought is a file of this name, not a link to it.
        let file = staged.path().join(name);
        fs::copy(directory.join("librpma.so.0"), &file)
            .with_context(|| format!("copying from {}", directory.display()))?;
        machine = machine.bring(&file);
    }
    let part = |run: &Run| {
        script_of_part(&run.what, &format!("export LD_LIBRARY_PATH=/host/bin PMOF_TRANSPORT=verbs; {}", run.script))
    };
    let script: String = runs.iter().map(part).collect();
    let finished = machine.command(format!("{DIRECTORIES}\n{script}")).start()?.wait(TIMEOUT)?;
    let text = finished.text();
    for (run, part) in runs.iter().zip(parts(&text)) {
        for line in part.lines().filter(|line| is_failure(line)) {
            println!("{}: {line}", run.what);
        }
        report_part(report, &run.what, part, Runner::Closing, &finished);
    }
    ensure!(finished.end == End::Exited(0), "the machine: {}", finished.explain());
    Ok(())
}

/// What is worth showing of an output of a thousand lines.
fn is_failure(line: &str) -> bool {
    ["not ok ", "# returned ", "# connecting ", "Bail out!", "FAILED ", "=="]
        .iter()
        .any(|begin| line.starts_with(begin))
}
