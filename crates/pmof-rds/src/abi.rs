//! The kernel's interface, `linux/rds.h`, with the names of the header. `libc` has none of it but the address family.

/// What the layout test compares with a C compiler's view of the header.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Structure {
    pub name: &'static str,
    pub size_bytes: usize,
    pub alignment_bytes: usize,
    /// Name, length and offset in bytes of each field.
    pub fields: &'static [(&'static str, usize, usize)],
}

/// Defines structures, and lists their layouts for the test.
macro_rules! structures {
    ($($(#[$attribute:meta])* struct $name:ident { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$attribute])*
            #[derive(Clone, Copy, Debug, Default)]
            pub(crate) struct $name { $(pub(crate) $field: $type,)* }
        )*

        #[doc(hidden)]
        pub const STRUCTURES: &[Structure] = &[$(Structure {
            name: stringify!($name),
            size_bytes: size_of::<$name>(),
            alignment_bytes: align_of::<$name>(),
            fields: &[$((stringify!($field), size_of::<$type>(), core::mem::offset_of!($name, $field)),)*],
        },)*];
    };
}

structures! {
    #[repr(C)]
    struct rds_iovec {
        addr: u64,
        bytes: u64,
    }
    #[repr(C)]
    struct rds_get_mr_args {
        vec: rds_iovec,
        cookie_addr: u64,
        flags: u64,
    }
    #[repr(C)]
    struct rds_free_mr_args {
        cookie: u64,
        flags: u64,
    }
    #[repr(C)]
    struct rds_rdma_args {
        cookie: u64,
        remote_vec: rds_iovec,
        local_vec_addr: u64,
        nr_local: u64,
        flags: u64,
        user_token: u64,
    }
    #[repr(C)]
    struct rds_rdma_notify {
        user_token: u64,
        status: i32,
    }
    #[repr(C, packed)]
    struct rds_info_connection {
        next_tx_seq: u64,
        next_rx_seq: u64,
        laddr: [u8; 4],
        faddr: [u8; 4],
        transport: [u8; 16],
        flags: u8,
        tos: u8,
    }
}

/// Defines constants, and lists them for the test.
macro_rules! constants {
    ($($name:ident: $type:ty = $value:expr;)*) => {
        $(pub(crate) const $name: $type = $value;)*

        #[doc(hidden)]
        #[expect(clippy::cast_possible_wrap, reason = "none is so large")]
        pub const CONSTANTS: &[(&str, i64)] = &[$((stringify!($name), $name as i64),)*];
    };
}

constants! {
    SOL_RDS: i32 = 276;
    RDS_FREE_MR: i32 = 3;
    SO_RDS_TRANSPORT: i32 = 8;
    RDS_TRANS_IB: i32 = 0;
    RDS_TRANS_TCP: i32 = 2;
    RDS_CMSG_RDMA_ARGS: i32 = 1;
    RDS_CMSG_RDMA_DEST: i32 = 2;
    RDS_CMSG_RDMA_MAP: i32 = 3;
    RDS_CMSG_RDMA_STATUS: i32 = 4;
    RDS_INFO_CONNECTIONS: i32 = 10_001;
    RDS_INFO_CONNECTION_FLAG_CONNECTED: u8 = 4;
    RDS_RDMA_SUCCESS: i32 = 0;
    RDS_RDMA_REMOTE_ERROR: i32 = 1;
    RDS_RDMA_CANCELED: i32 = 2;
    RDS_RDMA_DROPPED: i32 = 3;
    RDS_RDMA_OTHER_ERROR: i32 = 4;
    RDS_RDMA_READWRITE: u64 = 1;
    RDS_RDMA_INVALIDATE: u64 = 4;
    RDS_RDMA_NOTIFY_ME: u64 = 32;
}
