//! What librpma.h provides by itself.

use std::{fs, process::Command};

/// Programs of others include nothing else for these: the original's header brings stdio.h too.
const PROGRAM: &str = r#"
#include <librpma.h>
int main(void) {
    FILE *stream = stdout;
    size_t bytes = 0;
    uint64_t number = UINT64_MAX;
    bool is_there = number != 0;
    return fprintf(stream, "%zu %d\n", bytes, is_there) > 0 ? RPMA_E_INVAL : 0;
}
"#;

#[test]
fn the_header_brings_what_the_original_brings() {
    let directory = tempfile::tempdir().unwrap();
    let verbs = directory.path().join("infiniband");
    fs::create_dir(&verbs).unwrap();
    // It names these two; rdma-core's own need not be installed.
    fs::write(verbs.join("verbs.h"), "struct ibv_context;\nstruct ibv_wc;\n").unwrap();
    let program = directory.path().join("program.c");
    fs::write(&program, PROGRAM).unwrap();
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/include");
    let compiled = Command::new("cc")
        .args(["-std=c11", "-fsyntax-only", "-Wall", "-Werror", "-I", include, "-I"])
        .args([directory.path(), &program])
        .output()
        .expect("a C compiler, which `cargo xtask capi` needs too");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
}
