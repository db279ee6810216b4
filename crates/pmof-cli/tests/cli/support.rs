//! Targets as processes, calls of the binary, and files to copy.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::names;

/// Longer than anything here takes on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(120);

/// A directory in the build's, which lies on a disk where `/tmp` may not.
pub(crate) fn directory() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// A `pmof serve`. Killed when dropped.
pub(crate) struct Target {
    pub(crate) root: TempDir,
    child: Child,
    pub(crate) address: String,
}

impl Target {
    pub(crate) fn start() -> Self {
        Self::start_at(directory())
    }

    pub(crate) fn on_tmpfs() -> Self {
        Self::start_at(tempfile::tempdir_in("/dev/shm").unwrap())
    }

    pub(crate) fn start_at(root: TempDir) -> Self {
        let (child, address) = serve(root.path());
        Self { root, child, address }
    }

    pub(crate) fn url(&self, name: &str) -> String {
        format!("{}/{name}", self.address)
    }

    pub(crate) fn files(&self) -> Vec<String> {
        files(self.root.path())
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub(crate) fn child(&self) -> &Child {
        &self.child
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts again on the same root, on another port.
    pub(crate) fn restart(&mut self) {
        (self.child, self.address) = serve(self.root.path());
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // Some tests have killed it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A target of this root that accepts connections, and its address.
pub(crate) fn serve(root: &Path) -> (Child, String) {
    serve_with(root, &[])
}

/// The same, with more options.
pub(crate) fn serve_with(root: &Path, options: &[&str]) -> (Child, String) {
    let mut serve = command(["serve", "--listen", "tcp://127.0.0.1:0", "--root"]);
    let mut child = serve.arg(root).args(options).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.strip_prefix("ready ").expect("it is ready").trim_end().to_owned();
    (child, address)
}

pub(crate) fn command<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pmof"));
    command.args(arguments).stdin(Stdio::null());
    // One for all tests, so that the disk is measured once.
    command.env("XDG_CACHE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/cache"));
    command
}

/// What a call printed, and how it ended.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) output: String,
    pub(crate) errors: String,
    pub(crate) elapsed: Duration,
}

pub(crate) fn pmof<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> Said {
    let start = Instant::now();
    Said::new(start, command(arguments).output().unwrap())
}

impl Said {
    #[track_caller]
    pub(crate) fn new(start: Instant, output: Output) -> Self {
        let said = Self {
            code: output.status.code(),
            output: String::from_utf8(output.stdout).unwrap(),
            errors: String::from_utf8(output.stderr).unwrap(),
            elapsed: start.elapsed(),
        };
        names::check(&said.output);
        names::check(&said.errors);
        said
    }

    /// It succeeded: what it printed.
    #[track_caller]
    pub(crate) fn done(self) -> String {
        assert_eq!((self.code, self.errors.as_str()), (Some(0), ""), "{self:?}");
        self.output
    }

    /// It succeeded and printed one JSON object, and nothing else.
    #[track_caller]
    pub(crate) fn json(self) -> Value {
        let output = self.done();
        assert_eq!(output.lines().count(), 1, "{output}");
        let value: Value = serde_json::from_str(&output).unwrap();
        assert!(value.is_object(), "{output}");
        value
    }

    /// It failed, printed no result, and said why in one line, with these words.
    #[track_caller]
    pub(crate) fn failed(&self, words: &[&str]) {
        self.ended_with(1, words);
        assert!(self.errors.starts_with("pmof: "), "{self:?}");
        assert_eq!((self.errors.lines().count(), self.output.as_str()), (1, ""), "{self:?}");
    }

    /// It compared, and said in one line what differs, with these words.
    #[track_caller]
    pub(crate) fn differs(&self, words: &[&str]) {
        self.ended_with(3, words);
        assert_eq!(self.errors.lines().count(), 1, "{self:?}");
    }

    /// It was called wrongly.
    #[track_caller]
    pub(crate) fn wrong_use(&self, words: &[&str]) {
        self.ended_with(2, words);
        assert_eq!(self.output, "", "{self:?}");
    }

    #[track_caller]
    fn ended_with(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        for word in words {
            assert!(self.errors.contains(word), "{word:?} is missing: {self:?}");
        }
        assert!(!self.errors.contains("panicked"), "{self:?}");
    }
}

pub(crate) fn files(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Bytes in which a piece that is missing, doubled or swapped shows.
pub(crate) fn pattern(len_bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15 ^ len_bytes as u64;
    let mut bytes = Vec::with_capacity(len_bytes + 8);
    while bytes.len() < len_bytes {
        // Xorshift: enough not to repeat within a test.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(len_bytes);
    bytes
}

/// A file in `directory` with these bytes.
pub(crate) fn file_with(directory: &TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = directory.path().join(name);
    fs::write(&path, bytes).unwrap();
    path
}

/// The path as an argument.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Changes the header of a closed pool and gives it a checksum that fits again.
pub(crate) fn change_header(path: &Path, offset: usize, bytes: &[u8]) {
    let mut head = fs::read(path).unwrap()[..4096].to_vec();
    head[offset..offset + bytes.len()].copy_from_slice(bytes);
    // Bytes 88..96 count as zero.
    let zeroed = [&head[..88], &[0; 8], &head[96..4092]].concat();
    let checksum = crc32c::crc32c(&zeroed);
    head[4092..].copy_from_slice(&checksum.to_le_bytes());
    File::options().write(true).open(path).unwrap().write_all_at(&head, 0).unwrap();
}

#[track_caller]
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LONG, "never {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
