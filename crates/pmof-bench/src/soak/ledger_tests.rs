use super::*;

const WORDS: usize = 16;

fn write(first: usize, words: &[u64]) -> Write {
    Write { first, words: words.to_vec() }
}

fn pool(set: &[(usize, u64)]) -> Vec<u8> {
    let mut words = [0_u64; WORDS];
    for (address, word) in set {
        words[*address] = *word;
    }
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn what_was_acknowledged_must_be_there() {
    let mut ledger = Ledger::new(WORDS);
    ledger.issue(0, vec![write(2, &[5, 6])]);
    // Not acknowledged yet: whole, torn or absent.
    for found in [pool(&[]), pool(&[(3, 6)]), pool(&[(2, 5), (3, 6)])] {
        assert!(ledger.check(&found).is_ok());
    }
    assert_eq!(ledger.acknowledge(0), Some(1));
    assert_eq!(ledger.check(&pool(&[(2, 5), (3, 6)])), Ok(Checked { words: 16, unacknowledged_words: 0 }));
    let wrong = ledger.check(&pool(&[(2, 5)])).unwrap_err();
    assert_eq!((wrong.offset, wrong.found, wrong.acknowledged, wrong.wrong_words), (24, 0, 6, 1));
}

#[test]
fn only_what_was_issued_may_be_there() {
    let mut ledger = Ledger::new(WORDS);
    ledger.issue(0, vec![write(0, &[1])]);
    assert_eq!(ledger.acknowledge(0), Some(1));
    ledger.issue(1, vec![write(0, &[2]), write(0, &[3])]);
    assert_eq!(ledger.check(&pool(&[(0, 2)])), Ok(Checked { words: 16, unacknowledged_words: 1 }));
    assert!(ledger.check(&pool(&[(0, 3)])).is_ok());
    let wrong = ledger.check(&pool(&[(0, 4), (9, 9)])).unwrap_err();
    assert_eq!(wrong, WrongWord { offset: 0, found: 4, acknowledged: 1, pending: vec![2, 3], wrong_words: 2 });
}

#[test]
fn an_acknowledged_value_replaces_the_older_ones() {
    let mut ledger = Ledger::new(WORDS);
    ledger.issue(0, vec![write(0, &[1])]);
    ledger.issue(1, vec![write(0, &[2])]);
    assert_eq!(ledger.acknowledge(1), Some(2), "it covers the earlier one");
    assert!(ledger.check(&pool(&[(0, 1)])).is_err());
    assert!(ledger.check(&pool(&[(0, 2)])).is_ok());
    assert_eq!(ledger.acknowledge(0), None, "it was covered already");
    assert_eq!(ledger.acknowledge(7), None, "it was never issued");
}

#[test]
fn what_was_recovered_is_settled() {
    let mut ledger = Ledger::new(WORDS);
    ledger.issue(0, vec![write(0, &[1])]);
    ledger.settle(&pool(&[]));
    assert!(ledger.check(&pool(&[(0, 1)])).is_err());
    assert!(ledger.check(&pool(&[])).is_ok());
}

#[test]
fn words_and_bytes_are_the_same_write() {
    let bytes: Vec<u8> = (0..24).collect();
    let write = Write::of_bytes(16, &bytes);
    assert_eq!((write.offset(), write.words.len(), write.bytes()), (16, 3, bytes));
}

#[test]
fn only_long_writes_may_be_torn_inside_a_word() {
    let torn = 0x0202_0202_0101_0101;
    let check = |words: usize| {
        let mut ledger = Ledger::new(words);
        ledger.issue(0, vec![write(0, &vec![0x0101_0101_0101_0101; words])]);
        assert_eq!(ledger.acknowledge(0), Some(1));
        ledger.issue(1, vec![write(0, &vec![0x0202_0202_0202_0202; words])]);
        let mut found = vec![0x0101_0101_0101_0101; words];
        found[1] = torn;
        let bytes: Vec<u8> = found.iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
        let alien: Vec<u8> = bytes.iter().map(|byte| byte ^ 4).collect();
        assert!(ledger.check(&alien).is_err());
        ledger.check(&bytes).is_ok()
    };
    assert!(!check(512), "4096 bytes are stored at once");
    assert!(check(513));
}

/// The next session may write with the same numbers, and acknowledges nothing of the one before.
#[test]
fn what_an_ended_session_left_stays_possible_until_it_is_covered() {
    let mut ledger = Ledger::new(WORDS);
    ledger.issue(0, vec![write(0, &[1, 2])]);
    ledger.end_session();
    ledger.issue(0, vec![write(1, &[7])]);
    for found in [pool(&[]), pool(&[(0, 1), (1, 2)]), pool(&[(0, 1), (1, 7)])] {
        assert!(ledger.check(&found).is_ok());
    }
    assert_eq!(ledger.acknowledge(0), Some(1));
    for found in [pool(&[(1, 7)]), pool(&[(0, 1), (1, 7)])] {
        assert!(ledger.check(&found).is_ok());
    }
    let wrong = ledger.check(&pool(&[(0, 1), (1, 2)])).unwrap_err();
    assert_eq!((wrong.offset, wrong.found, wrong.acknowledged), (8, 2, 7));
    assert_eq!(ledger.acknowledge(0), None);
    ledger.settle(&pool(&[(1, 7)]));
    assert!(ledger.check(&pool(&[(0, 1), (1, 7)])).is_err());
}
