//! Replicas of a pool set that `pmof pool sync` makes whole and equal.
//!
//! A sync that was cut may leave a replica that it was making in any state, if one can tell: it has no header that is whole, or
//! is marked as unfinished. A replica that is linked holds what the first one holds.

use crate::{
    ledger::{Ledger, Operation, Step},
    parts::Replica,
};

/// Bytes of the header, which each replica has for itself.
const HEADER_BYTES: usize = 4096;

/// A replica as it was read: `None` where there is no header.
pub type Found = Result<Option<Replica>, String>;

/// What is known of the set beside its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// Whether the last sync was acknowledged, or none began.
    pub is_at_rest: bool,
    /// Whether `pmof pool check` said that the set is sound, if it was asked.
    pub is_sound: Option<bool>,
}

/// What is true of one replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is linked, and holds what the first one holds.
    Whole,
    /// It says of itself that it is not whole, as it may while a sync is under way.
    Unfinished(String),
    /// It must not be like this.
    Lost(String),
}

/// Whether no sync of that set is under way.
pub fn is_at_rest(ledger: &Ledger, name: &str) -> bool {
    let is_sync = |step: &&Step| step.name == name && step.operation == Operation::Sync;
    ledger.steps.iter().rfind(is_sync).is_none_or(|step| step.is_done)
}

/// Judges each replica of a set of at least two; the first one is never made anew.
pub fn judge(replicas: &[Found], told: Told) -> Vec<Standing> {
    let mut all: Vec<_> = (0..replicas.len()).map(|index| standing(replicas, index, told.is_at_rest)).collect();
    let unfinished = all.iter().position(|one| matches!(one, Standing::Unfinished(_)));
    match (told.is_sound, unfinished) {
        (Some(true), Some(index)) => {
            all[index] = Standing::Lost(format!("pool check takes it for sound: {:?}", all[index]));
        }
        (Some(false), None) if told.is_at_rest => {
            all[0] = Standing::Lost("pool check says that the set is not sound".to_owned());
        }
        _ => {}
    }
    all
}

fn standing(replicas: &[Found], index: usize, is_at_rest: bool) -> Standing {
    let source = match &replicas[0] {
        Ok(Some(source)) => source,
        Ok(None) => return Standing::Lost("the first replica has no header".to_owned()),
        Err(what) => return Standing::Lost(format!("the first replica: {what}")),
    };
    let must_be_whole = is_at_rest || index == 0;
    let unfinished = |why: String| if must_be_whole { Standing::Lost(why) } else { Standing::Unfinished(why) };
    let replica = match &replicas[index] {
        Ok(Some(replica)) => replica,
        Ok(None) => return unfinished("it has no header".to_owned()),
        Err(what) => return unfinished(what.clone()),
    };
    if replica.uuid != source.uuid {
        return Standing::Lost("it is of another pool set".to_owned());
    }
    if replica.is_unfinished() {
        return unfinished("its neighbours are nobody".to_owned());
    }
    if let Some(why) = differs(source, replica) {
        return Standing::Lost(why);
    }
    let count = replicas.len();
    let own = |index: usize| replicas[index % count].as_ref().ok().and_then(Option::as_ref).map(|other| other.own);
    let (before, behind) = (own(index + count - 1), own(index + 1));
    if is_at_rest && (before != Some(replica.previous) || behind != Some(replica.next)) {
        return Standing::Lost("its links lead to others than its neighbours".to_owned());
    }
    Standing::Whole
}

/// Where a replica differs from the first one behind its header.
fn differs(source: &Replica, other: &Replica) -> Option<String> {
    let len = source.pool.len().min(other.pool.len());
    let at = (HEADER_BYTES..len).find(|at| source.pool[*at] != other.pool[*at])?;
    Some(format!("byte {at} is {:#x}, not {:#x}", other.pool[at], source.pool[at]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parts::tests::{linked, part};

    const SIZE: usize = 12_288;
    const AT_REST: Told = Told { is_at_rest: true, is_sound: None };
    const UNDER_WAY: Told = Told { is_at_rest: false, is_sound: None };

    fn found(bytes: Vec<u8>) -> Found {
        Replica::read(&[bytes])
    }

    /// Replica `number` of three, all bytes the same.
    fn replica(number: u8) -> Vec<u8> {
        linked(part(number, number, SIZE), (number + 1) % 3 + 1, number % 3 + 1, 5)
    }

    fn three() -> [Vec<u8>; 3] {
        [replica(1), replica(2), replica(3)]
    }

    fn judged(bytes: [Vec<u8>; 3], told: Told) -> Vec<Standing> {
        judge(&bytes.map(found), told)
    }

    fn assert_lost(standing: &Standing, what: &str) {
        assert!(matches!(standing, Standing::Lost(why) if why.contains(what)), "{standing:?}, not {what}");
    }

    #[test]
    fn three_that_are_equal_are_whole() {
        assert_eq!(judged(three(), AT_REST), [Standing::Whole, Standing::Whole, Standing::Whole]);
        assert_eq!(judged(three(), UNDER_WAY), [Standing::Whole, Standing::Whole, Standing::Whole]);
    }

    #[test]
    fn what_was_being_made_may_hold_anything_where_it_says_so() {
        for (at, unfinished) in
            [vec![0; SIZE], vec![7; 100], linked(part(3, 3, SIZE), 0xff, 0xff, 9)].into_iter().enumerate()
        {
            let [first, second, _] = three();
            let bytes = [first, second, unfinished];
            let standings = judged(bytes.clone(), UNDER_WAY);
            assert!(matches!(standings[2], Standing::Unfinished(_)), "{at}: {standings:?}");
            assert_eq!(standings[..2], [Standing::Whole, Standing::Whole], "{at}");
            assert_lost(&judged(bytes, AT_REST)[2], "");
        }
    }

    /// The control: one that passes for whole and is not.
    #[test]
    fn a_linked_replica_that_differs_is_lost_at_any_time() {
        for told in [AT_REST, UNDER_WAY] {
            let [first, second, mut third] = three();
            third[SIZE - 1] ^= 1;
            assert_lost(&judged([first, second, third], told)[2], "byte 12287");
        }
    }

    #[test]
    fn the_first_replica_is_whole_at_any_time() {
        for broken in [vec![0; SIZE], vec![7; SIZE], linked(part(1, 1, SIZE), 0xff, 0xff, 5)] {
            let [_, second, third] = three();
            assert_lost(&judged([broken, second, third], UNDER_WAY)[0], "");
        }
    }

    #[test]
    fn links_and_the_pool_are_compared() {
        let [first, second, third] = three();
        let astray = linked(part(3, 3, SIZE), 2, 7, 5);
        assert_lost(&judged([first.clone(), second, astray], AT_REST)[2], "neighbours");
        let mut foreign = part(2, 2, SIZE);
        foreign[24..40].fill(8);
        let foreign = linked(foreign, 1, 3, 5);
        assert_lost(&judged([first, foreign, third], UNDER_WAY)[1], "another pool set");
    }

    #[test]
    fn pool_check_must_see_what_the_judge_sees() {
        let [first, second, third] = three();
        let told = |is_at_rest, is_sound| Told { is_at_rest, is_sound: Some(is_sound) };
        let bytes = [first.clone(), vec![0; SIZE], third.clone()];
        assert_lost(&judged(bytes.clone(), told(false, true))[1], "takes it for sound");
        assert!(matches!(judged(bytes, told(false, false))[1], Standing::Unfinished(_)));
        let bytes = [first, second, third];
        assert_lost(&judged(bytes.clone(), told(true, false))[0], "not sound");
        // All files are whole, and a link of the first one is still missing.
        assert_eq!(judged(bytes, told(false, false))[0], Standing::Whole);
    }

    #[test]
    fn a_sync_is_at_rest_before_it_begins_and_when_it_is_done() {
        let at_rest = |text: &str| is_at_rest(&Ledger::parse(text.as_bytes()).unwrap(), "s");
        assert!(at_rest("issue 0 0\n"));
        assert!(!at_rest("begin sync s 0\n"));
        assert!(at_rest("begin sync s 0\ndone sync s\n"));
        assert!(at_rest("begin sync other 0\n"));
    }
}
