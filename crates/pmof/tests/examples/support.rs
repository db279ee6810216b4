//! Examples as processes, the ways between them, and the media of persistent memory.

use std::{
    env, fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Output, Stdio},
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

use pmof::access::Address;
use tempfile::TempDir;

/// Where the bytes of an example begin in its file or device: the log's tail, for one.
pub(crate) const DATA_OFFSET: u64 = 4096;

/// Longer than anything takes that works, on a loaded machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Every example, with the words that its initiator needs.
pub(crate) const EXAMPLES: [(&str, &[&str]); 14] = [
    ("append_log", &["word"]),
    ("connection", &[]),
    ("flush", &[]),
    ("gpspm_flush", &[]),
    ("logging", &[]),
    ("many_connections", &[]),
    ("messages", &[]),
    ("read_to_persistent", &[]),
    ("read_to_volatile", &[]),
    ("send_with_immediate", &[]),
    ("separate_receive_queue", &[]),
    ("shared_receives", &[]),
    ("write_to_persistent", &[]),
    ("write_with_immediate", &[]),
];

/// The examples of pools: they take the URLs of replicas or a pool set file, or start targets of their own.
pub(crate) const POOL_EXAMPLES: [&str; 8] =
    ["async_server", "awaited", "counter", "log", "lost_replica", "many_threads", "pool_set", "take_over"];

/// Where the examples are: beside the tests, where cargo builds them, unless the environment names another place.
///
/// Cargo builds them along with all tests of the package, but not with some, nor where it makes tests of them too
/// (`--all-targets`): then they are built now.
fn directory() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        if let Some(named) = env::var_os("PMOF_EXAMPLES") {
            return named.into();
        }
        let test = env::current_exe().unwrap();
        let profile = test.parent().and_then(Path::parent).unwrap();
        let directory = profile.join("examples");
        let mut names = EXAMPLES.iter().map(|(name, _)| *name).chain(POOL_EXAMPLES);
        if names.any(|name| is_stale(&directory.join(name))) {
            build(profile);
        }
        directory
    })
}

/// True if it is not there, or older than one of the sources that cargo lists beside it.
fn is_stale(program: &Path) -> bool {
    let time = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    let (Some(built), Ok(list)) = (time(program), fs::read_to_string(program.with_extension("d"))) else { return true };
    let sources = list.split_once(": ").map_or("", |(_, sources)| sources);
    sources.split_whitespace().any(|source| time(Path::new(source)).is_none_or(|changed| changed > built))
}

fn build(profile: &Path) {
    let name = profile.file_name().unwrap().to_str().unwrap();
    let status = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--package", "pmof", "--examples"])
        .args(["--profile", if name == "debug" { "dev" } else { name }])
        .arg("--target-dir")
        .arg(profile.parent().unwrap())
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status();
    assert!(status.is_ok_and(|status| status.success()), "cargo build -p pmof --examples fails");
}

pub(crate) fn program(name: &str) -> Command {
    let mut command = Command::new(directory().join(name));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// What a process printed, and its exit code.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) output: String,
    pub(crate) errors: String,
}

impl Said {
    fn new(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code(), output: text(output.stdout), errors: text(output.stderr) }
    }

    /// It succeeded: what it printed.
    #[track_caller]
    pub(crate) fn done(self) -> String {
        assert_eq!((self.code, self.errors.as_str()), (Some(0), ""), "{self:?}");
        self.output
    }

    /// It failed with this code, and said why with these words.
    #[track_caller]
    pub(crate) fn failed(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert!(words.iter().all(|word| self.errors.contains(word)), "{words:?}: {self:?}");
        assert!(!self.errors.contains("panicked"), "{self:?}");
    }
}

/// Waits for the end of a process, but not for ever.
pub(crate) fn wait(mut child: Child) -> Said {
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > LONG {
            child.kill().unwrap();
            panic!("it never ends: {:?}", Said::new(child.wait_with_output().unwrap()));
        }
        thread::sleep(Duration::from_millis(5));
    }
    Said::new(child.wait_with_output().unwrap())
}

/// How examples reach each other.
pub(crate) struct Way {
    /// Options and the address to listen on.
    pub(crate) serve: Vec<String>,
    /// Options of the initiator.
    connect: Vec<String>,
    _socket: Option<TempDir>,
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

impl Way {
    pub(crate) fn tcp() -> Self {
        Self { serve: words("tcp://127.0.0.1:0"), connect: Vec::new(), _socket: None }
    }

    /// The same at an address that another target had.
    pub(crate) fn at(&self, address: &Address) -> Self {
        let options = self.serve.split_last().map_or(&[][..], |(_, options)| options);
        let serve = [options, &[address.to_string()]].concat();
        Self { serve, connect: self.connect.clone(), _socket: None }
    }

    fn shm() -> Self {
        let socket = tempfile::tempdir().unwrap();
        let address = format!("shm://{}", socket.path().join("s").display());
        Self { serve: vec![address], connect: Vec::new(), _socket: Some(socket) }
    }

    /// Between the ends of the wire, where there is one.
    fn verbs() -> Option<Self> {
        let [from, to] = ["PMOF_WIRE_A", "PMOF_WIRE_B"].map(|name| env::var(name).ok());
        let serve = words(&format!("--trust-network verbs://{}:0", to?));
        Some(Self { serve, connect: words(&format!("--source {}", from?)), _socket: None })
    }

    pub(crate) fn serve(&self, name: &str, more: &[&str]) -> Target<'_> {
        let mut child = program(name).arg("serve").args(&self.serve).args(more).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let Some(address) = line.trim_end().strip_prefix("ready ") else {
            panic!("{name} is not ready but said {line:?}: {:?}", wait(child));
        };
        Target { way: self, name: name.to_owned(), address: address.to_owned(), child: Some(child), output }
    }
}

/// The ways of this machine.
pub(crate) fn ways() -> Vec<Way> {
    Way::verbs().map_or_else(|| vec![Way::tcp(), Way::shm()], |verbs| vec![verbs])
}

/// The target's side of an example, which listens. Killed when dropped.
pub(crate) struct Target<'w> {
    way: &'w Way,
    name: String,
    pub(crate) address: String,
    child: Option<Child>,
    output: BufReader<ChildStdout>,
}

impl Target<'_> {
    pub(crate) fn start(&self, more: &[&str]) -> Child {
        program(&self.name).args(&self.way.connect).arg(&self.address).args(more).spawn().unwrap()
    }

    /// The initiator's side, to its end.
    pub(crate) fn run(&self, more: &[&str]) -> Said {
        wait(self.start(more))
    }

    /// What the target printed after it was ready. It has succeeded.
    #[track_caller]
    pub(crate) fn done(mut self) -> String {
        let said = wait(self.child.take().unwrap());
        assert_eq!((said.code, said.errors.as_str()), (Some(0), ""), "{said:?}");
        let mut output = String::new();
        self.output.read_to_string(&mut output).unwrap();
        output
    }
}

impl Drop for Target<'_> {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // It may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Both sides of an example that needs nothing else: what target and initiator print.
#[track_caller]
pub(crate) fn both(way: &Way, name: &str, target: &[&str], initiator: &[&str]) -> (String, String) {
    let target = way.serve(name, target);
    let said = target.run(initiator).done();
    (target.done(), said)
}

/// A directory for files that are to be durable: that of the build, which lies on a disk where `/tmp` may not, or the test
/// bed's.
pub(crate) fn directories() -> Vec<TempDir> {
    let named: Vec<_> = ["PMOF_FSDAX", "PMOF_FILE"].into_iter().filter_map(env::var_os).collect();
    let places = if named.is_empty() { vec![env!("CARGO_TARGET_TMPDIR").into()] } else { named };
    places.into_iter().map(|place| tempfile::tempdir_in(place).unwrap()).collect()
}

/// Runs this over every way, with a new file on every medium of a file, and with the test bed's device.
pub(crate) fn on_persistent_memory(test: impl Fn(&Way, &str)) {
    for way in ways() {
        for (number, directory) in directories().iter().enumerate() {
            test(&way, directory.path().join(format!("{number}.pmem")).to_str().unwrap());
        }
        if let Ok(device) = env::var("PMOF_DEVDAX") {
            test(&way, &device);
        }
    }
}
