//! Running one cell: two processes of fio, and what comes out of them.

use std::{
    ffi::OsString,
    fs::{self, File},
    net::{IpAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};

use super::{
    cell::{Access, Cell, Engine, Memory},
    content::{self, Done, VERIFY_PATTERN},
};

/// Longer than any cell on a busy machine, with the five seconds of a client that came too early.
const CELL_TIMEOUT: Duration = Duration::from_secs(180);
/// How long a server may take until it is seen to listen, before a client is started all the same.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(10);
/// The same where nothing shows whether it listens.
const BLIND_LISTEN_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the other side of a process that failed may go on.
const GRACE: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(10);
/// Ports are looked for from here on, below those that systems give to clients.
const FIRST_PORT: u16 = 20_000;
const LAST_PORT: u16 = 32_000;

/// What stays the same from cell to cell.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) fio: PathBuf,
    /// `LD_LIBRARY_PATH` of the server and of the client.
    pub(crate) server_libraries: OsString,
    pub(crate) client_libraries: OsString,
    /// `PMOF_TRANSPORT`.
    pub(crate) transport: String,
    pub(crate) address: IpAddr,
    pub(crate) medium: Medium,
    /// Where the files of a run are made.
    pub(crate) directory: PathBuf,
}

/// The memory of a server that is not ordinary memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Medium {
    /// Files in a directory, one a thread. They are taken for persistent memory, whatever they lie on.
    Directory(PathBuf),
    /// A device-DAX, with a part for each thread. Its content is looked at through a client only.
    Device(PathBuf),
}

/// A process that is killed where it is left alone.
pub(super) struct Process {
    child: Child,
}

/// How the processes of a pair ended: whether with success; `None` where one did not end in time.
pub(super) type Ends = [Option<bool>; 2];

/// Waits for both. One that fails leaves the other little time: it waits for somebody who is gone.
pub(super) fn wait_for_both(pair: [&mut Process; 2], deadline: Instant) -> Result<Ends> {
    let [one, other] = pair;
    let (mut ends, mut deadline) = ([None; 2], deadline);
    while Instant::now() < deadline && ends.contains(&None) {
        for (process, end) in [&mut *one, &mut *other].into_iter().zip(&mut ends) {
            let Some(status) = process.child.try_wait()? else { continue };
            if end.is_none() && !status.success() {
                deadline = deadline.min(Instant::now() + GRACE);
            }
            *end = Some(status.success());
        }
        thread::sleep(POLL);
    }
    Ok(ends)
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has ended already where these fail.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Setting {
    /// Runs the cell and checks all that can be seen of it.
    ///
    /// The files of the run stay in the setting's directory.
    pub(crate) fn run(&self, cell: &Cell) -> Result<Done> {
        let device = matches!(self.medium, Medium::Device(_)) && cell.memory == Memory::Medium;
        if device && !cell.access.writes() {
            // What is read must be there; only a client can bring it.
            self.pair(&Cell { access: Access::Write, ..*cell }, "before")?;
        }
        let files = self.prepare_files(cell)?;
        let done = self.pair(cell, "run")?;
        check_bytes(cell, done)?;
        check_files(cell, &files, done)?;
        if device && cell.engine == Engine::Gpspm {
            self.pair(&Cell { engine: Engine::Apm, access: Access::Read, ..*cell }, "after")?;
        }
        for file in files {
            fs::remove_file(&file).with_context(|| format!("removing {}", file.display()))?;
        }
        Ok(done)
    }

    fn prepare_files(&self, cell: &Cell) -> Result<Vec<PathBuf>> {
        let Medium::Directory(directory) = &self.medium else { return Ok(Vec::new()) };
        if cell.memory == Memory::Dram {
            return Ok(Vec::new());
        }
        let files: Vec<_> = (0..cell.threads).map(|thread| directory.join(format!("target.{thread}"))).collect();
        for file in &files {
            content::prepare(file, cell)?;
        }
        Ok(files)
    }

    /// One server and one client, to their ends.
    fn pair(&self, cell: &Cell, name: &str) -> Result<Done> {
        let port = free_ports(self.address, cell.threads)?;
        let deadline = Instant::now() + CELL_TIMEOUT;
        let mut server = self.start(&format!("{name}-server"), &self.server_libraries, self.server(cell, port))?;
        self.wait_for_listeners(port, cell.threads, &mut server)?;
        let report = self.directory.join(format!("{name}-client.json"));
        let mut client =
            self.start(&format!("{name}-client"), &self.client_libraries, self.client(cell, port, &report))?;
        let ends = wait_for_both([&mut client, &mut server], deadline)?;
        for (who, ended) in ["client", "server"].into_iter().zip(ends) {
            match ended {
                Some(true) => {}
                Some(false) => bail!("{name}: the {who} failed{}", self.last_words(name)),
                None => bail!("{name}: the {who} did not end{}", self.last_words(name)),
            }
        }
        for who in ["server", "client"] {
            if let Some(line) = self.complaint(&format!("{name}-{who}")) {
                bail!("{name}: the {who} says: {line}");
            }
        }
        let json = fs::read_to_string(&report).with_context(|| format!("reading {}", report.display()))?;
        let done = content::parse(&json)?;
        ensure!(done.error == 0, "{name}: fio's error number is {}", done.error);
        Ok(done)
    }

    pub(super) fn start(&self, name: &str, libraries: &OsString, arguments: Vec<String>) -> Result<Process> {
        let stream = |suffix: &str| {
            let path = self.directory.join(format!("{name}.{suffix}"));
            File::create(&path).with_context(|| format!("making {}", path.display()))
        };
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--"])
            .arg(&self.fio)
            .args(arguments)
            .current_dir(&self.directory)
            .env("LD_LIBRARY_PATH", libraries)
            .env("PMOF_TRANSPORT", &self.transport)
            // Files that lie on no persistent memory are taken for such by libpmem.
            .env("PMEM_IS_PMEM_FORCE", "1")
            .stdin(Stdio::null())
            .stdout(stream("out")?)
            .stderr(stream("err")?);
        Ok(Process { child: command.spawn().context("starting setpriv with fio")? })
    }

    fn common(&self, cell: &Cell, side: &str, port: u16) -> Vec<String> {
        let engine = cell.engine.name();
        [
            format!("--name={side}"),
            format!("--ioengine=librpma_{engine}_{side}"),
            "--create_serialize=0".to_owned(),
            "--thread=1".to_owned(),
            "--eta=never".to_owned(),
            format!("--serverip={}", self.address),
            format!("--port={port}"),
            format!("--numjobs={}", cell.threads),
        ]
        .into()
    }

    fn server(&self, cell: &Cell, port: u16) -> Vec<String> {
        let mut arguments = self.common(cell, "server", port);
        arguments.push(format!("--size={}", cell.bytes_of_thread()));
        // Else fio would write a file of this size, and name, before the engine has its say.
        arguments.push("--create_on_open=1".to_owned());
        match (cell.memory, &self.medium) {
            (Memory::Dram, _) => arguments.push("--filename=malloc".to_owned()),
            (Memory::Medium, Medium::Device(device)) => arguments.push(format!("--filename={}", device.display())),
            (Memory::Medium, Medium::Directory(directory)) => {
                arguments.push(format!("--directory={}", directory.display()));
                arguments.push("--filename_format=target.$jobnum".to_owned());
            }
        }
        if cell.memory == Memory::Medium {
            arguments.push("--direct_write_to_pmem=1".to_owned());
        }
        if cell.engine == Engine::Gpspm {
            // The engine takes a completion into a queue of this length while the queue may be full of requests that
            // wait for a place to answer: it writes beyond it unless there is a place more than clients can fill.
            arguments.push(format!("--iodepth={}", cell.messages() + 1));
            // Servers that spin beside clients that spin leave little to either.
            arguments.push(format!("--busy_wait_polling={}", u8::from(cell.threads == 1)));
            // The client ends it.
            arguments.extend(["--time_based=1".to_owned(), "--runtime=365d".to_owned()]);
        }
        arguments
    }

    fn client(&self, cell: &Cell, port: u16, report: &Path) -> Vec<String> {
        let mut arguments = self.common(cell, "client", port);
        arguments.extend([
            "--group_reporting=1".to_owned(),
            "--output-format=json".to_owned(),
            format!("--output={}", report.display()),
            format!("--rw={}", cell.access.name()),
            format!("--bs={}", cell.block_bytes),
            format!("--iodepth={}", cell.depth),
            format!("--iodepth_batch={}", cell.batch()),
        ]);
        if cell.sync {
            arguments.push("--sync=1".to_owned());
        }
        // What is read of ordinary memory that nobody wrote is anything.
        if cell.access.writes() || cell.memory == Memory::Medium {
            // The engine of gpspm's client does not read.
            let reads_back = cell.access.writes() && cell.engine == Engine::Apm;
            arguments.extend([
                "--verify=pattern".to_owned(),
                format!("--verify_pattern={VERIFY_PATTERN}"),
                "--verify_fatal=1".to_owned(),
                format!("--do_verify={}", u8::from(reads_back || !cell.access.writes())),
            ]);
        }
        arguments
    }

    /// A client that comes too early tries again, five seconds later.
    pub(super) fn wait_for_listeners(&self, port: u16, count: u32, server: &mut Process) -> Result<()> {
        let start = Instant::now();
        let wanted =
            |ports: &[u16]| (0..count).all(|number| ports.iter().any(|p| u32::from(*p) == u32::from(port) + number));
        while start.elapsed() < LISTEN_TIMEOUT && server.child.try_wait()?.is_none() {
            match listening_ports(&self.transport) {
                Some(ports) if wanted(&ports) => return Ok(()),
                None if start.elapsed() >= BLIND_LISTEN_TIMEOUT => return Ok(()),
                _ => thread::sleep(POLL),
            }
        }
        Ok(())
    }

    /// What one side said of an error, if it did.
    fn complaint(&self, name: &str) -> Option<String> {
        let read = |suffix: &str| {
            let bytes = fs::read(self.directory.join(format!("{name}.{suffix}"))).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let (errors, output) = (read("err"), read("out"));
        content::complaint(&errors).or_else(|| content::failure(&output)).map(ToOwned::to_owned)
    }

    pub(super) fn last_words(&self, name: &str) -> String {
        let words = ["server", "client"].map(|who| {
            let line = self.complaint(&format!("{name}-{who}"));
            line.map(|line| format!("; the {who} says: {line}")).unwrap_or_default()
        });
        words.concat()
    }
}

/// Each block is used once, and what is written read back once where the engine reads.
fn check_bytes(cell: &Cell, done: Done) -> Result<()> {
    let all = u64::from(cell.threads) * cell.bytes_of_thread();
    let (written, read) = if cell.access.only_writes() {
        (all, if cell.engine == Engine::Apm { all } else { 0 })
    } else if cell.access.writes() {
        // Blocks that are not written are read; those that are written are read back.
        ensure!(done.written_bytes > 0, "a mixed load wrote nothing");
        (done.written_bytes, all)
    } else {
        (0, all)
    };
    ensure!(
        done.written_bytes == written && done.read_bytes == read,
        "{} bytes were written and {} read, not {written} and {read}",
        done.written_bytes,
        done.read_bytes
    );
    Ok(())
}

/// The servers' files hold as many written blocks as the client says, and nothing else.
fn check_files(cell: &Cell, files: &[PathBuf], done: Done) -> Result<()> {
    let mut blocks = 0;
    for file in files {
        blocks += content::written_blocks(file, cell)?;
    }
    if !files.is_empty() && cell.access.writes() {
        let said = done.written_bytes / cell.block_bytes;
        ensure!(blocks == said, "the client wrote {said} blocks, the server's files hold {blocks}");
    }
    Ok(())
}

/// The first of so many ports in a row that nobody has.
pub(super) fn free_ports(address: IpAddr, count: u32) -> Result<u16> {
    // Not where another run looks first.
    let spread = u16::try_from(std::process::id() % 100)? * 64;
    let starts = (FIRST_PORT + spread..LAST_PORT).chain(FIRST_PORT..FIRST_PORT + spread).step_by(16);
    for start in starts {
        let bound: Vec<_> = (0..count).map_while(|number| bind(address, u32::from(start) + number)).collect();
        if bound.len() == count as usize {
            return Ok(start);
        }
    }
    bail!("no {count} free ports in a row on {address}")
}

fn bind(address: IpAddr, port: u32) -> Option<TcpListener> {
    TcpListener::bind((address, u16::try_from(port).ok()?)).ok()
}

/// The ports that somebody listens on over this transport; `None` where nothing tells.
fn listening_ports(transport: &str) -> Option<Vec<u16>> {
    match transport {
        // Connections over libfabric begin on a TCP socket.
        "tcp" | "fabric+tcp" | "fabric+net" | "fabric+tcp-msg" => {
            let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|table| fs::read_to_string(table).unwrap_or_default());
            Some(tables.iter().flat_map(|table| table.lines().filter_map(listening_port)).collect())
        }
        "verbs" => {
            // Of iproute2.
            let table = Command::new("rdma").args(["resource", "show", "cm_id"]).output().ok()?;
            let text = String::from_utf8_lossy(&table.stdout);
            table.status.success().then(|| text.lines().filter_map(listening_rdma_port).collect())
        }
        _ => None,
    }
}

/// `link rxe0/1 cm-idn 0 state LISTEN ps TCP pid 76 comm fio src-addr 10.77.0.1:7174 dst-addr 0.0.0.0:0`
fn listening_rdma_port(line: &str) -> Option<u16> {
    let mut words = line.split_whitespace();
    words.find(|word| *word == "state").and_then(|_| words.next()).filter(|state| *state == "LISTEN")?;
    words.find(|word| *word == "src-addr")?;
    words.next()?.rsplit_once(':')?.1.parse().ok()
}

/// `  0: 0100007F:1F90 00000000:0000 0A ...`, where 0A is the state LISTEN.
fn listening_port(line: &str) -> Option<u16> {
    let mut words = line.split_whitespace().skip(1);
    let (_, port) = words.next()?.rsplit_once(':')?;
    (words.nth(1)? == "0A").then(|| u16::from_str_radix(port, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_seen_in_the_kernels_table() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(listening_ports("tcp").unwrap().contains(&port));
        drop(listener);
        assert!(!listening_ports("tcp").unwrap().contains(&port));
        assert_eq!(listening_port("   1: 0100007F:1F90 0100007F:C001 01 00000000"), None);
        assert_eq!(listening_port("  sl  local_address rem_address   st tx_queue"), None);
    }

    #[test]
    fn a_listener_over_rdma_is_seen_in_what_iproute2_says() {
        let line =
            "link rxe0/1 cm-idn 3 state LISTEN ps TCP pid 76 comm fio src-addr 10.77.0.1:7174 dst-addr 0.0.0.0:0";
        assert_eq!(listening_rdma_port(line), Some(7174));
        assert_eq!(listening_rdma_port(&line.replace("10.77.0.1", "fd77::1")), Some(7174));
        assert_eq!(listening_rdma_port(&line.replace("LISTEN", "CONNECT")), None);
        assert_eq!(listening_rdma_port("link rxe0/1 cm-idn 3 state LISTEN ps TCP"), None);
    }

    fn process(script: &str) -> Process {
        Process { child: Command::new("sh").args(["-c", script]).spawn().unwrap() }
    }

    #[test]
    fn both_ends_are_waited_for_and_the_time_is_kept() {
        let soon = || Instant::now() + Duration::from_millis(200);
        let later = Instant::now() + Duration::from_secs(60);
        let ends = wait_for_both([&mut process("true"), &mut process("sleep 0.1")], later).unwrap();
        assert_eq!(ends, [Some(true), Some(true)]);
        let ends = wait_for_both([&mut process("true"), &mut process("exec sleep 60")], soon()).unwrap();
        assert_eq!(ends, [Some(true), None]);
        let ends = wait_for_both([&mut process("exit 1"), &mut process("sleep 0.1; exit 2")], later).unwrap();
        assert_eq!(ends, [Some(false), Some(false)]);
    }

    #[test]
    fn bytes_that_were_not_moved_are_missed() {
        let cell = Cell {
            engine: Engine::Apm,
            access: Access::Write,
            block_bytes: 4096,
            depth: 1,
            sync: true,
            threads: 2,
            memory: Memory::Dram,
        };
        let all = 2 << 20;
        let done = Done { written_bytes: all, read_bytes: all, ..Done::default() };
        check_bytes(&cell, done).unwrap();
        check_bytes(&cell, Done { written_bytes: all - 4096, ..done }).unwrap_err();
        check_bytes(&cell, Done { read_bytes: 0, ..done }).unwrap_err();
        check_bytes(&Cell { engine: Engine::Gpspm, ..cell }, Done { read_bytes: 0, ..done }).unwrap();
        check_bytes(&Cell { access: Access::ReadWrite, ..cell }, Done { written_bytes: 4096, ..done }).unwrap();
        check_bytes(&Cell { access: Access::Read, ..cell }, Done { written_bytes: 0, ..done }).unwrap();
    }
}
