//! Flags and numbers of the headers, by their names there.
#![allow(missing_docs, reason = "documented by the manual pages of libfabric")]

/// Defines constants, and lists them for the layout test.
macro_rules! constants {
    ($(pub const $name:ident: $type:ty = $value:expr;)*) => {
        $(pub const $name: $type = $value;)*

        /// Every constant with its value.
        #[doc(hidden)]
        pub const CONSTANTS: &[(&str, u64)] = &[$((stringify!($name), $name as u64),)*];
    };
}

constants! {
    pub const FI_MSG: u64 = 1 << 1;
    pub const FI_RMA: u64 = 1 << 2;
    pub const FI_ATOMIC: u64 = 1 << 4;
    pub const FI_READ: u64 = 1 << 8;
    pub const FI_WRITE: u64 = 1 << 9;
    pub const FI_RECV: u64 = 1 << 10;
    pub const FI_SEND: u64 = 1 << 11;
    pub const FI_REMOTE_READ: u64 = 1 << 12;
    pub const FI_REMOTE_WRITE: u64 = 1 << 13;
    pub const FI_FENCE: u64 = 1 << 21;
    pub const FI_COMPLETION: u64 = 1 << 24;
    pub const FI_INJECT: u64 = 1 << 25;
    pub const FI_INJECT_COMPLETE: u64 = 1 << 26;
    pub const FI_TRANSMIT_COMPLETE: u64 = 1 << 27;
    pub const FI_DELIVERY_COMPLETE: u64 = 1 << 28;
    pub const FI_COMMIT_COMPLETE: u64 = 1 << 30;
    pub const FI_RMA_PMEM: u64 = 1 << 49;
    pub const FI_NUMERICHOST: u64 = 1 << 55;
    pub const FI_SOURCE: u64 = 1 << 57;

    pub const FI_ADDR_UNSPEC: u64 = u64::MAX;
    pub const FI_KEY_NOTAVAIL: u64 = u64::MAX;

    pub const FI_AV_UNSPEC: u32 = 0;
    pub const FI_AV_MAP: u32 = 1;
    pub const FI_AV_TABLE: u32 = 2;

    pub const FI_MR_BASIC: i32 = 1 << 0;
    pub const FI_MR_SCALABLE: i32 = 1 << 1;
    pub const FI_MR_LOCAL: i32 = 1 << 2;
    pub const FI_MR_VIRT_ADDR: i32 = 1 << 4;
    pub const FI_MR_ALLOCATED: i32 = 1 << 5;
    pub const FI_MR_PROV_KEY: i32 = 1 << 6;
    pub const FI_MR_RMA_EVENT: i32 = 1 << 8;
    pub const FI_MR_ENDPOINT: i32 = 1 << 9;

    pub const FI_PROGRESS_UNSPEC: u32 = 0;
    pub const FI_PROGRESS_AUTO: u32 = 1;
    pub const FI_PROGRESS_MANUAL: u32 = 2;

    pub const FI_THREAD_UNSPEC: u32 = 0;
    pub const FI_THREAD_SAFE: u32 = 1;

    pub const FI_RM_ENABLED: u32 = 2;

    pub const FI_ORDER_RAW: u64 = 1 << 1;
    pub const FI_ORDER_WAW: u64 = 1 << 4;
    pub const FI_ORDER_SAW: u64 = 1 << 7;
    pub const FI_ORDER_SAS: u64 = 1 << 8;

    pub const FI_EP_UNSPEC: u32 = 0;
    pub const FI_EP_MSG: u32 = 1;
    pub const FI_EP_DGRAM: u32 = 2;
    pub const FI_EP_RDM: u32 = 3;

    pub const FI_SOCKADDR_IN: u32 = 2;
    pub const FI_SOCKADDR_IN6: u32 = 3;
    pub const FI_ADDR_STR: u32 = 9;

    pub const FI_CONNREQ: u32 = 1;
    pub const FI_CONNECTED: u32 = 2;
    pub const FI_SHUTDOWN: u32 = 3;

    pub const FI_CONTEXT: u64 = 1 << 59;
    pub const FI_CONTEXT2: u64 = 1 << 52;

    pub const FI_WAIT_NONE: u32 = 0;
    pub const FI_WAIT_FD: u32 = 3;

    pub const FI_CQ_FORMAT_DATA: u32 = 3;

    pub const FI_GETWAIT: i32 = 5;
    pub const FI_ENABLE: i32 = 6;

    pub const FI_EAGAIN: i32 = 11;
    pub const FI_ENOSYS: i32 = 38;
    pub const FI_ENODATA: i32 = 61;
    pub const FI_EAVAIL: i32 = 259;
    pub const FI_ENOKEY: i32 = 266;
}
