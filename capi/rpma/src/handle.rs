//! The targets of the application's pointers.
//!
//! A handle's memory is never given back to the allocator, only to the next handle of its kind, and its tag says whether
//! it is in use. So the use of a deleted handle is detected until its memory is reused, which is delayed as long
//! as other memory is available.

use std::{
    cell::UnsafeCell,
    collections::VecDeque,
    ffi::c_int,
    ops::Deref,
    sync::{
        Once,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use pmof_mem::forks::{Holdable, Kept};

use crate::{contexts::KNOWN, error::Failure, long::WHOLE, shown::GIVEN};

/// Deleted handles that wait before their memory is reused.
const RESTING: usize = 256;

/// Number of forks of this process: handles from before the last fork are unusable here, since their threads and devices
/// are the parent's.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// A kind of handle.
pub trait Kind: Sized + 'static {
    /// The type's name in C.
    const NAME: &'static str;

    /// A unique number, less than [`KINDS`].
    const NUMBER: u32;

    /// Ends the waits of calls that use an object that is being deleted. Called again until there are none.
    fn end_waits(&self) {}
}

/// The tag of a handle that is deleted but used by calls that began before; 0 if there are none.
const LEAVING: u64 = 1;

/// How long a deletion waits for calls that use the object: they are short, or their waits are ended. An object that is still in use
/// then is dropped by its last user.
const LEAVE_TURNS: u32 = 5000;
const LEAVE_TURN: Duration = Duration::from_micros(100);

/// More than there are kinds.
const KINDS: usize = 12;

/// Deleted handles by kind and address.
static RESTING_HANDLES: Kept<[VecDeque<usize>; KINDS]> = Kept::new([const { VecDeque::new() }; KINDS]);

/// What a pointer of the application points to.
#[derive(Debug)]
pub struct Handle<T> {
    tag: AtomicU64,
    /// Calls that use the value now, and one more until it is deleted. Calls that find it deleted are counted for a moment too.
    users: AtomicU32,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: the value is changed only by `create`, before the tag shows it, and when it is deleted and no call uses it any more.
unsafe impl<T: Send + Sync> Sync for Handle<T> {}

/// An object in use by a call: it is not dropped before this is.
#[derive(Debug)]
pub(crate) struct Used<'a, T: Kind + Send + Sync> {
    handle: &'a Handle<T>,
    value: &'a T,
}

/// Detects whether an object was deleted since a call began to use it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deletion<'a> {
    tag: &'a AtomicU64,
    name: &'static str,
}

impl Deletion<'_> {
    /// Fails if it was deleted; called by calls that wait.
    pub(crate) fn check(self) -> Result<(), Failure> {
        if self.tag.load(Ordering::Acquire) > LEAVING {
            return Ok(());
        }
        Err(Failure::invalid(format!("the {} was deleted during the call", self.name)))
    }
}

impl<'a, T: Kind + Send + Sync> Used<'a, T> {
    pub(crate) fn deletion(&self) -> Deletion<'a> {
        Deletion { tag: &self.handle.tag, name: T::NAME }
    }
}

impl<T: Kind + Send + Sync> Deref for Used<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.value
    }
}

impl<T: Kind + Send + Sync> Drop for Used<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.handle.leave();
    }
}

/// The locks of this process that a child needs, in lock order.
fn kept() -> [&'static dyn Holdable; 6] {
    let [devices, searching] = pmof_verbs::kept_over_forks();
    [&KNOWN, &WHOLE, &GIVEN, &RESTING_HANDLES, devices, searching]
}

extern "C" fn before_fork() {
    kept().into_iter().for_each(Holdable::hold);
}

extern "C" fn behind_fork() {
    // SAFETY: the C library calls this behind `before_fork`, in the thread that forks.
    kept().into_iter().for_each(|lock| unsafe { lock.release() });
}

extern "C" fn behind_fork_in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    behind_fork();
}

/// The number of forks between the first process and this one.
pub(crate) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// The tag of a live handle: its kind, and in which process it was made.
fn tag_of<T: Kind>() -> u64 {
    const MAGIC: u32 = 0x504d_0000;
    u64::from(MAGIC | T::NUMBER) << 32 | u64::from(forks())
}

impl<T: Kind + Send + Sync> Handle<T> {
    /// A new handle; it is the application's to [`delete`](Self::delete).
    pub(crate) fn create(value: T) -> *mut Self {
        static WATCH_FORKS: Once = Once::new();
        WATCH_FORKS.call_once(|| {
            // First: its locks are taken under these.
            pmof_mem::forks::watch();
            // SAFETY: the functions lock, count and unlock, all of which may be done around a fork.
            unsafe {
                libc::pthread_atfork(Some(before_fork), Some(behind_fork), Some(behind_fork_in_child));
            }
        });
        let rested = Self::take_rested();
        let handle = rested.unwrap_or_else(|| {
            Box::leak(Box::new(Self { tag: AtomicU64::new(0), users: AtomicU32::new(0), value: UnsafeCell::new(None) }))
        });
        // SAFETY: nobody else has the handle: it is new, or was deleted.
        unsafe { *handle.value.get() = Some(value) };
        handle.users.fetch_add(1, Ordering::AcqRel);
        handle.tag.store(tag_of::<T>(), Ordering::Release);
        std::ptr::from_ref(handle).cast_mut()
    }

    /// The handle of this kind that was deleted first, where there are many.
    fn take_rested() -> Option<&'static Self> {
        let mut all = RESTING_HANDLES.lock();
        let resting = &mut all[T::NUMBER as usize];
        let address = if resting.len() > RESTING { resting.pop_front() } else { None }?;
        // SAFETY: what is kept under this number are handles of this kind, whose provenance `delete` has exposed and which are never
        // given back to the allocator.
        unsafe { std::ptr::with_exposed_provenance::<Self>(address).as_ref() }
    }

    /// What a pointer of the application points to. Null, deleted handles and those of a process that forked are refused.
    ///
    /// # Safety
    ///
    /// `pointer` is null or was returned by [`create`](Self::create).
    #[inline]
    pub(crate) unsafe fn get<'a>(pointer: *const Self) -> Result<Used<'a, T>, Failure> {
        // SAFETY: handles are never given back to the allocator.
        let handle = unsafe { pointer.as_ref() };
        let Some(handle) = handle else { return Err(null::<T>()) };
        // A deletion either finds this call counted or has changed the tag before.
        handle.users.fetch_add(1, Ordering::AcqRel);
        if handle.tag.load(Ordering::Acquire) == tag_of::<T>() {
            // SAFETY: `create` sets the tag behind the value, and `take_value` takes it behind the tag, once no call is counted: there is a
            // value, and it stays as long as this call is counted.
            let value = unsafe { (*handle.value.get()).as_ref().unwrap_unchecked() };
            return Ok(Used { handle, value });
        }
        let refused = handle.refuse();
        handle.leave();
        Err(refused)
    }

    /// As [`get`](Self::get), without counting: for memory, which threads on all processors share, and whose calls would wait for
    /// each other's counting.
    ///
    /// # Safety
    ///
    /// As for `get`, and the handle is not deleted during `'a`.
    #[inline]
    pub(crate) unsafe fn get_uncounted<'a>(pointer: *const Self) -> Result<&'a T, Failure> {
        // SAFETY: handles are never given back to the allocator.
        let handle = unsafe { pointer.as_ref() };
        let Some(handle) = handle else { return Err(null::<T>()) };
        if handle.tag.load(Ordering::Acquire) != tag_of::<T>() {
            return Err(handle.refuse());
        }
        // SAFETY: `create` sets the tag behind the value, which stays until the handle is deleted: not during `'a`, as the caller has it.
        Ok(unsafe { (*handle.value.get()).as_ref().unwrap_unchecked() })
    }

    /// Deletes the handle that `pointer` points at, and makes that null, which it may be already. Calls that wait on it end; what
    /// another call uses longer than half a second is dropped at that call's end.
    ///
    /// # Safety
    ///
    /// `pointer` is null or valid for reads and writes; what it points at is as for [`get`](Self::get).
    pub(crate) unsafe fn delete(pointer: *mut *mut Self) -> Result<(), Failure> {
        // SAFETY: `pointer` is null, or valid for reads and writes and points at null or a handle.
        let Some(handle) = (unsafe { Self::claim(pointer) })? else { return Ok(()) };
        if handle.is_left() {
            drop(handle.take_value());
        }
        handle.leave();
        Ok(())
    }

    /// Deletes the handle as [`delete`](Self::delete) does, and gives its value. `None` where the pointer is null already. One that
    /// another call keeps on using is refused, and stays.
    ///
    /// # Safety
    ///
    /// As for `delete`.
    pub(crate) unsafe fn take(pointer: *mut *mut Self) -> Result<Option<T>, Failure> {
        // SAFETY: `pointer` is null, or valid for reads and writes and points at null or a handle.
        let Some(handle) = (unsafe { Self::claim(pointer) })? else { return Ok(None) };
        if !handle.is_left() {
            handle.tag.store(tag_of::<T>(), Ordering::Release);
            // SAFETY: `claim` found that it is not null, so it is valid for writes.
            unsafe { *pointer = std::ptr::from_ref(handle).cast_mut() };
            return Err(Failure::invalid(format!("the {} is in use by another call", T::NAME)));
        }
        let value = handle.take_value();
        handle.leave();
        Ok(value)
    }

    /// Marks the handle as deleted, and makes the pointer to it null.
    ///
    /// # Safety
    ///
    /// As for [`delete`](Self::delete).
    unsafe fn claim(pointer: *mut *mut Self) -> Result<Option<&'static Self>, Failure> {
        if pointer.is_null() {
            return Err(null::<T>());
        }
        // SAFETY: not null, so valid for reads and writes.
        let place = unsafe { &mut *pointer };
        if place.is_null() {
            return Ok(None);
        }
        // SAFETY: handles are never given back to the allocator.
        let handle: &'static Self = unsafe { &**place };
        if handle.tag.compare_exchange(tag_of::<T>(), LEAVING, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return Err(handle.refuse());
        }
        *place = std::ptr::null_mut();
        Ok(Some(handle))
    }

    /// Ends the waits of the calls that use the claimed object, until there are none. False if one remains.
    fn is_left(&self) -> bool {
        for _ in 0..LEAVE_TURNS {
            // Not a load: a call that is counted later then finds the tag changed.
            if self.users.compare_exchange(1, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return true;
            }
            // SAFETY: the value stays while it has users, and the thread that claimed the handle is one until it takes the value.
            if let Some(value) = unsafe { &*self.value.get() } {
                value.end_waits();
            }
            std::thread::sleep(LEAVE_TURN);
        }
        false
    }

    /// A call ends. The last user of a deleted handle drops the value.
    #[inline]
    fn leave(&self) {
        if self.users.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.left();
        }
    }

    #[cold]
    fn left(&self) {
        drop(self.take_value());
    }

    /// The value, if the handle is deleted, unused, and the value was not taken before.
    fn take_value(&self) -> Option<T> {
        self.tag.compare_exchange(LEAVING, 0, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        // SAFETY: only the thread that clears the tag accesses the value: calls that are counted from here on see no handle in use.
        let value = unsafe { (*self.value.get()).take() };
        RESTING_HANDLES.lock()[T::NUMBER as usize].push_back(std::ptr::from_ref(self).expose_provenance());
        value
    }

    #[cold]
    fn refuse(&self) -> Failure {
        let tag = self.tag.load(Ordering::Relaxed);
        let why = if tag >> 32 == tag_of::<T>() >> 32 {
            "was made before fork(): make peers and connections in the process that uses them"
        } else if tag <= LEAVING {
            "was deleted already"
        } else {
            "is not such an object"
        };
        Failure::invalid(format!("the {} {why}", T::NAME))
    }
}

#[cold]
fn null<T: Kind>() -> Failure {
    Failure::invalid(format!("the pointer to the {} is NULL", T::NAME))
}

/// Names a kind of handle.
macro_rules! kind {
    ($type:ty, $number:literal, $name:literal $(, $end_waits:path)?) => {
        impl $crate::handle::Kind for $type {
            const NAME: &'static str = $name;
            const NUMBER: u32 = $number;
            $(
                fn end_waits(&self) {
                    $end_waits(self);
                }
            )?
        }
    };
}
pub(crate) use kind;

/// Whether the application set its descriptor to non-blocking.
pub(crate) fn is_non_blocking(fd: c_int) -> bool {
    // SAFETY: the call takes numbers only.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    flags >= 0 && flags & libc::O_NONBLOCK != 0
}

/// Sets a descriptor to blocking, as the application expects initially.
pub(crate) fn set_blocking(fd: c_int) {
    // SAFETY: the calls take numbers only.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        if flags >= 0 {
            libc::fcntl(fd, libc::F_SETFL, flags & !libc::O_NONBLOCK);
        }
    }
}
