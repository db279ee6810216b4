//! The queue pair as a transport.

use std::{
    io, mem,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::Duration,
};

use pmof_mem::{Durability, Promise};
use pmof_proto::{InputPlace, OperationKind, OutputView, PostError, Ticket};

use super::{PROBES_PER_LOSS, TAKEN_DOWN_GRACE, VerbsWire};
use crate::{
    Method, RemoteRegion,
    request::{Data, Request, Verb},
    ring::{Attached, RingState},
    verbs::{direct::SERVICE_REQUESTS, send::Plain},
    wire::{CompletionChannel, DirectOutcome, DirectWay, Finished, Posted, Posting, Run, Wire},
};

impl Wire for VerbsWire {
    fn name(&self) -> &'static str {
        "verbs"
    }

    fn receive(&mut self, place: InputPlace<'_>) -> io::Result<usize> {
        if !self.queues.receive.is_empty() {
            return self.queues.receive.read(place);
        }
        let is_over = self.manager.is_disconnected() && !(self.is_closing && !self.is_broken && self.has_silent_end());
        if is_over { Ok(0) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }

    fn may_have_input(&self) -> bool {
        !self.queues.receive.is_empty() || self.manager.is_disconnected()
    }

    fn send(&mut self, view: &OutputView<'_>, borrowed: &[u8]) -> io::Result<usize> {
        debug_assert!(borrowed.is_empty(), "a lane lends no bytes");
        self.send_messages(view)
    }

    fn set_loss_timeout(&mut self, loss_timeout: Duration) {
        // The device's own time for an acknowledgement was set when the connection was made.
        self.loss_timeout = loss_timeout;
    }

    fn shutdown_output(&mut self) {
        self.is_closing = true;
    }

    fn as_fds(&self) -> [Option<BorrowedFd<'_>>; 2] {
        let completions = self.queues.completions.channel().map(|channel| channel.as_fd());
        [Some(self.manager.channel().as_fd()), completions]
    }

    fn completion_channel(&self) -> Option<CompletionChannel> {
        self.queues.completions.channel().map(|channel| Arc::clone(channel) as CompletionChannel)
    }

    fn progress(&mut self, finished: &mut dyn Finished) -> io::Result<bool> {
        let mut has_moved = false;
        if self.has_completions_only() {
            has_moved = self.poll_completions(finished)?;
            if !has_moved || self.has_completions_only() {
                return Ok(has_moved);
            }
        }
        let moved = self.take_in(finished).map(|moved| moved | has_moved);
        // What the other side said before comes first: why it closed may be among it.
        let is_due = self.queues.receive.is_empty() || self.failure_waits == 0;
        if self.failure.is_some() && !is_due {
            self.failure_waits -= 1;
            return moved.map(|_| true);
        }
        if let Some((ticket, error)) = self.failure.take() {
            finished.finished(ticket, DirectOutcome::Failed(error));
            return moved.map(|_| true);
        }
        moved
    }

    fn submit(&mut self) {
        if self.has_to_hand_over() && !self.is_broken {
            self.hand_over();
        } else {
            self.end_batch();
        }
    }

    fn end_batch(&mut self) {
        if let Some(queue_pair) = &mut self.queues.queue_pair {
            if let Err(failure) = queue_pair.ring() {
                self.could_not_post(&failure);
            }
        }
    }

    fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    fn request_notification(&mut self) {
        if self.is_armed {
            match self.queues.completions.take_event() {
                // What ended the sleep was something else, perhaps the connection manager's news.
                Ok(false) => self.looks_at_manager = true,
                _ => self.is_armed = false,
            }
        }
        if !self.is_armed {
            // Where asking fails the device is gone, which the next poll tells.
            self.is_armed = self.queues.completions.request_notify().is_ok();
        }
    }

    fn tick(&mut self, now: Duration, finished: &mut dyn Finished) -> io::Result<(Option<Duration>, bool)> {
        self.looks_at_manager = true;
        let moved = self.progress(finished)?;
        if self.is_taken_down {
            let due = self.taken_down_at.get_or_insert(now).saturating_add(TAKEN_DOWN_GRACE);
            return if now < due { Ok((Some(due), moved)) } else { Err(self.taken_down()) };
        }
        if self.heard {
            self.heard_at = now;
        }
        if mem::take(&mut self.heard) || self.queues.send.is_idle() {
            self.awaited_since = None;
        } else {
            let silent = now.saturating_sub(*self.awaited_since.get_or_insert(now));
            if silent > self.stuck_after() && !self.is_broken && self.manager.is_standing() {
                self.check_stuck(silent)?;
            }
        }
        if self.queues.send.has_unconfirmed() && !self.completes_early && !self.is_probing && !self.is_broken {
            // What nobody was to hear of is not to stay under way for ever, with all memory that it needs.
            self.probe();
            self.submit();
        }
        let due = self.heard_at.saturating_add(self.loss_timeout / PROBES_PER_LOSS);
        if !self.manager.is_standing() || self.is_broken || self.is_closing {
            return Ok((None, moved));
        }
        if now < due || self.is_probing {
            return Ok((Some(due.max(now + self.loss_timeout / PROBES_PER_LOSS)), moved));
        }
        // An answer that is due comes or fails by the device's own retries; only silence has to be asked after.
        if self.queues.send.is_idle() && self.may_probe() {
            self.probe();
            self.submit();
        }
        Ok((Some(now + self.loss_timeout / PROBES_PER_LOSS), moved))
    }

    fn is_connecting(&self) -> bool {
        self.manager.is_connecting()
    }

    fn ring(&self) -> Option<&Arc<RingState>> {
        self.queues.ring.as_ref().map(Attached::state)
    }

    fn direct_way(&self) -> DirectWay {
        DirectWay::Device
    }

    fn post(&mut self, posting: &Posting, request: &Request<'_>) -> Result<Posted, PostError> {
        match (request.verb, request.place) {
            (Verb::Write { .. }, Some((region, offset))) => self.post_write(posting, region, offset, request),
            _ => self.post_other(posting, request),
        }
    }

    fn flush(
        &mut self,
        posting: &Posting,
        region: &RemoteRegion,
        ranges: &[(u64, u64)],
        level: Durability,
        method: Method,
    ) -> Result<Posted, PostError> {
        self.post_flush(posting, region, ranges, level, method)
    }

    fn window(&mut self) -> u32 {
        let Some((send, _)) = self.open_ring() else { return 0 };
        if send.is_free() { send.window(SERVICE_REQUESTS) } else { 0 }
    }

    fn append(
        &mut self,
        run: &mut Run,
        region: &RemoteRegion,
        (offset, len_bytes): (u64, u64),
        data: &Data<'_>,
    ) -> Option<Ticket> {
        let plain = Plain { ticket: run.next(), offset, len_bytes };
        self.append_write(region, plain, data).then(|| run.join())
    }

    fn reaches(&self, region: &RemoteRegion, kind: OperationKind, offset: u64) -> bool {
        self.reaches_directly(region, kind, offset)
    }

    fn has_room(&self, len_bytes: u64) -> bool {
        self.has_room_for(len_bytes)
    }

    fn offers(&self, method: Method, region: &RemoteRegion, level: Durability) -> Result<Promise, &'static str> {
        self.promise_of(method, region, level)
    }

    fn append_max_bytes(&self) -> Option<u64> {
        self.record_max_bytes()
    }

    fn appends_to(&self, region: &RemoteRegion) -> bool {
        self.is_remote_ring(region.key().0)
    }

    fn has_slot(&self) -> bool {
        self.has_free_slot()
    }

    fn is_idle(&self) -> bool {
        self.has_nothing_under_way()
    }

    fn is_broken(&self) -> bool {
        self.has_broken_queues()
    }

    fn stop(&mut self) {
        self.stop_queues();
    }
}
