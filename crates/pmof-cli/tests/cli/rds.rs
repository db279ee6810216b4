//! Targets over RDS.

use std::{
    io::{BufRead as _, BufReader},
    process::Stdio,
    time::Instant,
};

use crate::support::{Said, command, directory, file_with, pattern, pmof, text};

/// Where the kernel has RDS a pool is written and read; where it has not, the error names the modules.
#[test]
fn a_pool_is_written_and_read() {
    let (root, place) = (directory(), directory());
    let mut target = command(["serve", "--listen", "rds://127.0.0.1:0", "--root"])
        .arg(root.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(target.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let Some(address) = line.strip_prefix("ready ") else {
        let said = Said::new(Instant::now(), target.wait_with_output().unwrap());
        assert!(
            said.errors.contains("this kernel has no RDS: load its modules with `modprobe -a rds rds_rdma`"),
            "{said:?}"
        );
        skip_report::skipped!("no RDS: {}", said.errors.trim_end());
        return;
    };
    let url = format!("{}/orders", address.trim_end());
    let source = file_with(&place, "source", &pattern(3_000_001));
    let receipt = pmof(["cp", text(&source), &url]).done();
    assert!(receipt.contains("send-after-write"), "{receipt:?}");
    let back = place.path().join("back");
    pmof(["cp", &url, text(&back)]).done();
    let written = std::fs::read(&source).unwrap();
    assert!(std::fs::read(&back).unwrap().starts_with(&written));
    target.kill().unwrap();
    target.wait().unwrap();
}
