//! Functions of the interface as C declares them: the types that they take are created only by C.
#![expect(improper_ctypes, reason = "handles are opaque to callers")]

use std::ffi::{c_char, c_int, c_void};

use pmof_rpma::{Conn, ConnCfg, ConnReq, Cq, Ep, Handle, MrLocal, MrRemote, Peer, PeerCfg, PrivateData};
use pmof_verbs_sys::{ibv_context, ibv_wc};

unsafe extern "C" {
    pub(crate) fn rpma_ep_listen(
        peer: *mut Handle<Peer>,
        addr: *const c_char,
        port: *const c_char,
        made: *mut *mut Handle<Ep>,
    ) -> c_int;
    pub(crate) fn rpma_ep_shutdown(ep: *mut *mut Handle<Ep>) -> c_int;
    pub(crate) fn rpma_ep_next_conn_req(
        ep: *mut Handle<Ep>,
        cfg: *const Handle<ConnCfg>,
        made: *mut *mut Handle<ConnReq>,
    ) -> c_int;
    pub(crate) fn rpma_conn_req_new(
        peer: *mut Handle<Peer>,
        addr: *const c_char,
        port: *const c_char,
        cfg: *const Handle<ConnCfg>,
        made: *mut *mut Handle<ConnReq>,
    ) -> c_int;
    pub(crate) fn rpma_conn_req_connect(
        request: *mut *mut Handle<ConnReq>,
        data: *const PrivateData,
        made: *mut *mut Handle<Conn>,
    ) -> c_int;
    pub(crate) fn rpma_conn_req_delete(request: *mut *mut Handle<ConnReq>) -> c_int;
    pub(crate) fn rpma_conn_req_get_private_data(request: *const Handle<ConnReq>, data: *mut PrivateData) -> c_int;
    pub(crate) fn rpma_conn_get_private_data(conn: *const Handle<Conn>, data: *mut PrivateData) -> c_int;
    pub(crate) fn rpma_send(
        conn: *mut Handle<Conn>,
        src: *const Handle<MrLocal>,
        offset: usize,
        len: usize,
        flags: c_int,
        op_context: *const c_void,
    ) -> c_int;
    pub(crate) fn rpma_recv(
        conn: *mut Handle<Conn>,
        dst: *mut Handle<MrLocal>,
        offset: usize,
        len: usize,
        op_context: *const c_void,
    ) -> c_int;
    pub(crate) fn rpma_conn_req_recv(
        request: *mut Handle<ConnReq>,
        dst: *mut Handle<MrLocal>,
        offset: usize,
        len: usize,
        op_context: *const c_void,
    ) -> c_int;
    pub(crate) fn rpma_conn_next_event(conn: *mut Handle<Conn>, event: *mut c_int) -> c_int;
    pub(crate) fn rpma_conn_apply_remote_peer_cfg(conn: *mut Handle<Conn>, cfg: *const Handle<PeerCfg>) -> c_int;
    pub(crate) fn rpma_conn_get_qp_num(conn: *const Handle<Conn>, number: *mut u32) -> c_int;
    pub(crate) fn rpma_conn_get_cq(conn: *const Handle<Conn>, cq: *mut *mut Handle<Cq>) -> c_int;
    pub(crate) fn rpma_conn_get_rcq(conn: *const Handle<Conn>, rcq: *mut *mut Handle<Cq>) -> c_int;
    pub(crate) fn rpma_conn_disconnect(conn: *mut Handle<Conn>) -> c_int;
    pub(crate) fn rpma_conn_delete(conn: *mut *mut Handle<Conn>) -> c_int;
    pub(crate) fn rpma_utils_get_ibv_context(
        addr: *const c_char,
        context_type: c_int,
        found: *mut *mut ibv_context,
    ) -> c_int;
    pub(crate) fn rpma_peer_new(context: *mut ibv_context, made: *mut *mut Handle<Peer>) -> c_int;
    pub(crate) fn rpma_peer_delete(peer: *mut *mut Handle<Peer>) -> c_int;
    pub(crate) fn rpma_mr_reg(
        peer: *mut Handle<Peer>,
        address: *mut c_void,
        size: usize,
        usage: c_int,
        made: *mut *mut Handle<MrLocal>,
    ) -> c_int;
    pub(crate) fn rpma_mr_dereg(mr: *mut *mut Handle<MrLocal>) -> c_int;
    pub(crate) fn rpma_mr_get_descriptor(mr: *const Handle<MrLocal>, descriptor: *mut c_void) -> c_int;
    pub(crate) fn rpma_mr_get_descriptor_size(mr: *const Handle<MrLocal>, size: *mut usize) -> c_int;
    pub(crate) fn rpma_mr_remote_from_descriptor(
        descriptor: *const c_void,
        size: usize,
        made: *mut *mut Handle<MrRemote>,
    ) -> c_int;
    pub(crate) fn rpma_mr_remote_delete(mr: *mut *mut Handle<MrRemote>) -> c_int;
    pub(crate) fn rpma_read(
        conn: *mut Handle<Conn>,
        dst: *mut Handle<MrLocal>,
        dst_offset: usize,
        src: *const Handle<MrRemote>,
        src_offset: usize,
        len: usize,
        flags: c_int,
        op_context: *const c_void,
    ) -> c_int;
    pub(crate) fn rpma_write(
        conn: *mut Handle<Conn>,
        dst: *mut Handle<MrRemote>,
        dst_offset: usize,
        src: *const Handle<MrLocal>,
        src_offset: usize,
        len: usize,
        flags: c_int,
        op_context: *const c_void,
    ) -> c_int;
    pub(crate) fn rpma_flush(
        conn: *mut Handle<Conn>,
        dst: *mut Handle<MrRemote>,
        dst_offset: usize,
        len: usize,
        flush_type: c_int,
        flags: c_int,
        op_context: *const c_void,
    ) -> c_int;
    pub(crate) fn rpma_conn_cfg_new(made: *mut *mut Handle<ConnCfg>) -> c_int;
    pub(crate) fn rpma_conn_cfg_delete(made: *mut *mut Handle<ConnCfg>) -> c_int;
    pub(crate) fn rpma_conn_cfg_set_rcq_size(cfg: *mut Handle<ConnCfg>, size: u32) -> c_int;
    pub(crate) fn rpma_conn_cfg_set_compl_channel(cfg: *mut Handle<ConnCfg>, shared: bool) -> c_int;
    pub(crate) fn rpma_conn_wait(
        conn: *mut Handle<Conn>,
        flags: c_int,
        cq: *mut *mut Handle<Cq>,
        is_rcq: *mut bool,
    ) -> c_int;
    pub(crate) fn rpma_cq_wait(cq: *mut Handle<Cq>) -> c_int;
    pub(crate) fn rpma_cq_get_wc(cq: *mut Handle<Cq>, count: c_int, completions: *mut ibv_wc, got: *mut c_int)
    -> c_int;
    pub(crate) fn rpma_peer_cfg_new(made: *mut *mut Handle<PeerCfg>) -> c_int;
    pub(crate) fn rpma_peer_cfg_delete(made: *mut *mut Handle<PeerCfg>) -> c_int;
    pub(crate) fn rpma_peer_cfg_set_direct_write_to_pmem(cfg: *mut Handle<PeerCfg>, value: bool) -> c_int;
}
