//! As much of HTTP/2 (RFC 9113) as calls of gRPC one after the other need: no server push, no priorities, no padding.
//!
//! Header fields of answers are not decoded (RFC 7541): whether a call went well shows by its message. The requests' fields are literals that no
//! table keeps.

use anyhow::{Result, bail, ensure};

use super::stream::PeerStream;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

/// Of data and headers; of settings and pings the same bit is an acknowledgement.
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

const SETTING_INITIAL_WINDOW: u16 = 4;
const SETTING_MAX_FRAME: u16 = 5;

/// Windows of both directions until somebody says more, and the longest frame that each side takes.
const WINDOW_DEFAULT_BYTES: i64 = 65_535;
const FRAME_DEFAULT_BYTES: usize = 16_384;

/// What was received is acknowledged when it has come to so much.
const ACKNOWLEDGE_BYTES: u32 = 32 << 10;

/// Streams of a client have odd numbers of 31 bits.
const STREAM_MAX: u32 = (1 << 31) - 1;

/// A connection, on which one call at a time is made.
#[derive(Debug)]
pub(super) struct Http2 {
    stream: PeerStream,
    authority: String,
    next_stream: u32,
    /// What may still be sent on the connection, and what a new stream may send.
    window_bytes: i64,
    initial_window_bytes: i64,
    frame_max_bytes: usize,
    /// Received and not acknowledged.
    received_bytes: u32,
    outgoing: Vec<u8>,
}

/// A frame that came.
#[derive(Debug)]
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl Http2 {
    /// Says the client's first words; the server's come with the first call.
    pub(super) fn new(mut stream: PeerStream, authority: &str) -> Result<Self> {
        let mut hello = PREFACE.to_vec();
        put_frame(&mut hello, SETTINGS, 0, 0, &[]);
        stream.send_all(&hello)?;
        Ok(Self {
            stream,
            authority: authority.to_owned(),
            next_stream: 1,
            window_bytes: WINDOW_DEFAULT_BYTES,
            initial_window_bytes: WINDOW_DEFAULT_BYTES,
            frame_max_bytes: FRAME_DEFAULT_BYTES,
            received_bytes: 0,
            outgoing: Vec::new(),
        })
    }

    /// Bytes sent and received since it was connected.
    pub(super) fn moved(&self) -> [u64; 2] {
        self.stream.moved()
    }

    /// Sends a request and waits for the end of its answer, whose body is returned.
    pub(super) fn call(&mut self, path: &str, body: &[u8]) -> Result<Vec<u8>> {
        let id = self.next_stream;
        ensure!(id <= STREAM_MAX, "the connection has no more numbers for calls: open another one");
        self.next_stream += 2;
        let mut window_bytes = self.initial_window_bytes;
        self.outgoing.clear();
        let headers = self.headers(path);
        put_frame(&mut self.outgoing, HEADERS, END_HEADERS, id, &headers);
        let (mut left, mut answer) = (body, Vec::new());
        while !left.is_empty() {
            let room = usize::try_from(self.window_bytes.min(window_bytes)).unwrap_or(0);
            if room == 0 {
                self.send()?;
                let frame = self.receive()?;
                if self.take(frame, id, &mut window_bytes, &mut answer)? {
                    // It does not want the rest.
                    return Ok(answer);
                }
                continue;
            }
            let (part, rest) = left.split_at(left.len().min(room).min(self.frame_max_bytes));
            let flags = if rest.is_empty() { END_STREAM } else { 0 };
            put_frame(&mut self.outgoing, DATA, flags, id, part);
            let part_bytes = i64::try_from(part.len())?;
            self.window_bytes -= part_bytes;
            window_bytes -= part_bytes;
            left = rest;
        }
        self.send()?;
        loop {
            let frame = self.receive()?;
            if self.take(frame, id, &mut window_bytes, &mut answer)? {
                return Ok(answer);
            }
        }
    }

    fn headers(&self, path: &str) -> Vec<u8> {
        // POST and http are entries 3 and 6 of the static table; 4, 1 and 31 are the names of what follows them.
        let mut block = vec![0x83, 0x86, 0x04];
        put_string(&mut block, path);
        block.push(0x01);
        put_string(&mut block, &self.authority);
        block.extend([0x0f, 31 - 15]);
        put_string(&mut block, "application/grpc");
        block.push(0x00);
        put_string(&mut block, "te");
        put_string(&mut block, "trailers");
        block
    }

    fn send(&mut self) -> Result<()> {
        self.stream.send_all(&self.outgoing)?;
        self.outgoing.clear();
        Ok(())
    }

    fn receive(&mut self) -> Result<Frame> {
        let head: [u8; 9] = self.stream.receive_array()?;
        let len_bytes = number(&head[..3]) as usize;
        ensure!(len_bytes <= FRAME_DEFAULT_BYTES, "the server sent a frame of {len_bytes} bytes");
        let mut payload = vec![0; len_bytes];
        self.stream.receive(&mut payload)?;
        Ok(Frame { kind: head[3], flags: head[4], stream: number(&head[5..]) & STREAM_MAX, payload })
    }

    /// Takes a frame in. True at the end of the answer to the call `id`.
    fn take(&mut self, frame: Frame, id: u32, window_bytes: &mut i64, answer: &mut Vec<u8>) -> Result<bool> {
        let Frame { kind, flags, stream, payload } = frame;
        match kind {
            SETTINGS if flags & ACK == 0 => {
                self.take_settings(&payload, window_bytes);
                self.answer(SETTINGS, ACK, &[])?;
            }
            PING if flags & ACK == 0 => self.answer(PING, ACK, &payload)?,
            WINDOW_UPDATE => {
                let more = i64::from(number(&payload) & STREAM_MAX);
                match stream {
                    0 => self.window_bytes += more,
                    stream if stream == id => *window_bytes += more,
                    _ => {}
                }
            }
            GOAWAY => bail!(
                "the server ends the connection: {}",
                String::from_utf8_lossy(payload.get(8..).unwrap_or_default())
            ),
            RST_STREAM if stream == id => bail!("the server gave the call up with error {}", number(&payload)),
            DATA => {
                ensure!(flags & PADDED == 0, "the server pads its frames");
                self.received_bytes += payload.len() as u32;
                if self.received_bytes >= ACKNOWLEDGE_BYTES {
                    let more = [24, 16, 8, 0].map(|shift| (self.received_bytes >> shift) as u8);
                    self.answer(WINDOW_UPDATE, 0, &more)?;
                    self.received_bytes = 0;
                }
                if stream == id {
                    answer.extend(payload);
                    return Ok(flags & END_STREAM != 0);
                }
            }
            HEADERS => return Ok(stream == id && flags & END_STREAM != 0),
            // The rest is for those who keep tables of header fields, or more than one call.
            _ => {}
        }
        Ok(false)
    }

    fn take_settings(&mut self, payload: &[u8], window_bytes: &mut i64) {
        for setting in payload.chunks_exact(6) {
            let (name, value) = (number(&setting[..2]), number(&setting[2..]));
            if name == u32::from(SETTING_INITIAL_WINDOW) {
                // It changes the windows of streams that are open, too.
                *window_bytes += i64::from(value) - self.initial_window_bytes;
                self.initial_window_bytes = i64::from(value);
            } else if name == u32::from(SETTING_MAX_FRAME) {
                self.frame_max_bytes = value as usize;
            }
        }
    }

    fn answer(&mut self, kind: u8, flags: u8, payload: &[u8]) -> Result<()> {
        let mut bytes = Vec::new();
        put_frame(&mut bytes, kind, flags, 0, payload);
        Ok(self.stream.send_all(&bytes)?)
    }
}

/// Up to four bytes, the highest first.
fn number(bytes: &[u8]) -> u32 {
    bytes.iter().take(4).fold(0, |number, byte| number << 8 | u32::from(*byte))
}

fn put_frame(into: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let len_bytes = payload.len();
    into.extend([16, 8, 0].map(|shift| (len_bytes >> shift) as u8));
    into.extend([kind, flags]);
    into.extend([24, 16, 8, 0].map(|shift| (stream >> shift) as u8));
    into.extend_from_slice(payload);
}

/// A string of less than 127 bytes that is not compressed.
fn put_string(into: &mut Vec<u8>, text: &str) {
    debug_assert!(text.len() < 127, "longer strings have a length of several bytes");
    into.push(text.len() as u8);
    into.extend_from_slice(text.as_bytes());
}
