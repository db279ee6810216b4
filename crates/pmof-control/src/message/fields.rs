//! What the bodies of messages are made of: epochs, states, descriptions of pools.

use alloc::{borrow::ToOwned as _, string::String, vec::Vec};
use core::ops::Range;

use pmof_terms::{Durability, Evidence, Mechanism, MediumKind, Promise};

use super::{
    limits::{MAX_BODY_BYTES, MAX_HOLDER_BYTES, MAX_PATH_BYTES, MAX_REFUSAL_BYTES, ROSTER_PART_BYTES},
    roster_part::RosterPart,
    version::SpokenVersions,
    wire::{Body, Fault, FieldTag, Frame, Parsed},
};
use crate::{
    ANCESTORS_MAX, Epoch, FailureDomain, FileLayout, Header, INTENT_WORDS_MAX, MAX_DOMAIN_NAME_BYTES, MAX_EVENT_BYTES,
    MAX_ROOT_BYTES, MAX_TOLD_EVENTS, MAX_TOLD_MEMBERS, MAX_VERSION_BYTES, MemberProgress, MemberStanding, NewPool,
    PoolFormat, PoolInfo, PoolName, PoolState, Protection, SetFile, TargetStatus, ToldEvent, WriterStatus,
};

/// Bytes of what a writer tells at most: with a flag it fits into the body of a reply.
const STATUS_BYTES: usize = MAX_BODY_BYTES - 1 - 2 - 8;
/// Bytes of a member in it, and of an event without its text.
const PROGRESS_BYTES: usize = 35;
const EVENT_BYTES: usize = 10;

/// Bits of a target's status.
const DRAINING: u8 = 1;
const READ_ONLY: u8 = 2;
const DETACHED: u8 = 4;

/// Optional field of `Create`: bytes of user data that there is room for digests of, as `u64`. A target that does not know it makes a file of format 3.
const PROTECTION: FieldTag = FieldTag::ignorable(1);

/// Optional field of a target's status: the oldest and the newest version of control messages that it speaks.
const CONTROL_VERSIONS: FieldTag = FieldTag::ignorable(1);

impl Frame {
    pub(super) fn create(&mut self, name: &PoolName, new: &NewPool, publish_on_close: bool) {
        self.byte(new.require as u8);
        self.byte(u8::from(publish_on_close));
        self.number_u16(new.replica_index);
        self.number_u16(new.replica_count);
        self.number_u64(new.size_bytes);
        self.bytes(new.pool_uuid.as_bytes());
        self.bytes(new.epoch.as_bytes());
        self.bytes(&new.user_flags);
        self.text(name.as_str());
        if let Some(protection) = new.protection.filter(|_| self.version().has_fields()) {
            self.field(PROTECTION, &protection.max_size_bytes.to_le_bytes());
        }
    }

    pub(super) fn epoch(&mut self, epoch: &Epoch) {
        self.bytes(epoch.id.as_bytes());
        self.number_u64(epoch.members);
    }

    pub(super) fn status(&mut self, status: &TargetStatus) {
        self.number_u16(status.protocol_version);
        self.number_u16(status.pool_format);
        self.byte(
            (u8::from(status.is_draining) * DRAINING)
                | (u8::from(!status.is_root_writable) * READ_ONLY)
                | (u8::from(!status.is_root_attached) * DETACHED),
        );
        for number in [
            status.uptime_ms,
            status.connections,
            status.max_connections,
            status.memory_bytes,
            status.memory_budget_bytes,
            status.free_bytes,
            status.total_bytes,
        ] {
            self.number_u64(number);
        }
        self.text(cut(&status.version, MAX_VERSION_BYTES));
        self.text(cut(&status.root, MAX_ROOT_BYTES));
        if self.version().has_fields() {
            let SpokenVersions { oldest, newest } = status.control_versions;
            let [[o0, o1], [n0, n1]] = [oldest, newest].map(u16::to_le_bytes);
            self.field(CONTROL_VERSIONS, &[o0, o1, n0, n1]);
        }
    }

    /// The oldest events are left out where a message has no room for all.
    pub(super) fn writer_status(&mut self, status: &WriterStatus) {
        let members = &status.members[..status.members.len().min(MAX_TOLD_MEMBERS)];
        let texts: Vec<_> =
            status.events.iter().map(|event| (event.unix_ms, cut(&event.text, MAX_EVENT_BYTES))).collect();
        let mut left = STATUS_BYTES - members.len() * PROGRESS_BYTES;
        let mut first = texts.len();
        while first > texts.len().saturating_sub(MAX_TOLD_EVENTS) {
            let Some(less) = left.checked_sub(EVENT_BYTES + texts[first - 1].1.len()) else { break };
            (left, first) = (less, first - 1);
        }
        self.byte(members.len() as u8);
        for member in members {
            self.number_u16(member.index);
            self.byte(member.standing as u8);
            for number in [member.missing_bytes, member.bytes_per_second, member.lag_bytes, member.lag_ms] {
                self.number_u64(number);
            }
        }
        self.byte((texts.len() - first) as u8);
        for (unix_ms, text) in &texts[first..] {
            self.number_u64(*unix_ms);
            self.text(text);
        }
        self.number_u64(status.scrubbed_unix_ms);
    }

    pub(super) fn domain(&mut self, domain: Option<&FailureDomain>) {
        self.byte(u8::from(domain.is_some()));
        let Some(FailureDomain { name, is_declared, kernel }) = domain else { return };
        self.byte(u8::from(*is_declared));
        self.byte(u8::from(kernel.is_some()));
        self.bytes(&kernel.unwrap_or_default());
        self.text(name.as_str());
    }

    pub(super) fn ancestors(&mut self, ancestors: &[Epoch]) {
        let ancestors = &ancestors[..ancestors.len().min(ANCESTORS_MAX)];
        self.byte(ancestors.len() as u8);
        for epoch in ancestors {
            self.epoch(epoch);
        }
    }

    pub(super) fn state(&mut self, state: &PoolState) {
        self.number_u64(state.opening);
        self.byte(state.flags());
        self.number_u64(state.mark);
        self.epoch(&state.epoch);
        self.ancestors(&state.ancestors);
    }

    pub(super) fn intent(&mut self, first: u16, words: &[u32]) {
        self.number_u16(first);
        // A count that wraps belongs to a list far too long to be sealed.
        self.number_u16(words.len() as u16);
        for word in words {
            self.bytes(&word.to_le_bytes());
        }
    }

    /// A part that is longer than allowed makes a message that cannot be sealed.
    pub(super) fn roster_part(&mut self, part: &RosterPart) {
        self.number_u16(part.len_bytes);
        self.number_u16(part.bytes.len() as u16);
        self.bytes(&part.bytes);
    }

    /// One of several descriptions, or its refusal.
    pub(super) fn described(&mut self, info: Result<&PoolInfo, &(u16, String)>) {
        self.byte(u8::from(info.is_ok()));
        match info {
            Ok(info) => self.info(info),
            Err((code, text)) => {
                self.number_u16(*code);
                self.text(cut(text, MAX_REFUSAL_BYTES));
            }
        }
    }

    pub(super) fn info(&mut self, info: &PoolInfo) {
        let header = &info.header;
        self.number_u16(header.format.major());
        self.number_u64(header.compatible_features);
        self.bytes(header.pool_uuid.as_bytes());
        self.bytes(header.replica_uuid.as_bytes());
        self.number_u64(header.size_bytes);
        self.number_u64(header.created_at_unix_s);
        self.state(&info.state);
        self.number_u16(header.replica_count);
        self.number_u16(header.replica_index);
        self.bytes(&header.user_flags);
        self.number_u64(info.file_len_bytes);
        self.byte(info.medium as u8);
        for promise in info.promises {
            self.byte(promise.map_or(0, |promise| promise.mechanism as u8));
            self.byte(promise.map_or(0, |promise| promise.evidence as u8));
        }
        self.byte(u8::from(info.open_by.is_some()));
        if let Some(holder) = &info.open_by {
            self.text(cut(holder, MAX_HOLDER_BYTES));
        }
        self.text(info.name.as_str());
    }
}

impl Body<'_> {
    pub(super) fn range(&mut self) -> Parsed<Range<u64>> {
        let range = self.number_u64()?..self.number_u64()?;
        if range.is_empty() { Err(Fault::Malformed("a range is empty")) } else { Ok(range) }
    }

    /// An end, a count, and that many ranges.
    pub(super) fn ranges(&mut self) -> Parsed<(u64, Vec<Range<u64>>)> {
        let (end, count) = (self.number_u64()?, self.number_u16()?);
        Ok((end, (0..count).map(|_| self.range()).collect::<Parsed<_>>()?))
    }

    pub(super) fn intent(&mut self) -> Parsed<(u16, Vec<u32>)> {
        let (first, count) = (self.number_u16()?, self.number_u16()?);
        if usize::from(first) + usize::from(count) > INTENT_WORDS_MAX {
            return Err(Fault::Malformed("the map of write intent has fewer words"));
        }
        let words = (0..count).map(|_| Ok(u32::from_le_bytes(self.array()?))).collect::<Parsed<_>>()?;
        Ok((first, words))
    }

    pub(super) fn roster_part(&mut self) -> Parsed<RosterPart> {
        let len_bytes = self.number_u16()?;
        let bytes = self.counted(ROSTER_PART_BYTES)?.to_vec();
        if bytes.len() > usize::from(len_bytes) {
            return Err(Fault::Malformed("a part of a roster is longer than the whole"));
        }
        Ok(RosterPart { len_bytes, bytes })
    }

    pub(super) fn epoch(&mut self) -> Parsed<Epoch> {
        Ok(Epoch { id: self.uuid()?, members: self.number_u64()? })
    }

    pub(super) fn status(&mut self) -> Parsed<TargetStatus> {
        let (protocol_version, pool_format, flags) = (self.number_u16()?, self.number_u16()?, self.byte()?);
        if flags & !(DRAINING | READ_ONLY | DETACHED) != 0 {
            return Err(Fault::Malformed("a target's status has an unknown flag"));
        }
        let mut status = TargetStatus {
            protocol_version,
            pool_format,
            control_versions: SpokenVersions::UNANNOUNCED,
            is_draining: flags & DRAINING != 0,
            is_root_writable: flags & READ_ONLY == 0,
            is_root_attached: flags & DETACHED == 0,
            uptime_ms: self.number_u64()?,
            connections: self.number_u64()?,
            max_connections: self.number_u64()?,
            memory_bytes: self.number_u64()?,
            memory_budget_bytes: self.number_u64()?,
            free_bytes: self.number_u64()?,
            total_bytes: self.number_u64()?,
            version: self.text(MAX_VERSION_BYTES)?.to_owned(),
            root: self.text(MAX_ROOT_BYTES)?.to_owned(),
        };
        if let Some([o0, o1, n0, n1]) = self.field(CONTROL_VERSIONS)? {
            let [oldest, newest] = [[o0, o1], [n0, n1]].map(u16::from_le_bytes);
            status.control_versions = SpokenVersions { oldest, newest };
        }
        Ok(status)
    }

    pub(super) fn writer_status(&mut self) -> Parsed<WriterStatus> {
        let mut status = WriterStatus::default();
        for _ in 0..self.at_most(MAX_TOLD_MEMBERS)? {
            let (index, standing) = (self.number_u16()?, MemberStanding::from_number(self.byte()?));
            status.members.push(MemberProgress {
                index,
                standing: standing.ok_or(Fault::Malformed("a member's standing has an unknown number"))?,
                missing_bytes: self.number_u64()?,
                bytes_per_second: self.number_u64()?,
                lag_bytes: self.number_u64()?,
                lag_ms: self.number_u64()?,
            });
        }
        for _ in 0..self.at_most(MAX_TOLD_EVENTS)? {
            status.events.push(ToldEvent { unix_ms: self.number_u64()?, text: self.text(MAX_EVENT_BYTES)?.to_owned() });
        }
        status.scrubbed_unix_ms = self.number_u64()?;
        Ok(status)
    }

    fn at_most(&mut self, limit: usize) -> Parsed<usize> {
        let count = usize::from(self.byte()?);
        if count <= limit { Ok(count) } else { Err(Fault::Malformed("a writer's status tells of too many")) }
    }

    pub(super) fn domain(&mut self) -> Parsed<Option<FailureDomain>> {
        if !self.flag()? {
            return Ok(None);
        }
        let (is_declared, has_kernel) = (self.flag()?, self.flag()?);
        let kernel = Some(self.array()?).filter(|_| has_kernel);
        let name = self.text(MAX_DOMAIN_NAME_BYTES)?.parse();
        let name = name.map_err(|_| Fault::Malformed("the failure domain's name breaks the rules of such names"))?;
        Ok(Some(FailureDomain { name, is_declared, kernel }))
    }

    pub(super) fn ancestors(&mut self) -> Parsed<Vec<Epoch>> {
        let count = usize::from(self.byte()?);
        if count > ANCESTORS_MAX {
            return Err(Fault::Malformed("there are more than 64 ancestors"));
        }
        (0..count).map(|_| self.epoch()).collect()
    }

    /// What [`Frame::create`] has written.
    pub(super) fn create(&mut self) -> Parsed<(PoolName, NewPool, bool)> {
        let (require, publish_on_close) = (self.level()?, self.flag()?);
        let (replica_index, replica_count) = (self.number_u16()?, self.number_u16()?);
        let size_bytes = self.number_u64()?;
        let (pool_uuid, epoch, user_flags) = (self.uuid()?, self.uuid()?, self.array()?);
        let name = self.name()?;
        let protection = self.protection(size_bytes)?;
        let new =
            NewPool { pool_uuid, size_bytes, epoch, replica_index, replica_count, require, user_flags, protection };
        Ok((name, new, publish_on_close))
    }

    /// Behind the name of a new pool of so many bytes.
    fn protection(&mut self, size_bytes: u64) -> Parsed<Option<Protection>> {
        let field = if self.version().has_fields() { self.field(PROTECTION)? } else { None };
        let protection = field.map(|bytes| Protection { max_size_bytes: u64::from_le_bytes(bytes) });
        if protection.is_some_and(|protection| protection.max_size_bytes < size_bytes) {
            return Err(Fault::Malformed("the pool can grow to less than its size"));
        }
        Ok(protection)
    }

    pub(super) fn state(&mut self) -> Parsed<PoolState> {
        let opening = self.number_u64()?;
        let flags = PoolState::from_flags(self.byte()?);
        let (is_open, is_confirmed, is_behind) = flags.ok_or(Fault::Malformed("the state has an unknown flag"))?;
        let mark = self.number_u64()?;
        let (epoch, ancestors) = (self.epoch()?, self.ancestors()?);
        Ok(PoolState { epoch, opening, is_confirmed, is_open, is_behind, mark, ancestors })
    }

    pub(super) fn part_file(&mut self) -> Parsed<SetFile> {
        Ok(SetFile { identity: self.array()?, path: self.text(MAX_PATH_BYTES)?.into() })
    }

    pub(super) fn described(&mut self) -> Parsed<Result<PoolInfo, (u16, String)>> {
        if self.flag()? {
            return self.info().map(Ok);
        }
        Ok(Err((self.number_u16()?, self.text(MAX_REFUSAL_BYTES)?.to_owned())))
    }

    pub(super) fn info(&mut self) -> Parsed<PoolInfo> {
        let major = self.number_u16()?;
        let (compatible_features, pool_uuid, replica_uuid) = (self.number_u64()?, self.uuid()?, self.uuid()?);
        let (size_bytes, created_at_unix_s, state) = (self.number_u64()?, self.number_u64()?, self.state()?);
        let format = match (major, u32::try_from(state.opening)) {
            (1, Ok(generation)) => PoolFormat::One { generation },
            (2, _) => PoolFormat::Two,
            (3, _) => PoolFormat::Three,
            (4, _) => PoolFormat::Four,
            _ => return Err(Fault::Malformed("the pool's format is unknown")),
        };
        let header = Header {
            format,
            compatible_features,
            pool_uuid,
            replica_uuid,
            size_bytes,
            created_at_unix_s,
            replica_count: self.number_u16()?,
            replica_index: self.number_u16()?,
            user_flags: self.array()?,
            layout: FileLayout::default(),
        };
        let file_len_bytes = self.number_u64()?;
        let medium = MediumKind::from_wire(self.byte()?).ok_or(Fault::Malformed("the medium is unknown"))?;
        let promises = [self.promise()?, self.promise()?, self.promise()?];
        let open_by = if self.flag()? { Some(self.text(MAX_HOLDER_BYTES)?.to_owned()) } else { None };
        Ok(PoolInfo { name: self.name()?, header, state, file_len_bytes, medium, promises, open_by })
    }

    pub(super) fn promise(&mut self) -> Parsed<Option<Promise>> {
        match (self.byte()?, self.byte()?) {
            (0, 0) => Ok(None),
            (mechanism, evidence) => match (Mechanism::from_wire(mechanism), Evidence::from_wire(evidence)) {
                (Some(mechanism), Some(evidence)) => Ok(Some(Promise { mechanism, evidence })),
                _ => Err(Fault::Malformed("a promise has an unknown mechanism or evidence")),
            },
        }
    }

    pub(super) fn level(&mut self) -> Parsed<Durability> {
        Durability::from_wire(self.byte()?).ok_or(Fault::Malformed("the durability level is unknown"))
    }
}

/// The longest beginning of `text` that has at most `limit_bytes` and cuts no character.
pub(super) fn cut(text: &str, limit_bytes: usize) -> &str {
    let mut end = text.len().min(limit_bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
