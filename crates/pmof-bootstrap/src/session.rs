//! The initiator's end of an ssh session: starts a target on the other machine, and learns its addresses and its secret.

use std::{
    fs::File,
    io::{self, Read},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{fs::FileExt, net::UnixStream, process::CommandExt as _},
    },
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use pmof_access::{Address, FabricProvider, Peer, Transport};
use pmof_mem::{
    causes,
    forks::{Process, Uninherited},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{MemfdFlags, SealFlags},
    io::Errno,
    net::{SendFlags, Shutdown},
};

use crate::{Secret, random};
use crate::{
    SshHost,
    greeting::{Greeting, GreetingError, Hello, STDIO_VERSION, StartFailure, beginning},
};

/// Time for ssh to log in and start the target, by default: a slow login with name lookups, not a dead host.
pub const DEFAULT_SSH_TIMEOUT: Duration = Duration::from_secs(30);

/// The command that starts a target on the other machine, by default.
pub const DEFAULT_SSH_COMMAND: &str = "pmof serve --stdio";

/// The limit of error output from ssh and the other machine; more is dropped.
const ERRORS_MAX_BYTES: usize = 16 << 10;

/// Time for ssh to end once its session is over; then it is killed.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// How often to check whether ssh ended.
const END_LOOK: Duration = Duration::from_millis(1);

/// How targets are started through ssh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SshOptions {
    pub(crate) program: PathBuf,
    pub(crate) command: String,
    pub(crate) arguments: Vec<String>,
    pub(crate) timeout: Duration,
    pub(crate) verbs: bool,
    pub(crate) fabric: Option<FabricProvider>,
    pub(crate) rds: bool,
}

impl Default for SshOptions {
    /// `ssh` and [`DEFAULT_SSH_COMMAND`].
    fn default() -> Self {
        Self {
            program: "ssh".into(),
            command: DEFAULT_SSH_COMMAND.to_owned(),
            arguments: Vec::new(),
            timeout: DEFAULT_SSH_TIMEOUT,
            verbs: true,
            fabric: None,
            rds: false,
        }
    }
}

impl SshOptions {
    /// The ssh command: a name or path, without arguments.
    #[must_use]
    pub fn program(mut self, program: PathBuf) -> Self {
        self.program = program;
        self
    }

    /// The command line that starts the target on the other machine; its shell reads it.
    #[must_use]
    pub fn command(mut self, command: String) -> Self {
        self.command = command;
        self
    }

    /// Further arguments of ssh, before the host: `-F FILE`, `-i FILE`, `-J HOST`.
    #[must_use]
    pub fn arguments(mut self, arguments: Vec<String>) -> Self {
        self.arguments = arguments;
        self
    }

    /// Time until the target answers.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Use verbs for the data path where both sides have them.
    #[must_use]
    pub fn verbs(mut self, verbs: bool) -> Self {
        self.verbs = verbs;
        self
    }

    /// Use this provider of libfabric for the data path where both sides have it.
    #[must_use]
    pub fn fabric(mut self, provider: Option<FabricProvider>) -> Self {
        self.fabric = provider;
        self
    }

    /// Use RDS for the data path where both sides have it, and their addresses. A provider of libfabric comes first.
    #[must_use]
    pub fn rds(mut self, rds: bool) -> Self {
        self.rds = rds;
        self
    }
}

impl SshOptions {
    /// The default, modified by the environment: `PMOF_SSH` is the ssh command, `PMOF_SSH_COMMAND` the command line on the
    /// other machine, `PMOF_FABRIC` a provider of libfabric, such as `tcp`. `PMOF_RDS=1` asks for RDS.
    pub fn from_env() -> Self {
        let mut options = Self::default();
        if let Some(program) = std::env::var_os("PMOF_SSH").filter(|program| !program.is_empty()) {
            options.program = program.into();
        }
        if let Some(command) = std::env::var("PMOF_SSH_COMMAND").ok().filter(|command| !command.trim().is_empty()) {
            options.command = command;
        }
        if let Some(name) = std::env::var("PMOF_FABRIC").ok().filter(|name| !name.is_empty()) {
            options.fabric = provider_named(&name, "PMOF_FABRIC");
        }
        options.rds = std::env::var_os("PMOF_RDS").is_some_and(|value| !value.is_empty() && value != "0");
        options
    }
}

/// The provider of libfabric that a variable of the environment names; one that there is not is logged, and none is used.
pub fn provider_named(name: &str, variable: &str) -> Option<FabricProvider> {
    let provider = FabricProvider::ALL.into_iter().find(|known| known.scheme().strip_prefix("fabric+") == Some(name));
    if provider.is_none() {
        log::warn!(target: "pmof::connection", "{variable}={name} names no provider of libfabric that is known: it is not used");
    }
    provider
}

/// Why no target was started through ssh.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SshError {
    /// The ssh command did not start.
    #[error("cannot start {}; install the OpenSSH client, or name another command with PMOF_SSH", program.display())]
    Start {
        /// The command.
        program: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A local resource failed.
    #[error("cannot talk to ssh: {call}")]
    Io {
        /// The system call.
        call: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// ssh ended before the target answered.
    #[error("{}", ended(*status, command, stdout, stderr))]
    Ended {
        /// Its exit status; `None` if the system did not report it.
        status: Option<ExitStatus>,
        /// The command line on the other machine.
        command: String,
        /// What came on standard output, its beginning.
        stdout: String,
        /// What ssh and the other machine wrote to standard error, its beginning.
        stderr: String,
    },
    /// No answer in time.
    #[error(
        "the target did not answer within {} s{}; try the command by hand, and allow more time (--connect-timeout) or fix the login",
        timeout.as_secs(), said(stderr)
    )]
    TimedOut {
        /// The limit.
        timeout: Duration,
        /// What ssh and the other machine wrote to standard error, its beginning.
        stderr: String,
    },
    /// The answer is not from a target of pmof.
    #[error(
        "what `{command}` answered is not a target's greeting: {why}; have the login print nothing, or name the right command with PMOF_SSH_COMMAND"
    )]
    NotATarget {
        /// The command line on the other machine.
        command: String,
        /// What is wrong.
        why: String,
    },
    /// The target is of another version.
    #[error(
        "the target speaks version {found} of the session, this side {STDIO_VERSION}; install the same release on both machines"
    )]
    OtherVersion {
        /// The target's.
        found: u16,
    },
    /// The target could not start.
    #[error("the target did not start: {text}")]
    Target {
        /// The class of the failure.
        why: StartFailure,
        /// Its message.
        text: String,
    },
}

fn ended(status: Option<ExitStatus>, command: &str, stdout: &str, stderr: &str) -> String {
    let how = match status.and_then(|status| status.code()) {
        Some(127) => format!(
            "`{command}` was not found there; install pmof there, or name its path with PMOF_SSH_COMMAND (programs of librpmem: RPMEM_CMD)"
        ),
        Some(255) => {
            "it could not log in; try `ssh -oBatchMode=yes HOST true` by hand: it must work without a password (a key, or an agent)".to_owned()
        }
        Some(code) => format!("`{command}` ended with status {code} before it answered"),
        None => format!("`{command}` was cut off before it answered"),
    };
    let printed = if stdout.is_empty() { String::new() } else { format!("; it printed {stdout:?}") };
    format!("ssh: {how}{}{printed}", said(stderr))
}

fn said(stderr: &str) -> String {
    match stderr.trim() {
        "" => String::new(),
        text => format!(" ({})", text.replace('\n', "; ")),
    }
}

/// A target on another machine that lives as long as this value. Dropping it ends the session.
#[derive(Debug)]
pub struct SshSession {
    child: Child,
    /// The end of this stream is the end of the session. It is a socket: a write after the reader died raises no signal in the application, and its
    /// shutdown is effective even if a child of the application holds it too; one that the C library forked has no copy, and does not keep the session when the application dies.
    stdin: Uninherited,
    has_ended: bool,
    process: Process,
}

/// The results of a new session.
pub struct Started {
    /// Ends the target when it is dropped.
    pub session: SshSession,
    /// Where the target listens for this session, best first, of transports that this side has.
    pub addresses: Vec<Address>,
    /// What the first connection there must prove.
    pub secret: Secret,
}

impl SshSession {
    /// Starts a target on `host` and waits for its greeting.
    pub fn start(host: &SshHost, options: &SshOptions) -> Result<Started, SshError> {
        let io_error = |call| move |errno: Errno| SshError::Io { call, source: errno.into() };
        let nonce = random().map_err(|error| SshError::Io { call: "getrandom", source: error.into() })?;
        let errors = bounded_file().map_err(io_error("memfd_create"))?;
        let stderr = rustix::io::dup(&errors).map_err(io_error("dup"))?;
        let deadline = Instant::now() + options.timeout;
        let mut theirs = None;
        let stdin = Uninherited::open(|| -> io::Result<_> {
            let (ours, its_stdin) = UnixStream::pair()?;
            theirs = Some(its_stdin);
            Ok(ours.into())
        });
        let stdin = stdin.map_err(|source| SshError::Io { call: "socketpair", source })?;
        let its_stdin = theirs.map_or_else(Stdio::null, |theirs| Stdio::from(OwnedFd::from(theirs)));
        let mut child = command(host, options)
            .stdin(its_stdin)
            // Signals of the terminal (Ctrl-C) are for the program, which may still persist.
            .process_group(0)
            .stdout(Stdio::piped())
            .stderr(Stdio::from(stderr))
            .spawn()
            .map_err(|source| SshError::Start { program: options.program.clone(), source })?;
        let stdout = child.stdout.take();
        let mut session = Self { child, stdin, has_ended: false, process: Process::current() };
        let has_verbs = options.verbs && pmof_access::has_rdma_device();
        let fabric = options.fabric.filter(|provider| can_open(Transport::Fabric(*provider)));
        let hello = Hello { has_verbs, fabric, rds: options.rds && can_open(Transport::Rds), nonce };
        // A new socket has room for it. If ssh has ended already, its output says why.
        let _ = rustix::net::send(&session.stdin, &hello.encode(), SendFlags::NOSIGNAL);
        let Some(stdout) = stdout else { return Err(io_error("pipe")(Errno::BADF)) };
        // An answer that is not a target's ends the wait.
        let greeting = session.greeting(stdout, &nonce, options, deadline, &File::from(errors));
        match greeting.inspect_err(|_| session.kill())? {
            Greeting::Ready { secret, mut addresses } => {
                addresses.retain(|address| hello.transports().any(|transport| transport == address.transport));
                Ok(Started { session, addresses, secret })
            }
            Greeting::OtherVersion { version } => {
                session.kill();
                Err(SshError::OtherVersion { found: version })
            }
            Greeting::Failed { why, text } => Err(SshError::Target { why, text }),
        }
    }

    fn greeting(
        &mut self,
        mut stdout: impl Read + AsFd,
        nonce: &[u8; 16],
        options: &SshOptions,
        deadline: Instant,
        errors: &File,
    ) -> Result<Greeting, SshError> {
        let not_a_target =
            |why: GreetingError| SshError::NotATarget { command: options.command.clone(), why: why.to_string() };
        let mut came = Vec::new();
        let mut chunk = [0; 4096];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(SshError::TimedOut { timeout: options.timeout, stderr: text_of(errors) });
            }
            // A limit beyond the kernel's type means no limit.
            let left = Timespec::try_from(left).ok();
            match poll(&mut [PollFd::new(&stdout, PollFlags::IN)], left.as_ref()) {
                Ok(0) | Err(Errno::INTR) => continue,
                Ok(_) => {}
                Err(errno) => return Err(SshError::Io { call: "poll", source: errno.into() }),
            }
            let count = match stdout.read(&mut chunk) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(source) => return Err(SshError::Io { call: "read", source }),
            };
            if count == 0 {
                let status = self.end();
                return Err(SshError::Ended {
                    status,
                    command: options.command.clone(),
                    stdout: beginning(&came),
                    stderr: text_of(errors),
                });
            }
            came.extend_from_slice(&chunk[..count]);
            if let Some(greeting) = Greeting::find(&came, nonce).map_err(not_a_target)? {
                return Ok(greeting);
            }
        }
    }

    /// Ends the session and waits, for a bounded time, until the target and ssh have ended. Returns ssh's status, `None` if
    /// it had to be killed.
    pub fn end(&mut self) -> Option<ExitStatus> {
        self.has_ended = true;
        if !self.process.is_current() {
            // The parent's: ssh is no child of this process, and what is said on the socket would be heard.
            return None;
        }
        // One that ended by itself needs no word.
        let _ = rustix::net::shutdown(&self.stdin, Shutdown::Both);
        let deadline = Instant::now() + END_TIMEOUT;
        while Instant::now() < deadline {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) => std::thread::sleep(END_LOOK),
                // Nobody's child any more: the application waits for all of its children itself.
                Err(_) => return None,
            }
        }
        self.kill();
        None
    }

    fn kill(&mut self) {
        self.has_ended = true;
        // One that ended meanwhile needs neither.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for SshSession {
    fn drop(&mut self) {
        if !self.has_ended {
            self.end();
        }
    }
}

/// Whether this side has the transport.
fn can_open(transport: Transport) -> bool {
    let opened = Peer::open(transport);
    if let Err(error) = &opened {
        log::warn!(target: "pmof::connection", "{} is not used for the data path: {}", transport.scheme(), causes(error));
    }
    opened.is_ok()
}

/// What undoes a user's configuration that keeps ssh from running the command with this side's input and output: a command, session, fork or
/// null input of its own, and a local command, which would share the input. The first value of an option is the one that counts.
///
/// Clients that are older than an option (`RemoteCommand` came with OpenSSH 7.6, `SessionType`, `StdinNull` and `ForkAfterAuthentication` with 8.7)
/// pass it over. `IgnoreUnknown` has to come before, and takes the place of the user's own, so it has to let pass what that does.
const UNDONE: [&str; 7] = [
    "-oIgnoreUnknown=*",
    "-oRemoteCommand=none",
    "-oSessionType=default",
    "-oStdinNull=no",
    "-oForkAfterAuthentication=no",
    "-oPermitLocalCommand=no",
    // A forwarding that another session has already is none of this one's business.
    "-oExitOnForwardFailure=no",
];

fn command(host: &SshHost, options: &SshOptions) -> Command {
    let mut command = Command::new(&options.program);
    command.args(["-T", "-oBatchMode=yes"]).args(UNDONE).args(&options.arguments);
    if let Some(port) = host.port {
        command.arg("-p").arg(port.to_string());
    }
    if let Some(user) = &host.user {
        command.arg("-l").arg(user);
    }
    command.arg("--").arg(&host.host).arg(&options.command);
    command
}

/// A file in memory with a size limit: its writer never blocks, as it would on a pipe without a reader.
fn bounded_file() -> Result<OwnedFd, Errno> {
    let file = rustix::fs::memfd_create("pmof-ssh-errors", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, ERRORS_MAX_BYTES as u64)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
    Ok(file)
}

/// What was written to a bounded file.
fn text_of(file: &File) -> String {
    let mut bytes = vec![0; ERRORS_MAX_BYTES];
    let len = file.read_at(&mut bytes, 0).unwrap_or(0);
    bytes.truncate(len);
    let written = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    String::from_utf8_lossy(&bytes[..written]).into_owned()
}
