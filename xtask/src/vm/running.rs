//! A machine that runs: its output, its end, and the power cut.

use std::{
    fmt, fs,
    io::{self, Read, Write as _},
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use pmof_locks::{Condvar, Mutex, MutexGuard};

use super::{
    arguments::{self, SERIAL_LOG},
    core_dump, launch,
    machine::{Files, Machine, Mode},
};

/// Kept logs beyond this number are removed, the oldest first.
const KEPT_LOGS: usize = 40;
/// Of QEMU's standard error so many lines, the last, go into an error's text.
const SAID_LINES: usize = 3;
const POLL: Duration = Duration::from_millis(10);
/// A command that goes on to write may take so many times what a silent one may.
const LONGEST: u32 = 3;
/// `initrd.sh` writes it to the serial line.
const INIT_MARK: &str = "pmof-testbed: init";

/// What becomes of the command's output, beside being kept.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sink {
    Kept,
    /// Also goes to standard output, each line after this prefix.
    Shown(&'static str),
}

/// A started machine. Dropping it cuts its power.
#[derive(Debug)]
pub(crate) struct Running<'a> {
    machine: Machine<'a>,
    files: Files,
    child: Child,
    output: Arc<Output>,
    reader: Option<JoinHandle<io::Result<()>>>,
}

/// A machine that has ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) end: End,
    /// What the command wrote, both streams in order.
    pub(crate) output: Vec<u8>,
    /// What the kernel and the scripts wrote to the serial line.
    pub(crate) serial: String,
    /// What was kept; `None` after an exit with 0 and after a power cut.
    pub(crate) kept: Option<Evidence>,
}

/// What is kept of a machine that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Evidence {
    /// The serial log, what QEMU wrote to its standard error, the command's output, and backtraces where there are some.
    pub(crate) log: PathBuf,
    /// The last lines of QEMU's standard error.
    said: String,
    /// Where the core is, or why there is none; `None` where QEMU did not die by a signal.
    core: Option<String>,
}

impl fmt::Display for Evidence {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "serial log: {}", self.log.display())?;
        if !self.said.is_empty() {
            write!(to, "; QEMU said: {}", self.said)?;
        }
        if let Some(core) = &self.core {
            write!(to, "; {core}")?;
        }
        Ok(())
    }
}

/// How a machine ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The command ended with this exit code.
    Exited(u8),
    /// The machine could not be brought up, and says why.
    SetupFailed(String),
    /// QEMU ended before the command: a kernel panic, a reboot, or a QEMU that refuses its arguments.
    Crashed(String),
    /// The command was silent, or went on, for too long; the machine is dead.
    TimedOut,
    /// [`Running::cut_power`].
    PowerCut,
}

impl Finished {
    /// The output as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.output).into_owned()
    }

    /// One sentence on the end, with the log where there is one.
    pub(crate) fn explain(&self) -> String {
        let what = match &self.end {
            End::Exited(code) => format!("the command exited with {code}"),
            End::SetupFailed(why) => format!("the guest could not be brought up: {why}"),
            End::Crashed(how) => format!("the machine ended before its command: {how}"),
            End::TimedOut => "the time was over".to_owned(),
            End::PowerCut => "the power was cut".to_owned(),
        };
        match &self.kept {
            Some(kept) => format!("{what}; {kept}"),
            None => what,
        }
    }
}

impl<'a> Running<'a> {
    pub(super) fn start(machine: Machine<'a>, files: Files) -> Result<Self> {
        let output = Arc::new(Output::default());
        let (child, reader) = launch(&machine, &files, &output)?;
        Ok(Self { machine, files, child, output, reader })
    }

    /// QEMU's process.
    pub(crate) fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// What the command has written so far.
    pub(crate) fn output(&self) -> Vec<u8> {
        self.output.lock().bytes.clone()
    }

    /// Waits until the command has written this text, at any place of its output.
    ///
    /// # Errors
    /// Where the machine ends or the time is over first.
    pub(crate) fn wait_for_output(&mut self, text: &str, timeout: Duration) -> Result<()> {
        let deadline = Instant::now() + timeout;
        loop {
            if self.output.wait_for(text.as_bytes(), POLL * 10) {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                if !self.started_again(status)? {
                    let (kept, output) = (self.keep(Some(status))?, self.shown_output());
                    bail!("the machine ended ({status}) before it wrote {text:?}; {kept}; its output: {output}");
                }
            }
            if Instant::now() >= deadline {
                let (kept, output) = (self.keep(None)?, self.shown_output());
                bail!("{text:?} did not come within {timeout:?}; {kept}; the output: {output}");
            }
        }
    }

    /// Waits for the machine's end. It comes at the latest when its command has written nothing for this time, or after [`LONGEST`] such times: a host that does much
    /// else makes a machine slow, but a command that goes on says so.
    pub(crate) fn wait(mut self, silence: Duration) -> Result<Finished> {
        let began = Instant::now();
        loop {
            match self.child.try_wait().context("waiting for QEMU")? {
                Some(status) if self.started_again(status)? => {}
                Some(status) => {
                    let share = self.files.share();
                    let read = |name: &str| fs::read_to_string(share.join(name)).ok();
                    let end = judge(status, read("exit-code").as_deref(), read("error").as_deref());
                    return self.finish(end, Some(status));
                }
                None if is_over(began.elapsed(), self.output.lock().last.max(began).elapsed(), silence) => {
                    self.kill()?;
                    return self.finish(End::TimedOut, None);
                }
                None => thread::sleep(POLL),
            }
        }
    }

    /// Ends the machine as a power failure would: QEMU is killed (SIGKILL) between two instructions.
    ///
    /// What it wrote to images in files of its own is lost; those of [`Machine::media`] are as the machine left them.
    pub(crate) fn cut_power(mut self) -> Result<Finished> {
        self.kill()?;
        self.finish(End::PowerCut, None)
    }

    fn kill(&mut self) -> Result<()> {
        self.child.kill().context("killing QEMU")?;
        self.child.wait().context("waiting for the killed QEMU").map(drop)
    }

    /// In about one of 150 boots QEMU ends with 0 before the guest's first process runs, nobody knows why: once more.
    fn started_again(&mut self, status: ExitStatus) -> Result<bool> {
        let serial = self.files.directory.path().join(SERIAL_LOG);
        let first = self.files.directory.path().join("first-serial.log");
        if status.code() != Some(0) || first.exists() || serial_text(&serial).contains(INIT_MARK) {
            return Ok(false);
        }
        fs::rename(&serial, &first).context("keeping the first serial log")?;
        (self.child, self.reader) = launch(&self.machine, &self.files, &self.output)?;
        Ok(true)
    }

    fn finish(mut self, end: End, status: Option<ExitStatus>) -> Result<Finished> {
        if let Some(reader) = self.reader.take() {
            reader.join().ok().context("the reader of the output panicked")?.context("reading the output")?;
        }
        let serial = serial_text(&self.files.directory.path().join(SERIAL_LOG));
        let kept = match end {
            End::Exited(0) | End::PowerCut => None,
            _ => Some(self.keep(status)?),
        };
        Ok(Finished { end, output: std::mem::take(&mut self.output.lock().bytes), serial, kept })
    }

    /// Keeps what tells why the machine failed; `status` is that of a QEMU that ended by itself.
    fn keep(&self, status: Option<ExitStatus>) -> Result<Evidence> {
        let (logs, directory) = (self.machine.logs(), self.files.directory.path());
        let log = logs.join(directory.file_name().context("a run's directory has a name")?).with_extension("log");
        let (serial, said) = (serial_text(&directory.join(SERIAL_LOG)), serial_text(&directory.join("qemu.log")));
        let mut text = format!("{serial}\n== QEMU\n{said}\n== output\n{}", self.shown_output());
        let core = if status.is_some_and(|status| status.signal().is_some()) {
            let program = PathBuf::from(arguments::qemu(&self.files).swap_remove(0));
            Some(core_dump::keep(directory, &program, &log.with_extension("core"), &mut text)?)
        } else {
            None
        };
        fs::write(&log, text).with_context(|| format!("writing {}", log.display()))?;
        remove_old_logs(&logs)?;
        let lines: Vec<_> = said.lines().collect();
        let said = lines[lines.len().saturating_sub(SAID_LINES)..].join(" / ");
        Ok(Evidence { log, said, core })
    }

    fn shown_output(&self) -> String {
        String::from_utf8_lossy(&self.output.lock().bytes).into_owned()
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        // It has ended already where these fail.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn remove_old_logs(logs: &Path) -> Result<()> {
    let mut known: Vec<_> = fs::read_dir(logs)?
        .flatten()
        .filter(|entry| entry.path().extension().is_some_and(|extension| extension == "log"))
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    known.sort();
    for (_, old) in known.iter().rev().skip(KEPT_LOGS) {
        // Another xtask may have removed it.
        let _ = fs::remove_file(old);
    }
    Ok(())
}

fn serial_text(path: &Path) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

type Reader = Option<JoinHandle<io::Result<()>>>;

fn launch(machine: &Machine<'_>, files: &Files, output: &Arc<Output>) -> Result<(Child, Reader)> {
    let mut command = arguments::command(machine, files);
    let log = fs::File::create(files.directory.path().join("qemu.log"))?;
    command.stderr(log);
    if machine.mode == Mode::Shell {
        return Ok((spawn(command)?, None));
    }
    let mut child = spawn_with_pipe(command)?;
    let pipe = child.stdout.take().context("QEMU's standard output is a pipe")?;
    let (output, sink) = (Arc::clone(output), machine.sink());
    let reader = thread::spawn(move || output.take_all(pipe, sink));
    Ok((child, Some(reader)))
}

fn spawn_with_pipe(mut command: Command) -> Result<Child> {
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    spawn(command)
}

fn spawn(command: Command) -> Result<Child> {
    launch::spawn(command).context("starting setpriv with QEMU")
}

/// Whether the time of a command is over, that has run for `elapsed` and written nothing for `silent`.
fn is_over(elapsed: Duration, silent: Duration, silence: Duration) -> bool {
    silent >= silence || elapsed >= silence * LONGEST
}

/// How the machine ended, from QEMU's exit status and from what the guest left in the shared directory.
///
/// The guest's code is in a file since QEMU's exit code holds only seven bits of it, as `2 * code + 1`; both must be
/// there and agree, so that neither a half-written file nor a chance exit code passes for a result.
fn judge(status: ExitStatus, exit_code: Option<&str>, error: Option<&str>) -> End {
    if let Some(error) = error {
        return End::SetupFailed(error.trim_end().to_owned());
    }
    let Some(qemu) = status.code() else { return End::Crashed(format!("QEMU died by a signal ({status})")) };
    let code = exit_code.and_then(|text| text.trim_end().parse::<u8>().ok());
    match code {
        Some(code) if qemu == i32::from(code & 127) * 2 + 1 => End::Exited(code),
        Some(code) => End::Crashed(format!("QEMU exited with {qemu}, the command with {code}")),
        None if qemu == 0 => End::Crashed("a kernel panic or a reboot (QEMU exited with 0)".to_owned()),
        None => End::Crashed(format!("QEMU exited with {qemu}")),
    }
}

/// What the command has written.
#[derive(Debug, Default)]
struct Output {
    kept: Mutex<Kept>,
    more: Condvar,
}

#[derive(Debug)]
struct Kept {
    bytes: Vec<u8>,
    /// When the last of them came; at first, when the machine was started.
    last: Instant,
}

impl Default for Kept {
    fn default() -> Self {
        Self { bytes: Vec::new(), last: Instant::now() }
    }
}

impl Output {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock()
    }

    fn take_all(&self, mut from: impl Read, sink: Sink) -> io::Result<()> {
        let mut block = [0; 8192];
        let mut at_line_start = true;
        loop {
            let read = match from.read(&mut block) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                result => result?,
            };
            if read == 0 {
                return Ok(());
            }
            let mut kept = self.lock();
            kept.bytes.extend_from_slice(&block[..read]);
            kept.last = Instant::now();
            drop(kept);
            self.more.notify_all();
            if let Sink::Shown(prefix) = sink {
                show(&block[..read], prefix, &mut at_line_start)?;
            }
        }
    }

    /// Whether the text is there, or comes within the time.
    fn wait_for(&self, text: &[u8], timeout: Duration) -> bool {
        let there = |kept: &mut Kept| kept.bytes.windows(text.len().max(1)).any(|window| window == text);
        let mut kept = self.lock();
        let _ = self.more.wait_while_for(&mut kept, |kept| !there(kept), timeout);
        there(&mut kept)
    }
}

fn show(bytes: &[u8], prefix: &str, at_line_start: &mut bool) -> io::Result<()> {
    let mut to = io::stdout().lock();
    for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
        if *at_line_start {
            to.write_all(prefix.as_bytes())?;
        }
        to.write_all(piece)?;
        *at_line_start = piece.ends_with(b"\n");
    }
    to.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exited(code: i32) -> ExitStatus {
        ExitStatus::from_raw(code << 8)
    }

    #[test]
    fn the_guests_exit_code_needs_both_witnesses() {
        for code in [0_u8, 1, 3, 127, 128, 137, 255] {
            let qemu = i32::from(code & 127) * 2 + 1;
            assert_eq!(judge(exited(qemu), Some(&format!("{code}\n")), None), End::Exited(code));
        }
        let crashed = [
            judge(exited(0), None, None),
            judge(exited(1), None, None),
            judge(exited(0), Some("0\n"), None),
            judge(exited(3), Some("0\n"), None),
            judge(exited(1), Some(""), None),
            judge(ExitStatus::from_raw(6), Some("0\n"), None),
        ];
        assert!(crashed.iter().all(|end| matches!(end, End::Crashed(_))), "{crashed:?}");
    }

    #[test]
    fn a_guest_that_did_not_boot_says_why() {
        assert_eq!(judge(exited(3), None, Some("wire: no\n")), End::SetupFailed("wire: no".into()));
    }

    #[test]
    fn a_command_that_goes_on_has_more_time_than_a_silent_one() {
        let seconds = Duration::from_secs;
        assert!(!is_over(seconds(599), seconds(599), seconds(600)));
        assert!(is_over(seconds(600), seconds(600), seconds(600)));
        assert!(!is_over(seconds(1799), seconds(20), seconds(600)));
        assert!(is_over(seconds(1800), seconds(0), seconds(600)));
    }

    #[test]
    fn output_is_kept_and_waited_for() {
        let output = Output::default();
        assert!(!output.wait_for(b"ready", Duration::from_millis(1)));
        output.take_all(&b"not yet\nrea"[..], Sink::Kept).unwrap();
        assert!(!output.wait_for(b"ready", Duration::from_millis(1)));
        output.take_all(&b"dy\n"[..], Sink::Kept).unwrap();
        assert!(output.wait_for(b"ready", Duration::from_millis(1)));
    }
}
