//! What is asked of a device and of the target's CPU for a flush, over a device that only takes notes.

use std::{borrow::Cow, collections::VecDeque, io, mem, os::fd::BorrowedFd, sync::Arc, time::Duration};

use pmof_mem::{Evidence, Mechanism, Medium as _, MediumKind, Promise, ShadowMedium, shadow::Event};
use pmof_proto::{
    Access, Descriptor, InputPlace, OutputView, RdmaFeatures, RegionKey, RegionTable, RegisteredRegion, Settings,
};
use proptest::prelude::*;

use super::*;
use crate::direct::Direct;

const LEN_BYTES: u64 = 1 << 16;
const POWER: Durability = Durability::PowerFailure;
const PROMISE: Promise = Promise { mechanism: Mechanism::CacheLineWriteBack, evidence: Evidence::Probed };

/// What the device was asked to do.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Asked {
    /// Offset and bytes, of a write or an atomic operation.
    Change(u64, u64),
    Flush {
        ranges: Vec<(u64, u64)>,
        level: Durability,
    },
}

/// A device with FLUSH, or without.
#[derive(Debug)]
struct Device {
    has_flush: bool,
    asked: Vec<Asked>,
    finished: VecDeque<Ticket>,
    sent: Vec<u8>,
}

impl Direct for Device {
    fn reaches(&self, region: &RemoteRegion, _kind: OperationKind, _offset: u64) -> bool {
        region.direct() != DirectAccess::None
    }

    fn offers(&self, method: Method, region: &RemoteRegion, _level: Durability) -> Result<Promise, &'static str> {
        let is_offered = method == Method::NativeFlush && self.has_flush && region.direct() != DirectAccess::None;
        is_offered.then_some(PROMISE).ok_or("not this device")
    }

    fn has_room(&self, _len_bytes: u64) -> bool {
        true
    }

    fn post(&mut self, posting: Posting, request: &Request<'_>) -> Result<Option<DirectOutcome>, PostError> {
        let (_, offset) = request.range().expect("no message");
        self.asked.push(Asked::Change(offset, request.len_bytes()));
        self.finished.push_back(posting.ticket);
        Ok(None)
    }

    fn flush(
        &mut self,
        posting: Posting,
        _region: &RemoteRegion,
        ranges: &[(u64, u64)],
        level: Durability,
        method: Method,
    ) -> Result<Option<DirectOutcome>, PostError> {
        assert!(method == Method::NativeFlush && !ranges.is_empty());
        self.asked.push(Asked::Flush { ranges: ranges.to_vec(), level });
        self.finished.push_back(posting.ticket);
        Ok(None)
    }

    fn is_idle(&self) -> bool {
        self.finished.is_empty()
    }

    fn stop(&mut self) {
        self.finished.clear();
    }
}

impl Wire for Device {
    fn name(&self) -> &'static str {
        "a device that takes notes"
    }

    fn receive(&mut self, _place: InputPlace<'_>) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn send(&mut self, view: &OutputView<'_>, _borrowed: &[u8]) -> io::Result<usize> {
        assert!(view.body.is_none(), "no test sends from registered memory");
        self.sent.extend_from_slice(view.head);
        self.sent.extend_from_slice(view.tail);
        Ok(view.head.len() + view.tail.len())
    }

    fn set_loss_timeout(&mut self, _loss_timeout: Duration) {}

    fn shutdown_output(&mut self) {}

    fn as_fds(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [None, None]
    }

    fn progress(&mut self, finished: &mut dyn Finished) -> io::Result<bool> {
        let done = mem::take(&mut self.finished);
        let moved = !done.is_empty();
        for ticket in done {
            finished.finished(ticket, DirectOutcome::Done);
        }
        Ok(moved)
    }

    fn direct(&mut self) -> Option<&mut dyn Direct> {
        Some(self)
    }
}

/// Both ends of a connection; the target's medium takes notes too.
struct Ends {
    methods: FlushMethods,
    here: Endpoint,
    there: Endpoint,
    device: Device,
    medium: Arc<ShadowMedium>,
    region: RemoteRegion,
    /// Events of the medium that were looked at.
    seen: usize,
}

fn carry(bytes: &[u8], to: &mut Endpoint) {
    let mut rest = bytes;
    while !rest.is_empty() {
        let count = match to.input_place().expect("takes input") {
            InputPlace::Staging(buffer) => {
                let count = rest.len().min(buffer.len());
                buffer[..count].copy_from_slice(&rest[..count]);
                count
            }
            InputPlace::Memory { memory, offset, len_bytes, .. } => {
                let count = rest.len().min(len_bytes as usize);
                memory.store(offset, &rest[..count]).unwrap();
                count
            }
        };
        to.input_arrived(count);
        rest = &rest[count..];
    }
}

fn output(of: &mut Endpoint) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(view) = of.output_view() {
        let from = bytes.len();
        bytes.extend_from_slice(view.head);
        bytes.extend_from_slice(view.tail);
        let count = bytes.len() - from;
        of.output_sent(count);
    }
    bytes
}

impl Ends {
    fn new(has_flush: bool) -> Self {
        let medium = Arc::new(ShadowMedium::new(LEN_BYTES, MediumKind::DevDax).unwrap());
        let table = Arc::<RegionTable>::default();
        let direct = DirectAccess::Rdma { address: 4096, remote_key: 7, features: RdmaFeatures::FLUSH_PERSISTENT };
        let registered =
            RegisteredRegion::new(RegionKey([3; 16]), Arc::clone(&medium) as _, 0, LEN_BYTES, Access::all());
        let registered = Arc::new(registered.with_direct(direct));
        let descriptor: Descriptor = registered.descriptor();
        table.insert(registered);
        let mut here = Endpoint::initiator(Settings::default(), Arc::default(), b"");
        let mut there = Endpoint::target(Settings::default(), table);
        carry(&output(&mut here), &mut there);
        there.accept(b"");
        carry(&output(&mut there), &mut here);
        assert!(here.is_established());
        here.enable_direct();
        let device = Device { has_flush, asked: Vec::new(), finished: VecDeque::new(), sent: Vec::new() };
        let methods = FlushMethods::default();
        Self { methods, here, there, device, medium, region: RemoteRegion::of(descriptor), seen: 0 }
    }

    fn carrier(&mut self) -> Carrier<'_> {
        Carrier { endpoint: &mut self.here, wire: &mut self.device, methods: &mut self.methods }
    }

    fn post(&mut self, request: &Request<'_>, signal: Signal) {
        let posting = Posting { ticket: self.here.next_ticket(), is_signalled: true, is_alone: false };
        self.carrier().post(request, posting, signal, 0).unwrap();
    }

    fn region(&self, is_by_message: bool) -> Cow<'static, RemoteRegion> {
        Cow::Owned(if is_by_message { self.region.by_messages() } else { self.region })
    }

    fn write(&mut self, offset: u64, bytes: &[u8], is_by_message: bool) {
        let (to, data) = (self.region(is_by_message), Data::Borrowed(bytes));
        self.post(&Request::Write { to, offset, data, immediate: None }, Signal::OnError);
    }

    fn atomic_write(&mut self, offset: u64) {
        self.atomic_write_by(offset, false);
    }

    fn atomic_write_by(&mut self, offset: u64, is_by_message: bool) {
        let to = self.region(is_by_message);
        self.post(&Request::AtomicWrite { to, offset, value: 1 }, Signal::OnError);
    }

    fn flush(&mut self, offset: u64, len_bytes: u64, level: Durability) {
        let region = self.region(false);
        self.post(&Request::Flush { region, offset, len_bytes, level }, Signal::Always);
    }

    /// Takes in what the device finished, and lets go what waited.
    fn advance(&mut self) {
        let _ = self.device.progress(&mut self.here).unwrap();
        self.carrier().advance();
    }

    /// Lets everything come to its end, and gives the outcome of the one flush.
    fn finished(&mut self) -> Outcome {
        // What was deferred goes out one by one.
        for _ in 0..200 {
            carry(&mem::take(&mut self.device.sent), &mut self.there);
            carry(&output(&mut self.there), &mut self.here);
            self.advance();
            if self.here.has_completions() {
                break;
            }
        }
        let done = self.here.poll_completion().expect("an outcome");
        assert_eq!(done.kind, OperationKind::Flush);
        done.outcome.expect("it succeeds")
    }

    /// The ranges that the one flush, to `PowerFailure`, named to the device or had the target's CPU write back.
    fn flushed(&mut self) -> Vec<(u64, u64)> {
        assert_eq!(self.finished(), Outcome::Flushed(Flushed { durability: POWER, promise: PROMISE }));
        assert!(!self.here.has_completions() && self.here.outstanding() == 0);
        let mut ranges = Vec::new();
        for asked in mem::take(&mut self.device.asked) {
            match asked {
                Asked::Flush { ranges: named, level: POWER } => ranges.extend(named),
                Asked::Flush { level, .. } => panic!("flushed to {level}"),
                Asked::Change(..) => {}
            }
        }
        let trace = self.medium.trace();
        let events = &trace[mem::replace(&mut self.seen, trace.len())..];
        let fence = events.iter().rposition(|event| *event == Event::Fence);
        let before = &events[..fence.unwrap_or(0)];
        ranges.extend(before.iter().filter_map(|event| match event {
            Event::WriteBack { offset, len_bytes } => Some((*offset, *len_bytes)),
            _ => None,
        }));
        ranges
    }
}

fn covers(ranges: &[(u64, u64)], byte: u64) -> bool {
    ranges.iter().any(|(at, len_bytes)| (*at..at + len_bytes).contains(&byte))
}

/// With and without FLUSH of the device.
fn all_ends() -> impl Iterator<Item = Ends> {
    [true, false].into_iter().map(Ends::new)
}

#[test]
fn every_range_that_was_written_is_flushed_and_not_the_last_one_alone() {
    for mut ends in all_ends() {
        for count in [1, 2, 3, 9, 40] {
            let offset = |index: u64| index * 1000 + 8;
            for index in 0..count {
                ends.write(offset(index), &[1; 16], false);
            }
            ends.atomic_write(60_000);
            ends.flush(0, LEN_BYTES, POWER);
            let ranges = ends.flushed();
            let written = (0..count).map(offset).chain([60_000]);
            for at in written {
                let len_bytes = if at == 60_000 { 8 } else { 16 };
                assert!((at..at + len_bytes).all(|byte| covers(&ranges, byte)), "{count}: {at} in {ranges:?}");
            }
        }
    }
}

#[test]
fn what_a_flush_leaves_out_the_next_one_flushes() {
    for mut ends in all_ends() {
        ends.write(0, &[1; 100], false);
        ends.write(5000, &[1; 100], false);
        ends.flush(0, 50, POWER);
        let ranges = ends.flushed();
        assert!((0..50).all(|byte| covers(&ranges, byte)), "{ranges:?}");
        ends.flush(0, LEN_BYTES, POWER);
        let ranges = ends.flushed();
        assert!((50..100).chain(5000..5100).all(|byte| covers(&ranges, byte)), "{ranges:?}");
    }
}

#[test]
fn to_a_weaker_level_nothing_counts_as_flushed() {
    for mut ends in all_ends() {
        ends.write(64, &[1; 64], false);
        for level in [Durability::Visible, Durability::ProcessCrash] {
            ends.flush(0, LEN_BYTES, level);
            ends.finished();
        }
        ends.device.asked.clear();
        ends.flush(0, LEN_BYTES, POWER);
        let ranges = ends.flushed();
        assert!((64..128).all(|byte| covers(&ranges, byte)), "{ranges:?}");
    }
}

/// Bytes of the other side's memory, by the notes of the device and of the medium.
fn has_changed(ends: &Ends, offset: u64) -> bool {
    let by_device = ends.device.asked.iter().any(|asked| matches!(asked, Asked::Change(at, _) if *at == offset));
    let by_cpu =
        ends.medium.trace().iter().any(|event| matches!(event, Event::Store { offset: at, .. } if *at == offset));
    by_device || by_cpu || !ends.device.sent.is_empty()
}

#[test]
fn an_atomic_write_waits_for_the_flush_before_it_whichever_way_each_goes() {
    for (has_flush, is_by_message) in [(true, true), (false, false)] {
        let mut ends = Ends::new(has_flush);
        ends.write(0, &[1; 64], false);
        ends.flush(0, LEN_BYTES, POWER);
        // A flush by message is on its way.
        let flush = mem::take(&mut ends.device.sent);
        ends.atomic_write_by(4096, is_by_message);
        assert!(!has_changed(&ends, 4096), "has FLUSH: {has_flush}");
        ends.device.sent.extend(flush);
        ends.finished();
        ends.advance();
        assert!(has_changed(&ends, 4096), "it goes when the flush is done");
    }
}

#[test]
fn a_direct_write_does_not_overtake_one_by_message() {
    let mut ends = Ends::new(true);
    ends.write(4096, &[1; 8], true);
    ends.write(4096, &[2; 8], false);
    assert_eq!(ends.device.asked, [], "the target's CPU has yet to store the first");
    ends.flush(0, LEN_BYTES, POWER);
    let ranges = ends.flushed();
    assert!((4096..4104).all(|byte| covers(&ranges, byte)), "{ranges:?}");
}

proptest! {
    #[test]
    fn nothing_written_before_a_flush_is_left_out(
        steps in prop::collection::vec((0..LEN_BYTES - 300, 1..300_u64, 0..8_u8), 1..80),
        has_flush: bool,
    ) {
        let mut ends = Ends::new(has_flush);
        let mut unflushed = vec![false; LEN_BYTES as usize];
        for (offset, len_bytes, what) in steps {
            match what {
                0 => {
                    let (offset, len_bytes) = (offset / 2, (len_bytes * 200).min(LEN_BYTES - offset / 2));
                    ends.flush(offset, len_bytes, POWER);
                    let ranges = ends.flushed();
                    for byte in offset..offset + len_bytes {
                        if mem::take(&mut unflushed[byte as usize]) {
                            prop_assert!(covers(&ranges, byte), "byte {byte} in {ranges:?}");
                        }
                    }
                }
                1 => {
                    let offset = offset / 8 * 8;
                    ends.atomic_write(offset);
                    unflushed[offset as usize..][..8].fill(true);
                }
                // What the target's CPU stores it begins to write back by itself.
                2 => ends.write(offset, &vec![1; len_bytes as usize], true),
                _ => {
                    ends.write(offset, &vec![1; len_bytes as usize], false);
                    unflushed[offset as usize..][..len_bytes as usize].fill(true);
                }
            }
        }
    }
}

#[test]
fn of_writes_that_nobody_is_to_hear_of_the_device_tells_one_in_a_quarter_of_the_send_queue() {
    let told = |send_queue| {
        let mut told: Vec<u64> = Vec::new();
        for ticket in 1..=12 {
            if is_signal_due(Ticket(ticket), Ticket(told.last().copied().unwrap_or(0)), send_queue) {
                told.push(ticket);
            }
        }
        told
    };
    assert_eq!(told(16), [4, 8, 12]);
    assert_eq!(told(20), [5, 10]);
    for send_queue in 1..8 {
        // Else it would be full before anything is told.
        assert_eq!(told(send_queue).len(), 12, "{send_queue}");
    }
}
