//! The frame of a control message and the forms that bodies are made of.

use alloc::vec::Vec;

use pmof_terms::OpenFor;
use uuid::Uuid;

use super::{
    claim::Claim,
    error::ControlError,
    limits::{ATTRIBUTES_BYTES, CHECKSUM_BYTES, HEAD_BYTES, MAX_BODY_BYTES, MAX_DESCRIPTOR_BYTES, MAX_MESSAGE_BYTES},
    version::{ControlVersion, MessageHead},
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
    UnknownField(u16),
}

/// A reader that does not know a field with this bit in its tag must refuse the message; any other unknown field it ignores.
const REQUIRED: u16 = 1 << 15;

/// An optional field at the end of a body: its number, and whether a reader that does not know it must refuse the message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct FieldTag(u16);

impl FieldTag {
    pub(super) const fn required(number: u16) -> Self {
        assert!(number != 0 && number & REQUIRED == 0, "a field's number is 1 to 32767");
        Self(number | REQUIRED)
    }

    pub(super) const fn ignorable(number: u16) -> Self {
        assert!(number != 0 && number & REQUIRED == 0, "a field's number is 1 to 32767");
        Self(number)
    }

    fn number(self) -> u16 {
        self.0 & !REQUIRED
    }

    fn is_required(self) -> bool {
        self.0 & REQUIRED != 0
    }
}

pub(super) type Parsed<T> = Result<T, Fault>;

/// A message being made.
pub(super) struct Frame {
    version: ControlVersion,
    bytes: Vec<u8>,
    /// Number of the last field.
    last_field: u16,
}

impl Frame {
    pub(super) fn new(kind: u16, head: MessageHead) -> Self {
        let mut frame = Self { version: head.version, bytes: Vec::with_capacity(256), last_field: 0 };
        frame.number_u16(head.version.number());
        frame.number_u16(kind);
        frame.bytes(&head.request_id.to_le_bytes());
        frame.bytes(&[0; 4]);
        frame
    }

    pub(super) fn version(&self) -> ControlVersion {
        self.version
    }

    /// Bytes of the body by now.
    pub(super) fn body_bytes(&self) -> usize {
        self.body().len()
    }

    /// The body by now.
    pub(super) fn body(&self) -> &[u8] {
        &self.bytes[HEAD_BYTES..]
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// An optional field, behind all that is not optional; in the order of their numbers.
    pub(super) fn field(&mut self, tag: FieldTag, bytes: &[u8]) {
        assert!(self.version.has_fields(), "version {} has no fields", self.version);
        assert!(tag.number() > self.last_field, "field {} is not behind field {}", tag.number(), self.last_field);
        assert!(bytes.len() <= MAX_BODY_BYTES, "a field of {} bytes fits into no message", bytes.len());
        self.last_field = tag.number();
        self.number_u16(tag.0);
        self.number_u16(bytes.len() as u16);
        self.bytes(bytes);
    }

    pub(super) fn byte(&mut self, byte: u8) {
        self.bytes.push(byte);
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
        let len_bytes = self.body_bytes();
        if len_bytes > MAX_BODY_BYTES {
            return Err(ControlError::Unencodable { what: "body", len_bytes, limit_bytes: MAX_BODY_BYTES });
        }
        self.bytes[8..HEAD_BYTES].copy_from_slice(&(len_bytes as u32).to_le_bytes());
        let checksum = crc32c(&self.bytes);
        self.bytes(&checksum.to_le_bytes());
        Ok(self.bytes)
    }
}

/// Checks the frame of `message` and lets `parse` read its kind and body, all of it.
pub(super) fn open<T>(
    message: &[u8],
    parse: impl FnOnce(u16, &mut Body<'_>) -> Parsed<T>,
) -> Result<(MessageHead, T), ControlError> {
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
    // From here on the message is whole, and so is its number: its sender can be answered with a refusal.
    let request_id = u32::from_le_bytes([r0, r1, r2, r3]);
    let found = u16::from_le_bytes([v0, v1]);
    let version = ControlVersion::from_number(found).ok_or(ControlError::UnsupportedVersion { request_id, found })?;
    let (head, kind) = (MessageHead { version, request_id }, u16::from_le_bytes([k0, k1]));
    let mut body = Body { version, rest: body, last_field: 0 };
    match parse(kind, &mut body).and_then(|value| body.finish().map(|()| value)) {
        Ok(value) => Ok((head, value)),
        Err(Fault::Malformed(what)) => Err(ControlError::Malformed { head, kind, what }),
        Err(Fault::Name(source)) => Err(ControlError::BadName { head, source }),
        Err(Fault::UnknownKind) => Err(ControlError::UnknownKind { head, kind }),
        Err(Fault::UnknownField(field)) => Err(ControlError::UnknownField { head, kind, field }),
    }
}

/// A field of a body being read.
struct Field<'a> {
    tag: FieldTag,
    bytes: &'a [u8],
    /// What is behind it.
    rest: &'a [u8],
}

/// What is left of a body being read.
pub(super) struct Body<'a> {
    version: ControlVersion,
    rest: &'a [u8],
    /// Number of the last field.
    last_field: u16,
}

impl<'a> Body<'a> {
    pub(super) fn version(&self) -> ControlVersion {
        self.version
    }

    /// The optional field of this tag; `None` where the message has none, as in versions without fields. Fields are read in the order of their numbers.
    pub(super) fn field<const N: usize>(&mut self, tag: FieldTag) -> Parsed<Option<[u8; N]>> {
        let Some(bytes) = self.field_bytes(tag)? else { return Ok(None) };
        let bytes = bytes.try_into().map_err(|_| Fault::Malformed("a field has the wrong length"))?;
        Ok(Some(bytes))
    }

    /// The same of a field of any length.
    pub(super) fn field_bytes(&mut self, tag: FieldTag) -> Parsed<Option<&'a [u8]>> {
        while let Some(found) = self.next_field()? {
            if found.tag.number() > tag.number() {
                return Ok(None);
            }
            self.pass(&found);
            if found.tag.number() == tag.number() {
                return Ok(Some(found.bytes));
            }
            check_ignorable(found.tag)?;
        }
        Ok(None)
    }

    /// What the bytes of a field say, all of them: as in a body, optional fields may be behind it.
    pub(super) fn inside<T>(&self, bytes: &'a [u8], parse: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        let mut inner = Self { version: self.version, rest: bytes, last_field: 0 };
        let value = parse(&mut inner)?;
        inner.finish()?;
        Ok(value)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Passes over the fields that are left, which are unknown.
    fn finish(&mut self) -> Parsed<()> {
        while let Some(found) = self.next_field()? {
            self.pass(&found);
            check_ignorable(found.tag)?;
        }
        Ok(())
    }

    fn pass(&mut self, field: &Field<'a>) {
        (self.rest, self.last_field) = (field.rest, field.tag.number());
    }

    fn next_field(&self) -> Parsed<Option<Field<'a>>> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        if !self.version.has_fields() {
            return Err(Fault::Malformed("bytes are left over behind the body"));
        }
        let cut_short = Fault::Malformed("a field is cut short");
        let Some(([t0, t1, l0, l1], rest)) = self.rest.split_first_chunk() else { return Err(cut_short) };
        let len_bytes = usize::from(u16::from_le_bytes([*l0, *l1]));
        let Some((bytes, rest)) = rest.split_at_checked(len_bytes) else { return Err(cut_short) };
        let tag = FieldTag(u16::from_le_bytes([*t0, *t1]));
        if tag.number() <= self.last_field {
            return Err(Fault::Malformed("a field is there twice or out of order"));
        }
        Ok(Some(Field { tag, bytes, rest }))
    }

    fn take(&mut self, len_bytes: usize) -> Parsed<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len_bytes).ok_or(Fault::Malformed("the body is too short"))?;
        self.rest = rest;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Parsed<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(Fault::Malformed("the body is too short"))?;
        self.rest = rest;
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

/// Whether an unknown field of this tag may be ignored.
fn check_ignorable(tag: FieldTag) -> Parsed<()> {
    if tag.is_required() { Err(Fault::UnknownField(tag.number())) } else { Ok(()) }
}
