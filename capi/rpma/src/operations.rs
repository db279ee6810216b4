//! Operations on the other side's memory, and messages.

use std::{
    ffi::{CStr, c_int, c_void},
    sync::{LazyLock, atomic::Ordering},
};

use libc::c_char;
use pmof_access::{Batch, Connection, Durability, PostError, RemoteRegion, Signal, Single, Source, Ticket, limits};

use crate::{
    argument::Object,
    call::{call, need},
    connection::{AccessConn, Conn},
    error::{Code, Failure},
    log::{Level, log},
    long,
    memory::{AccessMrRemote, MrLocal, MrRemote, slice},
    on::On,
    settings::settings,
    verbs::{self, Posting},
};

const COMPLETION_ON_ERROR: c_int = 1;
const COMPLETION_ALWAYS: c_int = 3;

const FLUSH_PERSISTENT: c_int = 0;
const FLUSH_VISIBILITY: c_int = 1;

/// When an operation completes.
#[inline]
fn signal(flags: c_int) -> Result<Signal, Failure> {
    match flags {
        COMPLETION_ON_ERROR => Ok(Signal::OnError),
        // Only the bit, which librpma accepts too.
        2 | COMPLETION_ALWAYS => Ok(Signal::Always),
        _ => Err(Failure::invalid(format!("flags {flags:#x}: write RPMA_F_COMPLETION_ON_ERROR or _ALWAYS"))),
    }
}

/// The same for a device.
#[inline]
fn posting(flags: c_int, context: *const c_void) -> Result<Posting, Failure> {
    Ok(Posting { is_signaled: matches!(signal(flags)?, Signal::Always), context })
}

/// Registrations for a device, on both sides: both or neither.
#[inline]
fn both<'a>(
    remote: &'a Object<MrRemote>,
    local: &'a Object<MrLocal>,
) -> Result<(Option<&'a verbs::MrRemote>, Option<&'a verbs::MrLocal>), Failure> {
    if remote.is_null() != local.is_null() {
        return Err(Failure::invalid("dst and src: both or neither"));
    }
    let (remote, local) = (remote.uncounted_if_any()?, local.uncounted_if_any()?);
    Ok((remote.map(MrRemote::verbs), local.map(MrLocal::verbs).transpose()?))
}

#[inline]
fn single(connection: &Connection, signal: Signal, op_context: *const c_void) -> Single<'_> {
    connection.single().signal(signal).context(op_context.addr() as u64)
}

/// Posts with `post`.
#[inline]
fn posted(
    connection: &Connection,
    signal: Signal,
    op_context: *const c_void,
    post: impl FnOnce(&mut Batch<'_>) -> Result<Ticket, PostError>,
) -> Result<(), Failure> {
    let mut batch = single(connection, signal, op_context).in_batch();
    post(&mut batch)?;
    Ok(())
}

const PART_MAX_BYTES: usize = limits::PAYLOAD_MAX_BYTES as usize;

/// The ranges that one operation of the interface is made of: pmof's carry at most 1 GiB. At least one.
fn parts(len: usize) -> impl Iterator<Item = (usize, usize, bool)> {
    let count = len.div_ceil(PART_MAX_BYTES).max(1);
    (0..count).map(move |index| {
        let begin = index * PART_MAX_BYTES;
        (begin, (len - begin).min(PART_MAX_BYTES), index + 1 == count)
    })
}

/// Posts a part of an operation of this many bytes, and records the number with the last of several parts.
fn posted_part(
    connection: &Connection,
    (signal, op_context): (Signal, *const c_void),
    (whole, is_last): (usize, bool),
    post: impl FnOnce(&mut Batch<'_>) -> Result<Ticket, PostError>,
) -> Result<(), Failure> {
    if whole <= PART_MAX_BYTES || !is_last || !matches!(signal, Signal::Always) {
        return posted(connection, signal, op_context, post);
    }
    let mut batch = single(connection, signal, op_context).in_batch();
    long::post_last(connection.id().number(), whole as u64, || Ok(post(&mut batch)?.0))
}

/// The other side's memory; without it, this side's memory must be absent and the length 0.
fn far<'a>(
    connection: &Connection,
    remote: &'a Object<MrRemote>,
    local: Object<MrLocal>,
    is_nothing: bool,
) -> Result<&'a RemoteRegion, Failure> {
    static NOWHERE: LazyLock<RemoteRegion> = LazyLock::new(RemoteRegion::nowhere);
    if remote.is_null() != local.is_null() || (remote.is_null() && !is_nothing) {
        return Err(Failure::invalid("dst and src: both or neither, and without them offsets and length must be 0"));
    }
    match remote.uncounted_if_any()? {
        Some(remote) => remote.access()?.region(connection),
        None => Ok(&NOWHERE),
    }
}

/// Refuses an operation if any part of it is out of range.
fn check_whole(
    conn: &AccessConn,
    remote: &RemoteRegion,
    remote_offset: usize,
    local: Object<MrLocal>,
    local_offset: usize,
    len: usize,
) -> Result<(), Failure> {
    if len as u64 <= limits::PAYLOAD_MAX_BYTES {
        // It is checked at posting.
        return Ok(());
    }
    slice(&conn.peer, local, local_offset, len)?;
    match (remote_offset as u64).checked_add(len as u64) {
        Some(end) if end <= remote.len_bytes() => Ok(()),
        _ => Err(Failure::invalid("the range does not lie in the other side's memory")),
    }
}

/// Posts a read of the other side's memory.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_read(
    conn: Object<Conn>,
    dst: Object<MrLocal>,
    dst_offset: usize,
    src: Object<MrRemote>,
    src_offset: usize,
    len: usize,
    flags: c_int,
    op_context: *const c_void,
) -> c_int {
    call(c"rpma_read", || {
        let conn = conn.get()?;
        let conn = match &conn.on {
            On::Access(conn) => conn,
            On::Verbs(conn) => {
                let (from, into) = both(&src, &dst)?;
                return conn.read(posting(flags, op_context)?, (into, dst_offset), (from, src_offset), len);
            }
        };
        read_over_access(conn, dst, dst_offset, src, src_offset, len, signal(flags)?, op_context)
    })
}

/// A read in as many parts as it needs. A function of its own: those over a device need less of the stack and of registers.
#[expect(clippy::too_many_arguments, reason = "those of the functions of the interface")]
#[inline(never)]
fn read_over_access(
    conn: &AccessConn,
    dst: Object<MrLocal>,
    dst_offset: usize,
    src: Object<MrRemote>,
    src_offset: usize,
    len: usize,
    signal: Signal,
    op_context: *const c_void,
) -> Result<(), Failure> {
    let connection = conn.connection();
    let is_nothing = src_offset == 0 && dst_offset == 0 && len == 0;
    let from = far(connection, &src, dst, is_nothing)?;
    check_whole(conn, from, src_offset, dst, dst_offset, len)?;
    let whole = len;
    for (begin, len, is_last) in parts(len) {
        let into = slice(&conn.peer, dst, dst_offset.saturating_add(begin), len)?;
        let signal = if is_last { signal } else { Signal::OnError };
        posted_part(connection, (signal, op_context), (whole, is_last), |batch| {
            batch.read(from, (src_offset as u64).saturating_add(begin as u64), into)
        })?;
    }
    Ok(())
}

/// Common code of the two write functions.
#[expect(clippy::too_many_arguments, reason = "those of the functions of the interface")]
#[inline]
fn write(
    conn: Object<Conn>,
    dst: Object<MrRemote>,
    dst_offset: usize,
    src: Object<MrLocal>,
    src_offset: usize,
    len: usize,
    flags: c_int,
    immediate: Option<u32>,
    op_context: *const c_void,
) -> Result<(), Failure> {
    let conn = conn.get()?;
    let conn = match &conn.on {
        On::Access(conn) => conn,
        On::Verbs(conn) => {
            let (to, from) = both(&dst, &src)?;
            return conn.write(posting(flags, op_context)?, (to, dst_offset), (from, src_offset), len, immediate);
        }
    };
    let (signal, connection) = (signal(flags)?, conn.connection());
    if immediate.is_none() && len <= PART_MAX_BYTES && !dst.is_null() && !src.is_null() {
        let (to, from) = (dst.uncounted()?, src.uncounted()?);
        let from = from.access()?.for_peer(&conn.peer)?.part(src_offset, len)?;
        single(connection, signal, op_context).write(to.access()?.region(connection)?, dst_offset as u64, from)?;
        return Ok(());
    }
    write_in_parts(conn, dst, dst_offset, src, src_offset, len, signal, immediate, op_context)
}

/// The same for writes that may be too long for one operation, or empty, or carry a number.
#[expect(clippy::too_many_arguments, reason = "those of the functions of the interface")]
#[inline(never)]
fn write_in_parts(
    conn: &AccessConn,
    dst: Object<MrRemote>,
    dst_offset: usize,
    src: Object<MrLocal>,
    src_offset: usize,
    len: usize,
    signal: Signal,
    immediate: Option<u32>,
    op_context: *const c_void,
) -> Result<(), Failure> {
    let connection = conn.connection();
    let is_nothing = src_offset == 0 && dst_offset == 0 && len == 0;
    let to = far(connection, &dst, src, is_nothing)?;
    check_whole(conn, to, dst_offset, src, src_offset, len)?;
    let whole = len;
    let post = |(begin, len, is_last)| {
        let from = slice(&conn.peer, src, src_offset.saturating_add(begin), len)?;
        let offset = (dst_offset as u64).saturating_add(begin as u64);
        let signal = if is_last { signal } else { Signal::OnError };
        posted_part(connection, (signal, op_context), (whole, is_last), |batch| match immediate.filter(|_| is_last) {
            Some(immediate) => batch.write_with_immediate(to, offset, from, immediate),
            None => batch.write(to, offset, from),
        })
    };
    parts(len).try_for_each(post)
}

/// Posts a write to the other side's memory.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_write(
    conn: Object<Conn>,
    dst: Object<MrRemote>,
    dst_offset: usize,
    src: Object<MrLocal>,
    src_offset: usize,
    len: usize,
    flags: c_int,
    op_context: *const c_void,
) -> c_int {
    call(c"rpma_write", || write(conn, dst, dst_offset, src, src_offset, len, flags, None, op_context))
}

/// Posts a write that also consumes a receive of the other side and passes it a number.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_write_with_imm(
    conn: Object<Conn>,
    dst: Object<MrRemote>,
    dst_offset: usize,
    src: Object<MrLocal>,
    src_offset: usize,
    len: usize,
    flags: c_int,
    immediate: u32,
    op_context: *const c_void,
) -> c_int {
    call(c"rpma_write_with_imm", || {
        write(conn, dst, dst_offset, src, src_offset, len, flags, Some(immediate), op_context)
    })
}

/// Posts an atomic write of 8 bytes, at an offset divisible by 8.
///
/// # Safety
///
/// `src` is null or valid for a read of 8 bytes; the other pointers but `op_context` are null or what their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpma_atomic_write(
    conn: Object<Conn>,
    dst: Object<MrRemote>,
    dst_offset: usize,
    src: *const c_char,
    flags: c_int,
    op_context: *const c_void,
) -> c_int {
    call(c"rpma_atomic_write", || {
        let (conn, dst) = (conn.get()?, dst.uncounted()?);
        need(src, "src")?;
        // SAFETY: not null, so valid for 8 bytes, wherever they lie.
        let value = unsafe { src.cast::<[u8; 8]>().read_unaligned() };
        let conn = match &conn.on {
            On::Access(conn) => conn,
            On::Verbs(conn) => {
                return conn.atomic_write(posting(flags, op_context)?, (dst.verbs(), dst_offset), value);
            }
        };
        let (signal, connection) = (signal(flags)?, conn.connection());
        let value = u64::from_le_bytes(value);
        let to = dst.access()?.region(connection)?;
        posted(connection, signal, op_context, |batch| batch.atomic_write(to, dst_offset as u64, value))
    })
}

/// Whether the flush is allowed.
fn check_flush(conn: &AccessConn, dst: &AccessMrRemote, is_persistent: bool) -> Result<(), Failure> {
    if !dst.may_flush(is_persistent) {
        let kind = if is_persistent { "persistent" } else { "visibility" };
        return Err(Failure::new(
            Code::NotSupported,
            format!("the memory was not registered for flushes of type {kind}"),
        ));
    }
    if is_persistent && !conn.claims_direct_write.load(Ordering::Relaxed) {
        let why = "the other side does not claim direct write to pmem: apply its peer configuration first";
        return Err(Failure::new(Code::NotSupported, why));
    }
    Ok(())
}

/// The level that a flush of the requested kind reaches on that memory.
fn level(dst: &AccessMrRemote, region: &RemoteRegion, is_persistent: bool) -> Result<Durability, Failure> {
    const NAME: &CStr = c"rpma_flush";
    if !is_persistent {
        return Ok(Durability::Visible);
    }
    if region.promise(Durability::PowerFailure).is_some() {
        return Ok(Durability::PowerFailure);
    }
    let (kind, strongest) = (region.kind(), region.strongest());
    if settings().is_strict {
        let why = format!(
            "the other side claims direct write to pmem, but its memory is {kind}, which gives no more than {strongest}"
        );
        return Err(Failure::new(Code::NotSupported, why));
    }
    if dst.warns() {
        log(
            Level::Warning,
            NAME,
            &format!(
                "PERSISTENT FLUSHES WILL NOT SURVIVE LOSS OF POWER: the other side claims direct write to pmem, but its memory \
                 is {kind}, which gives no more than {strongest}; they reach that. PMOF_STRICT=1 refuses them instead"
            ),
        );
    }
    Ok(strongest)
}

/// Posts a flush: what was written to this memory before becomes persistent (type 0) or visible (type 1). It covers all of the
/// memory, as a flush of librpma does, whatever the range.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_flush(
    conn: Object<Conn>,
    dst: Object<MrRemote>,
    dst_offset: usize,
    len: usize,
    flush_type: c_int,
    flags: c_int,
    op_context: *const c_void,
) -> c_int {
    call(c"rpma_flush", || {
        let (conn, dst) = (conn.get()?, dst.uncounted()?);
        let is_persistent = match flush_type {
            FLUSH_PERSISTENT => true,
            FLUSH_VISIBILITY => false,
            _ => return Err(Failure::invalid(format!("there is no flush type {flush_type}"))),
        };
        let conn = match &conn.on {
            On::Access(conn) => conn,
            On::Verbs(conn) => {
                let posting = posting(flags, op_context)?;
                return conn.flush(posting, (dst.verbs(), dst_offset), len, is_persistent);
            }
        };
        let (signal, dst) = (signal(flags)?, dst.access()?);
        check_flush(conn, dst, is_persistent)?;
        let connection = conn.connection();
        let region = dst.region(connection)?;
        if (dst_offset as u64).checked_add(len as u64).is_none_or(|end| end > region.len_bytes()) {
            return Err(Failure::invalid("the range does not lie in the memory"));
        }
        let level = level(dst, region, is_persistent)?;
        single(connection, signal, op_context).flush(region, .., level)?;
        Ok(())
    })
}

/// Posts a message.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_send(
    conn: Object<Conn>,
    src: Object<MrLocal>,
    offset: usize,
    len: usize,
    flags: c_int,
    op_context: *const c_void,
) -> c_int {
    call(c"rpma_send", || send(conn, src, offset, len, flags, None, op_context))
}

/// Posts a message that passes a number to its receive.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_send_with_imm(
    conn: Object<Conn>,
    src: Object<MrLocal>,
    offset: usize,
    len: usize,
    flags: c_int,
    immediate: u32,
    op_context: *const c_void,
) -> c_int {
    call(c"rpma_send_with_imm", || send(conn, src, offset, len, flags, Some(immediate), op_context))
}

/// Common code of the two send functions.
fn send(
    conn: Object<Conn>,
    src: Object<MrLocal>,
    offset: usize,
    len: usize,
    flags: c_int,
    immediate: Option<u32>,
    op_context: *const c_void,
) -> Result<(), Failure> {
    let conn = conn.get()?;
    let conn = match &conn.on {
        On::Access(conn) => conn,
        On::Verbs(conn) => {
            let from = src.uncounted_if_any()?.map(MrLocal::verbs).transpose()?;
            return conn.send(posting(flags, op_context)?, (from, offset), len, immediate);
        }
    };
    let (signal, connection) = (signal(flags)?, conn.connection());
    let from: Source<'_> = slice(&conn.peer, src, offset, len)?.into();
    posted(connection, signal, op_context, |batch| match immediate {
        Some(immediate) => batch.send_with_immediate(from, immediate),
        None => batch.send(from),
    })
}

/// Posts a receive.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_recv(
    conn: Object<Conn>,
    dst: Object<MrLocal>,
    offset: usize,
    len: usize,
    op_context: *const c_void,
) -> c_int {
    call(c"rpma_recv", || {
        let conn = conn.get()?;
        let conn = match &conn.on {
            On::Access(conn) => conn,
            On::Verbs(conn) => {
                let into = dst.uncounted_if_any()?.map(MrLocal::verbs).transpose()?;
                return conn.receive((into, offset), len, op_context);
            }
        };
        let into = slice(&conn.peer, dst, offset, len)?;
        conn.connection().receive(into, op_context.addr() as u64)?;
        Ok(())
    })
}
