//! The inline calls on contexts and queue pairs made by hand: what is missing is an error, never a jump to nowhere.

use std::{
    ffi::{c_int, c_void},
    mem::{offset_of, size_of},
    ptr,
};

use pmof_verbs_sys::{
    DeviceError, DeviceList, IBV_QP_EX_WITH_ATOMIC_WRITE, IBV_QP_EX_WITH_FLUSH, IBV_QP_EX_WITH_RDMA_WRITE,
    IBV_QP_EX_WITH_SEND, LoadError, Verbs, available_send_ops, ib_uverbs_advise_mr_advice, ibv_advise_mr, ibv_context,
    ibv_cq, ibv_cq_init_attr_ex, ibv_create_cq_ex, ibv_pd, ibv_poll_cq, ibv_post_recv, ibv_post_send,
    ibv_post_srq_recv, ibv_qp, ibv_qp_ex, ibv_req_notify_cq, ibv_sge, ibv_srq, ibv_wr_flush, verbs_context,
};

unsafe extern "C" fn advise(
    _: *mut ibv_pd,
    _: ib_uverbs_advise_mr_advice,
    flags: u32,
    _: *mut ibv_sge,
    count: u32,
) -> c_int {
    c_int::try_from(flags * 10 + count).unwrap()
}

unsafe extern "C" fn step(_: *mut ibv_qp_ex) {}
unsafe extern "C" fn complete(_: *mut ibv_qp_ex) -> c_int {
    0
}
unsafe extern "C" fn set_sge(_: *mut ibv_qp_ex, _: u32, _: u64, _: u32) {}
unsafe extern "C" fn set_sge_list(_: *mut ibv_qp_ex, _: usize, _: *const ibv_sge) {}
unsafe extern "C" fn set_inline(_: *mut ibv_qp_ex, _: *mut c_void, _: usize) {}
unsafe extern "C" fn set_inline_list(_: *mut ibv_qp_ex, _: usize, _: *const pmof_verbs_sys::ibv_data_buf) {}
unsafe extern "C" fn write(_: *mut ibv_qp_ex, _: u32, _: u64) {}
unsafe extern "C" fn flush(qp: *mut ibv_qp_ex, rkey: u32, address: u64, len_bytes: usize, placement: u8, level: u8) {
    // SAFETY: the queue pair is the test's own.
    unsafe { (*qp).wr_id = u64::from(rkey) + address + len_bytes as u64 + u64::from(placement) + u64::from(level) };
}

/// A context as a provider makes it, with one extended operation.
fn extended_context() -> Box<verbs_context> {
    let mut context = Box::new(verbs_context::default());
    context.sz = size_of::<verbs_context>();
    context.advise_mr = Some(advise);
    context.context.abi_compat = ptr::without_provenance_mut(usize::MAX);
    context
}

fn advise_on(context: *mut verbs_context) -> c_int {
    // The context inside keeps the provenance of the whole, as one of the library does.
    let inner = context.wrapping_byte_add(offset_of!(verbs_context, context)).cast::<ibv_context>();
    let mut pd = ibv_pd { context: inner, handle: 0 };
    let mut ranges = [ibv_sge::default(); 2];
    // SAFETY: the protection domain and its context are alive.
    unsafe { ibv_advise_mr(&raw mut pd, 0, 4, &mut ranges) }
}

#[test]
fn an_extended_operation_is_called_where_the_context_has_it() {
    let context = Box::into_raw(extended_context());
    assert_eq!(advise_on(context), 42);
    // SAFETY: made by `into_raw` above, as in the tests below.
    drop(unsafe { Box::from_raw(context) });
}

#[test]
fn an_extended_operation_that_the_context_lacks_is_not_supported() {
    let null = Box::into_raw(Box::new(verbs_context { advise_mr: None, ..*extended_context() }));
    let shorter = Box::into_raw(extended_context());
    let first_abi = Box::into_raw(extended_context());
    // SAFETY: both are alive.
    unsafe {
        // The structure of an older library: all from the field after `advise_mr` on.
        (*shorter).sz = size_of::<verbs_context>() - offset_of!(verbs_context, alloc_null_mr);
        (*first_abi).context.abi_compat = ptr::null_mut();
    }
    for context in [null, shorter, first_abi] {
        assert_eq!(advise_on(context), libc::EOPNOTSUPP);
        let inner = context.wrapping_byte_add(offset_of!(verbs_context, context)).cast::<ibv_context>();
        let mut attributes = ibv_cq_init_attr_ex::default();
        // SAFETY: the context is alive.
        let cq = unsafe { ibv_create_cq_ex(inner, &raw mut attributes) };
        assert!(cq.is_null());
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EOPNOTSUPP));
        // SAFETY: made by `into_raw` above.
        drop(unsafe { Box::from_raw(context) });
    }
}

#[test]
fn an_operation_of_the_data_path_that_is_null_is_not_supported() {
    let context = &raw mut *Box::leak(extended_context());
    let inner = context.wrapping_byte_add(offset_of!(verbs_context, context)).cast::<ibv_context>();
    // SAFETY: all zero is a valid value of these structures; the context, which is kept, is alive.
    unsafe {
        let (mut qp, mut cq, mut srq): (ibv_qp, ibv_cq, ibv_srq) = std::mem::zeroed();
        (qp.context, cq.context, srq.context) = (inner, inner, inner);
        assert_eq!(ibv_post_send(&raw mut qp, ptr::null_mut(), ptr::null_mut()), libc::EOPNOTSUPP);
        assert_eq!(ibv_post_recv(&raw mut qp, ptr::null_mut(), ptr::null_mut()), libc::EOPNOTSUPP);
        assert_eq!(ibv_post_srq_recv(&raw mut srq, ptr::null_mut(), ptr::null_mut()), libc::EOPNOTSUPP);
        assert_eq!(ibv_poll_cq(&raw mut cq, 1, ptr::null_mut()), -libc::EOPNOTSUPP);
        assert_eq!(ibv_req_notify_cq(&raw mut cq, 0), libc::EOPNOTSUPP);
    }
}

#[test]
fn the_operations_of_a_queue_pair_are_those_accepted_and_not_null() {
    // SAFETY: all zero is a valid value.
    let mut qp: ibv_qp_ex = unsafe { std::mem::zeroed() };
    let accepted = [IBV_QP_EX_WITH_RDMA_WRITE, IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_FLUSH].map(u64::from);
    let all = accepted.iter().sum();
    // SAFETY: the queue pair is as large as the flags say.
    let lacking = |qp: &ibv_qp_ex| unsafe { available_send_ops(qp, all) }.unwrap_err().op;

    assert_eq!(lacking(&qp), "wr_start");
    qp.wr_start = Some(step);
    qp.wr_complete = Some(complete);
    qp.wr_abort = Some(step);
    assert_eq!(lacking(&qp), "wr_set_sge");
    qp.wr_set_sge = Some(set_sge);
    qp.wr_set_sge_list = Some(set_sge_list);
    qp.wr_set_inline_data = Some(set_inline);
    assert_eq!(lacking(&qp), "wr_set_inline_data_list");
    qp.wr_set_inline_data_list = Some(set_inline_list);
    // SAFETY: the queue pair lives on the stack, and is as large as the flags say.
    assert_eq!(unsafe { available_send_ops(&raw const qp, all) }, Ok(0));

    qp.wr_rdma_write = Some(write);
    qp.wr_flush = Some(flush);
    // SAFETY: the queue pair lives on the stack, and is as large as the flags say.
    unsafe {
        assert_eq!(available_send_ops(&raw const qp, all), Ok(accepted[0] | accepted[2]));
        // Not accepted is not read, be it null or not.
        assert_eq!(available_send_ops(&raw const qp, accepted[1]), Ok(0));
        ibv_wr_flush(&raw mut qp, 10_000, 1_000, 100, 10, 1);
    }
    assert_eq!(qp.wr_id, 11_111);
}

/// In rdma-core 44 other fields of the provider lie where `wr_flush` is now.
#[test]
fn a_queue_pair_of_an_older_provider_is_not_read_past_its_end() {
    // SAFETY: all zero is a valid value.
    let mut qp: ibv_qp_ex = unsafe { std::mem::zeroed() };
    qp.wr_start = Some(step);
    qp.wr_complete = Some(complete);
    qp.wr_abort = Some(step);
    qp.wr_set_sge = Some(set_sge);
    qp.wr_set_sge_list = Some(set_sge_list);
    qp.wr_set_inline_data = Some(set_inline);
    qp.wr_set_inline_data_list = Some(set_inline_list);
    qp.wr_rdma_write = Some(write);
    let accepted = u64::from(IBV_QP_EX_WITH_RDMA_WRITE);
    for (flag, end) in [
        (IBV_QP_EX_WITH_FLUSH, offset_of!(ibv_qp_ex, wr_flush)),
        (IBV_QP_EX_WITH_ATOMIC_WRITE, offset_of!(ibv_qp_ex, wr_atomic_write)),
    ] {
        // Only the older structure is allocated, so that memcheck and Miri see a read beyond it.
        let mut older = vec![0_u64; end / 8];
        // SAFETY: the older structure is the start of the younger, and the vector has its length.
        unsafe { ptr::copy_nonoverlapping((&raw const qp).cast::<u64>(), older.as_mut_ptr(), older.len()) };
        // SAFETY: the flags accepted name no field beyond the end.
        let available = unsafe { available_send_ops(older.as_ptr().cast(), accepted) }.unwrap();
        assert_eq!(available & u64::from(flag), 0);
        assert_eq!(available, accepted);
    }
}

#[test]
fn the_devices_of_this_machine_are_listed_and_an_unknown_one_is_named() {
    let verbs = match Verbs::load() {
        Ok(verbs) => verbs,
        Err(error @ LoadError::Library { .. }) => return skip_report::skipped!("{error}"),
        Err(error) => panic!("{error}"),
    };
    let list = DeviceList::get(verbs).unwrap();
    let names: Vec<_> = list.devices().map(|device| device.name()).collect();
    let error = list.find(Some("no-such-device")).err().expect("there is no such device");
    let text = error.to_string();
    match error {
        DeviceError::None => {
            assert!(names.is_empty());
            assert!(text.contains("modprobe") && text.contains("rdma link add rxe0 type rxe netdev eth0"), "{text}");
            assert!(matches!(list.find(None), Err(DeviceError::None)));
        }
        DeviceError::Unknown { name, present } => {
            assert_eq!((name.as_str(), &present), ("no-such-device", &names));
            assert!(text.contains(&names[0]), "{text}");
            assert_eq!(list.find(None).unwrap().name(), names[0]);
            assert_eq!(list.find(Some(&names[0])).unwrap().name(), names[0]);
        }
        other => panic!("{other}"),
    }
}
