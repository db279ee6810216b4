//! `cargo xtask vm test`: the suites that need machines.

use std::{panic::resume_unwind, process::ExitCode, thread, time::Instant};

use anyhow::{Result, ensure};
use pmof_locks::Mutex;

use super::{
    devices, guest_suite, librpma_suite, media, pools, power_cuts, referees, report::Report, ring_cuts,
    testbed::Testbed,
};
use crate::counts::Counts;

/// One suite: a name, what it is about, and what runs it.
struct Suite {
    name: &'static str,
    about: &'static str,
    /// Left out of every run: what takes too long, or repeats on a further medium or device what another suite has shown.
    is_soak: bool,
    run: fn(&Testbed, &mut Report) -> Result<()>,
}

/// All suites, in the order in which they begin: the longest first, so that none is left running by itself for long.
const SUITES: &[Suite] = &[
    Suite {
        name: "conformance",
        about: "the conformance suite of the access layer over verbs, on every medium and kind of device",
        is_soak: false,
        run: devices::run_conformance,
    },
    Suite {
        name: "power-cuts",
        about: "power cuts in replicated write loads: every combination once",
        is_soak: false,
        run: power_cuts::run,
    },
    Suite {
        name: "libfabric",
        about: "libfabric 2.1's tcp and verbs: what of the conformance suite the provider decides, and refusals",
        is_soak: false,
        run: devices::run_libfabric,
    },
    Suite {
        name: "power-cut-controls",
        about: "power cuts in loads that must lose",
        is_soak: false,
        run: power_cuts::run_controls,
    },
    Suite {
        name: "devices",
        about: "RDMA and persistent memory: the bindings, the safe layer, pools and examples",
        is_soak: false,
        run: devices::run,
    },
    Suite {
        name: "librpma",
        about: "the drop-in librpma over verbs, and Debian's own: each function, fio's engines",
        is_soak: false,
        run: librpma_suite::run,
    },
    Suite {
        name: "pools",
        about: "pools over verbs: receipts, refusals, the demo, CXL memory, no rdma-core",
        is_soak: false,
        run: pools::run,
    },
    Suite {
        name: "rds",
        about: "the conformance suite of the access layer over RDS, and memory by cookies",
        is_soak: false,
        run: devices::run_rds,
    },
    Suite { name: "referees", about: "the cache model and the lossy disk", is_soak: false, run: referees::run },
    Suite {
        name: "ring-cuts",
        about: "power cuts in appends to a ring in persistent memory, whose target's program does nothing",
        is_soak: false,
        run: ring_cuts::run,
    },
    Suite {
        name: "media-short",
        about: "the doctor on eight stacks of media built live: disks, device-mapper, LUKS, LVM, DAX",
        is_soak: false,
        run: media::selection,
    },
    Suite {
        name: "guest",
        about: "the test bed itself: devices, media, exit codes, power cuts",
        is_soak: true,
        run: guest_suite::run,
    },
    Suite {
        name: "devices-soak",
        about: "all of the conformance suite on further media and over iWARP, a thousand connections under memcheck",
        is_soak: true,
        run: devices::run_soak,
    },
    Suite {
        name: "libfabric-soak",
        about: "all of the conformance suite over libfabric 2.1's tcp, verbs and verbs;ofi_rxm",
        is_soak: true,
        run: devices::run_libfabric_soak,
    },
    Suite {
        name: "rds-soak",
        about: "RDS over the loopback, and a link that is cut at random under writes, flushes and additions",
        is_soak: true,
        run: devices::run_rds_soak,
    },
    Suite {
        name: "librpma-soak",
        about: "each function over IPv6, servers and clients in further combinations, a thousand connections",
        is_soak: true,
        run: librpma_suite::run_soak,
    },
    Suite {
        name: "referees-soak",
        about: "what no other suite relies on: further cuts of the cache model, inbound=memory, the instruction counter",
        is_soak: true,
        run: referees::run_soak,
    },
    Suite {
        name: "power-cut-controls-soak",
        about: "power cuts in further loads that must lose",
        is_soak: true,
        run: power_cuts::run_further_controls,
    },
    Suite {
        name: "media",
        about: "the doctor on every stack of media, beside the flushes that come through to their disks",
        is_soak: true,
        run: media::all,
    },
];

/// Which of them are to run.
#[derive(Clone, Copy, Debug)]
pub(super) enum Choice<'a> {
    Every,
    Soaks,
    Only(&'a str),
}

/// No other suite runs beside these, whose tests have limits of time.
const ALONE: &[&str] = &["conformance", "libfabric", "libfabric-soak", "devices", "power-cuts"];

/// Runs the chosen ones; the last line printed is that of the counts.
pub(super) fn run(testbed: &Testbed, choice: Choice<'_>, list: bool) -> Result<ExitCode> {
    if list {
        for suite in SUITES {
            let soak = if suite.is_soak { " (soak)" } else { "" };
            println!("{}: {}{soak}", suite.name, suite.about);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let is_chosen = |suite: &&Suite| match choice {
        Choice::Every => !suite.is_soak,
        Choice::Soaks => suite.is_soak,
        Choice::Only(name) => name == suite.name,
    };
    let chosen: Vec<_> = SUITES.iter().filter(is_chosen).collect();
    let names: Vec<_> = SUITES.iter().map(|suite| suite.name).collect();
    ensure!(!chosen.is_empty(), "no such suite: {choice:?}; there are: {}", names.join(", "));
    let (mut total, mut lines) = (Counts::default(), Vec::new());
    let (alone, others): (Vec<&Suite>, Vec<&Suite>) = chosen.into_iter().partition(|suite| ALONE.contains(&suite.name));
    let beside = two_at_once(&others, |suite| suite.run(testbed));
    for (counts, line) in beside.into_iter().chain(alone.iter().map(|suite| suite.run(testbed))) {
        lines.push(line);
        total += counts;
    }
    println!("\n{}\n{total}", lines.join("\n"));
    Ok(if total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Suite {
    /// Its counts, and a line that says them.
    fn run(&self, testbed: &Testbed) -> (Counts, String) {
        println!("== vm {}: {}", self.name, self.about);
        let start = Instant::now();
        let mut report = Report::new(self.name);
        if let Err(error) = (self.run)(testbed, &mut report) {
            report.test("to its end", Err(error));
        }
        let counts = report.counts();
        (counts, format!("vm {}: {counts} in {:.1} s", self.name, start.elapsed().as_secs_f64()))
    }
}

/// Runs items in their order, two at a time: a machine has one processor until its devices are there, and waits much of the
/// time. The outcomes are in the order of the items.
fn two_at_once<T: Sync, O: Send>(items: &[T], run: impl Fn(&T) -> O + Sync) -> Vec<O> {
    let left = Mutex::new(items.iter().enumerate());
    let row = || {
        let mut outcomes = Vec::new();
        loop {
            let next = left.lock().next();
            let Some((at, item)) = next else { return outcomes };
            outcomes.push((at, run(item)));
        }
    };
    let mut outcomes = thread::scope(|scope| {
        let beside = scope.spawn(row);
        let mut outcomes = row();
        outcomes.extend(beside.join().unwrap_or_else(|panic| resume_unwind(panic)));
        outcomes
    });
    outcomes.sort_by_key(|(at, _)| *at);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

#[cfg(test)]
mod tests {
    use std::{sync::Barrier, thread};

    use super::*;

    #[test]
    fn items_run_two_at_a_time_and_each_once() {
        // Whoever ran alone would wait for ever.
        let barrier = Barrier::new(2);
        let outcomes = two_at_once(&[1, 2, 3, 4], |item| {
            barrier.wait();
            (*item, thread::current().id())
        });
        assert_eq!(outcomes.iter().map(|(item, _)| *item).collect::<Vec<_>>(), [1, 2, 3, 4]);
        assert!(outcomes.iter().any(|(_, thread)| *thread != outcomes[0].1));
        assert!(two_at_once::<u8, u8>(&[], |item| *item).is_empty());
    }
}
