//! Standard input of a target that ssh starts.

use std::{
    io,
    net::Shutdown,
    os::unix::net::UnixStream,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use anyhow::Context as _;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
    low_level::emulate_default_handler,
};

/// What standard input brings, until it ends or a signal comes, and whether one has come. A second signal ends the process as it does by default.
pub(super) fn input_until_signal() -> anyhow::Result<(UnixStream, Arc<AtomicBool>)> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).context("cannot handle signals")?;
    let pair = || {
        let (near, far) = UnixStream::pair()?;
        Ok::<_, io::Error>((near, far.try_clone()?, far))
    };
    let (near, far, mut filled) = pair().context("cannot make a socket for standard input")?;
    let is_stopped = Arc::new(AtomicBool::new(false));
    thread::spawn({
        let is_stopped = Arc::clone(&is_stopped);
        move || {
            let mut signals = signals.forever();
            signals.next();
            is_stopped.store(true, Ordering::Release);
            // The input ends; where it has ended already the session is about to.
            let _ = far.shutdown(Shutdown::Both);
            if let Some(signal) = signals.next() {
                let _ = emulate_default_handler(signal);
            }
        }
    });
    thread::spawn(move || {
        // However it ends, nothing more comes.
        let _ = io::copy(&mut io::stdin().lock(), &mut filled);
        let _ = filled.shutdown(Shutdown::Both);
    });
    Ok((near, is_stopped))
}
