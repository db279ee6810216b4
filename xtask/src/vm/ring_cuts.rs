//! Power cuts in the middle of appends to a ring in persistent memory (read-after-send), whose target's program does nothing.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use cache_model::{Choice, Domain, Options, Tear};

use super::{
    devices,
    machine::{Machine, Persistence, PortTarget},
    modelled::{Modelled, Referees},
    report::Report,
    running::End,
    testbed::Testbed,
};

const LOAD: &str = "rings::load_until_the_power_is_cut";
const CHECK: &str = "rings::what_was_flushed_is_there_after_the_power_cut";

/// The cut comes when so many appends are flushed, or soon after.
const FLUSHED_MIN: u64 = 40;

/// Time for a machine to boot and to get there, or to check.
const TIMEOUT: Duration = Duration::from_secs(300);

/// How a check that found records missing says so.
const LOST: &str = "LOST";

pub(super) fn run(testbed: &Testbed, report: &mut Report) -> Result<()> {
    let referees = Referees::build(testbed)?;
    let tests = devices::conformance(testbed)?;
    let kept = cut(testbed, &referees, &tests, Domain::Eadr)?;
    let outcome = kept.found.then_some(()).with_context(|| format!("a flushed record is lost: {}", kept.text));
    report.test("read-after-send on devdax, caches kept: every flushed record is there", outcome);
    let lost = cut(testbed, &referees, &tests, Domain::Adr)?;
    let is_seen = !lost.found && lost.text.contains(LOST);
    let outcome = is_seen.then_some(()).with_context(|| format!("nothing is lost: {}", lost.text));
    report.test("control loses: read-after-send, where the firmware wrongly says that caches are kept", outcome);
    Ok(())
}

/// What the check after a cut said.
struct Verdict {
    found: bool,
    text: String,
}

fn cut(testbed: &Testbed, referees: &Referees, tests: &Path, domain: Domain) -> Result<Verdict> {
    let modelled = Modelled::new(testbed)?;
    let options = Options { domain, ..modelled.options()? };
    let ledger = modelled.directory().join("ledger");
    let name = tests.file_name().and_then(|name| name.to_str()).context("the tests have a name")?;
    let command = |variable: &str, test: &str| format!("{variable} exec {name} --ignored --exact {test} 2>&1");
    let running = modelled
        .machine(testbed, referees, &options)
        .persistence(Persistence::Cpu)
        .bring(tests)
        .port("ledger", PortTarget::File(ledger.clone()))
        .command(command("PMOF_RING_LEDGER=$PMOF_PORT_LEDGER", LOAD))
        .start()?;
    let began = std::time::Instant::now();
    while flushed(&ledger) < FLUSHED_MIN && began.elapsed() < TIMEOUT {
        std::thread::sleep(Duration::from_millis(50));
    }
    let finished = running.cut_power()?;
    ensure!(finished.end == End::PowerCut, "{}; it wrote {}", finished.explain(), finished.text());
    let flushed = flushed(&ledger);
    ensure!(flushed >= FLUSHED_MIN, "only {flushed} records were flushed in time; it wrote {}", finished.text());
    modelled.followed()?;
    // Where caches are kept the model leaves the medium alone: what programs saw is what survives.
    if domain == Domain::Adr {
        modelled.power_on(Choice::None, Tear::Lines)?;
    }
    let finished = Machine::new(testbed)
        .media(modelled.media().clone())
        .persistence(Persistence::Cpu)
        .bring(tests)
        .command(command(&format!("PMOF_RING_FLUSHED={flushed}"), CHECK))
        .start()?
        .wait(TIMEOUT)?;
    Ok(Verdict { found: finished.end == End::Exited(0), text: finished.text() })
}

/// The last whole line of the ledger.
fn flushed(ledger: &Path) -> u64 {
    let text = fs::read_to_string(ledger).unwrap_or_default();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().last().and_then(|line| line.trim().parse().ok()).unwrap_or(0)
}
