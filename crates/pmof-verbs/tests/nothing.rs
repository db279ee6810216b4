//! A machine without RDMA: every way in says what is missing and what to do.

use pmof_verbs::{CmId, Device, EventChannel, RESOLVE_TIMEOUT, VerbsError, devices};

#[test]
fn a_machine_without_devices_says_so() {
    match devices() {
        Ok(devices) if devices.is_empty() => {}
        Ok(_) => {
            skip_report::skipped!("this machine has RDMA devices");
            return;
        }
        Err(error) => assert!(matches!(error, VerbsError::Library(_)), "{error}"),
    }
    let target = "127.0.0.1:1".parse().unwrap();
    let errors: Vec<VerbsError> = vec![
        Device::only().unwrap_err(),
        Device::by_name("mlx5_0").unwrap_err(),
        Device::by_local_address("127.0.0.1".parse().unwrap()).unwrap_err(),
        Device::towards(target, None, RESOLVE_TIMEOUT).unwrap_err(),
        EventChannel::new().and_then(|channel| CmId::new(&channel)).unwrap_err(),
    ];
    for error in errors {
        assert!(error.is_unavailable(), "{error:?}");
        let message = error.to_string();
        let has_step =
            ["modprobe rdma_rxe", "modprobe rdma_ucm", "apt install"].iter().any(|step| message.contains(step));
        assert!(has_step, "{message}");
        eprintln!("{message}");
    }
}
