use pmof_proto::Refusal;

use super::*;

/// A lane with writes of this signal and context in a row, then a flush that is heard of.
fn lane_with(writes: u64) -> Lane {
    let mut lane = Lane::default();
    let outcome = Outcome::Done { len_bytes: 8 };
    let part = |first, count, kind, is_signalled| Pending {
        first,
        count,
        context: first,
        kind,
        is_signalled,
        way: Way::Direct,
        outcome,
    };
    lane.pending.push_back(part(1, writes, OperationKind::Write, false));
    lane.pending.push_back(part(writes + 1, 1, OperationKind::Flush, true));
    lane.last = writes + 1;
    lane
}

fn told(lane: &mut Lane) -> Vec<(u64, OperationKind, bool)> {
    let is_refused = |outcome: &Result<_, _>| matches!(outcome, Err(OperationError::Refused { .. }));
    lane.completions.drain(..).map(|done| (done.ticket.0, done.kind, is_refused(&done.outcome))).collect()
}

#[test]
fn of_writes_in_a_row_the_one_that_failed_is_named_and_those_before_it_are_not() {
    use OperationKind::{Flush, Write};
    for failed in 1..=6 {
        let mut lane = lane_with(5);
        let (refusal, offset) = (Refusal::DeviceRefused, 8 * failed);
        lane.fail(failed, OperationError::Refused { refusal, offset, len_bytes: 8, limit: 0 });
        assert_eq!(lane.outstanding() as u64, 7 - failed);
        lane.end_now(&ConnectionError::ClosedHere);
        let kind = |ticket| if ticket == 6 { Flush } else { Write };
        let expected: Vec<_> = (failed..=6).map(|ticket| (ticket, kind(ticket), ticket == failed)).collect();
        assert_eq!(told(&mut lane), expected);
    }
}

#[test]
fn writes_in_a_row_finish_a_part_at_a_time() {
    let mut lane = lane_with(5);
    for (done, outstanding) in [(0, 6), (2, 4), (4, 2), (5, 1)] {
        lane.direct_done = done;
        lane.complete();
        assert_eq!((lane.outstanding(), told(&mut lane)), (outstanding, Vec::new()), "{done}");
    }
    assert!(lane.pending_mut(5).is_none() && lane.pending_mut(6).is_some());
    lane.direct_done = 6;
    lane.complete();
    assert_eq!(told(&mut lane), [(6, OperationKind::Flush, false)]);
    assert_eq!(lane.outstanding(), 0);
}

#[test]
fn of_writes_that_nobody_is_to_hear_of_the_device_tells_one_in_a_quarter_of_the_send_queue() {
    let asked = |send_queue| {
        let mut lane = Lane::default();
        let mut asked = Vec::new();
        for _ in 0..12 {
            let number = lane.number(send_queue, Signal::OnError);
            lane.last = number.ticket;
            if number.is_asked {
                lane.asked = number.ticket;
                asked.push(number.ticket);
            }
        }
        asked
    };
    assert_eq!(asked(16), [4, 8, 12]);
    assert_eq!(asked(20), [5, 10]);
    for send_queue in 1..8 {
        // Else it would be full before anything is told.
        assert_eq!(asked(send_queue).len(), 12, "{send_queue}");
    }
    assert!(Lane::default().number(1024, Signal::Always).is_asked);
}

mod device;
