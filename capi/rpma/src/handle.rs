//! What the pointers that the application holds point to.
//!
//! A handle's memory is never given back to the allocator, only to the next handle of its kind, and its tag says whether
//! it is in use. So the use of a deleted handle is noticed as long as its place was not taken again, which is put off for
//! as long as there are others.

use std::{
    cell::UnsafeCell,
    collections::VecDeque,
    ffi::c_int,
    sync::{
        Once,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use pmof_mem::forks::{Holdable, Kept};

use crate::{context::KNOWN, error::Failure, long::WHOLE};

/// Deleted handles that wait before their place is taken again.
const RESTING: usize = 256;

/// Times that this process was forked: handles made before the last time are of no use here, since their threads and devices
/// stayed behind.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// A kind of handle.
pub trait Kind: Sized + 'static {
    /// The type's name in C.
    const NAME: &'static str;

    /// A number of its own, less than [`KINDS`].
    const NUMBER: u32;
}

/// More than there are kinds.
const KINDS: usize = 12;

/// Deleted handles by kind and address.
static RESTING_HANDLES: Kept<[VecDeque<usize>; KINDS]> = Kept::new([const { VecDeque::new() }; KINDS]);

/// What a pointer of the application points to.
#[derive(Debug)]
pub struct Handle<T> {
    tag: AtomicU64,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: the value is changed only by `new` and `delete`, which by the rules of the interface no other use of the handle
// coincides with.
unsafe impl<T: Send + Sync> Sync for Handle<T> {}

/// The locks of this process that a child needs, in the order in which one may be taken under another.
fn kept() -> [&'static dyn Holdable; 6] {
    let [devices, searching] = pmof_verbs::kept_over_forks();
    [&KNOWN, &WHOLE, &RESTING_HANDLES, devices, searching, pmof_mem::forks::kept()]
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

/// The tag of a live handle: its kind, and in which process it was made.
fn tag_of<T: Kind>() -> u64 {
    const MAGIC: u32 = 0x504d_0000;
    u64::from(MAGIC | T::NUMBER) << 32 | u64::from(FORKS.load(Ordering::Relaxed))
}

impl<T: Kind + Send + Sync> Handle<T> {
    /// A new handle; it is the application's to [`delete`](Self::delete).
    pub(crate) fn create(value: T) -> *mut Self {
        static WATCH_FORKS: Once = Once::new();
        // SAFETY: the functions lock, count and unlock, all of which may be done around a fork.
        WATCH_FORKS.call_once(|| unsafe {
            libc::pthread_atfork(Some(before_fork), Some(behind_fork), Some(behind_fork_in_child));
        });
        let rested = Self::take_rested();
        let handle = rested
            .unwrap_or_else(|| Box::leak(Box::new(Self { tag: AtomicU64::new(0), value: UnsafeCell::new(None) })));
        // SAFETY: nobody else has the handle: it is new, or was deleted.
        unsafe { *handle.value.get() = Some(value) };
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
    /// `pointer` is null or was returned by [`create`](Self::create), and the handle is not deleted during `'a`.
    #[inline]
    pub(crate) unsafe fn get<'a>(pointer: *const Self) -> Result<&'a T, Failure> {
        // SAFETY: handles are never given back to the allocator.
        let handle = unsafe { pointer.as_ref() };
        let Some(handle) = handle else { return Err(null::<T>()) };
        if handle.tag.load(Ordering::Acquire) != tag_of::<T>() {
            return Err(handle.refuse());
        }
        // SAFETY: the tag says that there is a value, which nobody changes now by the contract of this function.
        unsafe { &*handle.value.get() }.as_ref().ok_or_else(|| handle.refuse())
    }

    /// As [`get`](Self::get), where there need not be one.
    ///
    /// # Safety
    ///
    /// As for `get`.
    #[inline]
    pub(crate) unsafe fn get_if_any<'a>(pointer: *const Self) -> Result<Option<&'a T>, Failure> {
        if pointer.is_null() {
            return Ok(None);
        }
        // SAFETY: the same contract.
        unsafe { Self::get(pointer) }.map(Some)
    }

    /// Takes the value out of the handle that `pointer` points at, and makes that null. `None` where it is null already.
    ///
    /// # Safety
    ///
    /// `pointer` is null or valid for reads and writes; what it points at is as for [`get`](Self::get), and nobody else uses it.
    pub(crate) unsafe fn delete(pointer: *mut *mut Self) -> Result<Option<T>, Failure> {
        if pointer.is_null() {
            return Err(null::<T>());
        }
        // SAFETY: valid by the contract of this function.
        let place = unsafe { &mut *pointer };
        if place.is_null() {
            return Ok(None);
        }
        // SAFETY: handles are never given back to the allocator.
        let handle: &'static Self = unsafe { &**place };
        let tag = tag_of::<T>();
        if handle.tag.compare_exchange(tag, 0, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return Err(handle.refuse());
        }
        // SAFETY: whoever clears the tag is alone with the value.
        let value = unsafe { (*handle.value.get()).take() };
        RESTING_HANDLES.lock()[T::NUMBER as usize].push_back(std::ptr::from_ref(handle).expose_provenance());
        *place = std::ptr::null_mut();
        Ok(value)
    }

    #[cold]
    fn refuse(&self) -> Failure {
        let tag = self.tag.load(Ordering::Relaxed);
        let why = if tag >> 32 == tag_of::<T>() >> 32 {
            "was made before fork(): make peers and connections in the process that uses them"
        } else if tag == 0 {
            "was deleted already"
        } else {
            "is no such object"
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
    ($type:ty, $number:literal, $name:literal) => {
        impl $crate::handle::Kind for $type {
            const NAME: &'static str = $name;
            const NUMBER: u32 = $number;
        }
    };
}
pub(crate) use kind;

/// Whether a descriptor that the application was given is set not to block.
pub(crate) fn is_non_blocking(fd: c_int) -> bool {
    // SAFETY: the call takes numbers only.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    flags >= 0 && flags & libc::O_NONBLOCK != 0
}

/// Sets a descriptor to block, as the application expects it to be at first.
pub(crate) fn set_blocking(fd: c_int) {
    // SAFETY: the calls take numbers only.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        if flags >= 0 {
            libc::fcntl(fd, libc::F_SETFL, flags & !libc::O_NONBLOCK);
        }
    }
}
