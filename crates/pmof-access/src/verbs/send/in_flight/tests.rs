use proptest::prelude::*;

use super::*;

/// What was counted, one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counted {
    Write { offset: u64, len_bytes: u64 },
    Flush { offset: u64, len_bytes: u64 },
    Stream,
}

fn any_counted() -> impl Strategy<Value = Counted> {
    // Few places and lengths, so that many go on where the last one ended.
    let write = (0..4_u64, 1..3_u64).prop_map(|(place, len)| Counted::Write { offset: 8 * place, len_bytes: 8 * len });
    let flush = (0..4_u64).prop_map(|place| Counted::Flush { offset: 8 * place, len_bytes: 32 });
    prop_oneof![6 => write, 2 => flush, 1 => Just(Counted::Stream)]
}

/// Counts it; the ticket and the range of a direct operation.
fn push(to: &mut InFlight, counted: Counted, ticket: u64) -> Option<(u64, u64, u64)> {
    let (Counted::Write { offset, len_bytes } | Counted::Flush { offset, len_bytes }) = counted else {
        to.push(Flight::Stream, 0, None, None);
        return None;
    };
    let plain = Plain { ticket: Ticket(ticket), offset, len_bytes };
    match counted {
        Counted::Flush { .. } => to.push_bare(plain, 0),
        _ => to.push_plain(plain, 0, None, None),
    }
    Some((ticket, offset, len_bytes))
}

fn direct(flight: &Flight) -> Option<(u64, u64, u64)> {
    match flight {
        Flight::Direct { ticket, offset, len_bytes, .. } => Some((ticket.0, *offset, *len_bytes)),
        _ => None,
    }
}

fn write(place: u64) -> Counted {
    Counted::Write { offset: 64 * place, len_bytes: 64 }
}

#[test]
fn a_flush_shares_the_entry_of_the_writes_before_it() {
    let mut in_flight = InFlight::default();
    for ticket in 1..=32 {
        push(&mut in_flight, write(ticket - 1), ticket);
    }
    push(&mut in_flight, Counted::Flush { offset: 0, len_bytes: 2048 }, 33);
    assert_eq!((in_flight.entries.len(), in_flight.len(), in_flight.bytes()), (1, 33, 4096));
    assert_eq!(in_flight.retire_plain(33), Some((Ticket(33), 0)));
    assert!(in_flight.is_empty() && in_flight.entries.is_empty());
}

#[test]
fn of_a_row_and_its_flush_the_one_that_failed_has_its_own_range() {
    for failed in 1..=4 {
        let mut in_flight = InFlight::default();
        let posted: Vec<_> = [write(0), write(1), write(2), Counted::Flush { offset: 7, len_bytes: 9 }]
            .into_iter()
            .zip(1..)
            .map(|(counted, ticket)| push(&mut in_flight, counted, ticket))
            .collect();
        while in_flight.retire(failed - 1).is_some() {}
        let (retired, _) = in_flight.retire(failed).expect("it is under way");
        assert_eq!(direct(&retired.flight), posted[failed as usize - 1]);
        assert_eq!(in_flight.len() as u64, 4 - failed);
    }
}

proptest! {
    #[test]
    fn runs_retire_as_if_each_write_had_an_entry_of_its_own(
        counted in prop::collection::vec(any_counted(), 1..40),
        steps in prop::collection::vec((1..6_u64, any::<bool>()), 1..40),
    ) {
        let mut in_flight = InFlight::default();
        let mut tickets = 0;
        let all: Vec<_> = counted
            .iter()
            .map(|counted| {
                tickets += u64::from(*counted != Counted::Stream);
                push(&mut in_flight, *counted, tickets)
            })
            .collect();
        prop_assert_eq!(in_flight.len(), all.len());
        prop_assert_eq!(in_flight.bytes(), all.iter().flatten().map(|(_, _, len_bytes)| len_bytes).sum::<u64>());
        let mut through = 0;
        for (more, plain_first) in steps {
            through = (through + more).min(all.len() as u64);
            if plain_first {
                let before = in_flight.first();
                let last = in_flight.retire_plain(through).map(|(ticket, _)| ticket.0);
                let done = &all[before as usize - 1..in_flight.first() as usize - 1];
                prop_assert!(done.iter().all(Option::is_some));
                prop_assert_eq!(last, done.last().map(|last| last.expect("all are direct").0));
            }
            while let Some((retired, _)) = in_flight.retire(through) {
                prop_assert_eq!(direct(&retired.flight), all[in_flight.first() as usize - 2]);
            }
            prop_assert_eq!(in_flight.first(), through + 1);
        }
    }
}
