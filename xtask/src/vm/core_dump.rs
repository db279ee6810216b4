//! What a QEMU that dies by a signal of its own leaves: its core, kept beside the log, and the backtraces of its threads.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::tools;

#[cfg(test)]
mod tests;

/// Kept cores beyond this number are removed, the oldest first. One has some 400 MB (most of it translated code), without the guest's memory.
const KEPT_CORES: usize = 3;

/// Words before a command that let it leave a core of any length that the hard limit allows.
pub(super) const UNLIMITED: [&str; 4] = ["sh", "-c", r#"ulimit -S -c "$(ulimit -H -c)"; exec "$@""#, "sh"];

/// Moves the core that a process left in `directory` to the file `kept`, and appends the backtraces of its threads to
/// `log`, where there is a gdb. Gives a sentence on where the core is, or why there is none.
///
/// `program`: what was executed.
pub(super) fn keep(directory: &Path, program: &Path, kept: &Path, log: &mut String) -> Result<String> {
    let Some(core) = find(directory)? else {
        let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
        let here = directory.display();
        return Ok(format!("no core in {here}: /proc/sys/kernel/core_pattern says {:?}", pattern.trim_end()));
    };
    fs::rename(&core, kept).with_context(|| format!("moving {} to {}", core.display(), kept.display()))?;
    remove_old(kept)?;
    log.push_str("\n== backtraces\n");
    log.push_str(&backtraces(program, kept));
    Ok(format!("core: {}", kept.display()))
}

/// The file that the kernel wrote: `core`, or `core.` and the process's number. Patterns that lead elsewhere are not followed.
fn find(directory: &Path) -> Result<Option<PathBuf>> {
    for entry in fs::read_dir(directory).with_context(|| format!("reading {}", directory.display()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if (name == "core" || name.starts_with("core.")) && entry.file_type()?.is_file() {
            return Ok(Some(entry.path()));
        }
    }
    Ok(None)
}

fn backtraces(program: &Path, core: &Path) -> String {
    let Some(gdb) = tools::find("gdb") else {
        return "no gdb here: apt-get install gdb shows backtraces too".to_owned();
    };
    let mut command = Command::new(gdb);
    // QEMU's functions have no names in Debian's builds: with the mappings their addresses can be looked up.
    command.args(["-batch", "-nx", "-iex", "set auto-load safe-path /"]);
    command.args(["-ex", "thread apply all backtrace", "-ex", "info proc mappings"]).arg(program).arg(core);
    match command.output() {
        Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
        Err(error) => format!("gdb did not start: {error}"),
    }
}

fn remove_old(newest: &Path) -> Result<()> {
    let Some(directory) = newest.parent() else { return Ok(()) };
    let mut cores: Vec<_> = fs::read_dir(directory)?
        .flatten()
        .filter(|entry| entry.path().extension().is_some_and(|extension| extension == "core"))
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    cores.sort();
    for (_, old) in cores.iter().rev().skip(KEPT_CORES) {
        // Another xtask may have removed it.
        let _ = fs::remove_file(old);
    }
    Ok(())
}
