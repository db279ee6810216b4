//! A client of network block devices: the fixed newstyle handshake, then writes that are made durable.
//!
//! The protocol is that of <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>, without structured replies or TLS, as
//! nbdkit and qemu-nbd speak it.
#![expect(clippy::big_endian_bytes, reason = "NBD is big-endian on the wire")]

use anyhow::{Context as _, Result, bail, ensure};

use super::{put::Put, stream::PeerStream};

const SERVER_MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;

/// `NBD_FLAG_FIXED_NEWSTYLE`; the client's flag of the same meaning has the same bit.
const FIXED_NEWSTYLE: u16 = 1;
/// `NBD_FLAG_NO_ZEROES`, likewise.
const NO_ZEROES: u16 = 2;
const OPTION_GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
const REPLY_IS_ERROR: u32 = 1 << 31;
const INFO_EXPORT: u16 = 0;
/// Longest reply to an option: an error's text has 4096 bytes at most.
const OPTION_REPLY_LIMIT_BYTES: u32 = 8 << 10;

const EXPORT_READ_ONLY: u16 = 1 << 1;
const EXPORT_HAS_FLUSH: u16 = 1 << 2;
const EXPORT_HAS_FUA: u16 = 1 << 3;

const COMMAND_WRITE: u16 = 1;
const COMMAND_DISCONNECT: u16 = 2;
const COMMAND_FLUSH: u16 = 3;
const COMMAND_FLAG_FUA: u16 = 1;
const REQUEST_BYTES: usize = 28;

/// How a write becomes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NbdSync {
    /// A flush behind the write's reply: two round trips.
    Flush,
    /// Forced unit access of the write itself: one round trip.
    Fua,
}

/// A device that one write at a time goes to.
#[derive(Debug)]
pub(super) struct NbdClient {
    stream: PeerStream,
    sync: NbdSync,
    /// A write's request and its bytes.
    write: Vec<u8>,
    cookie: u64,
}

impl NbdClient {
    /// Agrees on the default export, which has to be writable and to have `device_bytes` at least.
    pub(super) fn connect(mut stream: PeerStream, sync: NbdSync, size_bytes: usize, device_bytes: u64) -> Result<Self> {
        let magic = u64::from_be_bytes(stream.receive_array()?);
        ensure!(magic == SERVER_MAGIC, "the server greets with {magic:#x}, as no NBD server does");
        let magic = u64::from_be_bytes(stream.receive_array()?);
        ensure!(magic == OPTION_MAGIC, "the server speaks the old style of NBD: start it with the new one");
        let flags = u16::from_be_bytes(stream.receive_array()?);
        ensure!(flags & FIXED_NEWSTYLE != 0, "the server does not speak the fixed newstyle of NBD");
        let mut hello = u32::from(flags & (FIXED_NEWSTYLE | NO_ZEROES)).to_be_bytes().to_vec();
        // The default export has an empty name; no information is asked for that does not come by itself.
        hello.extend(OPTION_MAGIC.to_be_bytes());
        hello.extend(OPTION_GO.to_be_bytes());
        hello.extend(6_u32.to_be_bytes());
        hello.extend([0; 6]);
        stream.send_all(&hello)?;
        let (export_bytes, flags) = receive_export(&mut stream)?;
        ensure!(flags & EXPORT_READ_ONLY == 0, "the export is read-only");
        ensure!(
            export_bytes >= device_bytes,
            "the export has {export_bytes} bytes, and {device_bytes} are written: serve a larger file"
        );
        match sync {
            NbdSync::Flush => ensure!(flags & EXPORT_HAS_FLUSH != 0, "the export cannot be flushed"),
            NbdSync::Fua => ensure!(flags & EXPORT_HAS_FUA != 0, "the export has no forced unit access (FUA)"),
        }
        let mut write = vec![7; REQUEST_BYTES + size_bytes];
        write[..REQUEST_BYTES].fill(0);
        Ok(Self { stream, sync, write, cookie: 0 })
    }

    fn request(&mut self, command: u16, flags: u16, offset: u64, len_bytes: u32) -> [u8; REQUEST_BYTES] {
        self.cookie += 1;
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&command.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&offset.to_be_bytes());
        bytes[24..].copy_from_slice(&len_bytes.to_be_bytes());
        bytes
    }

    fn receive_reply(&mut self) -> Result<()> {
        let magic = u32::from_be_bytes(self.stream.receive_array()?);
        ensure!(magic == REPLY_MAGIC, "a reply begins with {magic:#x}, as no simple reply does");
        let error = u32::from_be_bytes(self.stream.receive_array()?);
        let cookie = u64::from_be_bytes(self.stream.receive_array()?);
        ensure!(cookie == self.cookie, "the reply is to request {cookie}, and {} was made", self.cookie);
        ensure!(error == 0, "the server refused the request with error {error} (errno.h)");
        Ok(())
    }
}

impl Put for NbdClient {
    fn put(&mut self, place: u64) -> Result<()> {
        let flags = if self.sync == NbdSync::Fua { COMMAND_FLAG_FUA } else { 0 };
        let len_bytes = u32::try_from(self.write.len() - REQUEST_BYTES)?;
        let request = self.request(COMMAND_WRITE, flags, place, len_bytes);
        self.write[..REQUEST_BYTES].copy_from_slice(&request);
        self.stream.send_all(&self.write)?;
        self.receive_reply().context("the write")?;
        if self.sync == NbdSync::Flush {
            let request = self.request(COMMAND_FLUSH, 0, 0, 0);
            self.stream.send_all(&request)?;
            self.receive_reply().context("the flush")?;
        }
        Ok(())
    }

    fn moved(&self) -> Option<[u64; 2]> {
        Some(self.stream.moved())
    }
}

impl Drop for NbdClient {
    fn drop(&mut self) {
        let request = self.request(COMMAND_DISCONNECT, 0, 0, 0);
        // A server that is gone already has nothing to be told.
        let _ = self.stream.send_all(&request);
    }
}

/// The size of the export and its flags.
fn receive_export(stream: &mut PeerStream) -> Result<(u64, u16)> {
    let mut export = None;
    loop {
        let magic = u64::from_be_bytes(stream.receive_array()?);
        ensure!(magic == OPTION_REPLY_MAGIC, "a reply to an option begins with {magic:#x}, as none does");
        let option = u32::from_be_bytes(stream.receive_array()?);
        let kind = u32::from_be_bytes(stream.receive_array()?);
        let len_bytes = u32::from_be_bytes(stream.receive_array()?);
        ensure!(option == OPTION_GO && len_bytes <= OPTION_REPLY_LIMIT_BYTES, "the server answered something else");
        let mut data = vec![0; len_bytes as usize];
        stream.receive(&mut data)?;
        match kind {
            REPLY_ACK => return export.context("the server did not say how large its export is"),
            REPLY_INFO => {
                if let Some((size, flags)) = parse_export(&data) {
                    export = Some((size, flags));
                }
            }
            error if error & REPLY_IS_ERROR != 0 => {
                bail!("the server has no export for us: {}", String::from_utf8_lossy(&data))
            }
            other => bail!("the server answered with {other}, which this client does not know"),
        }
    }
}

/// `NBD_INFO_EXPORT`: its number, the size, the flags.
fn parse_export(data: &[u8]) -> Option<(u64, u16)> {
    let (kind, rest) = data.split_first_chunk()?;
    let (size, rest) = rest.split_first_chunk()?;
    let (flags, _) = rest.split_first_chunk()?;
    (u16::from_be_bytes(*kind) == INFO_EXPORT).then(|| (u64::from_be_bytes(*size), u16::from_be_bytes(*flags)))
}
