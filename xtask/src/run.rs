//! Running suites one after the other and summing up what came out.

use std::{
    collections::BTreeSet,
    env,
    fs::{self, File},
    io::{self, Read, Write},
    panic::resume_unwind,
    path::Path,
    process::{self, Child, Command, ExitCode, ExitStatus, Stdio},
    thread,
    time::Instant,
};

use anyhow::{Context as _, Result};
use rustix::{
    pipe::PipeFlags,
    process::{Pid, WaitId, WaitIdOptions, waitid},
};

use crate::{
    counts::{Counts, Runner},
    skips::Skips,
    suites::{Counting, Row, Suite, program_file},
};

/// How many tests nextest runs at once, unless somebody has set it.
const TEST_THREADS: &str = "NEXTEST_TEST_THREADS";

/// Most tests wait for the better part of their time: for losses, pauses and processes that start. So where there are few processors more tests run than
/// there are of these, up to as many as fit into the memory of a small machine.
const TESTS_OF_A_PROCESSOR: usize = 3;
const TESTS_OF_FEW_PROCESSORS_MAX: usize = 12;

/// How many tests run at once on so many processors.
fn tests_at_once(processors: usize) -> usize {
    (processors * TESTS_OF_A_PROCESSOR).min(TESTS_OF_FEW_PROCESSORS_MAX).max(processors)
}

/// Runs suites from the root of the workspace; prints the closing lines.
pub(crate) fn run_all(suites: &[Suite], quick: bool) -> Result<ExitCode> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the workspace's root")?;
    env::set_current_dir(root).with_context(|| format!("changing to {}", root.display()))?;
    let skips_fail = env::var_os("CI").is_some_and(|value| value == "true");
    let start = Instant::now();
    let done = run_in_order(suites, |suite| {
        if suite.row.is_none() {
            return run_or_skip(suite, quick, &mut io::stdout());
        }
        // What runs beside it writes too.
        let mut output = Vec::new();
        let outcome = run_or_skip(suite, quick, &mut output);
        let mut stdout = io::stdout().lock();
        stdout.write_all(&output)?;
        stdout.flush()?;
        outcome
    });
    let done = done.into_iter().collect::<Result<Vec<_>>>()?;
    let outcomes: Vec<_> =
        suites.iter().zip(&done).map(|(suite, (outcome, _))| (suite.name, outcome.clone())).collect();
    let times: Vec<_> = suites.iter().zip(&done).map(|(suite, (_, taken))| (suite.name, *taken)).collect();
    let (report, total) = sum_up(&outcomes, skips_fail);
    println!("\n{}\n\n{report}", table_of_times(&times, start.elapsed().as_secs_f64()));
    Ok(if total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs one suite after the other, and two rows of them beside each other where they follow each other and each is in a row. The outcomes
/// are in the order of the suites.
fn run_in_order<O: Send>(suites: &[Suite], run: impl Fn(&Suite) -> O + Sync) -> Vec<O> {
    let mut outcomes = Vec::new();
    for group in suites.chunk_by(|one, next| one.row.is_some() && next.row.is_some()) {
        if group[0].row.is_none() {
            outcomes.extend(group.iter().map(&run));
            continue;
        }
        let of_row = |row: Row| {
            let suites = group.iter().enumerate().filter(move |(_, suite)| suite.row == Some(row));
            suites.map(|(at, suite)| (at, run(suite))).collect::<Vec<_>>()
        };
        let mut of_group = thread::scope(|scope| {
            let other = scope.spawn(|| of_row(Row::Second));
            let mut outcomes = of_row(Row::First);
            outcomes.extend(other.join().unwrap_or_else(|panic| resume_unwind(panic)));
            outcomes
        });
        of_group.sort_by_key(|(at, _)| *at);
        outcomes.extend(of_group.into_iter().map(|(_, outcome)| outcome));
    }
    outcomes
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Ran(Told),
    Skipped(String),
}

/// What a suite took.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    seconds: f64,
    /// Of all processors together, for the suite's process and those below it that have ended.
    processor_seconds: f64,
}

/// Waits until the child has ended; the processor time of it and of its own children.
fn processor_seconds(child: &Child) -> Result<f64> {
    let process = Pid::from_child(child);
    // Left to be waited for, so that its times can still be read.
    waitid(WaitId::Pid(process), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)?;
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero()))?;
    let ticks = ticks(&stat).context("no processor time in /proc/PID/stat")?;
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// utime, stime, cutime and cstime, fields 14 to 17 of `proc_pid_stat(5)`; the name before them may hold blanks and parentheses.
fn ticks(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(11);
    (0..4).map(|_| fields.next()?.parse::<u64>().ok()).sum()
}

/// The suites by the time they took, the longest last, where a log that is cut short keeps them; those of less than a second are summed up. Of suites beside each other
/// the sum is more than the time of all.
fn table_of_times(times: &[(&str, Taken)], seconds_of_all: f64) -> String {
    let mut sorted: Vec<_> = times.iter().filter(|(_, taken)| taken.seconds >= 1.0).collect();
    sorted.sort_by(|(_, one), (_, other)| one.seconds.total_cmp(&other.seconds));
    let mut lines = vec![format!("{:>9} {:>11}  suite", "elapsed s", "processor s")];
    let line = |name: &str, taken: Taken| format!("{:>9.0} {:>11.0}  {name}", taken.seconds, taken.processor_seconds);
    lines.extend(sorted.iter().map(|(name, taken)| line(name, *taken)));
    let processor_seconds = times.iter().map(|(_, taken)| taken.processor_seconds).sum();
    let total = Taken { seconds: seconds_of_all, processor_seconds };
    lines.push(line("all", total));
    lines.join("\n")
}

/// What the output of a suite tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Told {
    counts: Counts,
    /// Each once: a runner may name a failed test where it fails and at its end.
    failures: BTreeSet<String>,
    /// Tests that could not run here, counted as skipped.
    skips: Skips,
}

/// The list of what was skipped and what failed, closed by the line of counts.
fn sum_up(outcomes: &[(&str, Outcome)], skips_fail: bool) -> (String, Counts) {
    let mut total = Counts::default();
    let mut lines = Vec::new();
    for (name, outcome) in outcomes {
        match outcome {
            Outcome::Skipped(reason) if skips_fail => {
                total += Counts::ONE_FAILED;
                lines.push(format!("skipped, a failure in CI: {name}: {reason}"));
            }
            Outcome::Skipped(reason) => {
                total += Counts::ONE_SKIPPED;
                lines.push(format!("skipped: {name}: {reason}"));
            }
            Outcome::Ran(Told { counts, failures, skips }) => {
                total += *counts;
                lines.extend(skips.lines(name));
                let left_out = counts.skipped - skips.count();
                if left_out > 0 {
                    lines.push(format!("skipped: {name}: {left_out} tests that their runner left out"));
                }
                if counts.failed > 0 {
                    lines.push(format!("failed: {name}: {}", counts.failed));
                    lines.extend(failures.iter().map(|failure| format!("    {failure}")));
                }
            }
        }
    }
    lines.push(total.to_string());
    (lines.join("\n"), total)
}

fn run_or_skip(suite: &Suite, quick: bool, to: &mut impl Write) -> Result<(Outcome, Taken)> {
    if let Some(reason) = suite.reason_to_skip(quick) {
        writeln!(to, "\n== {}: skipped: {reason}", suite.name)?;
        return Ok((Outcome::Skipped(reason), Taken::default()));
    }
    writeln!(to, "\n== {}: {}", suite.name, suite.command.join(" "))?;
    let start = Instant::now();
    let Ended { status, counted, failures, skips, processor_seconds } =
        run(suite, to).with_context(|| format!("running the suite {}", suite.name))?;
    let counts = skips.taken_from(judge(suite.counting, status.success(), counted));
    let verdict = if counts.failed == 0 { "passed" } else { "FAILED" };
    let taken = Taken { seconds: start.elapsed().as_secs_f64(), processor_seconds };
    writeln!(to, "-- {}: {verdict} in {:.1} s ({status})", suite.name, taken.seconds)?;
    Ok((Outcome::Ran(Told { counts, failures, skips }), taken))
}

/// `counted` is `None` where the output named no counts.
fn judge(counting: Counting, succeeded: bool, counted: Option<Counts>) -> Counts {
    match (counting, counted) {
        (Counting::AsOne, _) => {
            if succeeded {
                Counts::ONE_PASSED
            } else {
                Counts::ONE_FAILED
            }
        }
        // A runner that fails without a failed test did not get to all tests: one that does not compile, say.
        (Counting::ByTest(_), Some(counts)) if !succeeded && counts.failed == 0 => Counts { failed: 1, ..counts },
        (Counting::ByTest(_), Some(counts)) => counts,
        // A success without counts would be an empty promise: the runner's format has changed.
        (Counting::ByTest(_), None) => Counts::ONE_FAILED,
    }
}

/// How a suite's command ended, and what its output told.
struct Ended {
    status: ExitStatus,
    /// `None` where the output named no counts.
    counted: Option<Counts>,
    failures: BTreeSet<String>,
    skips: Skips,
    processor_seconds: f64,
}

/// Runs the command; its output goes on as it comes, and is read for counts and names on the way. Where single tests are counted,
/// those that report that they could not run come last.
fn run(suite: &Suite, to: &mut impl Write) -> Result<Ended> {
    // One pipe for both streams keeps their order.
    let (output, input) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    let (program, arguments) = suite.command.split_first().context("a suite has a command")?;
    let mut command = Command::new(program_file(program));
    command.args(arguments).envs(suite.environment.iter().copied()).stdin(Stdio::null());
    command.stdout(input.try_clone()?).stderr(input);
    if suite.counting == Counting::ByTest(Runner::Nextest) && env::var_os(TEST_THREADS).is_none() {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        command.env(TEST_THREADS, tests_at_once(processors).to_string());
    }
    let reports = env::temp_dir().join(format!("pmof-skips-{}-{}", process::id(), suite.name));
    fs::write(&reports, "").with_context(|| format!("making {}", reports.display()))?;
    match suite.counting {
        Counting::ByTest(Runner::Nextest | Runner::Libtest) => command.env(skip_report::REPORTS, &reports),
        // A suite of xtask's own counts what it runs itself.
        Counting::AsOne | Counting::ByTest(Runner::Closing) => command.env_remove(skip_report::REPORTS),
    };
    let mut child = command.spawn().with_context(|| format!("starting {program}"))?;
    // The command holds the pipe's other end, and reading would never end while it does.
    drop(command);
    let runner = match suite.counting {
        Counting::AsOne => None,
        Counting::ByTest(runner) => Some(runner),
    };
    let (counted, failures) = pass_on(File::from(output), to, runner)?;
    let processor_seconds = processor_seconds(&child)?;
    let status = child.wait()?;
    let skips = Skips::read(&reports, &failures)?;
    Ok(Ended { status, counted, failures, skips, processor_seconds })
}

/// Copies all of `from` as it comes; returns the sum of all counts in it, `None` where there were none, and the failed
/// tests that it names.
fn pass_on(
    mut from: impl Read,
    to: &mut impl Write,
    runner: Option<Runner>,
) -> io::Result<(Option<Counts>, BTreeSet<String>)> {
    let mut sum: Option<Counts> = None;
    let mut failures = BTreeSet::new();
    let mut line = Vec::new();
    let mut block = [0; 4096];
    loop {
        let read = match from.read(&mut block) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            result => result?,
        };
        to.write_all(&block[..read])?;
        to.flush()?;
        for byte in &block[..read] {
            if *byte != b'\n' {
                line.push(*byte);
                continue;
            }
            if let Some(runner) = runner {
                let line = String::from_utf8_lossy(&line);
                if let Some(counts) = runner.counts_of_line(&line) {
                    *sum.get_or_insert_default() += counts;
                }
                failures.extend(runner.failure_of_line(&line));
            }
            line.clear();
        }
        if read == 0 {
            return Ok((sum, failures));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suites::suites;

    const BY_TEST: Counting = Counting::ByTest(Runner::Libtest);
    const THREE: Counts = Counts { passed: 2, failed: 0, skipped: 1 };

    #[test]
    fn output_passes_unchanged_and_its_counts_are_summed() {
        let output = b"running\n\xff\ntest a::b ... FAILED\ntest result: ok. 2 passed; 0 failed; 0 ignored\n\
                       test result: FAILED. 1 passed; 3 failed; 1 ignored\nno end of line";
        let mut shown = Vec::new();
        let (counted, failures) = pass_on(&output[..], &mut shown, Some(Runner::Libtest)).unwrap();
        assert_eq!(failures, BTreeSet::from(["a::b".to_owned()]));
        assert_eq!(shown, output);
        assert_eq!(counted, Some(Counts { passed: 3, failed: 3, skipped: 1 }));
        assert_eq!(pass_on(&output[..], &mut Vec::new(), None).unwrap(), (None, BTreeSet::new()));
        assert_eq!(pass_on(&b"nothing\n"[..], &mut Vec::new(), Some(Runner::Libtest)).unwrap().0, None);
    }

    #[test]
    fn a_suite_is_judged_by_status_and_counts() {
        assert_eq!(judge(Counting::AsOne, true, None), Counts::ONE_PASSED);
        assert_eq!(judge(Counting::AsOne, false, Some(THREE)), Counts::ONE_FAILED);
        assert_eq!(judge(BY_TEST, true, Some(THREE)), THREE);
        assert_eq!(judge(BY_TEST, false, Some(THREE)).failed, 1);
        assert_eq!(judge(BY_TEST, true, None), Counts::ONE_FAILED);
        assert_eq!(judge(BY_TEST, false, None), Counts::ONE_FAILED);
    }

    #[test]
    fn both_streams_of_a_command_are_counted() {
        let script = "echo 'test result: ok. 1 passed; 0 failed'; echo 'test result: ok. 2 passed' >&2; exit 3";
        let command: &'static [&'static str] = vec!["sh", "-c", script].leak();
        let suite = Suite { name: "streams", command, counting: BY_TEST, ..suites()[0] };
        let mut shown = Vec::new();
        let ended = run(&suite, &mut shown).unwrap();
        assert_eq!(ended.status.code(), Some(3));
        assert_eq!(ended.counted, Some(Counts { passed: 3, failed: 0, skipped: 0 }));
        assert_eq!(shown.split(|byte| *byte == b'\n').count(), 3);
    }

    #[test]
    fn the_last_line_is_the_sum_alone() {
        let told = Told { counts: THREE, ..Told::default() };
        let outcomes = [("a", Outcome::Ran(told)), ("b", Outcome::Skipped("no disk".into()))];
        let (report, total) = sum_up(&outcomes, false);
        assert_eq!(report.lines().last(), Some("2 passed, 0 failed, 2 skipped"));
        assert!(report.contains("skipped: b: no disk"), "{report}");
        assert_eq!(total.failed, 0);
    }

    /// The runner says that three passed; two of them say that they could not run, one of them twice.
    #[test]
    fn a_test_that_could_not_run_is_skipped_with_its_reason() {
        let script = "echo skipped: b x::y: no disk >> $PMOF_SKIP_REPORTS; echo skipped: b x::y: nor net >> $PMOF_SKIP_REPORTS
                      echo skipped: c x::y: no root >> $PMOF_SKIP_REPORTS; echo 'test result: ok. 3 passed; 0 failed; 1 ignored'";
        let suite = |counting| Suite { name: "s", command: vec!["sh", "-c", script].leak(), counting, ..suites()[0] };
        let (outcome, _) = run_or_skip(&suite(BY_TEST), false, &mut Vec::new()).unwrap();
        let (report, total) = sum_up(&[("s", outcome)], true);
        assert_eq!(
            report,
            "skipped: s: b x::y: no disk\nskipped: s: c x::y: no root\n\
             skipped: s: 1 tests that their runner left out\n1 passed, 0 failed, 3 skipped"
        );
        assert_eq!(total.failed, 0);
        // A suite that counts as one has no file for reports, not even that of a suite around it.
        let unset = "test -z \"$PMOF_SKIP_REPORTS\"";
        let suite = Suite { command: vec!["sh", "-c", unset].leak(), ..suite(Counting::AsOne) };
        assert_eq!(
            run_or_skip(&suite, false, &mut Vec::new()).unwrap().0,
            Outcome::Ran(Told { counts: Counts::ONE_PASSED, ..Told::default() })
        );
    }

    #[test]
    fn the_times_are_sorted_and_summed() {
        let taken = |seconds, processor_seconds| Taken { seconds, processor_seconds };
        let table = table_of_times(&[("a", taken(2.0, 3.0)), ("b", taken(60.4, 100.0)), ("c", taken(0.2, 0.1))], 50.0);
        let lines: Vec<_> = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(lines[1..], ["2 3 a", "60 100 b", "50 103 all"]);
    }

    #[test]
    fn the_processor_time_is_read_behind_any_name() {
        let stat = "7 (a) b (c)) S 1 7 7 0 -1 0 1 2 3 4 50 60 700 800 20 0 1 0 99";
        assert_eq!(ticks(stat), Some(1610));
        assert_eq!(ticks("7 (a) S 1"), None);
    }

    #[test]
    fn a_suite_has_the_processor_time_of_its_process_and_of_those_below() {
        let busy = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        for script in [busy.to_owned(), format!("(trap '' HUP; {busy})")] {
            let suite = Suite { command: vec!["sh", "-c", script.leak()].leak(), ..suites()[0] };
            assert!(run(&suite, &mut Vec::new()).unwrap().processor_seconds > 0.0);
        }
    }

    #[test]
    fn two_rows_run_beside_each_other_and_others_by_themselves() {
        let suite = |name, row| Suite { name, row, ..suites()[0] };
        let (first, second) = (Some(Row::First), Some(Row::Second));
        let rows = [suite("b", first), suite("c", first), suite("d", second)];
        let suites = [&[suite("a", None)], &rows[..], &[suite("e", None)]].concat();
        // Whoever of the two was by itself would wait for ever.
        let barrier = std::sync::Barrier::new(2);
        let under_way = pmof_locks::Mutex::new(0);
        let outcomes = run_in_order(&suites, |suite| {
            *under_way.lock() += 1;
            if ["b", "d"].contains(&suite.name) {
                barrier.wait();
            }
            let beside = *under_way.lock();
            *under_way.lock() -= 1;
            (suite.name, beside)
        });
        assert_eq!(outcomes.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["a", "b", "c", "d", "e"]);
        assert_eq!((outcomes[0].1, outcomes[4].1), (1, 1));
    }

    #[test]
    fn few_processors_run_several_tests_each() {
        assert_eq!([1, 2, 4, 8, 64].map(tests_at_once), [3, 6, 12, 12, 64]);
    }

    #[test]
    fn the_report_names_what_failed() {
        let counts = Counts { passed: 2, failed: 1, skipped: 0 };
        let told = Told { counts, failures: BTreeSet::from(["x::y".to_owned()]), ..Told::default() };
        let (report, _) = sum_up(&[("a", Outcome::Ran(told))], false);
        assert_eq!(report, "failed: a: 1\n    x::y\n2 passed, 1 failed, 0 skipped");
    }

    #[test]
    fn a_skipped_suite_fails_in_ci() {
        let (report, total) = sum_up(&[("b", Outcome::Skipped("no disk".into()))], true);
        assert_eq!(report.lines().last(), Some("0 passed, 1 failed, 0 skipped"));
        assert_eq!(total, Counts::ONE_FAILED);
    }
}
