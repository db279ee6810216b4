//! The frame of a control message and the forms that bodies are made of.

use alloc::vec::Vec;

use pmof_terms::OpenFor;
use uuid::Uuid;

use super::{
    claim::Claim,
    error::ControlError,
    limits::{
        ATTRIBUTES_BYTES, CHECKSUM_BYTES, CONTROL_VERSION, HEAD_BYTES, MAX_BODY_BYTES, MAX_DESCRIPTOR_BYTES,
        MAX_MESSAGE_BYTES,
    },
};
use crate::{MAX_NAME_BYTES, MAX_SET_NAME_BYTES, NameError, PoolName, SetName, checksum::crc32c};

/// What a pool is opened for, in one byte.
const READ: u8 = 1;
const WRITE: u8 = 2;
const OLDER: u8 = 4;

/// What is wrong with a body.
pub(super) enum Fault {
    Malformed(&'static str),
    Name(NameError),
    UnknownKind,
}

pub(super) type Parsed<T> = Result<T, Fault>;

/// A message being made.
pub(super) struct Frame(Vec<u8>);

impl Frame {
    pub(super) fn new(kind: u16, request_id: u32) -> Self {
        let mut frame = Self(Vec::with_capacity(256));
        frame.number_u16(CONTROL_VERSION);
        frame.number_u16(kind);
        frame.bytes(&request_id.to_le_bytes());
        frame.bytes(&[0; 4]);
        frame
    }

    /// Bytes of the body by now.
    pub(super) fn body_bytes(&self) -> usize {
        self.0.len() - HEAD_BYTES
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(super) fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    pub(super) fn access(&mut self, access: OpenFor) {
        self.byte(match access {
            OpenFor::Read => READ,
            OpenFor::Write => WRITE,
        });
    }

    /// The access to a pool, whose state may be an older one.
    pub(super) fn access_to(&mut self, access: OpenFor, may_be_older: bool) {
        let byte = if access == OpenFor::Read { READ } else { WRITE };
        self.byte(byte | if may_be_older { OLDER } else { 0 });
    }

    pub(super) fn number_u16(&mut self, number: u16) {
        self.bytes(&number.to_le_bytes());
    }

    pub(super) fn number_u64(&mut self, number: u64) {
        self.bytes(&number.to_le_bytes());
    }

    /// `text` has at most 1024 bytes: names by their type, other texts because they were cut.
    pub(super) fn text(&mut self, text: &str) {
        self.number_u16(text.len() as u16);
        self.bytes(text.as_bytes());
    }

    pub(super) fn descriptor(&mut self, descriptor: &[u8]) -> Result<(), ControlError> {
        if descriptor.len() > MAX_DESCRIPTOR_BYTES {
            return Err(ControlError::Unencodable {
                what: "region descriptor",
                len_bytes: descriptor.len(),
                limit_bytes: MAX_DESCRIPTOR_BYTES,
            });
        }
        self.number_u16(descriptor.len() as u16);
        self.bytes(descriptor);
        Ok(())
    }

    pub(super) fn seal(mut self) -> Result<Vec<u8>, ControlError> {
        let len_bytes = self.0.len() - HEAD_BYTES;
        if len_bytes > MAX_BODY_BYTES {
            return Err(ControlError::Unencodable { what: "body", len_bytes, limit_bytes: MAX_BODY_BYTES });
        }
        self.0[8..HEAD_BYTES].copy_from_slice(&(len_bytes as u32).to_le_bytes());
        let checksum = crc32c(&self.0);
        self.bytes(&checksum.to_le_bytes());
        Ok(self.0)
    }
}

/// Checks the frame of `message` and lets `parse` read its kind and body, all of it.
pub(super) fn open<T>(
    message: &[u8],
    parse: impl FnOnce(u16, &mut Body<'_>) -> Parsed<T>,
) -> Result<(u32, T), ControlError> {
    let bad_length = || ControlError::BadLength { len_bytes: message.len() };
    if message.len() > MAX_MESSAGE_BYTES {
        return Err(bad_length());
    }
    let (framed, checksum) = message.split_last_chunk::<CHECKSUM_BYTES>().ok_or_else(bad_length)?;
    let (head, body) = framed.split_first_chunk::<HEAD_BYTES>().ok_or_else(bad_length)?;
    let [v0, v1, k0, k1, r0, r1, r2, r3, l0, l1, l2, l3] = *head;

    let stated_bytes = u32::from_le_bytes([l0, l1, l2, l3]);
    if stated_bytes as usize != body.len() {
        return Err(ControlError::LengthMismatch { stated_bytes, found_bytes: body.len() });
    }
    let (stored, computed) = (u32::from_le_bytes(*checksum), crc32c(framed));
    if stored != computed {
        return Err(ControlError::BadChecksum { stored, computed });
    }
    // From here on the message is whole, and so is its number: a refusal can reach whoever asked.
    let request_id = u32::from_le_bytes([r0, r1, r2, r3]);
    let found = u16::from_le_bytes([v0, v1]);
    if found != CONTROL_VERSION {
        return Err(ControlError::UnsupportedVersion { request_id, found });
    }
    let kind = u16::from_le_bytes([k0, k1]);
    let mut body = Body(body);
    match parse(kind, &mut body) {
        Ok(value) if body.0.is_empty() => Ok((request_id, value)),
        Ok(_) => Err(ControlError::Malformed { request_id, kind, what: "bytes are left over behind the body" }),
        Err(Fault::Malformed(what)) => Err(ControlError::Malformed { request_id, kind, what }),
        Err(Fault::Name(source)) => Err(ControlError::BadName { request_id, source }),
        Err(Fault::UnknownKind) => Err(ControlError::UnknownKind { request_id, kind }),
    }
}

/// What is left of a body being read.
pub(super) struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    fn take(&mut self, len_bytes: usize) -> Parsed<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len_bytes).ok_or(Fault::Malformed("the body is too short"))?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Parsed<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Fault::Malformed("the body is too short"))?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(super) fn byte(&mut self) -> Parsed<u8> {
        self.array().map(|[byte]| byte)
    }

    pub(super) fn number_u16(&mut self) -> Parsed<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn number_u64(&mut self) -> Parsed<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn uuid(&mut self) -> Parsed<Uuid> {
        self.array().map(Uuid::from_bytes)
    }

    pub(super) fn access(&mut self) -> Parsed<OpenFor> {
        match self.byte()? {
            READ => Ok(OpenFor::Read),
            WRITE => Ok(OpenFor::Write),
            _ => Err(Fault::Malformed("the access is unknown")),
        }
    }

    pub(super) fn access_to(&mut self) -> Parsed<(OpenFor, bool)> {
        let byte = self.byte()?;
        let access = match byte & !OLDER {
            READ => OpenFor::Read,
            WRITE => OpenFor::Write,
            _ => return Err(Fault::Malformed("the access is unknown")),
        };
        Ok((access, byte & OLDER != 0))
    }

    pub(super) fn set(&mut self) -> Parsed<SetName> {
        SetName::new(self.text(MAX_SET_NAME_BYTES)?).map_err(Fault::Name)
    }

    /// Attributes take their place also where there are none.
    pub(super) fn attributes(&mut self, are_there: bool) -> Parsed<Option<[u8; ATTRIBUTES_BYTES]>> {
        let attributes = self.array()?;
        match are_there {
            true => Ok(Some(attributes)),
            false if attributes == [0; ATTRIBUTES_BYTES] => Ok(None),
            false => Err(Fault::Malformed("there are attributes without a header")),
        }
    }

    /// An epoch takes its place also where none is named.
    pub(super) fn claim(&mut self, kind: u8) -> Parsed<Claim> {
        let epoch = self.uuid()?;
        match kind {
            0 if epoch.is_nil() => Ok(Claim::None),
            0 => Err(Fault::Malformed("there is an epoch that is said not to be named")),
            1 => Ok(Claim::Own(epoch)),
            2 => Ok(Claim::Superseded(epoch)),
            _ => Err(Fault::Malformed("a claim is none of 0, 1 and 2")),
        }
    }

    pub(super) fn flag(&mut self) -> Parsed<bool> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Fault::Malformed("a flag is neither 0 nor 1")),
        }
    }

    /// A `u16` length and that many bytes, at most `limit_bytes`.
    pub(super) fn counted(&mut self, limit_bytes: usize) -> Parsed<&'a [u8]> {
        let len_bytes = usize::from(self.number_u16()?);
        if len_bytes > limit_bytes {
            return Err(Fault::Malformed("a text or descriptor is longer than allowed"));
        }
        self.take(len_bytes)
    }

    pub(super) fn text(&mut self, limit_bytes: usize) -> Parsed<&'a str> {
        core::str::from_utf8(self.counted(limit_bytes)?).map_err(|_| Fault::Malformed("a text is not UTF-8"))
    }

    pub(super) fn name(&mut self) -> Parsed<PoolName> {
        PoolName::try_from(self.counted(MAX_NAME_BYTES)?).map_err(Fault::Name)
    }

    pub(super) fn optional_name(&mut self) -> Parsed<Option<PoolName>> {
        match self.counted(MAX_NAME_BYTES)? {
            [] => Ok(None),
            name => PoolName::try_from(name).map(Some).map_err(Fault::Name),
        }
    }
}
