//! Configurations: of a peer, of connections, of shared receive queues.

use std::{
    ffi::{c_int, c_void},
    ptr,
    sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering::Relaxed},
    time::Duration,
};

use crate::{
    argument::{Object, Out, Slot},
    call::{call, need},
    error::Failure,
    handle::{Handle, kind},
    shared::Srq,
};

/// `rpma_peer_cfg`: what the application claims of a peer's platform.
#[derive(Debug, Default)]
pub struct PeerCfg {
    pub(crate) direct_write_to_pmem: AtomicBool,
}
kind!(PeerCfg, 1, "rpma_peer_cfg");

/// Bytes of a peer configuration's descriptor: the claim.
const PEER_DESCRIPTOR_BYTES: usize = 1;

/// `rpma_conn_cfg`.
#[derive(Debug)]
pub struct ConnCfg {
    timeout_ms: AtomicI32,
    cq_size: AtomicU32,
    rcq_size: AtomicU32,
    sq_size: AtomicU32,
    rq_size: AtomicU32,
    is_channel_shared: AtomicBool,
    srq: AtomicPtr<Handle<Srq>>,
}
kind!(ConnCfg, 2, "rpma_conn_cfg");

/// Address and route are to be resolved within this time, in milliseconds.
const TIMEOUT_DEFAULT_MS: i32 = 1000;
const CONNECTION_QUEUE_DEFAULT: u32 = 10;
const SHARED_QUEUE_DEFAULT: u32 = 100;

impl Default for ConnCfg {
    fn default() -> Self {
        Self {
            timeout_ms: AtomicI32::new(TIMEOUT_DEFAULT_MS),
            cq_size: AtomicU32::new(CONNECTION_QUEUE_DEFAULT),
            rcq_size: AtomicU32::new(0),
            sq_size: AtomicU32::new(CONNECTION_QUEUE_DEFAULT),
            rq_size: AtomicU32::new(CONNECTION_QUEUE_DEFAULT),
            is_channel_shared: AtomicBool::new(false),
            srq: AtomicPtr::new(ptr::null_mut()),
        }
    }
}

impl ConnCfg {
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms.load(Relaxed).unsigned_abs().into())
    }

    pub(crate) fn cq_size(&self) -> u32 {
        self.cq_size.load(Relaxed)
    }

    pub(crate) fn rcq_size(&self) -> u32 {
        self.rcq_size.load(Relaxed)
    }

    pub(crate) fn sq_size(&self) -> u32 {
        self.sq_size.load(Relaxed)
    }

    pub(crate) fn rq_size(&self) -> u32 {
        self.rq_size.load(Relaxed)
    }

    pub(crate) fn is_channel_shared(&self) -> bool {
        self.is_channel_shared.load(Relaxed)
    }

    pub(crate) fn srq(&self) -> Object<Srq> {
        // SAFETY: null, or of an object that was set.
        unsafe { Object::of(self.srq.load(Relaxed)) }
    }
}

/// `rpma_srq_cfg`.
#[derive(Debug)]
pub struct SrqCfg {
    rq_size: AtomicU32,
    rcq_size: AtomicU32,
}
kind!(SrqCfg, 3, "rpma_srq_cfg");

impl Default for SrqCfg {
    fn default() -> Self {
        Self { rq_size: AtomicU32::new(SHARED_QUEUE_DEFAULT), rcq_size: AtomicU32::new(SHARED_QUEUE_DEFAULT) }
    }
}

impl SrqCfg {
    pub(crate) fn rq_size(&self) -> u32 {
        self.rq_size.load(Relaxed)
    }

    /// 0: outcomes of receives go where the connections say.
    pub(crate) fn rcq_size(&self) -> u32 {
        self.rcq_size.load(Relaxed)
    }
}

/// Functions that make and delete a configuration.
macro_rules! made_and_deleted {
    ($type:ident: $new:ident $new_name:literal, $delete:ident $delete_name:literal) => {
        /// Creates a configuration with the defaults.
        #[unsafe(no_mangle)]
        pub extern "C" fn $new(made: Out<*mut Handle<$type>>) -> c_int {
            call($new_name, || {
                made.need("cfg_ptr")?;
                made.put(Handle::create($type::default()));
                Ok(())
            })
        }

        /// Deletes a configuration.
        #[unsafe(no_mangle)]
        pub extern "C" fn $delete(made: Slot<$type>) -> c_int {
            call($delete_name, || made.delete())
        }
    };
}

/// A pair of functions that set and tell one number.
macro_rules! set_and_told {
    ($type:ident.$field:ident: $number:ty, $set:ident $set_name:literal, $get:ident $get_name:literal, $limit:expr) => {
        /// Sets the value.
        #[unsafe(no_mangle)]
        pub extern "C" fn $set(cfg: Object<$type>, value: $number) -> c_int {
            call($set_name, || {
                let cfg = cfg.get()?;
                let limit: fn($number) -> Result<$number, Failure> = $limit;
                cfg.$field.store(limit(value)?, Relaxed);
                Ok(())
            })
        }

        /// Tells the value.
        #[unsafe(no_mangle)]
        pub extern "C" fn $get(cfg: Object<$type>, value: Out<$number>) -> c_int {
            call($get_name, || {
                let cfg = cfg.get()?;
                value.need("value")?;
                value.put(cfg.$field.load(Relaxed));
                Ok(())
            })
        }
    };
}

made_and_deleted!(PeerCfg: rpma_peer_cfg_new c"rpma_peer_cfg_new", rpma_peer_cfg_delete c"rpma_peer_cfg_delete");
made_and_deleted!(ConnCfg: rpma_conn_cfg_new c"rpma_conn_cfg_new", rpma_conn_cfg_delete c"rpma_conn_cfg_delete");
made_and_deleted!(SrqCfg: rpma_srq_cfg_new c"rpma_srq_cfg_new", rpma_srq_cfg_delete c"rpma_srq_cfg_delete");

set_and_told!(PeerCfg.direct_write_to_pmem: bool,
    rpma_peer_cfg_set_direct_write_to_pmem c"rpma_peer_cfg_set_direct_write_to_pmem",
    rpma_peer_cfg_get_direct_write_to_pmem c"rpma_peer_cfg_get_direct_write_to_pmem", Ok);
set_and_told!(ConnCfg.timeout_ms: c_int, rpma_conn_cfg_set_timeout c"rpma_conn_cfg_set_timeout",
    rpma_conn_cfg_get_timeout c"rpma_conn_cfg_get_timeout",
    |value| if value < 0 { Err(Failure::invalid("the timeout is negative")) } else { Ok(value) });
set_and_told!(ConnCfg.cq_size: u32, rpma_conn_cfg_set_cq_size c"rpma_conn_cfg_set_cq_size",
    rpma_conn_cfg_get_cq_size c"rpma_conn_cfg_get_cq_size", Ok);
set_and_told!(ConnCfg.rcq_size: u32, rpma_conn_cfg_set_rcq_size c"rpma_conn_cfg_set_rcq_size",
    rpma_conn_cfg_get_rcq_size c"rpma_conn_cfg_get_rcq_size", Ok);
set_and_told!(ConnCfg.sq_size: u32, rpma_conn_cfg_set_sq_size c"rpma_conn_cfg_set_sq_size",
    rpma_conn_cfg_get_sq_size c"rpma_conn_cfg_get_sq_size", Ok);
set_and_told!(ConnCfg.rq_size: u32, rpma_conn_cfg_set_rq_size c"rpma_conn_cfg_set_rq_size",
    rpma_conn_cfg_get_rq_size c"rpma_conn_cfg_get_rq_size", Ok);
set_and_told!(ConnCfg.is_channel_shared: bool, rpma_conn_cfg_set_compl_channel c"rpma_conn_cfg_set_compl_channel",
    rpma_conn_cfg_get_compl_channel c"rpma_conn_cfg_get_compl_channel", Ok);
set_and_told!(SrqCfg.rq_size: u32, rpma_srq_cfg_set_rq_size c"rpma_srq_cfg_set_rq_size",
    rpma_srq_cfg_get_rq_size c"rpma_srq_cfg_get_rq_size", Ok);
set_and_told!(SrqCfg.rcq_size: u32, rpma_srq_cfg_set_rcq_size c"rpma_srq_cfg_set_rcq_size",
    rpma_srq_cfg_get_rcq_size c"rpma_srq_cfg_get_rcq_size", Ok);

/// Sets the queue that connections take their receives from.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_conn_cfg_set_srq(cfg: Object<ConnCfg>, srq: Object<Srq>) -> c_int {
    call(c"rpma_conn_cfg_set_srq", || {
        let cfg = cfg.get()?;
        if srq.is_null() {
            return Err(Failure::invalid("srq is NULL"));
        }
        cfg.srq.store(srq.as_ptr(), Relaxed);
        Ok(())
    })
}

/// Tells that queue; null where there is none.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_conn_cfg_get_srq(cfg: Object<ConnCfg>, srq: Out<*mut Handle<Srq>>) -> c_int {
    call(c"rpma_conn_cfg_get_srq", || {
        let cfg = cfg.get()?;
        srq.need("srq_ptr")?;
        srq.put(cfg.srq.load(Relaxed));
        Ok(())
    })
}

/// Writes the configuration's descriptor for the other side; the next function returns its size.
///
/// # Safety
///
/// `cfg` is null or a configuration; `descriptor` is null or valid for a write of that many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpma_peer_cfg_get_descriptor(cfg: Object<PeerCfg>, descriptor: *mut c_void) -> c_int {
    call(c"rpma_peer_cfg_get_descriptor", || {
        let cfg = cfg.get()?;
        need(descriptor, "desc")?;
        // SAFETY: not null, so valid for a write of a descriptor's one byte, by the contract of this function.
        unsafe { descriptor.cast::<u8>().write(u8::from(cfg.direct_write_to_pmem.load(Relaxed))) };
        Ok(())
    })
}

/// Returns the size of a descriptor, in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn rpma_peer_cfg_get_descriptor_size(cfg: Object<PeerCfg>, size: Out<usize>) -> c_int {
    call(c"rpma_peer_cfg_get_descriptor_size", || {
        cfg.get()?;
        size.need("desc_size")?;
        size.put(PEER_DESCRIPTOR_BYTES);
        Ok(())
    })
}

/// Creates a configuration from a descriptor.
///
/// # Safety
///
/// `descriptor` is null or valid for a read of `size` bytes; `made` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpma_peer_cfg_from_descriptor(
    descriptor: *const c_void,
    size: usize,
    made: Out<*mut Handle<PeerCfg>>,
) -> c_int {
    call(c"rpma_peer_cfg_from_descriptor", || {
        need(descriptor, "desc")?;
        made.need("pcfg_ptr")?;
        if size < PEER_DESCRIPTOR_BYTES {
            return Err(Failure::invalid("the descriptor of a peer configuration has at least 1 byte"));
        }
        // SAFETY: not null, and `size`, the bytes that it is valid for by the contract of this function, is at least 1.
        let claim = unsafe { *descriptor.cast::<u8>() };
        let cfg = PeerCfg { direct_write_to_pmem: AtomicBool::new(claim != 0) };
        made.put(Handle::create(cfg));
        Ok(())
    })
}
