// Made by regenerate.sh with bindgen from the headers of rdma-core; do not edit.
//
// rdma-core is licensed under a choice of GPL-2.0 and the OpenIB.org BSD license; this file is used under the
// latter. LICENSE-OpenIB beside Cargo.toml has its text and the copyright notices of the headers.

use super::types::*;
crate::table::table! {
    libibverbs required {
        pub fn ibv_wc_status_str(status: ibv_wc_status) -> *const core::ffi::c_char;
        pub fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex;
        pub fn ibv_get_device_list(num_devices: *mut core::ffi::c_int) -> *mut *mut ibv_device;
        pub fn ibv_free_device_list(list: *mut *mut ibv_device);
        pub fn ibv_get_device_name(device: *mut ibv_device) -> *const core::ffi::c_char;
        pub fn ibv_get_device_guid(device: *mut ibv_device) -> __be64;
        pub fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
        pub fn ibv_close_device(context: *mut ibv_context) -> core::ffi::c_int;
        pub fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> core::ffi::c_int;
        pub fn ibv_ack_async_event(event: *mut ibv_async_event);
        pub fn ibv_query_device(context: *mut ibv_context, device_attr: *mut ibv_device_attr) -> core::ffi::c_int;
        pub fn ibv_query_port(
            context: *mut ibv_context,
            port_num: u8,
            port_attr: *mut _compat_ibv_port_attr,
        ) -> core::ffi::c_int;
        pub fn ibv_query_gid(
            context: *mut ibv_context,
            port_num: u8,
            index: core::ffi::c_int,
            gid: *mut ibv_gid,
        ) -> core::ffi::c_int;
        pub fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
        pub fn ibv_dealloc_pd(pd: *mut ibv_pd) -> core::ffi::c_int;
        pub fn ibv_reg_mr_iova2(
            pd: *mut ibv_pd,
            addr: *mut core::ffi::c_void,
            length: usize,
            iova: u64,
            access: core::ffi::c_uint,
        ) -> *mut ibv_mr;
        pub fn ibv_dereg_mr(mr: *mut ibv_mr) -> core::ffi::c_int;
        pub fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
        pub fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> core::ffi::c_int;
        pub fn ibv_create_cq(
            context: *mut ibv_context,
            cqe: core::ffi::c_int,
            cq_context: *mut core::ffi::c_void,
            channel: *mut ibv_comp_channel,
            comp_vector: core::ffi::c_int,
        ) -> *mut ibv_cq;
        pub fn ibv_destroy_cq(cq: *mut ibv_cq) -> core::ffi::c_int;
        pub fn ibv_get_cq_event(
            channel: *mut ibv_comp_channel,
            cq: *mut *mut ibv_cq,
            cq_context: *mut *mut core::ffi::c_void,
        ) -> core::ffi::c_int;
        pub fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: core::ffi::c_uint);
        pub fn ibv_create_srq(pd: *mut ibv_pd, srq_init_attr: *mut ibv_srq_init_attr) -> *mut ibv_srq;
        pub fn ibv_modify_srq(
            srq: *mut ibv_srq,
            srq_attr: *mut ibv_srq_attr,
            srq_attr_mask: core::ffi::c_int,
        ) -> core::ffi::c_int;
        pub fn ibv_query_srq(srq: *mut ibv_srq, srq_attr: *mut ibv_srq_attr) -> core::ffi::c_int;
        pub fn ibv_destroy_srq(srq: *mut ibv_srq) -> core::ffi::c_int;
        pub fn ibv_create_qp(pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;
        pub fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: core::ffi::c_int) -> core::ffi::c_int;
        pub fn ibv_query_qp(
            qp: *mut ibv_qp,
            attr: *mut ibv_qp_attr,
            attr_mask: core::ffi::c_int,
            init_attr: *mut ibv_qp_init_attr,
        ) -> core::ffi::c_int;
        pub fn ibv_destroy_qp(qp: *mut ibv_qp) -> core::ffi::c_int;
        pub fn ibv_fork_init() -> core::ffi::c_int;
        pub fn ibv_node_type_str(node_type: ibv_node_type) -> *const core::ffi::c_char;
        pub fn ibv_port_state_str(port_state: ibv_port_state) -> *const core::ffi::c_char;
        pub fn ibv_event_type_str(event: ibv_event_type) -> *const core::ffi::c_char;
    }
    libibverbs optional {
        pub fn _ibv_query_gid_ex(
            context: *mut ibv_context,
            port_num: u32,
            gid_index: u32,
            entry: *mut ibv_gid_entry,
            flags: u32,
            entry_size: usize,
        ) -> core::ffi::c_int;
        pub fn _ibv_query_gid_table(
            context: *mut ibv_context,
            entries: *mut ibv_gid_entry,
            max_entries: usize,
            flags: u32,
            entry_size: usize,
        ) -> isize;
        pub fn ibv_is_fork_initialized() -> ibv_fork_status;
    }
    librdmacm required {
        pub fn rdma_create_event_channel() -> *mut rdma_event_channel;
        pub fn rdma_destroy_event_channel(channel: *mut rdma_event_channel);
        pub fn rdma_create_id(
            channel: *mut rdma_event_channel,
            id: *mut *mut rdma_cm_id,
            context: *mut core::ffi::c_void,
            ps: rdma_port_space,
        ) -> core::ffi::c_int;
        pub fn rdma_destroy_id(id: *mut rdma_cm_id) -> core::ffi::c_int;
        pub fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> core::ffi::c_int;
        pub fn rdma_resolve_addr(
            id: *mut rdma_cm_id,
            src_addr: *mut sockaddr,
            dst_addr: *mut sockaddr,
            timeout_ms: core::ffi::c_int,
        ) -> core::ffi::c_int;
        pub fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: core::ffi::c_int) -> core::ffi::c_int;
        pub fn rdma_create_qp(
            id: *mut rdma_cm_id,
            pd: *mut ibv_pd,
            qp_init_attr: *mut ibv_qp_init_attr,
        ) -> core::ffi::c_int;
        pub fn rdma_create_qp_ex(id: *mut rdma_cm_id, qp_init_attr: *mut ibv_qp_init_attr_ex) -> core::ffi::c_int;
        pub fn rdma_destroy_qp(id: *mut rdma_cm_id);
        pub fn rdma_connect(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> core::ffi::c_int;
        pub fn rdma_establish(id: *mut rdma_cm_id) -> core::ffi::c_int;
        pub fn rdma_listen(id: *mut rdma_cm_id, backlog: core::ffi::c_int) -> core::ffi::c_int;
        pub fn rdma_accept(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> core::ffi::c_int;
        pub fn rdma_reject(
            id: *mut rdma_cm_id,
            private_data: *const core::ffi::c_void,
            private_data_len: u8,
        ) -> core::ffi::c_int;
        pub fn rdma_disconnect(id: *mut rdma_cm_id) -> core::ffi::c_int;
        pub fn rdma_get_cm_event(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> core::ffi::c_int;
        pub fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> core::ffi::c_int;
        pub fn rdma_get_src_port(id: *mut rdma_cm_id) -> __be16;
        pub fn rdma_get_dst_port(id: *mut rdma_cm_id) -> __be16;
        pub fn rdma_get_devices(num_devices: *mut core::ffi::c_int) -> *mut *mut ibv_context;
        pub fn rdma_free_devices(list: *mut *mut ibv_context);
        pub fn rdma_event_str(event: rdma_cm_event_type) -> *const core::ffi::c_char;
        pub fn rdma_set_option(
            id: *mut rdma_cm_id,
            level: core::ffi::c_int,
            optname: core::ffi::c_int,
            optval: *mut core::ffi::c_void,
            optlen: usize,
        ) -> core::ffi::c_int;
        pub fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> core::ffi::c_int;
        pub fn rdma_init_qp_attr(
            id: *mut rdma_cm_id,
            qp_attr: *mut ibv_qp_attr,
            qp_attr_mask: *mut core::ffi::c_int,
        ) -> core::ffi::c_int;
    }
}
