//! What is asked of a device and of the target's CPU for a flush, over a device that only takes notes.

use std::{collections::VecDeque, io, mem, os::fd::BorrowedFd, sync::Arc, time::Duration};

use pmof_locks::Mutex;
use pmof_mem::{Evidence, Mechanism, Medium as _, MediumKind, Promise, ShadowMedium, shadow::Event};
use pmof_proto::{
    Access, Descriptor, InputPlace, OutputView, RdmaFeatures, RegionKey, RegionTable, RegisteredRegion, Settings,
};
use proptest::prelude::*;

use super::*;
use crate::link::Link;

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

    fn direct_way(&self) -> DirectWay {
        DirectWay::Device
    }

    fn reaches(&self, region: &RemoteRegion, _kind: OperationKind, _offset: u64) -> bool {
        region.direct() != DirectAccess::None
    }

    fn offers(&self, method: Method, region: &RemoteRegion, _level: Durability) -> Result<Promise, &'static str> {
        let is_offered = method == Method::NativeFlush && self.has_flush && region.direct() != DirectAccess::None;
        is_offered.then_some(PROMISE).ok_or("not this device")
    }

    fn post(&mut self, posting: &Posting, request: &Request<'_>) -> Result<Posted, PostError> {
        let (region, offset) = request.place.expect("no message");
        if !self.reaches(region, request.kind(), offset) {
            return Ok(Posted::ByMessage);
        }
        self.asked.push(Asked::Change(offset, request.len_bytes));
        self.finished.push_back(posting.ticket);
        Ok(Posted::Taken)
    }

    fn flush(
        &mut self,
        posting: &Posting,
        _region: &RemoteRegion,
        ranges: &[(u64, u64)],
        level: Durability,
        method: Method,
    ) -> Result<Posted, PostError> {
        assert!(method == Method::NativeFlush && !ranges.is_empty());
        self.asked.push(Asked::Flush { ranges: ranges.to_vec(), level });
        self.finished.push_back(posting.ticket);
        Ok(Posted::Taken)
    }

    fn is_idle(&self) -> bool {
        self.finished.is_empty()
    }

    fn stop(&mut self) {
        self.finished.clear();
    }
}

/// Both ends of a connection; the target's medium takes notes too.
struct Ends {
    methods: FlushMethods,
    traffic: Traffic,
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
        Self::with_queue(has_flush, Settings::default().send_queue)
    }

    fn with_queue(has_flush: bool, send_queue: u32) -> Self {
        let medium = Arc::new(ShadowMedium::new(LEN_BYTES, MediumKind::DevDax).unwrap());
        let table = Arc::<RegionTable>::default();
        let direct = DirectAccess::Rdma { address: 4096, remote_key: 7, features: RdmaFeatures::FLUSH_PERSISTENT };
        let registered =
            RegisteredRegion::new(RegionKey([3; 16]), Arc::clone(&medium) as _, 0, LEN_BYTES, Access::all());
        let registered = Arc::new(registered.with_direct(direct));
        let descriptor: Descriptor = registered.descriptor();
        table.insert(registered);
        let mut here = Endpoint::initiator(Settings { send_queue, ..Settings::default() }, Arc::default(), b"");
        let mut there = Endpoint::target(Settings::default(), table);
        carry(&output(&mut here), &mut there);
        there.accept(b"");
        carry(&output(&mut there), &mut here);
        assert!(here.is_established());
        here.enable_direct();
        let device = Device { has_flush, asked: Vec::new(), finished: VecDeque::new(), sent: Vec::new() };
        let methods = FlushMethods::default();
        let region = RemoteRegion::of(descriptor);
        Self { methods, traffic: Traffic::default(), here, there, device, medium, region, seen: 0 }
    }

    fn carrier(&mut self) -> Carrier<'_> {
        let (endpoint, methods, traffic) = (&mut self.here, &mut self.methods, &mut self.traffic);
        Carrier { endpoint, wire: &mut self.device, methods, traffic }
    }

    fn post(&mut self, request: &Request<'_>, signal: Signal) {
        let posting = Posting { ticket: self.here.next_ticket(), is_signalled: true, submission: Submission::Later };
        self.carrier().post(request, &posting, signal, 0).unwrap();
    }

    fn write(&mut self, offset: u64, bytes: &[u8], is_by_message: bool) {
        let (to, len_bytes, verb) = (self.region, bytes.len() as u64, Verb::Write { immediate: None });
        let request = Request { verb, place: Some((&to, offset)), len_bytes, data: Data::Bytes(bytes), is_by_message };
        self.post(&request, Signal::OnError);
    }

    fn atomic_write(&mut self, offset: u64) {
        self.atomic_write_by(offset, false);
    }

    fn atomic_write_by(&mut self, offset: u64, is_by_message: bool) {
        let to = self.region;
        let request = Request::bare(Verb::AtomicWrite { value: 1 }, &to, offset, 8);
        self.post(&Request { is_by_message, ..request }, Signal::OnError);
    }

    fn flush(&mut self, offset: u64, len_bytes: u64, level: Durability) {
        let region = self.region;
        self.post(&Request::bare(Verb::Flush { level }, &region, offset, len_bytes), Signal::Always);
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
        let method = if self.device.has_flush { Method::NativeFlush } else { Method::SendAfterWrite };
        assert_eq!(self.finished(), Outcome::Flushed(Flushed { durability: POWER, method, promise: PROMISE }));
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
fn every_range_that_was_written_is_flushed_and_not_only_the_last() {
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

/// Flushes of one connection to one region differ, and each says how it was done.
#[test]
fn a_flush_by_message_says_so_and_makes_durable_what_went_direct_too() {
    let mut ends = Ends::new(true);
    ends.write(64, &[1; 64], false);
    ends.write(4096, &[1; 64], true);
    let region = ends.region;
    let flush = Request::bare(Verb::Flush { level: POWER }, &region, 0, LEN_BYTES);
    ends.post(&Request { is_by_message: true, ..flush }, Signal::Always);
    let method = Method::SendAfterWrite;
    assert_eq!(ends.finished(), Outcome::Flushed(Flushed { durability: POWER, method, promise: PROMISE }));
    assert!(!ends.device.asked.iter().any(|asked| matches!(asked, Asked::Flush { .. })));
    let trace = ends.medium.trace();
    for offset in [64, 4096] {
        let event = Event::WriteBack { offset, len_bytes: 64 };
        let at = trace.iter().position(|found| *found == event).expect("it is written back");
        assert!(trace[at..].contains(&Event::Fence), "{trace:?}");
    }
    ends.write(64, &[1; 64], false);
    ends.flush(0, LEN_BYTES, POWER);
    ends.flushed();
}

#[test]
fn a_method_that_is_forced_is_no_flush_by_message() {
    let mut ends = Ends::new(true);
    ends.methods = FlushMethods::forcing(Some(Method::NativeFlush));
    let region = ends.region;
    let flush = Request { is_by_message: true, ..Request::bare(Verb::Flush { level: POWER }, &region, 0, LEN_BYTES) };
    let posting = Posting { ticket: ends.here.next_ticket(), is_signalled: true, submission: Submission::Later };
    let refused = ends.carrier().post(&flush, &posting, Signal::Always, 0).unwrap_err();
    assert!(matches!(refused, PostError::MethodRefused { method: "native-flush", .. }), "{refused}");
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

/// The device as the connection has it, and with a ring that writes of a batch go into.
#[derive(Clone, Debug)]
struct WithRing(Arc<Mutex<Device>>, u32);

impl Wire for WithRing {
    fn name(&self) -> &'static str {
        self.0.lock().name()
    }

    fn receive(&mut self, place: InputPlace<'_>) -> io::Result<usize> {
        self.0.lock().receive(place)
    }

    fn send(&mut self, view: &OutputView<'_>, borrowed: &[u8]) -> io::Result<usize> {
        self.0.lock().send(view, borrowed)
    }

    fn set_loss_timeout(&mut self, _loss_timeout: Duration) {}

    fn shutdown_output(&mut self) {}

    fn as_fds(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [None, None]
    }

    fn progress(&mut self, finished: &mut dyn Finished) -> io::Result<bool> {
        self.0.lock().progress(finished)
    }

    fn direct_way(&self) -> DirectWay {
        DirectWay::Device
    }

    fn reaches(&self, region: &RemoteRegion, kind: OperationKind, offset: u64) -> bool {
        self.0.lock().reaches(region, kind, offset)
    }

    fn offers(&self, method: Method, region: &RemoteRegion, level: Durability) -> Result<Promise, &'static str> {
        self.0.lock().offers(method, region, level)
    }

    fn post(&mut self, posting: &Posting, request: &Request<'_>) -> Result<Posted, PostError> {
        self.0.lock().post(posting, request)
    }

    fn flush(
        &mut self,
        posting: &Posting,
        region: &RemoteRegion,
        ranges: &[(u64, u64)],
        level: Durability,
        method: Method,
    ) -> Result<Posted, PostError> {
        self.0.lock().flush(posting, region, ranges, level, method)
    }

    fn window(&mut self) -> u32 {
        self.1
    }

    fn append(
        &mut self,
        run: &mut Run,
        region: &RemoteRegion,
        (offset, len_bytes): (u64, u64),
        data: &Data<'_>,
    ) -> Option<Ticket> {
        assert_eq!(data.len_bytes(), len_bytes);
        // Not those that it would have to copy.
        let mut device = self.0.lock();
        let goes = len_bytes <= 64 && device.reaches(region, OperationKind::Write, offset);
        if goes {
            device.asked.push(Asked::Change(offset, len_bytes));
            device.finished.push_back(run.next());
        }
        goes.then(|| run.join())
    }
}

/// What became of a sequence of operations: their tickets, what the device was asked, and what was completed.
type Became = (Vec<u64>, Vec<Asked>, Vec<(u64, u64, OperationKind)>, usize);

/// An operation: what it is, its offset, its length, its context.
type Step = (u8, u64, u64, u64);

fn became(steps: &[Step], window: u32, send_queue: u32) -> Became {
    let ends = Ends::with_queue(true, send_queue);
    let device = Arc::new(Mutex::new(ends.device));
    let wire = Box::new(WithRing(Arc::clone(&device), window));
    let link = Link::new(1, ends.here, wire, Duration::from_secs(1), None);
    let (mut tickets, mut done) = (Vec::new(), Vec::new());
    for batch in steps.chunks(12) {
        let mut core = link.lock();
        for &(what, offset, len_bytes, context) in batch {
            let (bytes, signal) =
                (vec![1; len_bytes as usize], if what == 1 { Signal::Always } else { Signal::OnError });
            let mut post = |request: &Request<'_>| core.post(request, signal, context, Submission::Batch).unwrap();
            let ticket = match what {
                0 => post(&Request::bare(Verb::Flush { level: POWER }, &ends.region, 0, LEN_BYTES)),
                2 => post(&Request::bare(Verb::AtomicWrite { value: 1 }, &ends.region, offset / 8 * 8, 8)),
                _ => {
                    let (place, data) = (Some((&ends.region, offset)), Data::Bytes(&bytes));
                    let joined = if what == 1 {
                        None
                    } else {
                        core.join_run(&ends.region, (offset, len_bytes), &data, (context, Submission::Batch))
                    };
                    let request =
                        Request { verb: Verb::Write { immediate: None }, place, len_bytes, data, is_by_message: false };
                    joined.unwrap_or_else(|| core.post(&request, signal, context, Submission::Batch).unwrap())
                }
            };
            tickets.push(ticket.0);
        }
        core.end_batch();
        core.progress();
        while let Some(next) = core.next_completion() {
            assert!(next.outcome.is_ok());
            done.push((next.ticket.0, next.context, next.kind));
        }
    }
    let outstanding = link.lock().outstanding();
    let asked = mem::take(&mut device.lock().asked);
    (tickets, asked, done, outstanding)
}

proptest! {
    #[test]
    fn writes_that_join_a_run_are_what_they_are_when_each_is_posted_by_itself(
        steps in prop::collection::vec((0..12_u8, 0..60_u64, prop_oneof![4 => Just(64_u64), 1 => 1..100_u64], 0..2_u64), 1..60),
        window in 1..20_u32,
    ) {
        // Mostly in a row.
        let mut next = 0;
        let steps: Vec<Step> = steps
            .into_iter()
            .map(|(what, place, len_bytes, context)| {
                let offset = if what < 9 { next } else { place * 1000 };
                next = (offset + len_bytes) % 60_000;
                (what, offset, len_bytes, context)
            })
            .collect();
        prop_assert_eq!(became(&steps, window, 64), became(&steps, 0, 64));
    }
}

#[test]
fn a_run_ends_where_the_device_is_to_tell_of_a_write() {
    let steps: Vec<Step> = (0..12).map(|index| (3, index * 64, 64, 0)).collect();
    let (tickets, _, _, outstanding) = became(&steps, 100, 16);
    assert_eq!((tickets, outstanding), ((1..=12).collect(), 0));
    // Of every fourth write the device is asked to tell, so that none of these runs is longer.
    let ends = Ends::with_queue(true, 16);
    let wire = Box::new(WithRing(Arc::new(Mutex::new(ends.device)), 100));
    let link = Link::new(1, ends.here, wire, Duration::from_secs(1), None);
    let mut core = link.lock();
    let (bytes, here) = ([1; 64], (0, Submission::Single));
    let joined = core.join_run(&ends.region, (0, 64), &Data::Bytes(&bytes), here);
    assert_eq!(joined, None, "what comes alone goes out alone");
    let mut post = |offset| {
        let place = Some((&ends.region, offset));
        let request = Request {
            verb: Verb::Write { immediate: None },
            place,
            len_bytes: 64,
            data: Data::Bytes(&[1; 64]),
            is_by_message: false,
        };
        let joined = core.join_run(&ends.region, (offset, 64), &request.data, (0, Submission::Batch)).is_some();
        if !joined {
            core.post(&request, Signal::OnError, 0, Submission::Batch).unwrap();
        }
        joined
    };
    let joined: Vec<_> = (0..8).map(|index| post(index * 64)).collect();
    assert_eq!(joined, [true, true, true, false, true, true, true, false]);
}

#[test]
fn one_unsignalled_write_in_a_quarter_of_the_send_queue_is_signalled() {
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
