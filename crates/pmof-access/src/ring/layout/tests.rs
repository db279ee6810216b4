use std::collections::BTreeMap;

use pmof_mem::{MediumKind, Memory, ShadowMedium};
use proptest::prelude::*;

use super::*;

const LEN_BYTES: u64 = HEADER_BYTES + SLOTS_MIN * SLOT_BYTES;
const IDENTITY: [u8; 16] = *b"ring of the test";
const LINE_BYTES: usize = 64;

fn anonymous() -> Arc<dyn Medium> {
    Arc::new(Memory::anonymous(2 * LEN_BYTES).unwrap())
}

fn ring() -> Layout {
    Layout::create(anonymous(), 0, LEN_BYTES, IDENTITY).unwrap()
}

fn message(identity: &[u8; 16], sequence: u64, bytes: &[u8]) -> Vec<u8> {
    let mut message = vec![0xEE; RECORD_HEADER_BYTES];
    message.extend(bytes);
    seal_record(&mut message, identity, sequence);
    message
}

/// What a device does with a receive.
fn receive(layout: &Layout, slot: u32, message: &[u8]) {
    layout.memory.store(layout.slot_at(slot), message).unwrap();
}

fn sequences(layout: &Layout) -> Vec<u64> {
    layout.recover().unwrap().iter().map(|(place, _)| place.sequence).collect()
}

#[test]
fn the_bytes_of_ring_and_record_are_those_of_the_page() {
    let layout = ring();
    let mut header = [0; 128];
    layout.memory.read(0, &mut header).unwrap();
    assert_eq!(header[..8], *b"PMOFRING");
    assert_eq!(header[8..16], [1, 0, 0, 0, 0, 0x20, 0, 0]);
    assert_eq!(header[16..32], [32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(header[32..48], IDENTITY);
    assert_eq!(header[48..60], [0; 12]);
    assert_eq!(header[60..64], crc32c::crc32c(&header[..60]).to_le_bytes());
    assert_eq!(header[64..], [0; 64]);
    layout.set_position(0x0102).unwrap();
    layout.memory.read(64, &mut header).unwrap();
    assert_eq!(header[..9], [2, 1, 0, 0, 0, 0, 0, 0, 0]);
    let record = message(&IDENTITY, 0x0304, b"bytes");
    assert_eq!(record[..16], *b"PMOFREC1\x04\x03\0\0\0\0\0\0");
    assert_eq!(record[16..32], IDENTITY);
    assert_eq!(record[32..60], [[5_u8, 0, 0, 0].as_slice(), &[0; 24]].concat());
    let checked = [&record[..60], b"bytes"].concat();
    assert_eq!(record[60..64], crc32c::crc32c(&checked).to_le_bytes());
    assert_eq!(record[64..], *b"bytes");
}

#[test]
fn a_ring_is_refused_where_it_cannot_be() {
    let memory = anonymous();
    let create = |offset, len_bytes| Layout::create(Arc::clone(&memory), offset, len_bytes, IDENTITY).map(|_| ());
    let least_bytes = LEN_BYTES;
    assert!(
        matches!(create(0, LEN_BYTES - 1), Err(RingError::TooSmall { least_bytes: least, .. }) if least == least_bytes)
    );
    assert!(matches!(create(2048, LEN_BYTES), Err(RingError::Misaligned { offset: 2048, .. })));
    assert!(matches!(create(LEN_BYTES.next_multiple_of(4096) + 4096, LEN_BYTES), Err(RingError::Memory(_))));
    create(4096, LEN_BYTES).unwrap();
    assert!(matches!(create(4096, LEN_BYTES), Err(RingError::Occupied { offset: 4096 })));
}

#[test]
fn what_is_no_ring_of_this_version_is_not_opened() {
    let layout = ring();
    let open = |len_bytes| Layout::open(Arc::clone(&layout.memory), 0, len_bytes).map(|found| found.identity());
    assert_eq!(open(LEN_BYTES).unwrap(), IDENTITY);
    assert_eq!(open(2 * LEN_BYTES).unwrap(), IDENTITY);
    let mut header = [0; 64];
    layout.memory.read(0, &mut header).unwrap();
    for at in 0..64 {
        let mut changed = header;
        changed[at] ^= 0x10;
        layout.memory.store(0, &changed).unwrap();
        let error = open(LEN_BYTES).unwrap_err();
        match at {
            0..8 => assert!(matches!(error, RingError::NoRing { offset: 0 }), "{at}: {error}"),
            8..10 => assert!(matches!(error, RingError::Version { known: 1, .. }), "{at}: {error}"),
            _ => assert!(matches!(error, RingError::Damaged { offset: 0 }), "{at}: {error}"),
        }
    }
    let larger = Layout::create(anonymous(), 0, LEN_BYTES + SLOT_BYTES, IDENTITY).unwrap();
    let error = Layout::open(Arc::clone(&larger.memory), 0, LEN_BYTES).unwrap_err();
    assert!(
        matches!(error, RingError::TooSmall { least_bytes, .. } if least_bytes == LEN_BYTES + SLOT_BYTES),
        "{error}"
    );
}

#[test]
fn records_come_back_in_order_from_whatever_slots() {
    let layout = ring();
    let first = layout.begin().unwrap() + 1;
    for (index, slot) in [7, 3, 31, 0].into_iter().enumerate() {
        let sequence = first + index as u64;
        receive(&layout, slot, &message(&IDENTITY, sequence, &vec![index as u8; index * 100]));
    }
    let found = layout.recover().unwrap();
    let expected: Vec<_> = (0..4).map(|at| (first + at, vec![at as u8; at as usize * 100])).collect();
    assert_eq!(found.into_iter().map(|(_, record)| (record.sequence, record.bytes)).collect::<Vec<_>>(), expected);
    layout.set_position(first + 1).unwrap();
    assert_eq!(sequences(&layout), [first + 2, first + 3]);
}

#[test]
fn nothing_is_given_beyond_what_is_missing() {
    let layout = ring();
    let first = layout.begin().unwrap() + 1;
    for at in [0, 1, 3, 4] {
        receive(&layout, at, &message(&IDENTITY, first + u64::from(at), b"record"));
    }
    assert_eq!(sequences(&layout), [first, first + 1]);
}

#[test]
fn records_of_other_rings_and_lives_are_none() {
    let layout = ring();
    let first = layout.begin().unwrap() + 1;
    receive(&layout, 0, &message(b"another ring's !", first, b"foreign"));
    assert_eq!(sequences(&layout), []);
    // A life ends: 1 and 2 were consumed, 3 is torn, 4 and 5 are whole.
    layout.set_position(first + 1).unwrap();
    for slot in [4_u32, 5] {
        receive(&layout, slot, &message(&IDENTITY, first + u64::from(slot) - 1, b"of the life before"));
    }
    assert_eq!(sequences(&layout), []);
    // Were the numbers given anew, they would come back behind the new record.
    receive(&layout, 3, &message(&IDENTITY, first + 2, b"new"));
    assert_eq!(sequences(&layout), [first + 2, first + 3, first + 4]);
    receive(&layout, 3, &[0; 8]);
    let next = layout.begin().unwrap() + 1;
    for at in 0..u64::from(layout.slots) {
        assert!(next + at > first + 4);
    }
    receive(&layout, 3, &message(&IDENTITY, next, b"new"));
    assert_eq!(sequences(&layout), [next]);
}

#[test]
fn a_record_from_the_future_is_erased_before_its_time() {
    let layout = ring();
    let first = layout.begin().unwrap() + 1;
    let ahead = first + u64::from(layout.slots);
    receive(&layout, 9, &message(&IDENTITY, ahead, b"forged"));
    assert_eq!(layout.begin().unwrap() + 1, ahead);
    assert_eq!(sequences(&layout), []);
}

#[test]
fn a_position_that_cannot_be_is_an_error_and_not_a_panic() {
    let layout = ring();
    layout.set_position(u64::MAX - 3).unwrap();
    assert!(matches!(layout.begin(), Err(RingError::Damaged { .. })));
    receive(&layout, 0, &message(&IDENTITY, u64::MAX, b"last"));
    assert_eq!(sequences(&layout), []);
    layout.set_position(u64::MAX - 1).unwrap();
    assert_eq!(sequences(&layout), [u64::MAX]);
}

/// Every image that a crash can leave of the ring's own stores: a ring or none, the old position or the new one.
#[test]
fn a_crash_leaves_a_ring_or_none_and_one_position() {
    let shadow = Arc::new(ShadowMedium::new(LEN_BYTES, MediumKind::DevDax).unwrap());
    let layout = Layout::create(Arc::clone(&shadow) as Arc<dyn Medium>, 0, LEN_BYTES, IDENTITY).unwrap();
    layout.set_position(40).unwrap();
    shadow.mark(40);
    layout.set_position(41).unwrap();
    shadow.mark(41);
    // Replays the trace by hand: what is looked at is each image at each step.
    let replayed = ShadowMedium::new(LEN_BYTES, MediumKind::DevDax).unwrap();
    let mut made = false;
    let mut position = 0;
    for event in shadow.trace() {
        match event {
            pmof_mem::shadow::Event::Store { offset, bytes } => replayed.store(offset, &bytes).unwrap(),
            pmof_mem::shadow::Event::WriteBack { offset, len_bytes } => replayed.write_back(offset, len_bytes).unwrap(),
            pmof_mem::shadow::Event::Fence => replayed.fence().unwrap(),
            pmof_mem::shadow::Event::Mark(value) => (made, position) = (true, value),
        }
        for image in replayed.crash_images(200) {
            let image = ShadowMedium::from_image(image, MediumKind::DevDax).unwrap();
            match Layout::open(Arc::new(image), 0, LEN_BYTES) {
                Ok(found) => {
                    let found = found.position().unwrap();
                    assert!(found >= position && [0, 40, 41].contains(&found), "{found} after {position}");
                }
                Err(error) => assert!(!made && matches!(error, RingError::NoRing { .. }), "{error}"),
            }
        }
    }
    assert_eq!(position, 41);
}

/// A ring in the middle of its life.
#[derive(Clone, Debug)]
struct Life {
    /// Records that came in before, and how many of them were consumed.
    before: u64,
    consumed: u64,
    /// Records that come in now, of this length and the ones after it.
    len_bytes: usize,
    /// How many of the records in all are acknowledged.
    acknowledged: u64,
    seed: u64,
}

fn lives() -> impl Strategy<Value = Life> {
    let slots = SLOTS_MIN;
    (1..=slots, 0..=slots, 0_usize..400, 0..=2 * slots, any::<u64>()).prop_map(
        |(before, consumed, len_bytes, acknowledged, seed)| {
            let consumed = consumed.min(before);
            Life { before, consumed, len_bytes, acknowledged: acknowledged.min(before + consumed), seed }
        },
    )
}

/// xorshift64*, so that a seed replays a choice of thousands of lines.
fn choose(state: &mut u64) -> bool {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 63 == 1
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The slots are filled once around, some records consumed, and their slots filled anew. Of what is not acknowledged any
    /// cache lines survive. Acknowledged and not consumed ⊆ recovered ⊆ issued, in order, each with its bytes.
    #[test]
    fn a_crash_loses_no_acknowledged_record_and_brings_none_back(life in lives()) {
        let layout = ring();
        let base = layout.begin().unwrap();
        let bytes_of = |number: u64| vec![number as u8; life.len_bytes + number as usize];
        let mut seed = life.seed | 1;
        let mut torn = BTreeMap::new();
        let mut arrive = |number: u64, slot: u32| {
            let message = message(&IDENTITY, base + number, &bytes_of(number));
            if number <= life.acknowledged {
                receive(&layout, slot, &message);
                return;
            }
            let mut is_torn = false;
            for (at, line) in (layout.slot_at(slot)..).step_by(LINE_BYTES).zip(message.chunks(LINE_BYTES)) {
                if choose(&mut seed) {
                    layout.memory.store(at, line).unwrap();
                } else {
                    is_torn = true;
                }
            }
            torn.insert(number, is_torn);
        };
        for number in 1..=life.before {
            arrive(number, (number - 1) as u32);
        }
        layout.set_position(base + life.consumed).unwrap();
        for number in 1..=life.consumed {
            arrive(life.before + number, (number - 1) as u32);
        }
        let found = layout.recover().unwrap();
        let issued = life.before + life.consumed;
        for ((_, record), number) in found.iter().zip(life.consumed + 1..) {
            prop_assert_eq!(record.sequence, base + number);
            prop_assert!(number <= issued);
            prop_assert!(record.bytes == bytes_of(number), "record {} has other bytes", number);
        }
        let through = life.consumed + found.len() as u64;
        prop_assert!(through >= life.acknowledged, "{} of {} acknowledged", through, life.acknowledged);
        // What is left out is torn, or behind what is.
        if through < issued {
            prop_assert_eq!(torn.get(&(through + 1)), Some(&true));
        }
    }

    /// Any bytes in the slots and in the header give records or an error.
    #[test]
    fn garbage_is_neither_a_record_nor_a_panic(at in 0..HEADER_BYTES + SLOT_BYTES, bytes in prop::collection::vec(any::<u8>(), 1..200)) {
        let layout = ring();
        let first = layout.begin().unwrap() + 1;
        receive(&layout, 0, &message(&IDENTITY, first, b"there"));
        let at = at.min(LEN_BYTES - bytes.len() as u64);
        layout.memory.store(at, &bytes).unwrap();
        if let Ok(opened) = Layout::open(Arc::clone(&layout.memory), 0, LEN_BYTES) {
            for (_, record) in opened.recover().unwrap() {
                prop_assert_eq!(record.bytes, b"there");
            }
        }
    }
}
