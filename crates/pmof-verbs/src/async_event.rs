//! What a device reports out of band.

use std::{
    io, mem,
    os::fd::{AsFd, BorrowedFd},
};

use pmof_verbs_sys as sys;

use crate::{Device, VerbsError};

/// An asynchronous event of a device. The numbers of queue pairs are those of [`crate::QueuePair::number`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// The queue pair is in error for a reason of the device.
    QueuePairFatal {
        /// Which.
        qp_num: u32,
    },
    /// A request of the peer was invalid; the queue pair is in error.
    QueuePairRequestError {
        /// Which.
        qp_num: u32,
    },
    /// A request of the peer touched memory that it may not; the queue pair is in error.
    QueuePairAccessError {
        /// Which.
        qp_num: u32,
    },
    /// A queue pair in error has taken its last receive from its shared queue.
    LastReceiveTaken {
        /// Which.
        qp_num: u32,
    },
    /// A completion queue overflowed or failed; the queue pairs on it are in error.
    CompletionQueueError,
    /// A shared receive queue failed.
    SharedReceiveQueueError,
    /// A shared receive queue fell below its limit.
    SharedReceiveQueueLow,
    /// A port can be used.
    PortActive {
        /// Which, from 1.
        port: u8,
    },
    /// A port cannot be used any more.
    PortError {
        /// Which, from 1.
        port: u8,
    },
    /// The device does not work any more. Everything on it has failed.
    DeviceFatal,
    /// Anything else, by its number in `enum ibv_event_type`.
    Other {
        /// The number.
        number: u32,
    },
}

impl Device {
    /// The next asynchronous event, if one is there. Each event is handed out once, among all handles to the device.
    pub fn next_async_event(&self) -> Result<Option<AsyncEvent>, VerbsError> {
        let verbs = self.verbs();
        // SAFETY: all zeroes are a valid event.
        let mut event: sys::ibv_async_event = unsafe { mem::zeroed() };
        // SAFETY: the device keeps its context open; the event can be written.
        if unsafe { (verbs.ibv_get_async_event)(self.context(), &raw mut event) } != 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(VerbsError::call("ibv_get_async_event", self.name(), error)),
            };
        }
        // SAFETY: the library filled the event in; until it is acknowledged, nobody frees the object that it names.
        let typed = unsafe { typed(&event) };
        // SAFETY: the event is the library's, and is acknowledged this once.
        unsafe { (verbs.ibv_ack_async_event)(&raw mut event) };
        Ok(Some(typed))
    }

    /// The asynchronous events that are there, taken as the iterator goes. An error is the last item.
    pub fn async_events(&self) -> impl Iterator<Item = Result<AsyncEvent, VerbsError>> {
        let mut has_failed = false;
        std::iter::from_fn(move || {
            let next = if has_failed { None } else { self.next_async_event().transpose() };
            has_failed = matches!(next, Some(Err(_)));
            next
        })
    }

    /// Readable when an asynchronous event is there.
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context owns the descriptor, and the device keeps the context open.
        unsafe { BorrowedFd::borrow_raw((*self.context()).async_fd) }
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.async_fd()
    }
}

/// # Safety
///
/// The library filled the event in, and it is not acknowledged yet.
unsafe fn typed(event: &sys::ibv_async_event) -> AsyncEvent {
    // SAFETY: the type of the event says which field is there; an event of a queue pair names one that is alive.
    let qp_num = || unsafe { (*event.element.qp).qp_num };
    // SAFETY: the type of the event says which field is there.
    let port = || unsafe { u8::try_from(event.element.port_num).unwrap_or(0) };
    match event.event_type {
        sys::IBV_EVENT_QP_FATAL => AsyncEvent::QueuePairFatal { qp_num: qp_num() },
        sys::IBV_EVENT_QP_REQ_ERR => AsyncEvent::QueuePairRequestError { qp_num: qp_num() },
        sys::IBV_EVENT_QP_ACCESS_ERR => AsyncEvent::QueuePairAccessError { qp_num: qp_num() },
        sys::IBV_EVENT_QP_LAST_WQE_REACHED => AsyncEvent::LastReceiveTaken { qp_num: qp_num() },
        sys::IBV_EVENT_CQ_ERR => AsyncEvent::CompletionQueueError,
        sys::IBV_EVENT_SRQ_ERR => AsyncEvent::SharedReceiveQueueError,
        sys::IBV_EVENT_SRQ_LIMIT_REACHED => AsyncEvent::SharedReceiveQueueLow,
        sys::IBV_EVENT_PORT_ACTIVE => AsyncEvent::PortActive { port: port() },
        sys::IBV_EVENT_PORT_ERR => AsyncEvent::PortError { port: port() },
        sys::IBV_EVENT_DEVICE_FATAL => AsyncEvent::DeviceFatal,
        number => AsyncEvent::Other { number },
    }
}
