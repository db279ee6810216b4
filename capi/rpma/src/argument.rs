//! Pointer arguments of the application.
//!
//! Values of these types come only from C, as arguments of functions of the interface, and have the representation of a pointer. Each type
//! states what the prototype promises about the argument; only this file relies on these promises.

use std::ffi::{CStr, c_char};

use crate::{
    error::Failure,
    handle::{Handle, Kind, Used},
};

/// `struct rpma_X *`: null, or the result of a function of the interface, even if deleted since. Handles are never given back to the
/// allocator, so it can always be inspected.
///
/// The application must not delete a memory registration while a call posts with it, as in librpma.
#[derive(Debug)]
#[repr(transparent)]
pub struct Object<T>(*const Handle<T>);

/// `struct rpma_X **` of a function that deletes: null, or valid for reads and writes, of an [`Object`].
#[derive(Debug)]
#[repr(transparent)]
pub struct Slot<T>(*mut *mut Handle<T>);

/// An output argument: null, or valid for a write.
#[derive(Debug)]
#[repr(transparent)]
pub struct Out<T>(*mut T);

/// `const char *`: null, or a C string that stays as it is during the call.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Text(*const c_char);

impl<T> Clone for Object<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Object<T> {}

impl<T> Object<T> {
    /// An object of this library, or null.
    ///
    /// # Safety
    ///
    /// As the type says.
    pub(crate) const unsafe fn of(pointer: *const Handle<T>) -> Self {
        Self(pointer)
    }

    #[inline]
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The pointer, to be kept.
    pub(crate) fn as_ptr(self) -> *mut Handle<T> {
        self.0.cast_mut()
    }
}

impl<T: Kind + Send + Sync> Object<T> {
    /// The object, which stays alive as long as the result. Null, deleted objects and those from before a fork are refused.
    #[inline]
    pub(crate) fn get(self) -> Result<Used<'static, T>, Failure> {
        // SAFETY: null or a handle, as the type says.
        unsafe { Handle::get(self.0) }
    }

    /// The same, where there need not be one.
    #[inline]
    pub(crate) fn get_if_any(self) -> Result<Option<Used<'static, T>>, Failure> {
        if self.is_null() { Ok(None) } else { self.get().map(Some) }
    }

    /// As [`get`](Self::get), without counting: for memory, which threads on all processors share, and whose calls would wait for
    /// each other's counting.
    #[inline]
    pub(crate) fn uncounted(&self) -> Result<&T, Failure> {
        // SAFETY: null or a handle; the application does not delete it while a call, of which the argument is, posts with it.
        unsafe { Handle::get_uncounted(self.0) }
    }

    /// The same, where there need not be one.
    #[inline]
    pub(crate) fn uncounted_if_any(&self) -> Result<Option<&T>, Failure> {
        if self.is_null() { Ok(None) } else { self.uncounted().map(Some) }
    }
}

impl<T: Kind + Send + Sync> Slot<T> {
    /// The object that it holds; `None` where it is null or holds null.
    pub(crate) fn object(&self) -> Option<Object<T>> {
        // SAFETY: null or valid for a read, as the type says, and so is what it holds.
        let object = Object(unsafe { self.0.as_ref() }?.cast_const());
        (!object.is_null()).then_some(object)
    }

    /// See [`Handle::delete`].
    pub(crate) fn delete(self) -> Result<(), Failure> {
        // SAFETY: valid and of a handle, as the type says.
        unsafe { Handle::delete(self.0) }
    }

    /// See [`Handle::take`].
    pub(crate) fn take(self) -> Result<Option<T>, Failure> {
        // SAFETY: valid and of a handle, as the type says.
        unsafe { Handle::take(self.0) }
    }
}

impl<T> Out<T> {
    /// Fails where it is null.
    #[inline]
    pub(crate) fn need(&self, name: &'static str) -> Result<(), Failure> {
        crate::call::need(self.0, name)
    }

    #[inline]
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// Writes the outcome, where it is wanted.
    #[inline]
    pub(crate) fn put(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: not null, so valid for a write, as the type says.
            unsafe { self.0.write(value) };
        }
    }
}

impl Text {
    /// As UTF-8.
    pub(crate) fn as_str(&self, name: &'static str) -> Result<&str, Failure> {
        crate::call::need(self.0, name)?;
        // SAFETY: not null, so a C string that stays during the call, as the type says.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map_err(|_| Failure::invalid(format!("{name} is not UTF-8")))
    }
}
