/* All functions of librpma 1.3.0, in the order of its header: JUDGED_FUNCTIONS(X) is X(name) for each of the 84. */
#ifndef FUNCTIONS_H
#define FUNCTIONS_H

#define JUDGED_FUNCTIONS(X) \
    X(rpma_utils_get_ibv_context) X(rpma_utils_ibv_context_is_odp_capable) X(rpma_peer_cfg_new) \
    X(rpma_peer_cfg_delete) X(rpma_peer_cfg_set_direct_write_to_pmem) X(rpma_peer_cfg_get_direct_write_to_pmem) \
    X(rpma_peer_cfg_get_descriptor) X(rpma_peer_cfg_get_descriptor_size) X(rpma_peer_cfg_from_descriptor) \
    X(rpma_peer_new) X(rpma_peer_delete) X(rpma_mr_reg) X(rpma_mr_dereg) X(rpma_mr_get_descriptor) \
    X(rpma_mr_remote_from_descriptor) X(rpma_mr_get_descriptor_size) X(rpma_mr_get_ptr) X(rpma_mr_get_size) \
    X(rpma_mr_remote_get_size) X(rpma_mr_remote_get_flush_type) X(rpma_mr_remote_delete) X(rpma_mr_advise) \
    X(rpma_conn_cfg_new) X(rpma_conn_cfg_delete) X(rpma_conn_cfg_set_timeout) X(rpma_conn_cfg_get_timeout) \
    X(rpma_conn_cfg_set_cq_size) X(rpma_conn_cfg_get_cq_size) X(rpma_conn_cfg_set_rcq_size) \
    X(rpma_conn_cfg_get_rcq_size) X(rpma_conn_cfg_set_sq_size) X(rpma_conn_cfg_get_sq_size) \
    X(rpma_conn_cfg_set_rq_size) X(rpma_conn_cfg_get_rq_size) X(rpma_conn_cfg_set_compl_channel) \
    X(rpma_conn_cfg_get_compl_channel) X(rpma_conn_cfg_set_srq) X(rpma_conn_cfg_get_srq) X(rpma_conn_get_event_fd) \
    X(rpma_conn_next_event) X(rpma_utils_conn_event_2str) X(rpma_conn_get_private_data) \
    X(rpma_conn_apply_remote_peer_cfg) X(rpma_conn_get_qp_num) X(rpma_conn_get_cq) X(rpma_conn_get_rcq) \
    X(rpma_conn_get_compl_fd) X(rpma_conn_wait) X(rpma_conn_disconnect) X(rpma_conn_delete) X(rpma_conn_req_new) \
    X(rpma_conn_req_delete) X(rpma_conn_req_connect) X(rpma_conn_req_recv) X(rpma_conn_req_get_private_data) \
    X(rpma_ep_listen) X(rpma_ep_shutdown) X(rpma_ep_get_fd) X(rpma_ep_next_conn_req) X(rpma_srq_cfg_new) \
    X(rpma_srq_cfg_delete) X(rpma_srq_cfg_set_rq_size) X(rpma_srq_cfg_get_rq_size) X(rpma_srq_cfg_set_rcq_size) \
    X(rpma_srq_cfg_get_rcq_size) X(rpma_srq_new) X(rpma_srq_delete) X(rpma_srq_recv) X(rpma_srq_get_rcq) \
    X(rpma_read) X(rpma_write) X(rpma_write_with_imm) X(rpma_atomic_write) X(rpma_flush) X(rpma_send) \
    X(rpma_send_with_imm) X(rpma_recv) X(rpma_cq_get_fd) X(rpma_cq_wait) X(rpma_cq_get_wc) X(rpma_err_2str) \
    X(rpma_log_set_threshold) X(rpma_log_get_threshold) X(rpma_log_set_function)

#endif
