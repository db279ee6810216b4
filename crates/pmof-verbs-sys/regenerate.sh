#!/usr/bin/env bash
# Writes src/bindings/ anew from the headers of rdma-core. Only maintainers need it, after adding a name to the lists below.
#
#   crates/pmof-verbs-sys/regenerate.sh INCLUDE_DIRECTORY
#
# INCLUDE_DIRECTORY has infiniband/ and rdma/ of rdma-core 45 or later (Debian: libibverbs-dev, librdmacm-dev,
# linux-libc-dev). Needs bindgen (`cargo install bindgen-cli --version 0.73.2`) and its libclang.
set -euo pipefail
include="$(cd "${1:?the include directory}" && pwd)"
cd "$(dirname "${BASH_SOURCE[0]}")"

# Only the headers of RDMA come from there: those of the C library stay the compiler's.
headers="$(mktemp -d)"
trap 'rm -r "$headers"' EXIT
ln -s "$include/infiniband" "$include/rdma" "$headers/"
printf '#include <%s>\n' infiniband/verbs.h rdma/rdma_cma.h rdma/ib_user_verbs.h > "$headers/all.h"

# Named by what pmof does with them; bindgen adds the types that these refer to.
types=(
    ibv_access_flags ibv_device_cap_flags ib_uverbs_device_cap_flags ibv_odp_general_caps
    ibv_odp_transport_cap_bits ibv_send_flags ibv_wc_flags ibv_wc_status ibv_wc_opcode ibv_qp_attr_mask
    ibv_qp_init_attr_mask ibv_qp_create_send_ops_flags ibv_srq_init_attr_mask ibv_srq_attr_mask ibv_event_type
    ibv_advise_mr_advice ibv_placement_type ibv_selectivity_level ibv_cq_init_attr_mask
    ibv_create_cq_attr_flags ibv_create_cq_wc_flags ibv_gid_type ibv_mtu ibv_port_state
    ib_uverbs_advise_mr_flag verbs_context ibv_device_attr_ex ibv_query_device_ex_input ibv_gid_entry
    ibv_qp_init_attr ibv_qp_init_attr_ex ibv_qp_attr ibv_srq_init_attr ibv_srq_init_attr_ex ibv_fork_status
    ibv_cq_init_attr_ex ibv_qp_ex ibv_async_event ibv_port_attr
    ibv_wc ibv_cq_ex rdma_cm_event rdma_conn_param rdma_cm_event_type rdma_port_space
)
variables=('RDMA_OPTION_.*' 'IBV_LINK_LAYER_.*' 'RDMA_MAX_.*')
ibverbs_required=(
    ibv_get_device_list ibv_free_device_list ibv_get_device_name ibv_get_device_guid ibv_open_device
    ibv_close_device ibv_query_device ibv_query_port ibv_query_gid ibv_get_async_event ibv_ack_async_event
    ibv_alloc_pd ibv_dealloc_pd ibv_reg_mr_iova2 ibv_dereg_mr ibv_create_comp_channel ibv_destroy_comp_channel
    ibv_create_cq ibv_destroy_cq ibv_get_cq_event ibv_ack_cq_events ibv_create_srq ibv_modify_srq ibv_query_srq
    ibv_destroy_srq ibv_create_qp ibv_qp_to_qp_ex ibv_modify_qp ibv_query_qp ibv_destroy_qp ibv_fork_init
    ibv_wc_status_str ibv_event_type_str ibv_port_state_str ibv_node_type_str
)
# Younger than the oldest library that pmof accepts (MINIMUM_VERSION in src/library.rs).
ibverbs_optional=(_ibv_query_gid_ex _ibv_query_gid_table ibv_is_fork_initialized)
rdmacm_required=(
    rdma_get_devices rdma_free_devices
    rdma_create_event_channel rdma_destroy_event_channel rdma_create_id rdma_destroy_id rdma_bind_addr
    rdma_listen rdma_resolve_addr rdma_resolve_route rdma_connect rdma_establish rdma_accept rdma_reject
    rdma_disconnect rdma_get_cm_event rdma_ack_cm_event rdma_event_str rdma_set_option rdma_migrate_id
    rdma_create_qp rdma_create_qp_ex rdma_destroy_qp rdma_init_qp_attr rdma_get_src_port rdma_get_dst_port
)
# Behind a pointer, and of no use here.
opaque=(
    _compat_ibv_port_attr ibv_ops_wr ibv_ah ibv_counters.* ibv_counter_attach_attr ibv_flow.* ibv_dm ibv_alloc_dm_attr
    ibv_wq.* ibv_rwq_ind_table.* ibv_xrcd.* ibv_td.* ibv_parent_domain_init_attr ibv_qp_rate_limit_attr
    ibv_qp_open_attr ibv_values_ex ibv_modify_cq_attr ibv_poll_cq_attr ibv_wc_tm_info rdma_cm_join_mc_attr_ex
    ibv_sa_path_rec verbs_ex_private ibv_mw ibv_mw_bind
)
# Whose layout differs among architectures: those of the libc crate.
libc=(pthread_mutex_t pthread_cond_t sockaddr sockaddr_in sockaddr_in6 sockaddr_storage)
# What only those refer to.
left_out=('__pthread_.*' '__atomic_wide_counter.*' sa_family_t in_addr in_addr_t in_port_t 'in6_addr.*' 'ibv_ops_wr__.*')

license() {
    cat <<'END'
// Made by regenerate.sh with bindgen from the headers of rdma-core; do not edit.
//
// rdma-core is licensed under a choice of GPL-2.0 and the OpenIB.org BSD license; this file is used under the
// latter. LICENSE-OpenIB beside Cargo.toml has its text and the copyright notices of the headers.

END
}
bind() {
    bindgen "$headers/all.h" --rust-target 1.85 --rust-edition 2024 --no-doc-comments --disable-header-comment \
        --use-core --ctypes-prefix core::ffi --no-prepend-enum-name --no-derive-debug --with-derive-default \
        --default-non-copy-union-style manually_drop --merge-extern-blocks --formatter rustfmt \
        --rustfmt-configuration-file "$PWD/../../rustfmt.toml" \
        "${libc[@]/#/--blocklist-type=}" "${left_out[@]/#/--blocklist-type=}" "${opaque[@]/#/--opaque-type=}" \
        "$@" -- -I"$headers"
}
# The prototypes of the functions named, in the braces of one section of the table.
section() {
    local section="$1"
    shift
    printf '    %s ' "$section"
    bind --generate functions "${@/#/--allowlist-function=}" | sed 's/^unsafe extern "C" {/{/; s/^./    &/; s/^    {/{/'
}

# The numbers of the checks are those of one architecture: the C library's mutex differs in size.
{
    license
    echo "pub(crate) use libc::{$(printf '%s, ' "${libc[@]}" | sed 's/, $//')};"
    bind --ignore-functions "${types[@]/#/--allowlist-type=}" "${variables[@]/#/--allowlist-var=}" |
        sed 's/const _: () = {/#[cfg(target_arch = "x86_64")] &/'
} > src/bindings/types.rs
{
    license
    echo 'use super::types::*;'
    echo 'crate::table::table! {'
    section 'libibverbs required' "${ibverbs_required[@]}"
    section 'libibverbs optional' "${ibverbs_optional[@]}"
    section 'librdmacm required' "${rdmacm_required[@]}"
    echo '}'
} > src/bindings/functions.rs
rustfmt --edition 2024 --config-path ../../rustfmt.toml src/bindings/types.rs
