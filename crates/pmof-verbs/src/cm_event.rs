//! What the connection manager reports.

use std::slice;

use pmof_verbs_sys as sys;

use crate::CmId;

/// The status of a rejection when nobody listens there.
pub const REJECT_NO_LISTENER: i32 = 8;
/// The status of a rejection by the application that listens there.
pub const REJECT_BY_APPLICATION: i32 = 28;

/// An event of a [`CmId`].
#[derive(Debug)]
#[non_exhaustive]
pub struct CmEvent {
    /// The [`CmId::key`] of the identifier; of a connection request, that of the listener.
    pub id: u64,
    /// What happened.
    pub kind: CmEventKind,
}

/// What happened to a [`CmId`]. A negative status is an `errno` value, a positive one a reason of the CM protocol.
///
/// Private data are padded with zeroes by the network: carry a length of your own.
#[derive(Debug)]
#[non_exhaustive]
pub enum CmEventKind {
    /// The address is resolved: the identifier has a device.
    AddressResolved,
    /// There is no way to the address, or nobody answers for it (`-ETIMEDOUT`).
    AddressError {
        /// Why.
        status: i32,
    },
    /// The route is resolved: make the queue pair and connect.
    RouteResolved,
    /// There is no route.
    RouteError {
        /// Why.
        status: i32,
    },
    /// A peer wants to connect to a listener.
    ConnectRequest {
        /// The new connection, on the listener's channel: accept or reject it. Dropped, it is rejected.
        request: CmId,
        /// What the peer sent along.
        private_data: Vec<u8>,
        /// How many of the peer's reads, flushes and atomics it wants to have under way.
        responder_resources: u8,
        /// How many of this side's reads, flushes and atomics the peer serves at once.
        initiator_depth: u8,
    },
    /// The connection is there.
    Established {
        /// What the peer sent along when it accepted; empty at the accepting side.
        private_data: Vec<u8>,
        /// As in a connection request.
        responder_resources: u8,
        /// As in a connection request.
        initiator_depth: u8,
    },
    /// The peer wants no connection, or nobody listens there.
    Rejected {
        /// [`REJECT_NO_LISTENER`], [`REJECT_BY_APPLICATION`] or another reason.
        status: i32,
        /// What the peer sent along.
        private_data: Vec<u8>,
    },
    /// The peer does not answer.
    Unreachable {
        /// Why.
        status: i32,
    },
    /// The connection could not be made or was lost while it was made.
    ConnectError {
        /// Why.
        status: i32,
    },
    /// One side has disconnected, or its process ended. Disconnect too, so that requests under way complete.
    Disconnected,
    /// The device is being removed: drop everything on it.
    DeviceRemoval,
    /// The number of a queue pair that was connected may be used again.
    TimewaitExit,
    /// Anything else, by its number in `enum rdma_cm_event_type`.
    Other {
        /// The number.
        number: u32,
    },
}

impl CmEventKind {
    /// Types an event other than a connection request.
    ///
    /// # Safety
    ///
    /// librdmacm handed the event out, and it is not acknowledged yet.
    pub(crate) unsafe fn of(event: *const sys::rdma_cm_event) -> Self {
        // SAFETY: an event that is not acknowledged yet is librdmacm's own, which changes it no more.
        let (number, status) = unsafe { ((*event).event, (*event).status) };
        match number {
            sys::RDMA_CM_EVENT_ADDR_RESOLVED => Self::AddressResolved,
            sys::RDMA_CM_EVENT_ADDR_ERROR => Self::AddressError { status },
            sys::RDMA_CM_EVENT_ROUTE_RESOLVED => Self::RouteResolved,
            sys::RDMA_CM_EVENT_ROUTE_ERROR => Self::RouteError { status },
            sys::RDMA_CM_EVENT_ESTABLISHED => {
                // SAFETY: events of connections have connection parameters.
                let (private_data, responder_resources, initiator_depth) = unsafe { parameters(event) };
                Self::Established { private_data, responder_resources, initiator_depth }
            }
            // SAFETY: a rejection is an event of a connection, and those have connection parameters.
            sys::RDMA_CM_EVENT_REJECTED => Self::Rejected { status, private_data: unsafe { parameters(event) }.0 },
            sys::RDMA_CM_EVENT_UNREACHABLE => Self::Unreachable { status },
            sys::RDMA_CM_EVENT_CONNECT_ERROR => Self::ConnectError { status },
            sys::RDMA_CM_EVENT_DISCONNECTED => Self::Disconnected,
            sys::RDMA_CM_EVENT_DEVICE_REMOVAL => Self::DeviceRemoval,
            sys::RDMA_CM_EVENT_TIMEWAIT_EXIT => Self::TimewaitExit,
            number => Self::Other { number },
        }
    }
}

/// The private data, responder resources and initiator depth of an event of a connection.
///
/// # Safety
///
/// librdmacm handed the event out, it is of a connection, and it is not acknowledged yet.
pub(crate) unsafe fn parameters(event: *const sys::rdma_cm_event) -> (Vec<u8>, u8, u8) {
    // SAFETY: the event is not acknowledged yet, so it can be read; identifiers of RDMA_PS_TCP have the connection's side of the union.
    let parameters = unsafe { (*event).param.conn };
    let private_data = if parameters.private_data.is_null() {
        Vec::new()
    } else {
        // SAFETY: the library says where the data are and how long, and keeps them until the event is acknowledged.
        unsafe { slice::from_raw_parts(parameters.private_data.cast::<u8>(), usize::from(parameters.private_data_len)) }
            .to_vec()
    };
    (private_data, parameters.responder_resources, parameters.initiator_depth)
}
