//! A client of Redis: `SET`, and where others are to have the bytes too, `WAIT` behind it in the same packet.

use std::io::Write as _;

use anyhow::{Context as _, Result, bail, ensure};

use super::{put::Put, stream::PeerStream};

/// Longest wait for the replicas, in milliseconds: beyond any healthy one.
const WAIT_MS: &str = "10000";

/// One value at a time goes to a key for each place.
#[derive(Debug)]
pub(super) struct RedisClient {
    stream: PeerStream,
    value: Vec<u8>,
    /// Replicas that have to acknowledge each value; 0: nobody is waited for.
    replicas: u32,
    request: Vec<u8>,
}

impl RedisClient {
    /// Waits until so many replicas follow: a first value has reached them.
    pub(super) fn connect(stream: PeerStream, size_bytes: usize, replicas: u32) -> Result<Self> {
        let mut client = Self { stream, value: vec![7; size_bytes], replicas, request: Vec::new() };
        client.put(0).context("the first value")?;
        Ok(client)
    }
}

impl Put for RedisClient {
    fn put(&mut self, place: u64) -> Result<()> {
        self.request.clear();
        // Keys of one length.
        write!(self.request, "*3\r\n$3\r\nSET\r\n$13\r\npmof:{place:08}\r\n${}\r\n", self.value.len())?;
        self.request.extend_from_slice(&self.value);
        self.request.extend_from_slice(b"\r\n");
        if self.replicas > 0 {
            let count = self.replicas.to_string();
            let (count_bytes, wait_bytes) = (count.len(), WAIT_MS.len());
            write!(self.request, "*3\r\n$4\r\nWAIT\r\n${count_bytes}\r\n{count}\r\n${wait_bytes}\r\n{WAIT_MS}\r\n")?;
        }
        self.stream.send_all(&self.request)?;
        let answer = self.stream.receive_line()?;
        ensure!(answer == "+OK", "Redis answered SET with {answer:?}");
        if self.replicas > 0 {
            let answer = self.stream.receive_line()?;
            let count = answer.strip_prefix(':').and_then(|count| count.parse::<u32>().ok());
            let Some(count) = count else { bail!("Redis answered WAIT with {answer:?}") };
            ensure!(
                count >= self.replicas,
                "only {count} of {} replicas acknowledged the value within {WAIT_MS} ms",
                self.replicas
            );
        }
        Ok(())
    }

    fn moved(&self) -> Option<[u64; 2]> {
        Some(self.stream.moved())
    }
}
