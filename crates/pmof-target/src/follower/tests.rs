use pmof_control::ChangeSet;
use pmof_mem::{MediumKind, Memory, ShadowMedium, shadow::for_each_crash_point};

use super::*;

const DATA: Range<u64> = 0..1024;

/// Change sets whose bytes all say which one wrote them, and what the data holds after each.
struct Sets {
    frames: Vec<Vec<u8>>,
    states: Vec<Vec<u8>>,
}

impl Sets {
    /// Change set *n* writes in `writes` places, `len_bytes` each.
    fn new(count: u64, writes: u64, len_bytes: u64) -> Self {
        let mut state = vec![0; DATA.end as usize];
        let (mut frames, mut states) = (Vec::new(), vec![state.clone()]);
        for number in 1..=count {
            let mut set = ChangeSet::default();
            for place in 0..writes {
                let offset = (number * 37 + place * 211) % (DATA.end - len_bytes + 1);
                let bytes = vec![(number % 251) as u8 + 1; len_bytes as usize];
                set.write(offset, &bytes);
                state[offset as usize..(offset + len_bytes) as usize].copy_from_slice(&bytes);
            }
            frames.push(set.to_bytes(number));
            states.push(state.clone());
        }
        Self { frames, states }
    }

    fn stream(&self) -> Vec<u8> {
        self.frames.concat()
    }
}

fn staging(capacity_bytes: u64) -> Range<u64> {
    DATA.end..DATA.end + FRAME + capacity_bytes
}

fn data_of(medium: &dyn Medium) -> Vec<u8> {
    let mut data = vec![0; DATA.end as usize];
    medium.read(DATA.start, &mut data).unwrap();
    data
}

/// A stream of 1 MiB that ends at each of its bytes: the data is what it was after some change set, and the number says which.
#[test]
fn a_stream_cut_at_any_byte_leaves_a_prefix() {
    let sets = Sets::new(4096, 3, 64);
    let stream = sets.stream();
    assert!(stream.len() >= 1 << 20);
    let area = staging(4096);
    let medium = Memory::anonymous(area.end).unwrap();
    let mut follower = Follower::open(&medium, Durability::Visible, DATA, area.clone()).unwrap();
    let mut ends = sets.frames.iter().scan(0, |end, frame| {
        *end += frame.len();
        Some(*end)
    });
    let (mut next_end, mut number) = (ends.next(), 0);
    for (at, byte) in stream.iter().enumerate() {
        follower.receive(std::slice::from_ref(byte)).unwrap();
        if next_end == Some(at + 1) {
            (next_end, number) = (ends.next(), number + 1);
        }
        assert_eq!(follower.applied(), number as u64);
        assert!(data_of(&medium) == sets.states[number], "cut behind byte {at}");
    }
    // Opened anew after the cut, it goes on where it was, though its writer sends from the beginning.
    let mut follower = Follower::open(&medium, Durability::Visible, DATA, area).unwrap();
    assert_eq!(follower.applied(), 4096);
    follower.receive(&stream).unwrap();
    assert!(data_of(&medium) == sets.states[4096]);
}

/// What a crash leaves after any step, the member makes a prefix of, with all that was acknowledged.
fn crash_everywhere(kind: MediumKind) -> u64 {
    let sets = Sets::new(4, 3, 24);
    let area = staging(256);
    let medium = ShadowMedium::new(area.end, kind).unwrap();
    let mut follower = Follower::open(&medium, Durability::PowerFailure, DATA, area.clone()).unwrap();
    for (number, frame) in (1..).zip(&sets.frames) {
        follower.receive(frame).unwrap();
        medium.mark(number);
    }
    let initial = vec![0; area.end as usize];
    let coverage = for_each_crash_point::<MemError>(kind, &initial, &medium.trace(), 200, |crash| {
        let left = ShadowMedium::from_image(crash.image.to_vec(), kind)?;
        let follower = Follower::open(&left, Durability::PowerFailure, DATA, area.clone()).unwrap();
        let (applied, acknowledged) = (follower.applied(), crash.marks.last().copied().unwrap_or(0));
        assert!(applied >= acknowledged, "{acknowledged} was acknowledged, {applied} is there");
        assert!(data_of(&left) == sets.states[applied as usize], "no prefix after {} events", crash.events_done);
        // The opening may be interrupted too.
        for_each_crash_point::<MemError>(kind, crash.image, &left.trace(), 5, |again| {
            let left = ShadowMedium::from_image(again.image.to_vec(), kind)?;
            let follower = Follower::open(&left, Durability::PowerFailure, DATA, area.clone()).unwrap();
            assert_eq!(follower.applied(), applied);
            assert!(data_of(&left) == sets.states[applied as usize], "no prefix after a second crash");
            Ok(())
        })
        .map(drop)
    });
    coverage.unwrap().images
}

#[test]
fn a_crash_at_any_step_leaves_a_prefix() {
    assert!(crash_everywhere(MediumKind::DevDax) > 1000);
    assert!(crash_everywhere(MediumKind::PageCache) > 50);
}

#[test]
fn a_stream_that_is_wrong_changes_nothing() {
    let sets = Sets::new(3, 2, 16);
    let area = staging(256);
    let medium = Memory::anonymous(area.end).unwrap();
    let open = || Follower::open(&medium, Durability::Visible, DATA, area.clone()).unwrap();
    let receive = |bytes: &[u8]| open().receive(bytes).unwrap_err();
    let mut damaged = sets.frames[0].clone();
    damaged[CHANGE_SET_HEADER_BYTES + 20] ^= 1;
    assert!(matches!(receive(&damaged), FollowerError::ChangeSet(ChangeSetError::Body { number: 1 })));
    assert!(matches!(receive(&[0; CHANGE_SET_HEADER_BYTES]), FollowerError::ChangeSet(ChangeSetError::Header)));
    assert!(matches!(receive(&sets.frames[1]), FollowerError::Gap { number: 2, applied: 0 }));
    let mut outside = ChangeSet::default();
    outside.write(0, b"inside");
    outside.write(DATA.end - 1, b"outside");
    assert!(matches!(receive(&outside.to_bytes(1)), FollowerError::OutOfBounds { number: 1, size_bytes: 1024, .. }));
    let mut long = ChangeSet::default();
    long.write(0, &[1; 300]);
    // Before its body came: it would be kept in memory.
    assert!(matches!(receive(&long.to_bytes(1)[..CHANGE_SET_HEADER_BYTES]), FollowerError::TooLong { number: 1, .. }));
    assert!(data_of(&medium) == sets.states[0]);
    let mut follower = open();
    follower.receive(&[0; CHANGE_SET_HEADER_BYTES]).unwrap_err();
    assert!(matches!(follower.receive(&sets.frames[0]), Err(FollowerError::Stopped)));
    open().receive(&sets.stream()).unwrap();
    assert!(data_of(&medium) == sets.states[3]);
}

#[test]
fn a_damaged_staging_area_is_reported() {
    let area = staging(256);
    for (staged, applied) in [(1_u64, 0_u64), (3, 1), (0, 1)] {
        let medium = Memory::anonymous(area.end).unwrap();
        medium.atomic_store(area.start + STAGED, staged).unwrap();
        medium.atomic_store(area.start + APPLIED, applied).unwrap();
        let error = Follower::open(&medium, Durability::Visible, DATA, area.clone()).unwrap_err();
        assert!(matches!(error, FollowerError::Damaged { .. }), "{error:?}");
    }
}
