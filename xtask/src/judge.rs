//! What the judges in C have in common: `testbed/judge` beside their own sources, the compiler's flags, valgrind, the exit code.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result};

/// What valgrind is to look for: errors, and memory that nothing leads to any more. A forked child that exits at once
/// has the parent's memory and no threads, which looks like a leak.
const VALGRIND: &[&str] = &[
    "valgrind",
    "--quiet",
    "--leak-check=full",
    "--show-leak-kinds=definite,indirect",
    "--errors-for-leak-kinds=definite,indirect",
    "--child-silent-after-fork=yes",
    "--error-exitcode=9",
];

/// The shared sources.
const SHARED: &str = "judge";

/// A compiler of sources of one judge, with the library's headers in `include`; what it makes is `made`.
pub(crate) fn compiler(sources: &[PathBuf], include: &Path, made: &Path) -> Result<Command> {
    let own = sources.first().and_then(|source| source.parent()).context("a judge has sources")?;
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]);
    compiler.arg("-I").arg(own).arg("-I").arg(own.with_file_name(SHARED)).arg("-isystem").arg(include);
    compiler.arg("-o").arg(made).args(sources);
    Ok(compiler)
}

/// The sources in a directory whose names begin with one of these, and those that all judges share.
pub(crate) fn sources(directory: &Path, begins: &[&str]) -> Result<Vec<PathBuf>> {
    let mut sources = files(directory, begins)?;
    sources.extend(files(&directory.with_file_name(SHARED), &[""])?);
    Ok(sources)
}

fn files(directory: &Path, begins: &[&str]) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).with_context(|| format!("reading {}", directory.display()))?;
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        name.ends_with(".c") && begins.iter().any(|begin| name.starts_with(begin))
    });
    files.sort();
    Ok(files)
}

/// Starts a program, where asked under valgrind.
pub(crate) fn command(program: &Path, is_under_valgrind: bool) -> Command {
    if !is_under_valgrind {
        return Command::new(program);
    }
    let mut command = Command::new(VALGRIND[0]);
    command.args(&VALGRIND[1..]).arg(program);
    command
}

/// The program's exit code is ours.
pub(crate) fn run(command: &mut Command) -> Result<ExitCode> {
    let status = command.status().with_context(|| format!("starting {command:?}"))?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}
