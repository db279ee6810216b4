//! Flushes of what is copied to a replica, while more is.

use crate::{
    catch_up::CatchUp,
    member::{FlushLevel, Flushing, Member},
    pool::halt::Halt,
};

/// The flush of what was copied last, which is under way while more is copied: one at a time.
pub(super) struct CopyFlush<'c> {
    pub(super) catch_up: &'c CatchUp,
    pub(super) member: &'c dyn Member,
    pub(super) under_way: Option<Flushing>,
}

impl CopyFlush<'_> {
    pub(super) fn start(&mut self) {
        self.catch_up.begin_flush();
        self.under_way = Some(self.member.start_flush_everything(FlushLevel::OfPool));
    }

    /// Waits for it. False: there was none.
    pub(super) fn finish(&mut self) -> Result<bool, Halt> {
        let Some(mut flushing) = self.under_way.take() else { return Ok(false) };
        if !self.member.has_flushed(&mut flushing, None) {
            return Err(Halt::Later);
        }
        self.catch_up.note_flushed();
        Ok(true)
    }
}

/// No answer is owed to a copy that was given up.
impl Drop for CopyFlush<'_> {
    fn drop(&mut self) {
        if let Some(mut flushing) = self.under_way.take() {
            self.member.has_flushed(&mut flushing, None);
        }
    }
}
