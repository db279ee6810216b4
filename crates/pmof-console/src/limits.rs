//! What this process may use: CPUs, and keeping a thread on one of them; files.

use std::{fmt::Write as _, io};

use rustix::{
    process::{Resource, Rlimit, getrlimit, setrlimit},
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};

/// The CPUs that the calling thread may run on, ascending.
pub fn allowed_cpus() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

/// Keeps the calling thread, and the threads that it starts from now on, on one CPU.
///
/// Fails with `InvalidInput` where the CPU is not among [`allowed_cpus`].
pub fn pin_to(cpu: usize) -> io::Result<()> {
    let allowed = allowed_cpus()?;
    if !allowed.contains(&cpu) {
        let mut list = String::new();
        for known in &allowed {
            let _ = write!(list, " {known}");
        }
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("CPU {cpu} is not among those this thread may use: name one of{list}"),
        ));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// Every connection takes a file descriptor, so as many are asked for as the system allows without asking anyone.
pub fn allow_many_files() {
    let limit = getrlimit(Resource::Nofile);
    // Where it cannot be raised, connections beyond the limit wait, as before.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

#[cfg(test)]
mod tests {
    use std::thread;

    use rustix::thread::sched_getcpu;

    use super::*;

    #[test]
    fn a_pinned_thread_runs_there_and_only_there() {
        for cpu in allowed_cpus().unwrap() {
            thread::spawn(move || {
                pin_to(cpu).unwrap();
                assert_eq!(sched_getcpu(), cpu);
                assert_eq!(allowed_cpus().unwrap(), [cpu]);
            })
            .join()
            .unwrap();
        }
    }

    #[test]
    fn a_cpu_that_is_not_allowed_is_refused_by_name() {
        let allowed = allowed_cpus().unwrap();
        let missing = (0..CpuSet::MAX_CPU).rev().find(|cpu| !allowed.contains(cpu)).unwrap();
        for cpu in [missing, usize::MAX] {
            let error = pin_to(cpu).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert!(error.to_string().contains(&format!("CPU {cpu} ")), "{error}");
        }
        assert_eq!(allowed_cpus().unwrap(), allowed);
    }
}
