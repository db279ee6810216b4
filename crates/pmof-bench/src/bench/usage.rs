//! What a process takes: CPU time, memory, threads; from `/proc` (`proc_pid_stat`(5), `proc_pid_status`(5)).

use std::{fs, time::Duration};

use anyhow::{Context as _, Result};
use rustix::{
    param::clock_ticks_per_second,
    time::{ClockId, clock_gettime},
};

/// What a process has taken until now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Usage {
    /// CPU time in user and kernel mode.
    pub(super) cpu: Duration,
    /// Resident memory in bytes.
    pub(super) resident_bytes: u64,
    pub(super) threads: u64,
}

impl Usage {
    /// Asks the kernel.
    pub(super) fn of_process(process_id: u32) -> Result<Self> {
        let file = |name| {
            let path = format!("/proc/{process_id}/{name}");
            fs::read_to_string(&path).with_context(|| format!("reading {path}"))
        };
        let (ticks, threads) = parse_stat(&file("stat")?).context("/proc/PID/stat has another form than known")?;
        let resident_bytes = parse_status(&file("status")?).context("/proc/PID/status has no VmRSS")?;
        let cpu = Duration::from_secs_f64(ticks as f64 / clock_ticks_per_second() as f64);
        Ok(Self { cpu, resident_bytes, threads })
    }
}

/// CPU time of this process, also of threads that have ended.
pub(super) fn own_cpu() -> Duration {
    clock_gettime(ClockId::ProcessCPUTime).try_into().unwrap_or_default()
}

/// CPU time of this process in user and in kernel mode, in ticks of the clock.
pub(super) fn own_modes() -> Result<[Duration; 2]> {
    let stat = fs::read_to_string("/proc/self/stat").context("reading /proc/self/stat")?;
    let modes = parse_modes(&stat).context("/proc/self/stat has another form than known")?;
    Ok(modes.map(|ticks| Duration::from_secs_f64(ticks as f64 / clock_ticks_per_second() as f64)))
}

/// CPU time of the threads that a process has now, in nanoseconds where the kernel counts them (`CONFIG_SCHED_INFO`), else in ticks
/// of the clock.
pub(super) fn cpu_of(process_id: u32) -> Result<Duration> {
    exact_cpu_of(process_id).map_or_else(|| Usage::of_process(process_id).map(|usage| usage.cpu), Ok)
}

fn exact_cpu_of(process_id: u32) -> Option<Duration> {
    let tasks = fs::read_dir(format!("/proc/{process_id}/task")).ok()?;
    // A thread that ends meanwhile has no file any more.
    let spent = |task: fs::DirEntry| parse_schedstat(&fs::read_to_string(task.path().join("schedstat")).ok()?);
    let spent: Vec<Duration> = tasks.filter_map(|task| spent(task.ok()?)).collect();
    (!spent.is_empty()).then(|| spent.iter().sum())
}

/// Time on a CPU: the first of three numbers (`Documentation/scheduler/sched-stats.rst` of Linux).
fn parse_schedstat(schedstat: &str) -> Option<Duration> {
    schedstat.split_ascii_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

/// CPU time in clock ticks and the number of threads.
fn parse_stat(stat: &str) -> Option<(u64, u64)> {
    let modes = parse_modes(stat)?;
    Some((modes.iter().sum(), stat_field(stat, 20)?))
}

/// CPU time in user and kernel mode, in clock ticks.
fn parse_modes(stat: &str) -> Option<[u64; 2]> {
    Some([stat_field(stat, 14)?, stat_field(stat, 15)?])
}

/// A field by its number in the manual page.
fn stat_field(stat: &str, number: usize) -> Option<u64> {
    // The command's name, in parentheses, may hold anything, also spaces and parentheses. Behind it comes the third field.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(number - 3)?.parse().ok()
}

/// Resident bytes.
fn parse_status(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "4711 (a) b (c) S 1 4711 4711 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 7 0 12345 1000000 250 1844";

    #[test]
    fn stat_is_read_past_any_name() {
        assert_eq!(parse_stat(STAT), Some((300, 7)));
        assert_eq!(parse_stat("4711 (short) S 1 2"), None);
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn resident_memory_is_read_in_bytes() {
        assert_eq!(parse_status("Name:\tx\nVmRSS:\t    1234 kB\nThreads:\t1\n"), Some(1234 * 1024));
        assert_eq!(parse_status("Name:\tx\n"), None);
        assert_eq!(parse_status("VmRSS:\t 12 MB\n"), None);
    }

    #[test]
    fn this_process_takes_something_and_more_when_it_works() {
        let before = Usage::of_process(std::process::id()).unwrap();
        assert!(before.resident_bytes > 0 && before.threads > 0, "{before:?}");
        // On a busy machine it may take long to get a CPU for a tick of the clock.
        while Usage::of_process(std::process::id()).unwrap().cpu <= before.cpu {
            (0..1_000_000).for_each(|_| std::hint::spin_loop());
        }
        assert!(own_cpu() > before.cpu && cpu_of(std::process::id()).unwrap() > Duration::ZERO);
    }

    #[test]
    fn the_first_number_of_schedstat_is_the_time_on_a_cpu() {
        assert_eq!(parse_schedstat("1500 66713 1\n"), Some(Duration::from_nanos(1500)));
        assert_eq!(parse_schedstat(""), None);
        assert_eq!(parse_schedstat("x"), None);
    }

    #[test]
    fn a_process_that_is_not_there_is_named() {
        let error = Usage::of_process(0).unwrap_err();
        assert!(format!("{error:#}").contains("/proc/0/"), "{error:#}");
    }
}
