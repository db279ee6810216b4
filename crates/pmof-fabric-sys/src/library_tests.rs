//! Loading, with libraries that are missing, wrong, old and right.

use std::{ffi::CString, process::Command};

use super::*;

/// A library of these functions.
fn library(directory: &tempfile::TempDir, source: &str) -> CString {
    let (text, library) = (directory.path().join("fabric.c"), directory.path().join("libfabric.so"));
    std::fs::write(&text, source).unwrap();
    let compiler = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &text])
        .output()
        .expect("cc, which Rust links with");
    assert!(compiler.status.success(), "{}", String::from_utf8_lossy(&compiler.stderr));
    CString::new(library.to_str().unwrap()).unwrap()
}

fn functions(version: &str) -> String {
    format!(
        "int fi_getinfo(void) {{ return 0; }} int fi_freeinfo(void) {{ return 0; }} int fi_dupinfo(void) {{ return 0; }}\n\
         int fi_fabric(void) {{ return 0; }} int fi_strerror(void) {{ return 0; }}\n\
         unsigned fi_version(void) {{ return {version}; }}"
    )
}

#[test]
fn a_missing_library_names_itself_and_its_package() {
    let error = Fabric::open(c"libfabric.so.nowhere").err().expect("there is no such library");
    assert!(matches!(&error, LoadError::Library { reason, .. } if reason.contains("No such file")), "{error:?}");
    let text = error.to_string();
    for part in ["libfabric.so.nowhere", "apt install libfabric1", "dnf install libfabric"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_library_without_a_function_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let without = functions("0x10011").replace("fi_fabric", "fi_other");
    let error = Fabric::open(&library(&directory, &without)).err().expect("it has no fi_fabric");
    assert!(matches!(&error, LoadError::Symbol { symbol: "fi_fabric", .. }), "{error:?}");
}

#[test]
fn a_library_that_is_too_old_is_refused_with_its_version() {
    for (version, refused) in
        [("0x1000b", Some("1.11")), ("0x10010", Some("1.16")), ("0x10011", None), ("0x20001", None)]
    {
        let directory = tempfile::tempdir().unwrap();
        let opened = Fabric::open(&library(&directory, &functions(version)));
        assert_eq!(opened.is_ok(), refused.is_none(), "{version}");
        if let (Err(error), Some(refused)) = (opened, refused) {
            let text = error.to_string();
            let version = format!("is version {refused}: pmof needs libfabric 1.17 or later");
            for part in [version.as_str(), "apt install libfabric1", "dnf upgrade"] {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
    }
}

/// A constructor that takes a signal over, as psm3's does.
#[test]
fn signals_stay_the_programs() {
    let directory = tempfile::tempdir().unwrap();
    let takes = "#include <signal.h>\n#include <stddef.h>\nstatic void caught(int s) { (void)s; }\n\
                 __attribute__((constructor)) static void take(void) { signal(SIGUSR2, caught); }\n";
    let library = library(&directory, &format!("{takes}{}", functions("0x20001")));
    let handler = || SignalHandlers::of(libc::SIGUSR2).unwrap().sa_sigaction;
    let before = handler();
    assert!(Fabric::open(&library).is_ok(), "it has all functions");
    assert_eq!(handler(), before);
    // The control: the constructor runs, and takes it where nothing is restored.
    let path = CString::new(format!("{}.copy", library.to_str().unwrap())).unwrap();
    std::fs::copy(library.to_str().unwrap(), path.to_str().unwrap()).unwrap();
    // SAFETY: the constructor has no conditions.
    let opened = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!opened.is_null());
    assert_ne!(handler(), before);
}
