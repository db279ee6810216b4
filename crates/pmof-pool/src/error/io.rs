//! Errors of pools as those of the standard library, for programs whose functions return `io::Result`.

use std::io;

use pmof_access::ConnectError;
use pmof_control::PoolRefusal;
use pmof_mem::MemError;
use pmof_pool_set::PoolSetError;

use super::{PoolError, ReplicaError};

/// The kind says what a program can do about it; the text is that of the error, which [`get_ref`](io::Error::get_ref) gives back.
///
/// | kind | when |
/// |---|---|
/// | `NotFound`, `AlreadyExists` | there is no such pool, or one has the name |
/// | `ResourceBusy` | another has the pool open: try again later ([`is_busy`](PoolError::is_busy)) |
/// | `StaleNetworkFileHandle` | another took the pool over ([`is_fenced`](PoolError::is_fenced)): drop this handle |
/// | `TimedOut`, `NotConnected` | too few replicas are in reach ([`is_replica_lost`](PoolError::is_replica_lost)) |
/// | `StorageFull` | a target has no room |
/// | `PermissionDenied`, `ReadOnlyFilesystem` | this user is not admitted; the pool is open for reading |
/// | `InvalidInput` | an argument is wrong: a URL, a range, an offset, a size |
/// | `Unsupported` | no method reaches the durability that was asked for |
/// | `InvalidData` | what is there is damaged, or no pool |
/// | `Other` | all else |
impl From<PoolError> for io::Error {
    fn from(error: PoolError) -> Self {
        Self::new(kind_of(&error), error)
    }
}

fn kind_of(error: &PoolError) -> io::ErrorKind {
    use io::ErrorKind as Kind;
    match error {
        _ if error.is_busy() => Kind::ResourceBusy,
        _ if error.is_fenced() => Kind::StaleNetworkFileHandle,
        PoolError::Url(_)
        | PoolError::NoReplicas
        | PoolError::NoDurability
        | PoolError::NoSuchReplica { .. }
        | PoolError::Twice { .. }
        | PoolError::OutOfBounds { .. }
        | PoolError::Reversed { .. }
        | PoolError::Misaligned { .. }
        | PoolError::Header { .. }
        | PoolError::PointName { .. } => Kind::InvalidInput,
        PoolError::ReadOnly => Kind::ReadOnlyFilesystem,
        PoolError::NoPoint { .. } | PoolError::NoPoints { .. } => Kind::NotFound,
        PoolError::Closed => Kind::NotConnected,
        PoolError::Mirror(error) | PoolError::Set(PoolSetError::Mem(error)) => of_memory(error),
        _ => match error.replica_error() {
            Some(why) => of_replica(why),
            None if error.is_replica_lost() => Kind::NotConnected,
            None => Kind::Other,
        },
    }
}

fn of_replica(why: &ReplicaError) -> io::ErrorKind {
    use io::ErrorKind as Kind;
    match why {
        ReplicaError::TimedOut { .. }
        | ReplicaError::Silent { .. }
        | ReplicaError::Connect(ConnectError::TimedOut { .. }) => Kind::TimedOut,
        ReplicaError::NotDurable { .. } => Kind::Unsupported,
        ReplicaError::Memory(error) => of_memory(error),
        ReplicaError::PointsDamaged | ReplicaError::Differs { .. } => Kind::InvalidData,
        ReplicaError::NoSuchPoint { .. } => Kind::NotFound,
        ReplicaError::Refused { refusal, .. } => match refusal {
            PoolRefusal::NotFound | PoolRefusal::PartMissing => Kind::NotFound,
            PoolRefusal::AlreadyExists => Kind::AlreadyExists,
            PoolRefusal::NoSpace => Kind::StorageFull,
            PoolRefusal::NotAdmitted => Kind::PermissionDenied,
            PoolRefusal::NotWritable => Kind::ReadOnlyFilesystem,
            PoolRefusal::BadSize => Kind::InvalidInput,
            PoolRefusal::NotDurable => Kind::Unsupported,
            PoolRefusal::NotAUsablePool
            | PoolRefusal::HeadersDamaged
            | PoolRefusal::UncertainState
            | PoolRefusal::BadSet => Kind::InvalidData,
            _ => Kind::Other,
        },
        why if why.is_lost() => Kind::NotConnected,
        _ => Kind::Other,
    }
}

fn of_memory(error: &MemError) -> io::ErrorKind {
    match error {
        MemError::NoSpace { .. } => io::ErrorKind::StorageFull,
        MemError::Io { source, .. } => source.kind(),
        _ => io::ErrorKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use pmof_access::Durability;
    use pmof_mem::causes;

    use super::*;
    use crate::Pool;

    fn kind(error: PoolError) -> io::ErrorKind {
        let text = error.to_string();
        let error = io::Error::from(error);
        assert_eq!(error.to_string(), text);
        let held = error.get_ref().unwrap();
        assert!(held.source().is_none() && held.is::<PoolError>(), "its causes are in its text");
        error.kind()
    }

    #[test]
    fn kinds_say_what_a_program_can_do() {
        assert_eq!(kind(PoolError::NoReplicas), io::ErrorKind::InvalidInput);
        assert_eq!(kind(PoolError::ReadOnly), io::ErrorKind::ReadOnlyFilesystem);
        assert_eq!(kind(PoolError::Closed), io::ErrorKind::NotConnected);
        let open =
            |url: &str| Pool::options().require(Durability::ProcessCrash).replica(url).open_read_only().unwrap_err();
        assert_eq!(kind(open("tcp://h/")), io::ErrorKind::InvalidInput);
        // Port 1 has no listener.
        assert_eq!(kind(open("tcp://127.0.0.1:1/orders")), io::ErrorKind::NotConnected);
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(kind(open(&format!("file://{}/orders", directory.path().display()))), io::ErrorKind::NotFound);
    }

    /// Programs print one line: it says why. Those that print each error of a chain say it once.
    #[test]
    fn one_line_has_the_cause() {
        let refused = || {
            let options = Pool::options().require(Durability::ProcessCrash);
            options.replica("tcp://127.0.0.1:1/orders").open_read_only().unwrap_err()
        };
        for error in [Box::from(refused()), Box::from(io::Error::from(refused()))] {
            let error: Box<dyn std::error::Error> = error;
            let text = error.to_string();
            assert!(text.contains("tcp://127.0.0.1:1/orders failed: ") && text.contains("refused"), "{text}");
            assert_eq!(causes(&*error).to_string(), text);
        }
    }
}
