//! The calls on a real device, software or not: two queue pairs of one process, connected by librdmacm.
//!
//! Runs where `PMOF_VERBS_DEVICE` names the device, and `PMOF_WIRE_A` and `PMOF_WIRE_B` an address of the target's and of
//! the initiator's end (the same one will do). `PMOF_DEVDAX` may name a device-DAX of persistent memory, for what
//! only that can do. The figures expected are those of soft-RoCE; a device without native flush is skipped by name.

#[path = "device/pair.rs"]
mod pair;

use std::ffi::CStr;

use pair::{Pair, Resources, Setup, wire};
use pmof_verbs_sys::{
    DeviceList, IB_UVERBS_DEVICE_ATOMIC_WRITE, IB_UVERBS_DEVICE_FLUSH_GLOBAL, IBV_ACCESS_FLUSH_GLOBAL,
    IBV_ACCESS_FLUSH_PERSISTENT, IBV_FLUSH_GLOBAL, IBV_FLUSH_MR, IBV_FLUSH_PERSISTENT, IBV_FLUSH_RANGE,
    IBV_PORT_ACTIVE, IBV_WC_ATOMIC_WRITE, IBV_WC_FLUSH, IBV_WC_RDMA_READ, IBV_WC_RDMA_WRITE, IBV_WC_RECV,
    IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_INV_REQ_ERR, IBV_WC_SUCCESS, IBV_WC_WITH_IMM,
    IBV_WC_WR_FLUSH_ERR, Verbs, ibv_device_attr_ex, ibv_gid_entry, ibv_port_attr, ibv_wc, ibv_wr_abort,
    ibv_wr_atomic_cmp_swp, ibv_wr_atomic_fetch_add, ibv_wr_atomic_write, ibv_wr_flush, ibv_wr_rdma_read,
    ibv_wr_rdma_write, ibv_wr_rdma_write_imm, ibv_wr_send, ibv_wr_send_imm, ibv_wr_set_inline_data, ibv_wr_set_sge,
    ibv_wr_set_sge_list, ibv_wr_start,
};

const GLOBAL: u8 = IBV_FLUSH_GLOBAL as u8;
const PERSISTENT: u8 = IBV_FLUSH_PERSISTENT as u8;
const RANGE: u8 = IBV_FLUSH_RANGE as u8;
const MR: u8 = IBV_FLUSH_MR as u8;

fn statuses(completions: &[ibv_wc]) -> Vec<u32> {
    completions.iter().map(|completion| completion.status).collect()
}

#[test]
fn the_device_tells_of_itself() {
    let Some(wire) = wire() else { return };
    let verbs = Verbs::load().unwrap();
    let list = DeviceList::get(verbs).unwrap();
    let context = list.find(Some(&wire.device)).unwrap().open().unwrap().as_ptr();
    drop(list);
    let mut attributes = ibv_device_attr_ex::default();
    let mut port = ibv_port_attr::default();
    let mut entries = [ibv_gid_entry::default(); 64];
    // SAFETY: the context is open, and everything passed can be written.
    unsafe {
        assert_eq!(verbs.query_device_ex(context, &raw mut attributes), 0);
        assert!(attributes.orig_attr.max_qp > 0 && attributes.orig_attr.max_mr_size > 0);
        assert_eq!(attributes.orig_attr.phys_port_cnt, 1);
        assert_eq!(verbs.query_port(context, 1, &raw mut port), 0);
        assert_eq!(port.state, IBV_PORT_ACTIVE);
        assert_eq!(CStr::from_ptr((verbs.ibv_port_state_str)(port.state)), c"active");
        let count = verbs.query_gid_table(context, &mut entries);
        assert!(count > 0, "{count}");
        let mut one = ibv_gid_entry::default();
        assert_eq!(verbs.query_gid_ex(context, entries[0].port_num, entries[0].gid_index, &raw mut one), 0);
        assert_eq!(one.gid.raw, entries[0].gid.raw);
        assert_eq!((verbs.ibv_close_device)(context), 0);
    }
}

#[test]
fn write_flush_atomic_write_and_read_are_one_post() {
    let Some(wire) = wire() else { return };
    let pair = Pair::connect(&wire, &Setup::default());
    let Some(pair) = pair.with_native_flush() else { return };
    let (local, remote, qp) = (&pair.local, &pair.remote, pair.initiator.qp_ex);
    local.fill(0, b"persist me please.......");
    let value = 0x1122_3344_5566_7788_u64;
    // SAFETY: the queue pair is connected and has these operations; all ranges lie in the two regions.
    let completions = unsafe {
        ibv_wr_start(qp);
        pair.next(1);
        ibv_wr_rdma_write(qp, remote.rkey(), remote.address(0));
        ibv_wr_set_sge(qp, local.lkey(), local.address(0), 24);
        pair.next(2);
        ibv_wr_flush(qp, remote.rkey(), remote.address(0), 24, GLOBAL, RANGE);
        pair.next(3);
        ibv_wr_atomic_write(qp, remote.rkey(), remote.address(64), (&raw const value).cast());
        pair.next(4);
        ibv_wr_flush(qp, remote.rkey(), 0, 0, GLOBAL, MR);
        pair.next(5);
        ibv_wr_rdma_read(qp, remote.rkey(), remote.address(0));
        ibv_wr_set_sge(qp, local.lkey(), local.address(512), 72);
        pair.complete(5)
    };
    let opcodes = [IBV_WC_RDMA_WRITE, IBV_WC_FLUSH, IBV_WC_ATOMIC_WRITE, IBV_WC_FLUSH, IBV_WC_RDMA_READ];
    for (at, (completion, opcode)) in completions.iter().zip(opcodes).enumerate() {
        assert_eq!(completion.status, IBV_WC_SUCCESS, "request {}", at + 1);
        assert_eq!((completion.wr_id, completion.opcode), (at as u64 + 1, opcode));
    }
    assert_eq!((IBV_WC_FLUSH, IBV_WC_ATOMIC_WRITE), (8, 9));
    assert_eq!(remote.bytes(0, 24), b"persist me please.......");
    assert_eq!(local.bytes(512, 24), b"persist me please.......");
    assert_eq!(local.bytes(576, 8), value.to_le_bytes());
}

#[test]
fn persistent_memory_takes_a_persistent_flush() {
    let Some(wire) = wire() else { return };
    let Some(dax) = std::env::var_os("PMOF_DEVDAX") else {
        return skip_report::skipped!("PMOF_DEVDAX names no device-DAX");
    };
    let access = IBV_ACCESS_FLUSH_GLOBAL | IBV_ACCESS_FLUSH_PERSISTENT;
    let pair = Pair::connect(&wire, &Setup { flush_access: access, dax: Some(dax.into()), ..Setup::default() });
    let Some(pair) = pair.with_native_flush() else { return };
    let (remote, qp) = (&pair.remote, pair.initiator.qp_ex);
    // SAFETY: the queue pair is connected and has these operations; the range lies in the remote region, and inline bytes are copied at once.
    let completions = unsafe {
        ibv_wr_start(qp);
        pair.next_inline(1);
        ibv_wr_rdma_write(qp, remote.rkey(), remote.address(0));
        ibv_wr_set_inline_data(qp, b"to stay".as_ptr().cast(), 7);
        pair.next(2);
        ibv_wr_flush(qp, remote.rkey(), remote.address(0), 7, PERSISTENT | GLOBAL, RANGE);
        pair.complete(2)
    };
    assert_eq!(statuses(&completions), vec![IBV_WC_SUCCESS; completions.len()]);
    assert_eq!(remote.bytes(0, 7), b"to stay");
}

#[test]
fn ordinary_memory_does_not_register_for_persistent_flush() {
    let Some(wire) = wire() else { return };
    let pair = Pair::connect(&wire, &Setup::default());
    if pair.with_native_flush().is_none() {
        return;
    }
    let error = pair.register_again(IBV_ACCESS_FLUSH_PERSISTENT).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    // The control: the same memory registers without.
    pair.register_again(IBV_ACCESS_FLUSH_GLOBAL).unwrap();
}

/// Posts one flush, and a write behind it, which must end as flushed out of the queue.
fn status_of_flush(pair: &Pair, offset: usize, len_bytes: usize, placement: u8) -> u32 {
    let (local, remote, qp) = (&pair.local, &pair.remote, pair.initiator.qp_ex);
    // SAFETY: the queue pair is connected and has these operations; the data lies in the local region.
    let completions = unsafe {
        ibv_wr_start(qp);
        pair.next(1);
        ibv_wr_flush(qp, remote.rkey(), remote.address(offset), len_bytes, placement, RANGE);
        pair.next(2);
        ibv_wr_rdma_write(qp, remote.rkey(), remote.address(0));
        ibv_wr_set_sge(qp, local.lkey(), local.address(0), 8);
        pair.complete(2)
    };
    assert_eq!(completions[1].status, IBV_WC_WR_FLUSH_ERR);
    completions[0].status
}

#[test]
fn a_flush_that_the_region_does_not_allow_is_a_remote_access_error() {
    let Some(wire) = wire() else { return };
    let cases =
        [(IBV_ACCESS_FLUSH_GLOBAL, 0, 8, PERSISTENT), (0, 0, 8, GLOBAL), (IBV_ACCESS_FLUSH_GLOBAL, 4096, 8192, GLOBAL)];
    for (flush_access, offset, len_bytes, placement) in cases {
        let pair = Pair::connect(&wire, &Setup { flush_access, ..Setup::default() });
        let Some(pair) = pair.with_native_flush() else { return };
        assert_eq!(status_of_flush(pair, offset, len_bytes, placement), IBV_WC_REM_ACCESS_ERR);
    }
}

#[test]
fn a_target_without_responder_resources_takes_no_flush() {
    let Some(wire) = wire() else { return };
    let pair = Pair::connect(&wire, &Setup { resources: Resources::None, ..Setup::default() });
    let Some(pair) = pair.with_native_flush() else { return };
    assert_eq!(status_of_flush(pair, 0, 8, GLOBAL), IBV_WC_REM_INV_REQ_ERR);
}

#[test]
fn a_misaligned_atomic_write_is_an_invalid_request() {
    let Some(wire) = wire() else { return };
    let pair = Pair::connect(&wire, &Setup::default());
    let Some(pair) = pair.with_native_flush() else { return };
    let (remote, qp, value) = (&pair.remote, pair.initiator.qp_ex, 1_u64);
    // SAFETY: the queue pair is connected and has this operation; the address lies in the remote region, and the value is copied at once.
    let completions = unsafe {
        ibv_wr_start(qp);
        pair.next(1);
        ibv_wr_atomic_write(qp, remote.rkey(), remote.address(4), (&raw const value).cast());
        pair.complete(1)
    };
    assert_eq!(completions[0].status, IBV_WC_REM_INV_REQ_ERR);
}

#[test]
fn a_shared_receive_queue_takes_sends_and_writes_with_immediate() {
    let Some(wire) = wire() else { return };
    let pair = Pair::connect(&wire, &Setup::default());
    let (local, remote, qp) = (&pair.local, &pair.remote, pair.initiator.qp_ex);
    local.fill(0, b"first half, ");
    // Of one length: see `ibv_wr_set_sge_list`.
    local.fill(100, b"other half..");
    for id in 0..3 {
        pair.post_shared_receive(id, 1024 + 64 * id as usize, 64);
    }
    pair.ask_for_receive_event();
    // SAFETY: the queue pair is connected; the data lies in the local region.
    let completions = unsafe {
        ibv_wr_start(qp);
        pair.next(10);
        ibv_wr_send(qp);
        ibv_wr_set_sge_list(qp, &[local.range(0, 12), local.range(100, 12)]);
        pair.next_inline(11);
        ibv_wr_send_imm(qp, 7_u32.to_be());
        ibv_wr_set_inline_data(qp, b"inline".as_ptr().cast(), 6);
        pair.next(12);
        ibv_wr_rdma_write_imm(qp, remote.rkey(), remote.address(0), 8_u32.to_be());
        ibv_wr_set_sge(qp, local.lkey(), local.address(0), 5);
        pair.complete(3)
    };
    assert_eq!(statuses(&completions), vec![IBV_WC_SUCCESS; completions.len()]);
    pair.wait_for_receive_event();
    let received = pair.received(3);
    assert_eq!(received.iter().map(|completion| completion.wr_id).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(remote.bytes(1024, 24), b"first half, other half..");
    assert_eq!((received[0].opcode, received[0].byte_len), (IBV_WC_RECV, 24));
    assert_eq!(remote.bytes(1088, 6), b"inline");
    for (at, immediate) in [(1, 7_u32), (2, 8)] {
        assert_ne!(received[at].wc_flags & IBV_WC_WITH_IMM, 0);
        // SAFETY: a completion with this flag holds immediate data.
        assert_eq!(unsafe { received[at].__bindgen_anon_1.imm_data }, immediate.to_be());
    }
    assert_eq!(received[2].opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    assert_eq!(remote.bytes(0, 5), b"first");
}

#[test]
fn an_aborted_batch_posts_nothing_and_atomics_return_what_was_there() {
    let Some(wire) = wire() else { return };
    let pair = Pair::connect(&wire, &Setup::default());
    let (local, remote, qp) = (&pair.local, &pair.remote, pair.initiator.qp_ex);
    remote.fill(0, &5_u64.to_le_bytes());
    // SAFETY: the queue pair is connected; the data lies in the local region.
    let completions = unsafe {
        ibv_wr_start(qp);
        pair.next(1);
        ibv_wr_rdma_write(qp, remote.rkey(), remote.address(0));
        ibv_wr_set_sge(qp, local.lkey(), local.address(0), 8);
        ibv_wr_abort(qp);

        ibv_wr_start(qp);
        pair.next(2);
        ibv_wr_atomic_fetch_add(qp, remote.rkey(), remote.address(0), 3);
        ibv_wr_set_sge(qp, local.lkey(), local.address(8), 8);
        pair.next(3);
        ibv_wr_atomic_cmp_swp(qp, remote.rkey(), remote.address(0), 8, 99);
        ibv_wr_set_sge(qp, local.lkey(), local.address(16), 8);
        pair.complete(2)
    };
    assert_eq!(completions.iter().map(|completion| completion.wr_id).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(statuses(&completions), vec![IBV_WC_SUCCESS; completions.len()]);
    assert_eq!(local.bytes(8, 8), 5_u64.to_le_bytes());
    assert_eq!(local.bytes(16, 8), 8_u64.to_le_bytes());
    assert_eq!(remote.bytes(0, 8), 99_u64.to_le_bytes());
}

/// What the capabilities promise is what a queue pair has.
#[test]
fn a_device_that_announces_native_flush_gives_the_operations() {
    let Some(wire) = wire() else { return };
    let pair = Pair::connect(&wire, &Setup::default());
    let announced = [IB_UVERBS_DEVICE_FLUSH_GLOBAL, IB_UVERBS_DEVICE_ATOMIC_WRITE]
        .iter()
        .all(|&flag| pair.attributes.device_cap_flags_ex & flag != 0);
    assert_eq!(pair.has_native_flush(), announced, "{:#x}", pair.attributes.device_cap_flags_ex);
}
