//! How long openings and looks at pools wait for one replica.

use core::time::Duration;

/// How much longer an answer is awaited once enough others have come.
pub const GRACE: Duration = Duration::from_millis(300);
/// The same where an address starts a target first: longer than a login through ssh takes.
pub const START_GRACE: Duration = Duration::from_secs(3);
/// If enough answers took long, in this phase or an earlier one, the grace is this multiple of that time.
pub const GRACE_TIMES: u32 = 3;

/// How long a replica is asked for that another initiator has open: longer than a target takes to notice that the other is gone, where its system closed
/// the connection.
pub const BUSY_WAIT: Duration = Duration::from_secs(1);

/// The pauses before it is asked for again: from 5 ms on each twice as long as the one before, up to 80 ms.
pub fn busy_pauses() -> impl Iterator<Item = Duration> {
    core::iter::successors(Some(Duration::from_millis(5)), |pause| Some((*pause * 2).min(Duration::from_millis(80))))
}

/// How often a look at a pool, or an opening for reading, is repeated where a writer seems to change the epoch just then.
pub const READ_ATTEMPTS: u32 = 3;
/// How long it waits between.
pub const READ_PAUSE: Duration = Duration::from_millis(20);

/// How long a look at a pool takes rather than call a member silent that is only slow.
pub const LOOK_TIME: Duration = Duration::from_millis(600);

/// How long asynchronous members are awaited, none of which is needed.
pub const PROMOTED_WAIT: Duration = Duration::from_secs(1);
