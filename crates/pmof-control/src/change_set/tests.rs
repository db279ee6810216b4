use proptest::prelude::*;

use super::*;

fn split(bytes: &[u8]) -> Result<ChangeSetHeader, ChangeSetError> {
    let (header, _) = bytes.split_first_chunk::<CHANGE_SET_HEADER_BYTES>().unwrap();
    ChangeSetHeader::parse(header)
}

proptest! {
    #[test]
    fn a_change_set_arrives_as_it_was_sent(
        number in 1..u64::MAX,
        writes in proptest::collection::vec((any::<u64>(), proptest::collection::vec(any::<u8>(), 0..50)), 0..8),
        damaged in any::<proptest::sample::Index>(),
    ) {
        let mut set = ChangeSet::default();
        for (offset, bytes) in &writes {
            set.write(*offset, bytes);
        }
        let mut bytes = set.to_bytes(number);
        let header = split(&bytes).unwrap();
        prop_assert_eq!(header.number, number);
        let found = header.writes(&bytes[CHANGE_SET_HEADER_BYTES..]).unwrap();
        let sent = writes.iter().map(|(offset, bytes)| Change { offset: *offset, bytes });
        prop_assert!(found.into_iter().eq(sent));
        // No byte may be changed unnoticed.
        let at = damaged.index(bytes.len());
        bytes[at] ^= 1;
        let is_noticed = match split(&bytes) {
            Ok(header) => header.writes(&bytes[CHANGE_SET_HEADER_BYTES..]).is_err(),
            Err(_) => true,
        };
        prop_assert!(is_noticed);
    }
}

#[test]
fn a_body_whose_writes_do_not_fit_is_none() {
    for body in [&[0; 15][..], &[&[0; 8][..], &u64::MAX.to_le_bytes()].concat()] {
        let set = ChangeSet { body: body.to_vec() };
        let bytes = set.to_bytes(7);
        let header = split(&bytes).unwrap();
        assert_eq!(header.writes(&bytes[CHANGE_SET_HEADER_BYTES..]), Err(ChangeSetError::Body { number: 7 }));
    }
    assert_eq!(split(&ChangeSet::default().to_bytes(0)), Err(ChangeSetError::Header));
}
