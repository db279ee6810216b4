//! The end of a connection: what was posted before still goes, then the wire is closed in order.

use std::{io, time::Duration};

use pmof_proto::{InputPlace, Refusal};

use crate::PeerProcess;

use super::{DirectWay, LinkCore, Phase, RECEIVES_PER_TURN, is_transient, post::ends_in_order};

#[cfg(test)]
mod tests;

/// How long the last words to the other side may take. Closing with unread input would make the kernel throw them away.
const LINGER: Duration = Duration::from_secs(1);

/// Bytes that are read at once to be dropped.
const SCRATCH_BYTES: usize = 16 << 10;

/// What came after the end.
struct Dropped {
    any: bool,
    /// The other side says nothing more.
    is_last: bool,
}

impl LinkCore {
    /// Ends a connection whose address cannot be reached.
    pub(crate) fn end_unmade(&mut self, why: io::Error) {
        self.wire_failed(why);
        self.close();
    }

    /// Ends the connection for a reason that the other side is told.
    pub(crate) fn end_for(&mut self, refusal: Refusal) {
        self.endpoint.end_for(refusal);
        self.advance();
        self.flush_output();
    }

    /// How long nothing has come from the other side, but for what its device or CPU did past this side's.
    pub(crate) fn silent_for(&self, now: Duration) -> Duration {
        now.saturating_sub(self.heard_at)
    }

    /// Ends a connection whose stream ended without a goodbye.
    pub(super) fn lose_stream(&mut self) {
        let why = if self.endpoint.is_established() {
            "the stream ended without a goodbye; the other process died or was killed"
        } else {
            "the stream ended before the connection was established"
        };
        self.endpoint.wire_lost(why.to_owned());
    }

    /// Where the other side closed, sending fails before what it said last was read: why it closed may be among it.
    pub(super) fn hear_last_words(&mut self) {
        if !self.endpoint.is_established() {
            return;
        }
        for _ in 0..RECEIVES_PER_TURN {
            let (Some(wire), Some(place)) = (&mut self.wire, self.endpoint.input_place()) else { return };
            match wire.receive(place) {
                Ok(0) | Err(_) => return,
                Ok(count) => self.endpoint.input_arrived(count),
            }
        }
    }

    /// The process that connected, where the wire still knows it.
    pub(crate) fn peer_process(&self) -> Option<PeerProcess> {
        self.wire.as_ref()?.peer_process()
    }

    /// The connection has ended: moves on what is left to be sent, and closes the wire when that has gone. True if anything moved.
    pub(super) fn finish(&mut self, now: Duration) -> bool {
        let is_unborn = self.wire.as_ref().is_some_and(|wire| wire.is_connecting());
        let moved = !is_unborn && !self.endpoint.is_finished() && self.make_room_to_end();
        if let Some(why) = self.endpoint.ended().filter(|_| is_unborn || self.endpoint.is_finished()) {
            let is_orderly = !is_unborn && ends_in_order(why);
            self.start_closing(is_orderly, now);
        }
        moved
    }

    /// Two sides that both wait for room to send would wait for ever: so this one reads on, and drops what it reads. A side that
    /// says nothing more has ended too, and takes in nothing more.
    fn make_room_to_end(&mut self) -> bool {
        let Dropped { any, is_last } = self.drop_input();
        if is_last {
            self.endpoint.wire_lost("the other side has ended too".to_owned());
            self.advance();
        } else if any {
            self.flush_output();
        }
        any || is_last
    }

    fn start_closing(&mut self, orderly: bool, now: Duration) {
        match &mut self.wire {
            Some(wire) if orderly => {
                wire.shutdown_output();
                self.phase = Phase::Draining { until: now + LINGER };
            }
            _ => self.close(),
        }
    }

    /// Waits for the other side to close too, at most `until`. True if anything moved.
    pub(super) fn drain(&mut self, now: Duration, until: Duration) -> bool {
        let moved = self.direct != DirectWay::None && self.progress();
        if let Some(wire) = &mut self.wire {
            // What had to wait for a read before it.
            wire.submit();
        }
        let Dropped { any, is_last } = self.drop_input();
        if is_last || now >= until {
            self.close();
        }
        moved || any || is_last
    }

    /// Reads what nobody wants any more.
    fn drop_input(&mut self) -> Dropped {
        let mut scratch = [0; SCRATCH_BYTES];
        let mut any = false;
        for _ in 0..RECEIVES_PER_TURN {
            let Some(wire) = &mut self.wire else { break };
            match wire.receive(InputPlace::Staging(&mut scratch)) {
                Err(error) if is_transient(&error) => break,
                Ok(0) | Err(_) => return Dropped { any, is_last: true },
                Ok(_) => any = true,
            }
        }
        Dropped { any, is_last: false }
    }

    fn close(&mut self) {
        self.unwatch();
        if let Some(wire) = &mut self.wire {
            wire.stop();
        }
        self.advance();
        self.wire = None;
        self.phase = Phase::Closed;
    }
}
