//! What a target's refusal means to a program.

use linux_raw_sys::errno;

/// Codes of the service itself. Those below 256 and from 300 on are of a target's stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum ServiceCode {
    /// The request was not understood.
    BadMessage = 256,
    /// The connection has a pool open already.
    AlreadyOpen = 257,
    /// The pool's memory could not be registered.
    Register = 258,
    /// The connection has no pool open.
    NotOpen = 259,
    /// The connection did not prove that it may ask.
    NotAdmitted = 260,
    /// The pool's memory failed.
    Medium = 261,
    /// The target was told to stop.
    Stopping = 262,
}

/// The rule by which a target refused what was asked of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PoolRefusal {
    /// There is no pool of this name.
    NotFound,
    /// There is a pool of this name.
    AlreadyExists,
    /// Another initiator has it open for writing.
    Busy,
    /// Another initiator has it open for writing, and its memory cannot be taken away from that one.
    NotFenceable,
    /// What has this name is not a pool, or its header is damaged or newer, or its file has the wrong length.
    NotAUsablePool,
    /// The headers of a pool set's parts are damaged, and something lies behind them.
    HeadersDamaged,
    /// One copy of its state is damaged, and the other may be an older one: other replicas may lack what was acknowledged since.
    UncertainState,
    /// The pool has a former format, which can be read and not written.
    OldFormat,
    /// A pool cannot have this size.
    BadSize,
    /// The target's file system is full.
    NoSpace,
    /// The medium cannot give the durability asked for.
    NotDurable,
    /// The target's root directory cannot be written.
    NotWritable,
    /// The pool set's file is wrong, or contradicts what was asked for.
    BadSet,
    /// A part of the pool set, or the directory that it is to lie in, is not there.
    PartMissing,
    /// The connection did not prove the session's secret.
    NotAdmitted,
    /// Something failed on the target; its text says what.
    Failed,
}

impl PoolRefusal {
    /// Each of them.
    pub const ALL: [Self; 16] = [
        Self::NotFound,
        Self::AlreadyExists,
        Self::Busy,
        Self::NotFenceable,
        Self::NotAUsablePool,
        Self::HeadersDamaged,
        Self::UncertainState,
        Self::OldFormat,
        Self::BadSize,
        Self::NoSpace,
        Self::NotDurable,
        Self::NotWritable,
        Self::BadSet,
        Self::PartMissing,
        Self::NotAdmitted,
        Self::Failed,
    ];

    /// The errno by which programs of librpmem know it (docs/librpmem.md).
    #[expect(clippy::cast_possible_wrap, reason = "the kernel's numbers go to 4095")]
    pub fn errno(self) -> i32 {
        let number = match self {
            Self::NotFound | Self::PartMissing => errno::ENOENT,
            Self::AlreadyExists => errno::EEXIST,
            Self::Busy | Self::NotFenceable => errno::EBUSY,
            Self::NotAUsablePool | Self::HeadersDamaged | Self::UncertainState | Self::OldFormat | Self::BadSet => {
                errno::EINVAL
            }
            Self::BadSize => errno::EFBIG,
            Self::NoSpace => errno::ENOSPC,
            Self::NotDurable => errno::EOPNOTSUPP,
            Self::NotWritable | Self::NotAdmitted => errno::EACCES,
            Self::Failed => errno::EREMOTEIO,
        };
        number as i32
    }

    /// The meaning of a code; codes of newer targets mean [`Failed`](Self::Failed).
    pub fn from_code(code: u16) -> Self {
        match code {
            3 | 301 => Self::NotWritable,
            4 | 25 | 300 => Self::NotFound,
            5 | 307 => Self::AlreadyExists,
            6 | 28 | 306 => Self::Busy,
            7..=9 | 19 | 309 => Self::NotAUsablePool,
            20 => Self::OldFormat,
            23 => Self::NotFenceable,
            27 => Self::UncertainState,
            10 | 11 | 304 => Self::BadSize,
            13 | 308 => Self::NoSpace,
            14 | 305 => Self::NotDurable,
            303 => Self::BadSet,
            310 => Self::PartMissing,
            311 => Self::HeadersDamaged,
            260 => Self::NotAdmitted,
            _ => Self::Failed,
        }
    }
}
