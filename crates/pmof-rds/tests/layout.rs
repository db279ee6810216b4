//! The kernel's interface beside a C compiler's view of `linux/rds.h`.

use std::path::Path;

use layout_check::{Check, assert_found, compile};
use pmof_rds::{CONSTANTS, STRUCTURES};

const INCLUDES: &str = "#include <stdint.h>\n#include <sys/socket.h>\n#include <linux/rds.h>\n";

/// Without the kernel's headers for programs there is nothing to compare with.
fn has_headers() -> bool {
    let has = Path::new("/usr/include/linux/rds.h").exists();
    if !has {
        skip_report::skipped!("no /usr/include/linux/rds.h (linux-libc-dev)");
    }
    has
}

fn checks() -> Vec<Check> {
    let mut checks = vec![Check::new("constant AF_RDS", format!("AF_RDS == {}", libc::AF_RDS))];
    for structure in STRUCTURES {
        let name = structure.name;
        checks
            .push(Check::new(format!("size of {name}"), format!("sizeof(struct {name}) == {}", structure.size_bytes)));
        checks.push(Check::new(
            format!("alignment of {name}"),
            format!("_Alignof(struct {name}) == {}", structure.alignment_bytes),
        ));
        for (field, size, offset) in structure.fields {
            let place = format!("((struct {name} *)0)->{field}");
            checks.push(Check::new(
                format!("offset of {name}.{field}"),
                format!("offsetof(struct {name}, {field}) == {offset}"),
            ));
            checks.push(Check::new(format!("length of {name}.{field}"), format!("sizeof({place}) == {size}")));
        }
    }
    for (name, value) in CONSTANTS {
        checks.push(Check::new(format!("constant {name}"), format!("({name}) == {value}")));
    }
    checks
}

#[test]
fn the_header_agrees_with_the_bindings() {
    if has_headers() {
        let checks = checks();
        assert!(checks.len() > 60, "only {} checks", checks.len());
        let complaints = compile(INCLUDES, None, &checks);
        assert!(complaints.is_empty(), "{complaints}");
    }
}

/// The control: a wrong number of each kind is found, and nothing else.
#[test]
fn a_wrong_number_is_found() {
    if has_headers() {
        let broken = [
            ("size of rds_rdma_args", " == 56", " == 48"),
            ("alignment of rds_info_connection", " == 1", " == 8"),
            ("offset of rds_rdma_args.user_token", " == 48", " == 40"),
            ("length of rds_rdma_notify.status", " == 4", " == 8"),
            ("constant RDS_RDMA_NOTIFY_ME", " == 32", " == 64"),
        ];
        assert_found(checks(), &broken, |checks| compile(INCLUDES, None, checks));
    }
}
