//! What a machine says that has no RDS, or not at an address.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use pmof_rds::{RdsError, Socket, check_kernel, survey};

/// Whether the kernel has RDS.
fn has_rds() -> bool {
    !matches!(Socket::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))), Err(RdsError::NoModule { .. }))
}

#[test]
fn without_the_module_the_error_names_it() {
    if has_rds() {
        skip_report::skipped!("this kernel has RDS");
        return;
    }
    let errors = [
        Socket::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).map(drop).unwrap_err(),
        survey().map(drop).unwrap_err(),
        check_kernel().unwrap_err(),
    ];
    for error in errors {
        let text = error.to_string();
        assert!(matches!(error, RdsError::NoModule { .. }), "{text}");
        assert!(text.contains("modprobe -a rds rds_rdma"), "{text}");
    }
}

#[test]
fn addresses_without_rds_are_named() {
    let error = Socket::bind(SocketAddr::from((Ipv6Addr::LOCALHOST, 0))).map(drop).unwrap_err();
    assert!(matches!(error, RdsError::Ipv6 { .. }), "{error}");
    if !has_rds() {
        skip_report::skipped!("this kernel has no RDS: its modules rds and rds_rdma are not loaded");
        return;
    }
    // Of a network for documentation.
    let nowhere = Ipv4Addr::new(192, 0, 2, 1);
    let error = Socket::bind(SocketAddr::from((nowhere, 0))).map(drop).unwrap_err();
    assert!(matches!(error, RdsError::NoDevice { .. }) && error.to_string().contains("192.0.2.1"), "{error}");
    let first = Socket::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let error = Socket::bind(first.local_address().into()).map(drop).unwrap_err();
    let port = first.local_address().port();
    assert!(matches!(error, RdsError::PortInUse { port: used, .. } if used == port), "{error}");
    assert!(survey().unwrap().addresses.iter().all(|(address, _)| !address.is_loopback()));
}
