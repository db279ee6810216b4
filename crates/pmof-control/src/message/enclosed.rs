//! What a target says of a pool together with the reply to its opening, so that no request for it follows.

use alloc::vec::Vec;

use super::{
    limits::MAX_BODY_BYTES,
    version::MessageHead,
    wire::{Body, Fault, FieldTag, Frame, Parsed},
};
use crate::{FailureDomain, IntentLayout, Protection, Roster};

const ROSTER: FieldTag = FieldTag::ignorable(1);
const DOMAIN: FieldTag = FieldTag::ignorable(2);
const INTENT: FieldTag = FieldTag::ignorable(3);
const PROTECTION: FieldTag = FieldTag::ignorable(4);

/// Tag and length of a field.
const FIELD_HEAD_BYTES: usize = 4;

/// What [`Reply::Opened`](super::Reply::Opened) says beyond the replica. Each is missing where the message has no room for it, or its version no fields, or the target
/// does not say it: then it is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Enclosed {
    /// The reply to [`Request::Roster`](super::Request::Roster), all of it.
    pub roster: Option<Roster>,
    /// The reply to [`Request::Domain`](super::Request::Domain).
    pub domain: Option<Option<FailureDomain>>,
    /// The reply to [`Request::Intent`](super::Request::Intent): all words of the map, as many as the pool's [layout](IntentLayout) has.
    pub intent: Option<Vec<u32>>,
    /// The replica keeps digests of its pages: they have to be [raised](super::PagesRequest::Raise) before they are written.
    pub protection: Option<Protection>,
}

impl Frame {
    /// The fields for which there is room, behind the body.
    pub(super) fn enclosed(&mut self, enclosed: &Enclosed) {
        if !self.version().has_fields() {
            return;
        }
        let Enclosed { roster, domain, intent, protection } = enclosed;
        let protection = protection.map(|protection| protection.max_size_bytes.to_le_bytes().to_vec());
        let roster = roster.as_ref().and_then(|roster| roster.encode().ok());
        let domain = domain.as_ref().map(|domain| {
            let mut frame = Frame::new(0, MessageHead { version: self.version(), request_id: 0 });
            frame.domain(domain.as_ref());
            frame.body().to_vec()
        });
        let intent = intent.as_ref().map(|words| encode_intent(words));
        // It is never left out, since its writer has to know.
        let reserved = protection.as_ref().map_or(0, |bytes| FIELD_HEAD_BYTES + bytes.len());
        for (tag, bytes) in [(ROSTER, roster), (DOMAIN, domain), (INTENT, intent), (PROTECTION, protection)] {
            let reserved = if tag == PROTECTION { 0 } else { reserved };
            let room = MAX_BODY_BYTES.saturating_sub(self.body_bytes() + FIELD_HEAD_BYTES + reserved);
            if let Some(bytes) = bytes.filter(|bytes| bytes.len() <= room) {
                self.field(tag, &bytes);
            }
        }
    }
}

impl Body<'_> {
    /// The fields that there are. A roster that this program cannot read is missing. `size_bytes`: of the pool's data.
    pub(super) fn enclosed(&mut self, size_bytes: u64) -> Parsed<Enclosed> {
        let roster = self.field_bytes(ROSTER)?.and_then(|bytes| Roster::decode(bytes).ok());
        let domain = match self.field_bytes(DOMAIN)? {
            Some(bytes) => Some(self.inside(bytes, Body::domain)?),
            None => None,
        };
        let intent = match self.field_bytes(INTENT)? {
            Some(bytes) => Some(self.inside(bytes, |body| body.intent_of(size_bytes))?),
            None => None,
        };
        let protection = self.field(PROTECTION)?.map(|bytes| Protection { max_size_bytes: u64::from_le_bytes(bytes) });
        Ok(Enclosed { roster, domain, intent, protection })
    }

    /// All words of a map whose message has only those other than zero.
    fn intent_of(&mut self, size_bytes: u64) -> Parsed<Vec<u32>> {
        let mut words = alloc::vec![0; IntentLayout::new(size_bytes).word_count()];
        while !self.is_empty() {
            let (first, told) = self.intent()?;
            let run = words.get_mut(usize::from(first)..usize::from(first) + told.len());
            run.ok_or(Fault::Malformed("the map of write intent has fewer words"))?.copy_from_slice(&told);
        }
        Ok(words)
    }
}

/// Words that are not zero, as [`Frame::intent`] has each run of them.
fn encode_intent(words: &[u32]) -> Vec<u8> {
    let mut frame = Frame::new(0, MessageHead::newest(0));
    let mut first = 0;
    for run in words.chunk_by(|one, next| (*one == 0) == (*next == 0)) {
        if run[0] != 0 {
            frame.intent(first as u16, run);
        }
        first += run.len();
    }
    frame.body().to_vec()
}
