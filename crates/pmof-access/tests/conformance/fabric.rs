//! What the suite needs of a transport.

use std::time::Duration;

use pmof_access::{Access, ConnectionError, Location, OperationError, Peer, Refusal};
use pmof_proto::{Descriptor, RegionKey};

use crate::pair::{Pair, Setup, loopback, pair};

/// One transport under test.
pub(crate) trait Fabric {
    /// The clock is virtual: time limits are kept exactly.
    const IS_VIRTUAL: bool;

    /// The target's CPU carries every operation out: nothing moves while it does not, and it believes nobody.
    const SERVED_BY_CPU: bool = true;

    /// The descriptor of a queue shows nothing but outcomes: no credit of the transport, no completions of its own.
    const SHOWS_OUTCOMES_ALONE: bool = Self::SERVED_BY_CPU;

    /// A key that is bound to one connection is refused on others also for what needs no message.
    const BINDS_DIRECT_WAY: bool = true;

    /// An outcome of an operation is known also where a later one breaks the connection.
    const ACKNOWLEDGES_EACH: bool = false;

    /// Connections that a machine has memory for.
    const CONNECTIONS: u64 = 64;

    /// Whether this machine has it. Where it does not, the reason is reported.
    fn is_there() -> bool {
        true
    }

    /// A fresh one, shared with no other test.
    fn new() -> Self;

    /// A new opening at the initiator's side.
    fn peer(&self) -> Peer;

    /// A new opening at the target's side.
    fn target(&self) -> Peer {
        self.peer()
    }

    /// Where targets listen: any free port.
    fn listen_address(&self) -> Location {
        loopback()
    }

    /// A descriptor of a region that there is not, made of one that there is.
    fn forge_key(descriptor: &mut Descriptor) {
        descriptor.key = RegionKey([7; 16]);
    }

    /// What the initiator is told where the target breaks off because of `expected`.
    fn refusal(expected: Refusal) -> Refusal {
        expected
    }

    /// Whether what carries operations out at the target checks that this right was granted.
    fn checks(_right: Access) -> bool {
        true
    }

    /// Whether an initiator's operation ended as one does where the target breaks off because of `expected`. Some
    /// operations go to the target's CPU on every transport.
    fn is_refused_there(error: &OperationError, expected: Refusal) -> bool {
        let refusals = [expected, Self::refusal(expected)];
        matches!(error, OperationError::Refused { refusal, .. } if refusals.contains(refusal))
    }

    /// How the target's connection ends then.
    fn is_refused_here(why: &ConnectionError, expected: Refusal) -> bool {
        *why == ConnectionError::RefusedHere(expected)
    }

    /// Time since a fixed origin.
    fn now(&self) -> Duration;

    /// An address that leads to this target, and what breaks the connection made to it without a goodbye, as if the
    /// target had been killed.
    fn breakable(&self, target: &Location) -> (Location, Box<dyn FnOnce() + '_>);

    /// Two sides joined by a connection.
    #[track_caller]
    fn pair(&self) -> Pair {
        self.pair_with(&Setup::default())
    }

    /// The same, with these settings.
    #[track_caller]
    fn pair_with(&self, setup: &Setup) -> Pair {
        pair((self.peer(), self.target()), self.listen_address(), setup)
    }

    /// Runs `wait` and checks that it took `expected`: exactly, or at least where the clock is real.
    #[track_caller]
    fn takes<T>(&self, expected: Duration, wait: impl FnOnce() -> T) -> T {
        /// What a loaded machine may add.
        const SLACK: Duration = Duration::from_secs(30);
        let start = self.now();
        let result = wait();
        let took = self.now().saturating_sub(start);
        if Self::IS_VIRTUAL {
            assert_eq!(took, expected);
        } else {
            assert!(took >= expected && took < expected + SLACK, "took {took:?} instead of {expected:?}");
        }
        result
    }
}
