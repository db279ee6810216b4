//! The NBD protocol: the fixed newstyle handshake and simple replies. Source: `doc/proto.md` of the NBD project. All
//! numbers on the wire are big-endian.

use std::io::{self, Read, Write};

use crate::disk::Disk;

const GREETING: &[u8; 8] = b"NBDMAGIC";
const OPTION: &[u8; 8] = b"IHAVEOPT";
const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
const REQUEST: u32 = 0x2560_9513;
const REPLY: u32 = 0x6744_6698;

const FIXED_NEWSTYLE: u16 = 1;
const NO_ZEROES: u16 = 2;

const OPT_EXPORT_NAME: u32 = 1;
const OPT_ABORT: u32 = 2;
const OPT_LIST: u32 = 3;
const OPT_INFO: u32 = 6;
const OPT_GO: u32 = 7;

const REP_ACK: u32 = 1;
const REP_SERVER: u32 = 2;
const REP_INFO: u32 = 3;
const REP_ERR_UNSUPPORTED: u32 = 1 << 31 | 1;
const REP_ERR_INVALID: u32 = 1 << 31 | 3;

const INFO_EXPORT: u16 = 0;
const INFO_BLOCK_SIZE: u16 = 3;

/// Flags, flush, FUA, trim and write-zeroes are offered.
const TRANSMISSION_FLAGS: u16 = 1 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 6;

const CMD_READ: u16 = 0;
const CMD_WRITE: u16 = 1;
const CMD_DISCONNECT: u16 = 2;
const CMD_FLUSH: u16 = 3;
const CMD_TRIM: u16 = 4;
const CMD_WRITE_ZEROES: u16 = 6;

const FLAG_FUA: u16 = 1;

const EIO: u32 = 5;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;

/// Longest data of an option, and of a read or write: what the protocol has clients assume.
const OPTION_BYTES: u32 = 4096;
const TRANSFER_BYTES: u32 = 32 << 20;

/// Negotiates; returns whether the client goes on to requests. Every export name is that of the disk.
pub(crate) fn handshake(stream: &mut (impl Read + Write), length: u64) -> io::Result<bool> {
    let mut greeting = [*GREETING, *OPTION].concat();
    greeting.extend((FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes());
    stream.write_all(&greeting)?;
    let flags = u32::from_be_bytes(take(stream)?);
    if flags & u32::from(FIXED_NEWSTYLE) == 0 || flags & !u32::from(FIXED_NEWSTYLE | NO_ZEROES) != 0 {
        return Err(broken("a client with other flags than fixed newstyle and no zeroes"));
    }
    loop {
        if take::<8>(stream)? != *OPTION {
            return Err(broken("an option without its magic number"));
        }
        let option = u32::from_be_bytes(take(stream)?);
        let size = u32::from_be_bytes(take(stream)?);
        if size > OPTION_BYTES {
            return Err(broken("an option of more than 4096 bytes"));
        }
        let mut data = vec![0; size as usize];
        stream.read_exact(&mut data)?;
        match option {
            OPT_EXPORT_NAME => {
                let mut answer = export(length);
                answer.resize(answer.len() + if flags & u32::from(NO_ZEROES) == 0 { 124 } else { 0 }, 0);
                stream.write_all(&answer)?;
                return Ok(true);
            }
            OPT_ABORT => {
                // The client may be gone already.
                let _ = option_reply(stream, option, REP_ACK, &[]);
                return Ok(false);
            }
            OPT_LIST if data.is_empty() => {
                // One export, with the empty name.
                option_reply(stream, option, REP_SERVER, &[0; 4])?;
                option_reply(stream, option, REP_ACK, &[])?;
            }
            OPT_INFO | OPT_GO => {
                if !well_formed(&data) {
                    option_reply(stream, option, REP_ERR_INVALID, b"lengths do not add up")?;
                    continue;
                }
                let info = [&INFO_EXPORT.to_be_bytes()[..], &export(length)].concat();
                option_reply(stream, option, REP_INFO, &info)?;
                let sizes = [1, 4096, TRANSFER_BYTES].map(u32::to_be_bytes).concat();
                let info = [&INFO_BLOCK_SIZE.to_be_bytes()[..], &sizes].concat();
                option_reply(stream, option, REP_INFO, &info)?;
                option_reply(stream, option, REP_ACK, &[])?;
                if option == OPT_GO {
                    return Ok(true);
                }
            }
            _ => option_reply(stream, option, REP_ERR_UNSUPPORTED, b"")?,
        }
    }
}

/// Serves one request; returns whether the client stays.
pub(crate) fn serve(
    stream: &mut (impl Read + Write),
    with_disk: impl FnOnce(&mut dyn FnMut(&mut Disk)),
) -> io::Result<bool> {
    if u32::from_be_bytes(take(stream)?) != REQUEST {
        return Err(broken("a request without its magic number"));
    }
    let flags = u16::from_be_bytes(take(stream)?);
    let command = u16::from_be_bytes(take(stream)?);
    let cookie: [u8; 8] = take(stream)?;
    let at = u64::from_be_bytes(take(stream)?);
    let length = u32::from_be_bytes(take(stream)?);
    let moves_data = matches!(command, CMD_READ | CMD_WRITE);
    if moves_data && length > TRANSFER_BYTES {
        return Err(broken("a read or write of more than 32 MiB"));
    }
    let mut data = vec![0; if moves_data { length as usize } else { 0 }];
    match command {
        CMD_DISCONNECT => return Ok(false),
        CMD_WRITE => stream.read_exact(&mut data)?,
        _ => {}
    }
    let mut outcome = Err(EIO);
    with_disk(&mut |disk| outcome = execute(disk, command, flags, (at, length), &mut data));
    let error = outcome.err().unwrap_or(0);
    let mut reply = [REPLY.to_be_bytes(), error.to_be_bytes()].concat();
    reply.extend(cookie);
    if command == CMD_READ && error == 0 {
        reply.extend(data);
    }
    stream.write_all(&reply)?;
    Ok(true)
}

fn execute(disk: &mut Disk, command: u16, flags: u16, (at, length): (u64, u32), data: &mut [u8]) -> Result<(), u32> {
    let length = u64::from(length);
    let changes = matches!(command, CMD_WRITE | CMD_WRITE_ZEROES | CMD_TRIM);
    if matches!(command, CMD_READ) || changes {
        let off = if changes { ENOSPC } else { EINVAL };
        disk.contains(at, length).then_some(()).ok_or(off)?;
    }
    let done = match command {
        CMD_READ => disk.read(at, data),
        CMD_WRITE => disk.write(at, data),
        CMD_WRITE_ZEROES => write_zeroes(disk, at, length),
        // Advice only: the disk keeps what it has.
        CMD_TRIM => Ok(()),
        CMD_FLUSH => disk.flush(),
        _ => return Err(EINVAL),
    };
    let done = if changes && flags & FLAG_FUA != 0 { done.and_then(|()| disk.flush_range(at, length)) } else { done };
    done.map_err(|_| EIO)
}

fn write_zeroes(disk: &mut Disk, at: u64, length: u64) -> io::Result<()> {
    const PIECE: u64 = 1 << 20;
    let zeros = vec![0; PIECE.min(length) as usize];
    let mut done = 0;
    while done < length {
        let piece = PIECE.min(length - done);
        disk.write(at + done, &zeros[..piece as usize])?;
        done += piece;
    }
    Ok(())
}

/// Length and flags of the disk.
fn export(length: u64) -> Vec<u8> {
    [&length.to_be_bytes()[..], &TRANSMISSION_FLAGS.to_be_bytes()].concat()
}

/// A name with its length, and a count of information requests with as many numbers.
fn well_formed(data: &[u8]) -> bool {
    let Some((name, rest)) = data.split_first_chunk() else { return false };
    let Some(rest) = rest.get(u32::from_be_bytes(*name) as usize..) else { return false };
    let Some((count, rest)) = rest.split_first_chunk() else { return false };
    rest.len() == 2 * usize::from(u16::from_be_bytes(*count))
}

fn option_reply(stream: &mut impl Write, option: u32, kind: u32, data: &[u8]) -> io::Result<()> {
    let mut reply = OPTION_REPLY.to_be_bytes().to_vec();
    for number in [option, kind, data.len() as u32] {
        reply.extend(number.to_be_bytes());
    }
    reply.extend(data);
    stream.write_all(&reply)
}

fn take<const N: usize>(stream: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
