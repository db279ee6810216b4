//! The engine on media that are bytes, each of whose outputs may fail.

use std::{iter, time::Duration};

use pmof_control::{
    Claim, Epoch, FileLayout, Header, OpenFor, PoolFormat, PoolState, ROSTER_BYTES, ROSTER_OFFSET, Reply, Request,
    Roster, RosterPart, STATE_OFFSET,
};
use pmof_terms::Durability;
use uuid::Uuid;

use super::*;

const SIZE_BYTES: u64 = 80 << 20;

#[derive(Clone, Default)]
struct Image {
    bytes: Vec<u8>,
    /// The output of this number fails.
    fails_at: Option<usize>,
    performed: Vec<Output>,
}

impl Image {
    /// A pool that was made and not closed.
    fn made() -> (Self, OpenReplica) {
        Self::made_as(PoolFormat::Three)
    }

    fn made_as(format: PoolFormat) -> (Self, OpenReplica) {
        let is_four = format == PoolFormat::Four;
        let layout = if is_four { FileLayout::with_digests(SIZE_BYTES).unwrap() } else { FileLayout::default() };
        let header = Header {
            format,
            layout,
            compatible_features: 0,
            pool_uuid: Uuid::from_u128(1),
            replica_uuid: Uuid::from_u128(2),
            size_bytes: SIZE_BYTES,
            created_at_unix_s: 0,
            replica_count: 3,
            replica_index: 1,
            user_flags: [0; 16],
        };
        let state = PoolState::new(Uuid::from_u128(3), 3);
        let mut image = Self { bytes: vec![0; header.data_offset() as usize], ..Self::default() };
        let steps = ShippedRules.state_steps(&state, format, FIRST_SEQUENCE);
        written(header.steps()).chain(written(steps)).for_each(|output| _ = image.perform(output));
        (image, OpenReplica::made(header, state, ShippedRules))
    }

    fn ask(&mut self, replica: &mut OpenReplica, request: &Request) -> Result<Reply, Failure<usize>> {
        self.performed.clear();
        run(replica.serve(request.clone(), Some(Durability::PowerFailure)), self)
    }

    fn open(&mut self) -> Result<OpenReplica, Failure<usize>> {
        self.performed.clear();
        run(Opening::new(OpenFor::Write, false, ShippedRules), self)
    }
}

impl Driver<Output, Vec<u8>> for Image {
    type Error = usize;

    fn perform(&mut self, output: Output) -> Result<Vec<u8>, usize> {
        let number = self.performed.len();
        self.performed.push(output.clone());
        if self.fails_at == Some(number) {
            return Err(number);
        }
        let mut put = |offset: u64, bytes: &[u8]| self.bytes[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        match output {
            Output::Read { offset, len_bytes } => return Ok(self.bytes[offset as usize..][..len_bytes].to_vec()),
            Output::ReadBegin(len_bytes) => return Ok(self.bytes[..len_bytes.min(self.bytes.len())].to_vec()),
            Output::Store { offset, bytes } => put(offset, &bytes),
            Output::StoreWord { offset, word } => put(offset, &word.to_le_bytes()),
            _ => {}
        }
        Ok(Vec::new())
    }
}

fn begin(number: u128) -> Request {
    Request::Begin { opening: 2, epoch: Epoch::new(Uuid::from_u128(number), [0, 1]), ancestors: Vec::new() }
}

fn roster() -> Roster {
    Roster { version: 7, ..Roster::made(3) }
}

fn requests() -> Vec<Request> {
    let encoded = roster().encode().expect("it fits");
    let mut requests = vec![begin(4), Request::Confirm { epoch: Uuid::from_u128(4) }, Request::Mark { mark: 9 }];
    requests.extend(RosterPart::requests(&encoded));
    requests.extend([
        Request::RaiseIntent { first: 0, words: vec![5, 6, 7] },
        Request::ClearIntent { level: Durability::PowerFailure, first: 1, words: vec![2] },
        Request::Close { in_order: true },
    ]);
    requests
}

/// After each request, and after each output of it that failed.
#[test]
fn what_fails_is_not_answered_for_and_takes_nothing_back() {
    for format in [PoolFormat::Three, PoolFormat::Four] {
        each_output_fails(format);
    }
}

fn each_output_fails(format: PoolFormat) {
    let (mut image, mut replica) = Image::made_as(format);
    let mut failed = 0;
    for request in requests() {
        for fails_at in 0.. {
            let (mut image, mut replica) = (Image { fails_at: Some(fails_at), ..image.clone() }, replica.clone());
            let before = replica.clone();
            let Err(failure) = image.ask(&mut replica, &request) else { break };
            assert!(matches!(failure, Failure::Failed(at) if at == fails_at), "{failure:?}");
            assert_eq!(image.performed.len(), fails_at + 1, "nothing follows what failed");
            let kept = |replica: &OpenReplica| (replica.state().clone(), replica.roster().clone(), replica.has_begun());
            // What gets no name was closed before.
            let is_closed = image.performed.last() == Some(&Output::Publish);
            assert!(is_closed || kept(&replica) == kept(&before), "{request:?}, output {fails_at}");
            image.fails_at = None;
            image.clone().open().expect("a crash leaves one state and one roster whole");
            // A repeated request is answered, and what the answer covers is read.
            image.ask(&mut replica, &request).expect("answered");
            let found = image.open().expect("opened");
            assert_eq!((found.state(), found.roster()), (replica.state(), replica.roster()), "{request:?}");
            failed += 1;
        }
        image.ask(&mut replica, &request).expect("answered");
    }
    assert_eq!((replica.state().mark, replica.state().is_open, replica.roster()), (9, false, &roster()));
    assert!(failed > 25, "{failed}");
}

#[test]
fn an_epoch_is_durable_slot_by_slot() {
    let (mut image, mut replica) = Image::made();
    image.ask(&mut replica, &begin(4)).expect("begun");
    let stored = |output: &Output| match output {
        Output::Store { offset, .. } => Some(*offset - STATE_OFFSET),
        _ => None,
    };
    let offsets: Vec<_> = image.performed.iter().filter_map(stored).collect();
    assert_eq!(offsets, [2048, 0]);
    for pair in image.performed.windows(2) {
        if let [Output::Store { offset, bytes }, next] = pair {
            assert_eq!(*next, Output::Sync(*offset..offset + bytes.len() as u64));
        }
    }
    assert!(matches!(image.performed.last(), Some(Output::Sync(_))), "{:?}", image.performed);
}

/// A crash left a roster in one of its slots. Where none was ever kept there is nothing to write.
#[test]
fn a_writer_puts_a_roster_into_both_slots_and_a_reader_writes_nothing() {
    let is_stored = |image: &Image| {
        image.performed.iter().any(|output| matches!(output, Output::Store { offset, .. } if *offset >= ROSTER_OFFSET))
    };
    let (mut image, _) = Image::made();
    image.open().unwrap();
    assert!(!is_stored(&image), "no roster was kept");
    let [(offset, slot), _] = roster().slots(1).unwrap();
    image.bytes[ROSTER_OFFSET as usize + offset..][..slot.len()].copy_from_slice(&slot);
    image.performed.clear();
    run(Opening::new(OpenFor::Read, false, ShippedRules), &mut image).unwrap();
    assert!(!is_stored(&image), "it was opened to be read");
    image.open().unwrap();
    assert!(is_stored(&image));
    let slots = &image.bytes[ROSTER_OFFSET as usize..][..ROSTER_BYTES];
    let kept = Roster::read_kept(3, slots).unwrap();
    assert!(kept.is_in_all_copies && kept.roster == roster() && kept.sequence > 1, "{kept:?}");
}

#[test]
fn what_is_not_settled_is_settled_before_it_is_opened() {
    let (mut image, mut replica) = Image::made();
    let clear = Request::ClearIntent { level: Durability::PowerFailure, first: 0, words: vec![2, 0, 0] };
    image.ask(&mut replica, &clear).expect("cleared");
    image.open().expect("opened");
    let position = |wanted: &Output| image.performed.iter().position(|output| output == wanted);
    let settled = position(&Output::SettleHead).expect("the head is settled");
    assert!(position(&Output::LeaveToFormerWriters) < Some(settled), "in the file that it stays in");
    assert!(image.performed[settled..].iter().any(|output| matches!(output, Output::Read { offset: 0, .. })));
    assert!(
        position(&Output::SettleData(iter::once(1 << 20..2 << 20).collect())) > Some(settled),
        "{:?}",
        image.performed
    );
    image.ask(&mut replica, &Request::Close { in_order: true }).expect("closed");
    image.open().expect("opened");
    assert!(!image.performed.iter().any(|output| matches!(output, Output::SettleData(_))), "it was closed");
}

#[test]
#[should_panic(expected = "is not followed by others")]
fn an_output_that_is_dropped_is_noticed() {
    let (_, mut replica) = Image::made();
    let mut serving = replica.serve(Request::Mark { mark: 1 }, None);
    assert!(matches!(serving.step(), Step::Perform(Output::CheckName)));
    let _ = serving.step();
}

#[test]
#[should_panic(expected = "the whole map is read")]
fn an_output_that_was_not_performed_is_noticed() {
    let (_, mut replica) = Image::made();
    let mut serving = replica.serve(Request::RaiseIntent { first: 0, words: vec![1] }, None);
    assert!(matches!(serving.step(), Step::Perform(Output::Read { .. })));
    serving.performed(Vec::new());
}

#[test]
fn a_holder_is_judged_by_its_epochs_and_its_silence() {
    let [found, begun, named] = [3, 4, 5].map(Uuid::from_u128);
    let (mut image, replica) = Image::made();
    let mut holder = replica.handed_over().named_by(Some(named));
    let second = Duration::from_secs(1);
    let judged =
        |replica: Option<&OpenReplica>, silent_for, claim| judge(&Holder { replica, silent_for }, second, claim);
    for claim in [Claim::Own(named), Claim::Superseded(named)] {
        assert_eq!(judged(Some(&holder), Duration::ZERO, claim), Verdict::Fenced);
    }
    // The epoch that it found is of the writer before.
    for claim in [Claim::None, Claim::Own(found), Claim::Own(begun)] {
        assert_eq!(judged(Some(&holder), Duration::ZERO, claim), Verdict::Heard, "{claim:?}");
        assert_eq!(judged(Some(&holder), second, claim), Verdict::Fenced, "{claim:?}");
    }
    image.ask(&mut holder, &begin(4)).expect("begun");
    assert_eq!(judged(Some(&holder), Duration::ZERO, Claim::Own(begun)), Verdict::Fenced);
    assert_eq!(judged(None, second, Claim::Own(begun)), Verdict::Served);
    let at_once = judge(&Holder::<ShippedRules> { replica: None, silent_for: second }, Duration::ZERO, Claim::None);
    assert_eq!(at_once, Verdict::Awaited);
}

/// The outputs of a takeover, given what is found to be mapped.
fn fenced(may_store: bool, was_mapped: bool, is_mapped: bool) -> Vec<FencingOutput> {
    let (mut fencing, mut outputs) = (Fencing::new(may_store), Vec::new());
    while let Step::Perform(output) = fencing.step() {
        outputs.push(output);
        fencing.performed(match output {
            FencingOutput::Revoke => was_mapped,
            FencingOutput::FindMapping => is_mapped,
            _ => false,
        });
    }
    outputs
}

#[test]
fn a_holder_is_fenced_before_its_replica_is_handed_over() {
    use FencingOutput::{EndConnection, EndReaders, FindMapping, HandOver, NameSuccessor, PrepareCopy, Revoke};
    let (stays, moves) = (HandOver { moves: false }, HandOver { moves: true });
    let fence = [NameSuccessor, EndConnection, Revoke];
    let after = |rest: &[FencingOutput]| [&fence, rest].concat();
    assert_eq!(fenced(false, false, true), after(&[stays]));
    assert_eq!(fenced(false, true, false), after(&[FindMapping, stays]));
    assert_eq!(fenced(false, true, true), after(&[FindMapping, PrepareCopy, EndReaders, moves]));
    let with_room = |rest: &[FencingOutput]| [&[PrepareCopy][..], &after(rest)].concat();
    assert_eq!(fenced(true, true, true), with_room(&[FindMapping, EndReaders, moves]));
    assert_eq!(fenced(true, true, false), with_room(&[FindMapping, stays]));
    assert_eq!(fenced(true, false, false), with_room(&[stays]));
}
