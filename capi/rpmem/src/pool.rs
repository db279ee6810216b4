//! The functions of the interface.

use std::{
    ffi::{c_int, c_uint, c_void},
    ops::Range,
    ptr, slice,
    sync::Arc,
};

use libc::c_char;
use pmof_control::{OpenFor, SetName};
use pmof_locks::Mutex;
use pmof_mem::{Lent, Memory, causes, forks::Process};
use pmof_pool::{Atomicity, Lane, Receipt, RemoteSetOptions, TargetUrl};
use pmof_pool_set::{ATTRIBUTES_LEN_BYTES, Attributes};

use crate::{
    error::{Failure, call, text},
    log, settings,
};

/// Bytes of a page: what the pool's memory begins and ends at.
const PAGE_BYTES: usize = 4096;

/// The versions that this library provides.
const MAJOR_VERSION: c_uint = 1;
const MINOR_VERSION: c_uint = 3;

const RELAXED: c_uint = 1;
const REMOVE_FORCE: c_int = 1;
const REMOVE_POOL_SET: c_int = 2;

/// An open pool, `RPMEMpool` of the header.
#[derive(Debug)]
pub struct RpmemPool {
    remote: pmof_pool::Pool,
    /// The lanes that the application asked for, by number.
    lanes: Box<[Mutex<Lane>]>,
    /// The process that opened it; its child must not speak on the same connection.
    process: Process,
}

/// `struct rpmem_pool_attr`.
pub type PoolAttributes = [u8; ATTRIBUTES_LEN_BYTES];

/// The common arguments of create and open.
struct Place {
    url: TargetUrl,
    set: SetName,
    memory: Arc<Lent>,
    lanes: u32,
}

impl Place {
    /// # Safety
    ///
    /// The pointers are null or as librpmem has them: C strings, and memory that stays mapped as long as the pool is open.
    unsafe fn new(
        target: *const c_char,
        set: *const c_char,
        address: *mut c_void,
        len_bytes: usize,
        lanes: *const c_uint,
    ) -> Result<Self, Failure> {
        // SAFETY: both are null or end in a NUL.
        let (url, set) = unsafe { place(target, set) }?;
        if lanes.is_null() {
            return Err(Failure::invalid("nlanes is NULL"));
        }
        // SAFETY: not null.
        let lanes = unsafe { *lanes };
        if lanes == 0 {
            return Err(Failure::invalid("nlanes is 0: ask for at least one lane"));
        }
        if address.is_null() {
            return Err(Failure::invalid("pool_addr is NULL: pass the memory that the remote pool is a copy of"));
        }
        if len_bytes == 0 || len_bytes % PAGE_BYTES != 0 || address.addr() % PAGE_BYTES != 0 {
            let why = format!(
                "the pool's memory, {len_bytes} bytes at {address:p}, must begin and end at multiples of {PAGE_BYTES} bytes"
            );
            return Err(Failure::invalid(why));
        }
        // SAFETY: the range is not empty and whole pages, as checked above; `len_bytes` bytes stay mapped there until the pool is closed, as the
        // contract of this function asks, and closing ends all use of them.
        let memory = unsafe { Memory::borrow(address.expose_provenance() as u64, len_bytes as u64, None) };
        let memory = memory.map_err(|error| Failure::invalid(format!("the pool's memory: {}", causes(&error))))?;
        Ok(Self { url, set, memory: Arc::new(Lent::new(memory)), lanes: settings::lanes(lanes) })
    }

    /// The options for reaching the pool. Once it is closed, this library does not access the memory.
    fn options(&self) -> RemoteSetOptions {
        let (url, set) = (self.url.clone(), self.set.clone());
        RemoteSetOptions::new(url, set).target(settings::target_options()).mirror(Arc::clone(&self.memory) as _)
    }

    fn finish(&self, pool: pmof_pool::Pool, lanes: *mut c_uint) -> *mut RpmemPool {
        let made: Box<[_]> = (0..self.lanes).map(|_| Mutex::new(pool.lane())).collect();
        // SAFETY: `new` found that it is not null; rpmem_open and rpmem_create are given a valid `nlanes` or null.
        unsafe { *lanes = self.lanes };
        Box::into_raw(Box::new(RpmemPool { remote: pool, lanes: made, process: Process::current() }))
    }
}

impl RpmemPool {
    /// Runs an operation on a lane whose following writes have `atomicity`.
    fn with_lane<T>(
        &self,
        number: c_uint,
        atomicity: Atomicity,
        act: impl FnOnce(&mut Lane) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let Some(lane) = self.lanes.get(number as usize) else {
            let lanes = self.lanes.len();
            let why = format!("there is no lane {number}: the pool was opened with {lanes}, counted from 0");
            return Err(Failure::invalid(why));
        };
        let mut lane = lane.lock();
        lane.set_atomicity(atomicity);
        act(&mut lane)
    }

    fn persist(&self, lane: c_uint, range: Range<u64>, atomicity: Atomicity) -> Result<(), Failure> {
        self.with_lane(lane, atomicity, |lane| {
            tell(&lane.persist_range(range)?);
            Ok(())
        })
    }
}

/// Logs the receipt, which the interface cannot return.
fn tell(receipt: &Receipt) {
    ::log::debug!(target: "librpmem", "{receipt}");
}

/// The range of `len_bytes` from `offset`; an end beyond 64 bits is beyond every pool.
fn range(offset: usize, len_bytes: usize) -> Range<u64> {
    offset as u64..(offset as u64).saturating_add(len_bytes as u64)
}

/// # Safety
///
/// Both are null or C strings.
unsafe fn place(target: *const c_char, set: *const c_char) -> Result<(TargetUrl, SetName), Failure> {
    // SAFETY: both are null or end in a NUL.
    let (target, set) = unsafe { (text(target, "target")?, text(set, "pool_set_name")?) };
    Ok((TargetUrl::Ssh(target.parse()?), SetName::new(set)?))
}

/// Makes the pool of a remote pool set and opens it; see the header.
///
/// # Safety
///
/// Strings are null or C strings, `nlanes` and `create_attr` null or what the header says, and the memory stays mapped as it is
/// until the pool is closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpmem_create(
    target: *const c_char,
    pool_set_name: *const c_char,
    pool_addr: *mut c_void,
    pool_size: usize,
    nlanes: *mut c_uint,
    create_attr: *const PoolAttributes,
) -> *mut RpmemPool {
    log::start();
    let made = call("rpmem_create", || {
        // SAFETY: strings end in a NUL or are null, and the memory stays mapped until the pool is closed.
        let place = unsafe { Place::new(target, pool_set_name, pool_addr, pool_size, nlanes) }?;
        // SAFETY: null or attributes, which nobody changes during the call.
        let attributes = unsafe { create_attr.as_ref() }.map(Attributes::from_bytes);
        let attributes = attributes.filter(|attributes| !attributes.is_zero());
        let pool = place.options().create(pool_size as u64, attributes.as_ref())?;
        Ok(place.finish(pool, nlanes))
    });
    made.unwrap_or(ptr::null_mut())
}

/// Opens the pool of a remote pool set; see the header.
///
/// # Safety
///
/// As [`rpmem_create`]; `open_attr` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpmem_open(
    target: *const c_char,
    pool_set_name: *const c_char,
    pool_addr: *mut c_void,
    pool_size: usize,
    nlanes: *mut c_uint,
    open_attr: *mut PoolAttributes,
) -> *mut RpmemPool {
    log::start();
    let opened = call("rpmem_open", || {
        // SAFETY: strings end in a NUL or are null, and the memory stays mapped until the pool is closed.
        let place = unsafe { Place::new(target, pool_set_name, pool_addr, pool_size, nlanes) }?;
        let opened = place.options().open(pool_size as u64, OpenFor::Write)?;
        let attributes = opened.attributes();
        let pool = place.finish(opened, nlanes);
        if !open_attr.is_null() {
            // SAFETY: not null, so it may be written.
            unsafe { *open_attr = attributes.unwrap_or_default().to_bytes() };
        }
        Ok(pool)
    });
    opened.unwrap_or(ptr::null_mut())
}

/// Changes what the pool's headers say; see the header.
///
/// # Safety
///
/// `rpp` is null or an open pool, `attr` null or attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpmem_set_attr(rpp: *mut RpmemPool, attr: *const PoolAttributes) -> c_int {
    // SAFETY: null or attributes, which nobody changes during the call.
    let attributes = unsafe { attr.as_ref() }.map(Attributes::from_bytes).unwrap_or_default();
    // SAFETY: `rpp` is null or was made by `Place::finish` and not closed.
    unsafe { on_pool("rpmem_set_attr", rpp, |pool| Ok(pool.remote.set_attributes(&attributes)?)) }
}

/// Closes a pool; see the header.
///
/// # Safety
///
/// `rpp` is null or an open pool that no other call uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpmem_close(rpp: *mut RpmemPool) -> c_int {
    let closed = call("rpmem_close", || {
        if rpp.is_null() {
            return Err(Failure::invalid("rpp is NULL"));
        }
        // SAFETY: not null, so made by `Place::finish` and not closed before.
        let pool = unsafe { Box::from_raw(rpp) };
        if !pool.process.is_current() {
            // The pool is the parent's: its connection must not be ended.
            std::mem::forget(pool);
            return Ok(());
        }
        // A C program may check only the result of this call.
        let lost = pool.remote.check_replicas();
        pool.remote.close()?;
        Ok(lost?)
    });
    closed.map_or(-1, |()| 0)
}

/// Copies a range of the local memory to the pool and makes it durable; see the header.
///
/// # Safety
///
/// `rpp` is null or an open pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpmem_persist(
    rpp: *mut RpmemPool,
    offset: usize,
    length: usize,
    lane: c_uint,
    flags: c_uint,
) -> c_int {
    let persist = |pool: &RpmemPool| pool.persist(lane, range(offset, length), atomicity(flags)?);
    // SAFETY: `rpp` is null or was made by `Place::finish` and not closed.
    unsafe { on_pool("rpmem_persist", rpp, persist) }
}

/// Starts to copy a range of the local memory to the pool; see the header.
///
/// # Safety
///
/// `rpp` is null or an open pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpmem_flush(
    rpp: *mut RpmemPool,
    offset: usize,
    length: usize,
    lane: c_uint,
    flags: c_uint,
) -> c_int {
    let flush = |pool: &RpmemPool| {
        pool.with_lane(lane, atomicity(flags)?, |lane| {
            lane.write_range(range(offset, length))?;
            Ok(pool.remote.check_replicas()?)
        })
    };
    // SAFETY: `rpp` is null or was made by `Place::finish` and not closed.
    unsafe { on_pool("rpmem_flush", rpp, flush) }
}

/// Waits until all that was flushed on the lane is durable; see the header.
///
/// # Safety
///
/// `rpp` is null or an open pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpmem_drain(rpp: *mut RpmemPool, lane: c_uint, flags: c_uint) -> c_int {
    let drain = |pool: &RpmemPool| {
        if flags != 0 {
            return Err(Failure::invalid(format!("flags {flags:#x}: none is defined")));
        }
        pool.with_lane(lane, Atomicity::default(), |lane| {
            if lane.is_flushed() {
                return Ok(pool.remote.check_replicas()?);
            }
            tell(&lane.persist()?);
            Ok(())
        })
    };
    // SAFETY: `rpp` is null or was made by `Place::finish` and not closed.
    unsafe { on_pool("rpmem_drain", rpp, drain) }
}

/// Copies a range of the local memory to the pool and makes it durable; see the header.
///
/// # Safety
///
/// `rpp` is null or an open pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpmem_deep_persist(rpp: *mut RpmemPool, offset: usize, length: usize, lane: c_uint) -> c_int {
    let persist = |pool: &RpmemPool| pool.persist(lane, range(offset, length), Atomicity::Words);
    // SAFETY: `rpp` is null or was made by `Place::finish` and not closed.
    unsafe { on_pool("rpmem_deep_persist", rpp, persist) }
}

/// Copies a range of the pool to `buff`; see the header.
///
/// # Safety
///
/// `rpp` is null or an open pool; `buff` is null or has room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpmem_read(
    rpp: *mut RpmemPool,
    buff: *mut c_void,
    offset: usize,
    length: usize,
    lane: c_uint,
) -> c_int {
    let read = |pool: &RpmemPool| {
        if length == 0 {
            return pool.with_lane(lane, Atomicity::default(), |lane| Ok(lane.read(offset as u64, &mut [])?));
        }
        if buff.is_null() {
            return Err(Failure::invalid("buff is NULL"));
        }
        // SAFETY: not null, so it has room for `length` bytes, which the application leaves to this call until it returns.
        let into = unsafe { slice::from_raw_parts_mut(buff.cast::<u8>(), length) };
        pool.with_lane(lane, Atomicity::default(), |lane| Ok(lane.read(offset as u64, into)?))
    };
    // SAFETY: `rpp` is null or was made by `Place::finish` and not closed.
    unsafe { on_pool("rpmem_read", rpp, read) }
}

/// Deletes the parts of a remote pool set; see the header.
///
/// # Safety
///
/// Both strings are null or C strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpmem_remove(target: *const c_char, pool_set: *const c_char, flags: c_int) -> c_int {
    log::start();
    let removed = call("rpmem_remove", || {
        if flags & !(REMOVE_FORCE | REMOVE_POOL_SET) != 0 {
            return Err(Failure::invalid(format!("flags {flags:#x}: only FORCE (1) and POOL_SET (2) are defined")));
        }
        // SAFETY: both are null or end in a NUL.
        let (url, set) = unsafe { place(target, pool_set) }?;
        let (force, set_file) = (flags & REMOVE_FORCE != 0, flags & REMOVE_POOL_SET != 0);
        let remote = RemoteSetOptions::new(url, set).target(settings::target_options());
        Ok(remote.remove(force, set_file)?)
    });
    removed.map_or(-1, |()| 0)
}

/// Checks whether this library provides a version: null, or why not.
#[unsafe(no_mangle)]
pub extern "C" fn rpmem_check_version(major_required: c_uint, minor_required: c_uint) -> *const c_char {
    if major_required != MAJOR_VERSION {
        return c"librpmem major version mismatch: this library stands in for version 1.3".as_ptr();
    }
    if minor_required > MINOR_VERSION {
        return c"librpmem minor version mismatch: this library stands in for version 1.3".as_ptr();
    }
    ptr::null()
}

fn atomicity(flags: c_uint) -> Result<Atomicity, Failure> {
    match flags {
        0 => Ok(Atomicity::Words),
        RELAXED => Ok(Atomicity::Relaxed),
        _ => Err(Failure::invalid(format!("flags {flags:#x}: only RELAXED (1) is defined"))),
    }
}

/// # Safety
///
/// `rpp` is null or an open pool.
unsafe fn on_pool(
    function: &'static str,
    rpp: *mut RpmemPool,
    body: impl FnOnce(&RpmemPool) -> Result<(), Failure>,
) -> c_int {
    let done = call(function, || {
        // SAFETY: null, or made by `Place::finish` and not closed: shared by all threads until then.
        let Some(pool) = (unsafe { rpp.as_ref() }) else { return Err(Failure::invalid("rpp is NULL")) };
        if !pool.process.is_current() {
            let why = "the pool was opened before a fork: only the process that opened it may use it";
            return Err(Failure::new(libc::ECANCELED, why));
        }
        body(pool)
    });
    done.map_or(-1, |()| 0)
}
