use proptest::prelude::*;

use super::*;

fn digests() -> PageDigests {
    PageDigests::new(Uuid::from_u128(7))
}

/// The format is fixed: a word that was written once is read for ever.
#[test]
fn words_are_those_of_the_format() {
    let digests = digests();
    let page: Vec<u8> = (0..PAGE_BYTES).map(|at| at as u8).collect();
    let words = [
        digests.protected(0, PageDigest::ZEROS),
        digests.protected(9, digests.digest(9, &page)),
        digests.unprotected(0),
        digests.unprotected(1 << 32),
    ];
    assert_eq!(words.map(|word| format!("{word:016x}")), GOLDEN);
}

const GOLDEN: [&str; 4] = ["fc60000000000000", "b47cd078b20d552c", "076684cc2c3d6d2a", "5c34bbe9372ae889"];

#[test]
fn a_page_of_zeros_has_one_word() {
    let (digests, mut page) = (digests(), vec![0; PAGE_BYTES as usize]);
    assert_eq!(digests.digest(5, &page), PageDigest::ZEROS);
    *page.last_mut().unwrap() = 1;
    assert_ne!(digests.digest(5, &page), PageDigest::ZEROS);
}

#[test]
fn zeros_and_ones_are_no_words() {
    let digests = digests();
    for page in 0..1000 {
        assert_eq!(digests.decode(page, 0), PageWord::Damaged);
        assert_eq!(digests.decode(page, u64::MAX), PageWord::Damaged);
    }
}

proptest! {
    #[test]
    fn a_word_says_what_was_kept(uuid: u128, page: u64, first: u8) {
        let digests = PageDigests::new(Uuid::from_u128(uuid));
        let digest = digests.digest(page, &[first; PAGE_BYTES as usize]);
        prop_assert_eq!(digests.decode(page, digests.protected(page, digest)), PageWord::Protected(digest));
        prop_assert_eq!(digests.decode(page, digests.unprotected(page)), PageWord::Unprotected);
    }

    #[test]
    fn a_flipped_bit_is_never_another_word(page: u64, bit in 0_u32..64, is_protected: bool) {
        let digests = digests();
        let word = if is_protected {
            digests.protected(page, digests.digest(page, &[3; PAGE_BYTES as usize]))
        } else {
            digests.unprotected(page)
        };
        // A word of 15 bits of check passes once in 32,768 damages: then its page is the one that counts as damaged.
        prop_assert_ne!(digests.decode(page, word ^ 1 << bit), digests.decode(page, word));
    }

    #[test]
    fn a_word_is_good_for_one_page_of_one_pool(page: u64, other: u64, uuid: u128) {
        let digests = digests();
        let content = [5; PAGE_BYTES as usize];
        let word = digests.protected(page, digests.digest(page, &content));
        let is_of = |digests: PageDigests, page| digests.decode(page, word) == PageWord::Protected(digests.digest(page, &content));
        prop_assert!(page == other || !is_of(digests, other));
        prop_assert!(uuid == 7 || !is_of(PageDigests::new(Uuid::from_u128(uuid)), page));
    }

    #[test]
    fn any_damage_of_a_page_changes_its_digest(page: u64, mut content: Vec<u8>, at in 0..PAGE_BYTES as usize, flip in 1_u8..) {
        content.resize(PAGE_BYTES as usize, 0);
        let before = digests().digest(page, &content);
        content[at] ^= flip;
        prop_assert_ne!(digests().digest(page, &content), before);
    }
}
