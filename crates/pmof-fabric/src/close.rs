//! Closing, which some providers never return from.

use std::{sync::mpsc, thread, time::Duration};

/// How long a provider may take to close an endpoint.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Drops what a provider closes, in a thread of its own that is left behind where the provider does not return in time. That thread
/// owns what is closed, so that all memory of it stays as long as it takes.
pub(crate) fn close_in_time(parts: impl Send + 'static, provider: &str) -> bool {
    let (closed, is_closed) = mpsc::channel();
    let close = move || {
        drop(parts);
        // Nobody waits any more where it took too long.
        let _ = closed.send(());
    };
    // Where there is no thread to be had the closure is dropped, and closes here.
    let started = thread::Builder::new().name("pmof-fabric-close".to_owned()).spawn(close).is_ok();
    let in_time = !started || is_closed.recv_timeout(CLOSE_TIMEOUT).is_ok();
    if !in_time {
        log::error!(
            target: "pmof::connection",
            "the provider {provider} did not close an endpoint in {} s: its memory and a thread stay behind",
            CLOSE_TIMEOUT.as_secs()
        );
    }
    in_time
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// What takes so long to close.
    struct Slow(Duration);

    impl Drop for Slow {
        fn drop(&mut self) {
            thread::sleep(self.0);
        }
    }

    #[test]
    fn closing_is_bounded() {
        assert!(close_in_time(Slow(Duration::ZERO), "quick"));
        let start = Instant::now();
        assert!(!close_in_time(Slow(Duration::from_secs(3600)), "stuck"));
        assert!(start.elapsed() >= CLOSE_TIMEOUT);
    }
}
