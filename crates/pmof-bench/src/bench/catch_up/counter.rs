//! A relay that counts the bytes that go through it.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use anyhow::{Context as _, Result};

/// Connections to its address end at another one. It serves until the program ends.
#[derive(Debug)]
pub(super) struct Counter {
    address: SocketAddr,
    bytes: Arc<AtomicU64>,
}

impl Counter {
    pub(super) fn start(to: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind("127.0.2.1:0").context("cannot listen")?;
        let (address, bytes) = (listener.local_addr()?, Arc::new(AtomicU64::new(0)));
        let counted = Arc::clone(&bytes);
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                // A target that was killed: the connection ends.
                let Ok(far) = TcpStream::connect(to) else { continue };
                for [from, into] in [[&near, &far], [&far, &near]] {
                    if let (Ok(from), Ok(into)) = (from.try_clone(), into.try_clone()) {
                        let counted = Arc::clone(&counted);
                        thread::spawn(move || pass(&from, &into, &counted));
                    }
                }
            }
        });
        Ok(Self { address, bytes })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Bytes in both directions so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

fn pass(mut from: &TcpStream, mut into: &TcpStream, counted: &AtomicU64) {
    // Waiting for more to send would be counted as the network's time.
    let _ = into.set_nodelay(true);
    let mut buffer = vec![0; 256 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        counted.fetch_add(count as u64, Ordering::Relaxed);
        if into.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = into.shutdown(std::net::Shutdown::Both);
    let _ = from.shutdown(std::net::Shutdown::Both);
}
