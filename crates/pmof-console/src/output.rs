//! What commands print: results, errors, receipts and sizes.

use std::{
    fmt,
    io::{self, Write},
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use pmof::{
    Durability, Flushed, PoolError, PoolOptions, PoolRefusal, PoolUrl, Promise, Receipt, ReplicaError, ReplicaReceipt,
    Survival, causes, list_pools,
};
use pmof_pool::{TargetUrl, target_status};
use serde::Serialize;

use crate::trust;

#[cfg(test)]
mod tests;

/// What the first error was that lost some of the output.
static LOST: OnceLock<io::ErrorKind> = OnceLock::new();

/// Whoever read the output has closed its end.
static UNREAD: AtomicBool = AtomicBool::new(false);

/// All was done, and what was printed of it is lost.
#[derive(Debug)]
pub struct Unprinted(io::ErrorKind);

impl fmt::Display for Unprinted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "all was done, and only what was printed of it is lost: standard output took no more ({}); make room there, and do not repeat what has made something",
            self.0
        )
    }
}

impl std::error::Error for Unprinted {}

/// Prints `text`. A reader that closed its end, as `head` does, has seen what it wanted. Whatever else is lost is told when the command [ends](check_printed): it has done
/// its work by now.
pub fn print(text: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    if let Err(error) = output.write_all(trust::repeated_in(text).as_bytes()).and_then(|()| output.flush()) {
        if error.kind() == io::ErrorKind::BrokenPipe {
            UNREAD.store(true, Ordering::Relaxed);
        } else {
            LOST.get_or_init(|| error.kind());
        }
    }
    Ok(())
}

/// Whether the reader of standard output has closed its end: what prints again and again may stop.
pub fn is_unread() -> bool {
    UNREAD.load(Ordering::Relaxed)
}

/// Fails where something that was to be printed is lost, on a full disk such as it may be.
pub fn check_printed() -> anyhow::Result<()> {
    match LOST.get() {
        None => Ok(()),
        Some(kind) => Err(Unprinted(*kind).into()),
    }
}

/// Prints a line to standard error. Where nobody can read it, the exit status says enough.
pub fn complain(line: &str) {
    let _ = writeln!(io::stderr(), "{}", trust::repeated_in(line));
}

/// Prints a line for people. That nobody can read it is no reason to stop: what counts is done, and told by the exit
/// status.
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => {
        drop($crate::output::print(&(format!($($text)*) + "\n")))
    };
}
pub use crate::say;

/// Version of the names in all objects that commands print, and of their meanings: docs/json.md.
const SCHEMA_VERSION: u32 = 1;

/// An object, with the version of its names before its own members.
#[derive(Serialize)]
struct Versioned<'a, T: ?Sized> {
    schema_version: u32,
    #[serde(flatten)]
    object: &'a T,
}

/// One JSON object, whose first member is the version of its names.
///
/// # Errors
/// `object` has another form than an object, or a part of it has none in JSON.
pub fn json_object(object: &(impl Serialize + ?Sized)) -> serde_json::Result<String> {
    serde_json::to_string(&Versioned { schema_version: SCHEMA_VERSION, object })
}

/// Prints one JSON object on a line of its own.
pub fn print_json(object: &(impl Serialize + ?Sized)) -> anyhow::Result<()> {
    Ok(print(&(json_object(object)? + "\n"))?)
}

/// What a medium gives at one level.
#[derive(Debug, Serialize)]
pub struct LevelReport {
    /// The level.
    pub durability: String,
    /// Whether the medium gives it.
    pub available: bool,
    /// What makes bytes durable there.
    pub mechanism: Option<String>,
    /// Whether that was probed or declared.
    pub evidence: Option<String>,
}

impl LevelReport {
    /// `promise`: what gives the level, if the medium does.
    pub fn new(level: Durability, available: bool, promise: Option<Promise>) -> Self {
        Self {
            durability: level.to_string(),
            available,
            mechanism: promise.map(|promise| promise.mechanism.to_string()),
            evidence: promise.map(|promise| promise.evidence.to_string()),
        }
    }
}

/// Adds which command helps, where one does.
pub fn with_mend(error: PoolError) -> anyhow::Error {
    let mend = match &error {
        PoolError::Replica { replica, source } => match **source {
            ReplicaError::Refused { refusal, .. } => match refusal {
                PoolRefusal::AlreadyExists => match replica.url() {
                    Some(url) => in_the_way(url),
                    None => return error.into(),
                },
                PoolRefusal::NotFound => match replica.url() {
                    Some(url) => format!("`pmof pool ls {}` lists the pools", shell_word(&url.target)),
                    None => return error.into(),
                },
                PoolRefusal::NotDurable => "or ask for less with `--durability`".to_owned(),
                _ => return error.into(),
            },
            _ => return error.into(),
        },
        _ => return error.into(),
    };
    anyhow::anyhow!("{}; {mend}", causes(&error))
}

/// What to do about what has a pool's name already.
fn in_the_way(replica: &PoolUrl) -> String {
    let options = replica.source.into_iter().fold(trust::pool_options(), PoolOptions::source);
    let found = options.clone().replica(replica.to_string()).info();
    if let Err(PoolError::Replica { source, .. }) = &found {
        if let ReplicaError::Refused { refusal: PoolRefusal::NotAUsablePool | PoolRefusal::UncertainState, text } =
            &**source
        {
            if let Some(by_hand) = by_hand(replica, &options) {
                return format!("{text}; {by_hand}");
            }
            return format!(
                "`pmof pool rm` removes sound pools, and with `--force` damaged ones; of this the target says: {text}"
            );
        }
    }
    format!("`pmof pool rm {}` removes it with its bytes", shell_word(replica))
}

/// How what has a pool's name and is no pool, nor was one, is removed, which no command does: it may be somebody's file. `None`: it is something else, or the
/// target does not tell.
pub fn by_hand(url: &PoolUrl, options: &PoolOptions) -> Option<String> {
    let names = list_pools(&url.target, options).ok()?;
    if names.contains(&url.name) {
        return None;
    }
    let root = match &url.target {
        TargetUrl::Directory(directory) => directory.clone(),
        target => target_status(target, options).ok()?.root.into(),
    };
    let path = root.join(url.name.as_str());
    Some(format!(
        "nothing says that it is a pool's, and no command touches it: if nobody needs it, remove it by hand on its target's machine (rm {})",
        shell_word(path.display())
    ))
}

/// An argument as a shell takes it for one word: in quotes, where it has characters that mean something there.
pub fn shell_word(argument: impl fmt::Display) -> String {
    let argument = argument.to_string();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/:.,_-+@%=".contains(&byte);
    if !argument.is_empty() && argument.bytes().all(is_plain) {
        return argument;
    }
    format!("'{}'", argument.replace('\'', "'\\''"))
}

/// A size for people and, in full, for sums.
pub fn size(len_bytes: u64) -> String {
    const UNITS: [(u32, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match UNITS.iter().find(|(shift, _)| len_bytes >> shift > 0) {
        Some((shift, unit)) => {
            format!("{:.1} {unit} ({len_bytes} bytes)", len_bytes as f64 / (1_u64 << shift) as f64)
        }
        None if len_bytes == 1 => "1 byte".to_owned(),
        None => format!("{len_bytes} bytes"),
    }
}

/// A receipt for scripts.
#[derive(Debug, Serialize)]
pub struct ReceiptReport {
    durability: String,
    replica_count: usize,
    /// Members that the pool has.
    made_count: usize,
    replicas: Vec<ReplicaReport>,
    survives: SurvivalReport,
}

/// What failures the bytes survive, each on its own.
#[derive(Debug, Serialize)]
struct SurvivalReport {
    process_crash: bool,
    power_of_one_domain: bool,
    power_of_all_domains: bool,
    lost_domains: usize,
    domains_evidence: String,
}

#[derive(Debug, Serialize)]
struct ReplicaReport {
    url: String,
    durability: String,
    method: String,
    mechanism: String,
    evidence: String,
    /// Replicas with one number may fail together; absent where that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure_domain: Option<u16>,
    /// The second flush, where some writes were made durable by other means.
    #[serde(skip_serializing_if = "Option::is_none")]
    also: Option<MeansReport>,
}

/// How a flush was done.
#[derive(Debug, Serialize)]
struct MeansReport {
    method: String,
    mechanism: String,
    evidence: String,
}

impl From<&Receipt> for ReceiptReport {
    fn from(receipt: &Receipt) -> Self {
        Self {
            durability: receipt.durability.to_string(),
            replica_count: receipt.replica_count,
            made_count: receipt.made_count,
            replicas: receipt.replicas.iter().map(ReplicaReport::from).collect(),
            survives: SurvivalReport::from(receipt.survives()),
        }
    }
}

impl From<Survival> for SurvivalReport {
    fn from(survival: Survival) -> Self {
        Self {
            process_crash: survival.process_crash,
            power_of_one_domain: survival.power_of_one,
            power_of_all_domains: survival.power_of_all,
            lost_domains: survival.domains,
            domains_evidence: survival.evidence.to_string(),
        }
    }
}

impl From<&ReplicaReceipt> for ReplicaReport {
    fn from(receipt: &ReplicaReceipt) -> Self {
        Self {
            url: receipt.replica.to_string(),
            durability: receipt.durability.to_string(),
            method: receipt.method.to_string(),
            mechanism: receipt.promise.mechanism.to_string(),
            evidence: receipt.promise.evidence.to_string(),
            failure_domain: receipt.domain.map(|domain| domain.number),
            also: receipt.also.map(|Flushed { method, promise: Promise { mechanism, evidence }, .. }| MeansReport {
                method: method.to_string(),
                mechanism: mechanism.to_string(),
                evidence: evidence.to_string(),
            }),
        }
    }
}
