//! Where the replicas of a pool differ, and what is known of which is right.

use pmof::Pool;
use pmof_console::output::with_mend;

/// What is told to differ or not.
pub(crate) const PAGE_BYTES: usize = 4096;

/// Replicas that have different bytes.
#[derive(Debug, thiserror::Error)]
#[error(
    "replicas differ, at byte {offset} first: {}; {}",
    match odd {
        Some(odd) => format!("{} from what most replicas have", odd.join(", ")),
        None => "nothing says which replica is right".to_owned(),
    },
    if *was_closed {
        "`pmof pool check` shows all that differs, and `pmof pool scrub` repairs pages that most replicas agree on; --no-verify does not compare them"
    } else {
        "the pool is open for writing, or its writer did not close it, and replicas may then differ in what was not acknowledged: copy after a program has \
         opened it for writing and closed it, or without comparing (--no-verify)"
    }
)]
pub(crate) struct Unequal {
    /// The first byte that differs.
    offset: u64,
    /// Those that have something else there than more than half of the replicas, if there are such.
    odd: Option<Vec<String>>,
    pub(crate) was_closed: bool,
}

impl Unequal {
    /// The first difference of these replicas in `len` bytes at `offset`. `replicas`: by their numbers.
    pub(crate) fn find(pool: &Pool, replicas: &[usize], offset: u64, len: usize) -> anyhow::Result<Option<Self>> {
        let read = |index: &usize| {
            let mut bytes = vec![0; len];
            pool.read_replica(*index, offset, &mut bytes).map_err(with_mend)?;
            Ok(bytes)
        };
        let contents = replicas.iter().map(read).collect::<anyhow::Result<Vec<_>>>()?;
        let contents: Vec<_> = contents.iter().map(Vec::as_slice).collect();
        let Some(at) = first_difference(&contents) else { return Ok(None) };
        let page = at / PAGE_BYTES * PAGE_BYTES;
        let pages: Vec<_> = contents.iter().map(|bytes| &bytes[page..(page + PAGE_BYTES).min(len)]).collect();
        let all = pool.replicas();
        let name = |odd: usize| all[replicas[odd]].0.to_string();
        let odd = odd_ones(&pages).map(|odd| odd.into_iter().map(name).collect());
        Ok(Some(Self { offset: offset + at as u64, odd, was_closed: pool.was_closed() }))
    }
}

/// The first place at which contents of one length are not all equal.
fn first_difference(contents: &[&[u8]]) -> Option<usize> {
    let (first, others) = contents.split_first()?;
    let differs = |other: &&[u8]| first.iter().zip(*other).position(|(one, other)| one != other);
    others.iter().filter_map(differs).min()
}

/// Those that differ from what more than half have, if there is such.
pub(crate) fn odd_ones(pages: &[&[u8]]) -> Option<Vec<usize>> {
    let has_most = |page: &&&[u8]| 2 * pages.iter().filter(|other| other == page).count() > pages.len();
    let most = pages.iter().find(has_most)?;
    Some((0..pages.len()).filter(|at| pages[*at] != *most).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_of_any_is_found() {
        assert_eq!(first_difference(&[b"abcd", b"abce", b"abxd"]), Some(2));
        assert_eq!(first_difference(&[b"abcd", b"abcd"]), None);
        assert_eq!((first_difference(&[b"abcd"]), first_difference(&[])), (None, None));
    }

    #[test]
    fn more_than_half_of_the_replicas_are_right() {
        let odd = |pages: &[&[u8]]| odd_ones(pages);
        assert_eq!(odd(&[b"a", b"a", b"b"]), Some(vec![2]));
        assert_eq!(odd(&[b"b", b"a", b"a", b"c", b"a"]), Some(vec![0, 3]));
        assert_eq!(odd(&[b"a", b"b"]), None);
        assert_eq!(odd(&[b"a", b"a", b"b", b"b"]), None);
    }
}
