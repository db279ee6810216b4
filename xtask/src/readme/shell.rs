//! A shell that is given commands one by one, as a reader would type them, and keeps their output.

use std::{
    fs,
    io::Write as _,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};

use super::commands::PageCommand;

#[cfg(test)]
mod tests;

/// The longest command is a release build from nothing.
const COMMAND_LIMIT: Duration = Duration::from_secs(1200);
const SERVICE_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);

/// Begins of commands that go on until they are ended: they run in the background until the shell ends.
const SERVICES: [&str; 1] = ["pmof serve "];

/// bash, and a directory for the output of its commands. It and all that it started end with this value.
#[derive(Debug)]
pub(super) struct Shell {
    process: Child,
    input: ChildStdin,
    outputs: PathBuf,
    count: u32,
}

impl Shell {
    /// `bash`: the command, with its environment and working directory.
    pub(super) fn start(bash: &mut Command, outputs: &Path) -> Result<Self> {
        fs::create_dir_all(outputs).with_context(|| format!("making {}", outputs.display()))?;
        // A group of its own, so that services end with it.
        bash.stdin(Stdio::piped()).stdout(Stdio::null()).process_group(0);
        let mut process = bash.spawn().context("starting bash")?;
        let input = process.stdin.take().context("bash's standard input is a pipe")?;
        Ok(Self { process, input, outputs: outputs.to_owned(), count: 0 })
    }

    /// Runs a command and holds it to what its comment says.
    pub(super) fn run(&mut self, command: &PageCommand) -> Result<()> {
        self.count += 1;
        let (output, status) = (self.file("output"), self.file("status"));
        if status.exists() {
            fs::remove_file(&status).context("removing what an earlier shell left")?;
        }
        let is_service = SERVICES.iter().any(|begin| command.text.starts_with(begin));
        let (out, done) = (quoted(&output), quoted(&status));
        let behind = if is_service { "&".to_owned() } else { format!("; echo $? >{done}.new; mv {done}.new {done}") };
        writeln!(self.input, "{{ {}\n}} >{out} 2>&1 </dev/null {behind}", command.text).context("writing to bash")?;
        let read = || fs::read_to_string(&output).unwrap_or_default();
        if is_service {
            let text = command.prints.as_ref().context("a service's comment must say what it prints")?;
            return self.wait(SERVICE_LIMIT, || read().contains(text)).with_context(|| shown(command, &read()));
        }
        self.wait(COMMAND_LIMIT, || status.exists()).with_context(|| shown(command, &read()))?;
        let code: i32 = fs::read_to_string(&status)?.trim().parse().context("reading an exit status")?;
        ensure!(code == command.exit_status, "exit status {code}; {}", shown(command, &read()));
        let is_printed = command.prints.as_ref().is_none_or(|text| read().contains(text));
        ensure!(is_printed, "it prints something else; {}", shown(command, &read()));
        Ok(())
    }

    fn file(&self, what: &str) -> PathBuf {
        self.outputs.join(format!("{:02}.{what}", self.count))
    }

    fn wait(&mut self, limit: Duration, is_done: impl Fn() -> bool) -> Result<()> {
        let start = Instant::now();
        while !is_done() {
            if let Some(status) = self.process.try_wait()? {
                bail!("bash ended: {status}");
            }
            ensure!(start.elapsed() < limit, "it was not done after {limit:?}");
            thread::sleep(POLL);
        }
        Ok(())
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // Services first get the chance to end in order. What is gone already needs no end.
        let group = format!("-{}", self.process.id());
        for (signal, pause) in [("-TERM", Duration::from_millis(300)), ("-KILL", Duration::ZERO)] {
            let _ = Command::new("kill").args([signal, "--", &group]).stderr(Stdio::null()).status();
            thread::sleep(pause);
        }
        let _ = self.process.wait();
    }
}

fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

/// A command, what was said of it, and the end of its output.
fn shown(command: &PageCommand, output: &str) -> String {
    const LINES: usize = 30;
    let lines: Vec<_> = output.lines().collect();
    let end = lines[lines.len().saturating_sub(LINES)..].join("\n    ");
    let said = command.prints.as_ref().map_or_else(String::new, |text| format!(" (said to print {text:?})"));
    format!("{}{said}, its output:\n    {end}", command.text)
}
