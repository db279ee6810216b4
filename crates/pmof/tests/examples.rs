//! Every example as two processes, over every transport: tcp and shm here, verbs where the environment names the two ends of
//! a wire (`PMOF_WIRE_A`, `PMOF_WIRE_B`), as the test bed's machine does. It also names directories and a device for the
//! persistent ones.

use std::{
    env, fs,
    io::{BufRead, BufReader, Read},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Output, Stdio},
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

use pmof::access::{Address, ConnectOptions, Medium, Memory, Peer, QueueOptions};
use tempfile::TempDir;

/// Where the bytes of an example begin in its file or device: the log's tail, for one.
const DATA_OFFSET: u64 = 4096;

/// Longer than anything takes that works, on a loaded machine.
const LONG: Duration = Duration::from_mins(1);

/// Every example, with the words that its initiator needs.
const EXAMPLES: [(&str, &[&str]); 14] = [
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
        if EXAMPLES.iter().any(|(name, _)| is_stale(&directory.join(name))) {
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

fn program(name: &str) -> Command {
    let mut command = Command::new(directory().join(name));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// What a process printed, and its exit code.
#[derive(Debug)]
struct Said {
    code: Option<i32>,
    output: String,
    errors: String,
}

impl Said {
    fn new(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code(), output: text(output.stdout), errors: text(output.stderr) }
    }

    /// It succeeded: what it printed.
    #[track_caller]
    fn done(self) -> String {
        assert_eq!((self.code, self.errors.as_str()), (Some(0), ""), "{self:?}");
        self.output
    }

    /// It failed with this code, and said why with these words.
    #[track_caller]
    fn failed(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert!(words.iter().all(|word| self.errors.contains(word)), "{words:?}: {self:?}");
        assert!(!self.errors.contains("panicked"), "{self:?}");
    }
}

/// Waits for the end of a process, but not for ever.
fn wait(mut child: Child) -> Said {
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
struct Way {
    /// Options and the address to listen on.
    serve: Vec<String>,
    /// Options of the initiator.
    connect: Vec<String>,
    _socket: Option<TempDir>,
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

impl Way {
    fn tcp() -> Self {
        Self { serve: words("tcp://127.0.0.1:0"), connect: Vec::new(), _socket: None }
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

    fn serve(&self, name: &str, more: &[&str]) -> Target<'_> {
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
fn ways() -> Vec<Way> {
    [Some(Way::tcp()), Some(Way::shm()), Way::verbs()].into_iter().flatten().collect()
}

/// The target's side of an example, which listens. Killed when dropped.
struct Target<'w> {
    way: &'w Way,
    name: String,
    address: String,
    child: Option<Child>,
    output: BufReader<ChildStdout>,
}

impl Target<'_> {
    fn start(&self, more: &[&str]) -> Child {
        program(&self.name).args(&self.way.connect).arg(&self.address).args(more).spawn().unwrap()
    }

    /// The initiator's side, to its end.
    fn run(&self, more: &[&str]) -> Said {
        wait(self.start(more))
    }

    /// What the target printed after it was ready. It has succeeded.
    #[track_caller]
    fn done(mut self) -> String {
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
fn both(way: &Way, name: &str, target: &[&str], initiator: &[&str]) -> (String, String) {
    let target = way.serve(name, target);
    let said = target.run(initiator).done();
    (target.done(), said)
}

/// A directory for files that are to be durable: that of the build, which lies on a disk where `/tmp` may not, or the test
/// bed's.
fn directories() -> Vec<TempDir> {
    let named: Vec<_> = ["PMOF_FSDAX", "PMOF_FILE"].into_iter().filter_map(env::var_os).collect();
    let places = if named.is_empty() { vec![env!("CARGO_TARGET_TMPDIR").into()] } else { named };
    places.into_iter().map(|place| tempfile::tempdir_in(place).unwrap()).collect()
}

/// Runs this over every way, with a new file on every medium of a file, and with the test bed's device.
fn on_persistent_memory(test: impl Fn(&Way, &str)) {
    for way in ways() {
        for (number, directory) in directories().iter().enumerate() {
            test(&way, directory.path().join(format!("{number}.pmem")).to_str().unwrap());
        }
        if let Ok(device) = env::var("PMOF_DEVDAX") {
            test(&way, &device);
        }
    }
}

#[test]
fn connection() {
    for way in ways() {
        let target = way.serve("connection", &[]);
        target.run(&[]).failed(1, &["refused: say who you are"]);
        let said = target.run(&["Ada"]).done();
        assert_eq!(said, "Good day, Ada!\nthe connection stands: true\n");
        assert_eq!(target.done(), "refused a request without a name\nAda is here\nAda has gone\n");
    }
}

#[test]
fn read_to_volatile() {
    for way in ways() {
        let (_, said) = both(&way, "read_to_volatile", &[], &[]);
        assert!(said.contains("read 53 bytes") && said.contains("while you read this."), "{said}");
        assert!(said.contains("a write is refused"), "{said}");
    }
}

#[test]
fn read_to_persistent() {
    on_persistent_memory(|way, file| {
        let (_, said) = both(way, "read_to_persistent", &[], &[file]);
        assert!(said.contains("PowerFailure") && said.contains("probed"), "{said}");
        let mut found = [0; 14];
        Memory::open(Path::new(file), None).unwrap().read(DATA_OFFSET, &mut found).unwrap();
        assert_eq!(&found, b"Worth keeping.");
    });
    for way in ways() {
        let (_, said) = both(&way, "read_to_persistent", &[], &[]);
        assert_eq!(said, "14 bytes in anonymous memory: Visible (store, probed)\n");
    }
}

#[test]
fn write_to_persistent() {
    on_persistent_memory(|way, file| {
        let (there, said) = both(way, "write_to_persistent", &[file], &[]);
        assert_eq!(there, "there is now: written from afar\n");
        // The machines that run this have no caches that survive loss of power.
        assert!(said.contains("visible, and no more") && said.contains("after a flush: PowerFailure"), "{said}");
    });
}

#[test]
fn flush() {
    on_persistent_memory(|way, file| {
        let (_, said) = both(way, "flush", &[file], &["power-failure"]);
        assert!(said.ends_with("100 writes, one flush: PowerFailure\n"), "{said}");
        let native = way.serve[0] == "--trust-network" && file.starts_with("/dev/");
        assert_eq!(said.contains("PowerFailure: native flush (cache-line write-back, probed)"), native, "{said}");
    });
    for way in ways() {
        let target = way.serve("flush", &[]);
        target.run(&["power-failure"]).failed(1, &["anonymous memory", "cannot give PowerFailure"]);
        drop(target);
        let (_, said) = both(&way, "flush", &[], &[]);
        assert!(said.ends_with("100 writes, one flush: Visible\n"), "{said}");
        way.serve("flush", &[]).run(&["forever"]).failed(2, &["forever", "usage: flush serve"]);
    }
}

#[test]
fn many_connections() {
    for way in ways() {
        let target = way.serve("many_connections", &["2"]);
        // Two that stay, and for whom nothing is left.
        let address: Address = target.address.parse().unwrap();
        let source = env::var("PMOF_WIRE_A").ok().and_then(|address| address.parse().ok());
        let peer = Peer::towards(&address, source).unwrap();
        let queue = peer.completion_queue(QueueOptions::default()).unwrap();
        let options = ConnectOptions { source, ..ConnectOptions::default() };
        let stay = [(); 2].map(|()| peer.connect(&address, &queue, &options).unwrap());
        target.run(&["late"]).failed(1, &["as many connections as it may have"]);
        let [first, second] = stay;
        assert!(first.close(LONG));
        // Now there is room for one.
        let answers = target.run(&["Ada"]).done();
        assert_eq!(answers, "answered with 3 bytes\n".repeat(3));
        drop(second);
        let there = target.done();
        assert_eq!(there.matches("says: Ada").count(), 3, "{there}");
        assert!(there.starts_with("full: refused one more\n") && there.ends_with("served 2\n"), "{there}");
    }
}

#[test]
fn append_log() {
    let lines = |word: &str| (1..=10).map(|number| format!("{word} {number}\n")).collect::<Vec<_>>().concat();
    on_persistent_memory(|way, file| {
        let memory = || Memory::open(Path::new(file), None).unwrap();
        if Path::new(file).exists() {
            // The device may hold what another example wrote.
            memory().store(DATA_OFFSET, &[0; 8]).unwrap();
        }
        let (there, said) = both(way, "append_log", &[file], &["one"]);
        assert_eq!(said, "appended 10 entries: PowerFailure\n");
        assert_eq!(there, format!("0 entries were there\n{}", lines("one")));
        let (there, _) = both(way, "append_log", &[file], &["two"]);
        let entries = [lines("one"), lines("two")].concat();
        assert_eq!(there, format!("10 entries were there\n{entries}"));
        let (mut tail, mut bytes) = ([0; 8], vec![0; entries.len()]);
        memory().read(DATA_OFFSET, &mut tail).unwrap();
        memory().read(DATA_OFFSET + 64, &mut bytes).unwrap();
        assert_eq!(u64::from_le_bytes(tail), entries.len() as u64);
        assert_eq!(bytes, entries.as_bytes());

        // A tail that points nowhere is seen before anybody follows it.
        memory().store(DATA_OFFSET, &u64::MAX.to_le_bytes()).unwrap();
        let damaged = program("append_log").arg("serve").args(&way.serve).arg(file).spawn().unwrap();
        wait(damaged).failed(1, &["the log is damaged"]);
    });
}

#[test]
fn a_log_fills_up() {
    let way = Way::tcp();
    way.serve("append_log", &[]).run(&[&"x".repeat(8000)]).failed(1, &["the log is full"]);
}

#[test]
fn logging() {
    for way in ways() {
        let target = way.serve("logging", &["info"]);
        let said = target.run(&["debug"]).done();
        let there = target.done();
        let has = |text: &str, words: &[&str]| {
            let is_there = text.lines().any(|line| words.iter().all(|word| line.contains(word)));
            assert!(is_there, "no line with {words:?}: {said} {there}");
        };
        has(&said, &["WARN pmof::connection", "ended", "rejected"]);
        has(&said, &["INFO pmof::connection", "stands"]);
        has(&said, &["DEBUG pmof::flush", "flushes of anonymous memory to Visible go by "]);
        has(&said, &["DEBUG pmof::flush", "not by native flush: "]);
        assert_eq!(said.matches("go by").count(), 1, "it is told once: {said}");
        has(&there, &["WARN pmof::connection", "was not taken"]);
        has(&there, &["INFO pmof::connection", "stands"]);
        has(&there, &["WARN pmof::connection", "ended", "lost"]);
        way.serve("logging", &["error"]).run(&["loud"]).failed(2, &["loud", "usage: "]);
    }
}

#[test]
fn messages() {
    for way in ways() {
        let (there, said) = both(&way, "messages", &[], &["50"]);
        assert_eq!(there, "50 times ping\n");
        assert!(said.starts_with("50 times pong, "), "{said}");
    }
}

#[test]
fn shared_receives() {
    for way in ways() {
        let target = way.serve("shared_receives", &["2"]);
        for child in ["Ada", "Bob"].map(|word| target.start(&[word])) {
            assert_eq!(wait(child).done(), "sent 5 messages, and was thanked\n");
        }
        let there = target.done();
        for word in ["Ada", "Bob"] {
            // Those of one connection come in order, those of two in any.
            let of_it: Vec<_> = there.lines().filter(|line| line.contains(word)).collect();
            let (connection, _) = of_it[0].split_once(':').unwrap();
            let expected: Vec<_> = (1..=5).map(|number| format!("{connection}: {word} {number}")).collect();
            assert_eq!(of_it, expected, "{there}");
        }
    }
}

#[test]
fn gpspm_flush() {
    on_persistent_memory(|way, file| {
        let (there, said) = both(way, "gpspm_flush", &[file], &[]);
        assert_eq!(there, "wrote back bytes 0 to 23\n");
        assert_eq!(said, "23 bytes survive loss of power\n");
    });
    for way in ways() {
        let (_, said) = both(&way, "gpspm_flush", &[], &[]);
        assert!(said.starts_with("23 bytes survive no loss of power"), "{said}");
    }
}

#[test]
fn send_with_immediate() {
    for way in ways() {
        let (there, said) = both(&way, "send_with_immediate", &[], &[]);
        assert_eq!(there, "an order: two teas\nan order: one coffee\nthe end, in 0 bytes\n");
        assert_eq!(said, "sent two orders and the end\n");
    }
}

#[test]
fn write_with_immediate() {
    for way in ways() {
        let (there, said) = both(&way, "write_with_immediate", &[], &[]);
        assert_eq!(there, "slot 2: written to 2\nslot 1: written to 1\nslot 0: the last one\n");
        assert_eq!(said, "filled 3 slots\n");
    }
}

#[test]
fn separate_receive_queue() {
    for way in ways() {
        let (_, said) = both(&way, "separate_receive_queue", &[], &[]);
        assert_eq!(said, "sent 20 numbers, and what came back adds up to 190\n");
    }
}

#[test]
fn every_example_is_tested_listed_and_short() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let Ok(sources) = fs::read_dir(package.join("examples")) else {
        eprintln!("skipped: the sources are not on this machine");
        return;
    };
    let mut files: Vec<_> = sources.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()).collect();
    files.sort();
    let names: Vec<_> = files.iter().map(|file| file.file_stem().unwrap().to_str().unwrap()).collect();
    assert_eq!(names, EXAMPLES.map(|(name, _)| name));
    let readme = fs::read_to_string(package.join("../../README.md")).unwrap();
    for (file, name) in files.iter().zip(names) {
        let lines = fs::read_to_string(file).unwrap().lines().count();
        assert!(lines < 120, "{name} has {lines} lines");
        assert!(readme.contains(&format!("`{name}`")), "the README does not list {name}");
    }
}

#[test]
fn wrong_arguments_show_the_right_ones() {
    for (name, _) in EXAMPLES {
        for (arguments, words) in [
            (&[][..], "an address is missing"),
            (&["serve"], "an address is missing"),
            (&["127.0.0.1:7204"], "is no address"),
            (&["serve", "rds://a:1"], "no transport"),
            (&["shm://s"], "absolute path"),
            (&["serve", "--trust-network"], "an address is missing"),
            (&["--source", "here", "tcp://a:1"], "IP address"),
            (&["serve", "tcp://127.0.0.1:0", "a", "b"], "one word too many"),
        ] {
            let said = wait(program(name).args(arguments).spawn().unwrap());
            said.failed(2, &[words, &format!("usage: {name} serve [--trust-network] URL")]);
            assert_eq!(said.output, "", "{arguments:?}");
        }
    }
}

#[test]
fn words_that_are_no_numbers_are_wrong_arguments() {
    for (name, arguments) in [
        ("many_connections", &["serve", "tcp://127.0.0.1:0", "some"]),
        ("shared_receives", &["serve", "tcp://127.0.0.1:0", "-1"]),
    ] {
        wait(program(name).args(arguments).spawn().unwrap()).failed(2, &[arguments[2], "usage: "]);
    }
    wait(program("messages").args(["tcp://127.0.0.1:1", "1e3"]).spawn().unwrap()).failed(2, &["1e3", "usage: "]);
    wait(program("append_log").arg("tcp://127.0.0.1:1").spawn().unwrap()).failed(2, &["a word", "usage: "]);
}

#[test]
fn where_nobody_listens_it_is_said() {
    // A port that was free just now.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for (name, words) in EXAMPLES {
        for address in [format!("tcp://127.0.0.1:{port}"), "shm:///nowhere/at/all.sock".to_owned()] {
            let said = wait(program(name).arg(&address).args(words).spawn().unwrap());
            said.failed(1, &["cannot reach", "is the target running there?"]);
        }
    }
}

#[test]
fn a_bad_place_to_listen_is_said() {
    for (address, words) in [
        ("tcp://192.0.2.1:0", "connections are not authenticated"),
        ("shm:///nowhere/at/all.sock", "cannot listen"),
        ("tcp://no-such-host.invalid:0", "no-such-host.invalid"),
    ] {
        wait(program("connection").args(["serve", address]).spawn().unwrap()).failed(1, &[words]);
    }
}

#[test]
fn a_bad_file_is_refused_and_left_alone() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("short"), [0; 100]).unwrap();
    fs::write(path("empty"), []).unwrap();
    let foreign = [b"dear diary".to_vec(), vec![b'x'; 2 << 20]].concat();
    fs::write(path("foreign"), &foreign).unwrap();
    for name in ["write_to_persistent", "flush", "append_log", "gpspm_flush"] {
        for (file, words) in [
            ("no/such", "No such file"),
            (".", "cannot be mapped"),
            ("empty", "cannot be mapped"),
            ("short", "no file of an example"),
            ("foreign", "no file of an example"),
        ] {
            let mut command = program(name);
            command.args(["serve", "tcp://127.0.0.1:0"]).arg(path(file));
            let said = wait(command.spawn().unwrap());
            said.failed(1, &[words, directory.path().to_str().unwrap()]);
            assert_eq!(said.output, "", "{file}: it does not listen first");
        }
    }
    assert!(fs::read(path("foreign")).unwrap() == foreign);
    assert_eq!(fs::read(path("short")).unwrap(), [0; 100]);
}
