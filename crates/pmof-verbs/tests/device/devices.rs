//! Finding devices and what they say of themselves.

use std::{env, process::Command, time::Duration};

use pmof_verbs::{
    AsyncEvent, CmEventKind, CmId, Device, DeviceError, DeviceInfo, EventChannel, LinkLayer, PortState,
    RESOLVE_TIMEOUT, Transport, VerbsError, devices,
};

use crate::support::{event, until, wire};

#[test]
fn devices_are_described() {
    let Some((a, _)) = wire() else { return };
    let device = Device::by_local_address(a).unwrap();
    let all = devices().unwrap();
    let info: &DeviceInfo = all.iter().find(|info| info.name == device.name()).unwrap();
    assert_eq!(info, device.capabilities());
    eprintln!("{info:#?}");
    // The test bed's devices are soft-RoCE of Linux 6.12.
    assert!(info.is_software && info.is_active());
    assert!(info.native_flush_global && info.native_flush_persistent && info.atomic_write && info.atomics);
    assert!(!info.on_demand_paging.serves_writes());
    assert_eq!(info.transport, Transport::RoCe);
    assert!(info.max_responder_resources > 0 && info.max_sge > 0 && info.max_completion_entries > 0);
    let [port] = &info.ports[..] else { panic!("{:?}", info.ports) };
    assert_eq!((port.number, port.state, port.link_layer), (1, PortState::Active, LinkLayer::Ethernet));
    assert!(port.gids.is_some_and(|gids| gids >= 1) && port.mtu_bytes >= 1024);
}

#[test]
fn a_device_is_found_by_name_by_address_and_by_route() {
    let Some((a, b)) = wire() else { return };
    let by_address = Device::by_local_address(a).unwrap();
    let by_name = Device::by_name(by_address.name()).unwrap();
    assert!(by_name.is_same(&by_address));
    let to = (b, 1).into();
    assert!(Device::towards(to, Some(a), RESOLVE_TIMEOUT).unwrap().is_same(&by_address));
    assert!(!Device::by_local_address(b).unwrap().is_same(&by_address));

    let Err(VerbsError::Device(DeviceError::Unknown { name, present })) = Device::by_name("mlx9_7") else { panic!() };
    assert!(name == "mlx9_7" && present.contains(&by_address.name().to_owned()), "{present:?}");
    let Err(VerbsError::SeveralDevices { present }) = Device::only() else { panic!() };
    assert!(present.len() >= 2, "{present:?}");
    for error in [
        Device::by_local_address("127.0.0.1".parse().unwrap()).unwrap_err(),
        Device::by_local_address("198.51.100.1".parse().unwrap()).unwrap_err(),
        Device::towards("10.77.0.99:1".parse().unwrap(), Some(a), Duration::from_millis(300)).unwrap_err(),
    ] {
        assert!(matches!(error, VerbsError::NoDeviceFor { .. }), "{error}");
        assert!(error.to_string().contains("rdma link"), "{error}");
    }
}

/// Runs a command of the guest.
fn run(words: &str) {
    let mut words = words.split(' ');
    let status = Command::new(words.next().unwrap()).args(words).status().unwrap();
    assert!(status.success());
}

/// Takes the device's events until the wanted one.
fn wait_for(device: &Device, wanted: impl Fn(&AsyncEvent) -> bool) {
    until("an asynchronous event", || device.async_events().map(Result::unwrap).find(&wanted));
}

#[test]
fn a_device_tells_of_its_port_and_of_its_end() {
    let Some((a, _)) = wire() else { return };
    if env::var_os("PMOF_WIRE_A_NETDEV").is_none() {
        skip_report::skipped!("only the test bed's guest may be reconfigured");
        return;
    }
    run("ip link add pmof-own type dummy");
    run("ip address add 10.78.0.1/24 dev pmof-own");
    run("ip link set pmof-own up");
    run("rdma link add rxe-own type rxe netdev pmof-own");
    let device = Device::by_name("rxe-own").unwrap();
    assert!(device.capabilities().is_software);
    assert_eq!(device.next_async_event().unwrap(), None);
    run("ip link set pmof-own down");
    wait_for(&device, |event| *event == AsyncEvent::PortError { port: 1 });
    run("ip link set pmof-own up");
    wait_for(&device, |event| *event == AsyncEvent::PortActive { port: 1 });

    let channel = EventChannel::new().unwrap();
    let id = CmId::new(&channel).unwrap();
    id.bind("10.78.0.1:0".parse().unwrap()).unwrap();
    assert!(id.device().unwrap().is_same(&device));
    // The kernel waits until nobody has a soft device open any more.
    let mut removal = Command::new("rdma").args(["link", "delete", "rxe-own"]).spawn().unwrap();
    let (key, kind) = event(&channel);
    assert!(key == id.key() && matches!(kind, CmEventKind::DeviceRemoval), "{kind:?}");
    drop((id, device));
    let status = until("the removal", || {
        // Devices of tests that run meanwhile hold all contexts too: one that is dropped has librdmacm look again.
        drop(Device::by_local_address(a));
        removal.try_wait().unwrap()
    });
    assert!(status.success());
    run("ip link delete pmof-own");
}
