//! The lengths of operations that are posted in parts: their completion is that of the last part, and says how long the whole was.

use std::sync::atomic::{AtomicUsize, Ordering};

use pmof_mem::forks::Kept;

/// Operations whose completion was not collected yet: connection, ticket of the last part, total bytes.
pub(crate) static WHOLE: Kept<Vec<(u64, u64, u64)>> = Kept::new(Vec::new());

/// How many exist or are being posted: usually none, so that the lock is not taken.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Posts the last part of an operation of that many bytes. `post` gives its ticket.
pub(crate) fn post_last<E>(connection: u64, len_bytes: u64, post: impl FnOnce() -> Result<u64, E>) -> Result<(), E> {
    COUNT.fetch_add(1, Ordering::SeqCst);
    // The thread that collects the completion waits here until it is known.
    let mut whole = WHOLE.lock();
    match post() {
        Ok(ticket) => whole.push((connection, ticket, len_bytes)),
        Err(error) => {
            COUNT.fetch_sub(1, Ordering::SeqCst);
            return Err(error);
        }
    }
    Ok(())
}

/// The total length of the operation whose last part this is; returned once.
#[inline]
pub(crate) fn take_len_bytes(connection: u64, ticket: u64) -> Option<u64> {
    if COUNT.load(Ordering::SeqCst) == 0 {
        return None;
    }
    let mut whole = WHOLE.lock();
    let at = whole.iter().position(|last| (last.0, last.1) == (connection, ticket))?;
    COUNT.fetch_sub(1, Ordering::SeqCst);
    Some(whole.swap_remove(at).2)
}

/// Completions of that connection are no longer collected.
pub(crate) fn forget(connection: u64) {
    if COUNT.load(Ordering::SeqCst) > 0 {
        let mut whole = WHOLE.lock();
        let before = whole.len();
        whole.retain(|last| last.0 != connection);
        COUNT.fetch_sub(before - whole.len(), Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_length_is_reported_once_and_forgotten_with_its_connection() {
        let post = |connection, ticket, len| post_last(connection, len, || Ok::<_, ()>(ticket)).unwrap();
        post(1, 7, 1 << 31);
        post(2, 7, 5 << 30);
        assert_eq!(post_last(1, 9, || Err(())), Err(()));
        assert_eq!((take_len_bytes(1, 6), take_len_bytes(1, 7), take_len_bytes(1, 7)), (None, Some(1 << 31), None));
        assert_eq!(COUNT.load(Ordering::SeqCst), 1);
        forget(2);
        assert_eq!((take_len_bytes(2, 7), COUNT.load(Ordering::SeqCst)), (None, 0));
    }
}
