//! Loading, with libraries that are missing, wrong, older and whole.

use std::{
    ffi::CString,
    fmt::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

use super::*;

/// The functions that may be missing.
const OPTIONAL: [&str; 3] = ["_ibv_query_gid_ex", "_ibv_query_gid_table", "ibv_is_fork_initialized"];

/// A library in `directory` that exports these functions, which do nothing.
fn library(directory: &tempfile::TempDir, name: &str, functions: impl Iterator<Item = &'static str>) -> PathBuf {
    let mut source = String::new();
    for function in functions {
        writeln!(source, "int {function}(void) {{ return 0; }}").unwrap();
    }
    let (text, library) = (directory.path().join(format!("{name}.c")), directory.path().join(name));
    std::fs::write(&text, source).unwrap();
    let compiler = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &text])
        .output()
        .expect("cc, which Rust links with");
    assert!(compiler.status.success(), "{}", String::from_utf8_lossy(&compiler.stderr));
    library
}

fn open(libibverbs: &Path, librdmacm: &Path) -> Result<Verbs, LoadError> {
    let c_string = |path: &Path| CString::new(path.to_str().unwrap()).unwrap();
    Verbs::open(&c_string(libibverbs), &c_string(librdmacm))
}

#[test]
fn a_missing_library_names_itself_and_its_packages() {
    let directory = tempfile::tempdir().unwrap();
    let whole = library(&directory, "whole-ibverbs.so", Verbs::REQUIRED[0].iter().copied());
    for (libibverbs, librdmacm, missing) in [
        (Path::new("libibverbs.so.nowhere"), Path::new("librdmacm.so.nowhere"), "libibverbs.so.nowhere"),
        (&*whole, Path::new("librdmacm.so.nowhere"), "librdmacm.so.nowhere"),
    ] {
        let error = open(libibverbs, librdmacm).err().expect("there is no such library");
        let LoadError::Library { library, reason } = &error else { panic!("{error:?}") };
        assert_eq!(library, missing);
        assert!(reason.contains("No such file"), "{reason}");
        let text = error.to_string();
        for package in
            ["libibverbs1", "librdmacm1", "librdmacm1t64", "ibverbs-providers", "dnf install libibverbs librdmacm"]
        {
            assert!(text.contains(package), "{package}: {text}");
        }
    }
}

#[test]
fn a_file_that_is_no_library_is_refused_with_the_loaders_reason() {
    let directory = tempfile::tempdir().unwrap();
    let text = directory.path().join("text.so");
    std::fs::write(&text, "not a library").unwrap();
    let error = open(&text, &text).err().expect("a text is no library");
    assert!(
        matches!(&error, LoadError::Library { reason, .. } if reason.contains("too short")
        || reason.contains("invalid ELF header")),
        "{error}"
    );
}

#[test]
fn a_library_that_lacks_any_one_function_is_named_with_that_function() {
    let directory = tempfile::tempdir().unwrap();
    let whole: Vec<_> = Verbs::REQUIRED
        .iter()
        .enumerate()
        .map(|(at, functions)| library(&directory, &format!("all-{at}.so"), functions.iter().copied()))
        .collect();
    // The control: with all of them it loads, and the functions of later versions are absent, not invented.
    let verbs = open(&whole[0], &whole[1]).unwrap();
    assert!(verbs._ibv_query_gid_ex.is_none());
    assert!(verbs._ibv_query_gid_table.is_none());
    assert!(verbs.ibv_is_fork_initialized.is_none());

    for (at, lacking) in
        [(0, "ibv_reg_mr_iova2"), (0, "ibv_qp_to_qp_ex"), (1, "rdma_establish"), (1, "rdma_create_qp_ex")]
    {
        let functions = Verbs::REQUIRED[at].iter().copied().filter(|&function| function != lacking);
        let old = library(&directory, &format!("without-{lacking}.so"), functions);
        let libraries = if at == 0 { [&old, &whole[1]] } else { [&whole[0], &old] };
        let error = open(libraries[0], libraries[1]).err().expect("the function is missing");
        let expected = LoadError::Symbol { library: old.to_str().unwrap().to_owned(), symbol: lacking };
        assert_eq!(error, expected);
        assert!(error.to_string().contains("rdma-core 28 or later"), "{error}");
    }
}

#[test]
fn the_functions_of_later_versions_are_found_where_they_are() {
    let directory = tempfile::tempdir().unwrap();
    let functions = Verbs::REQUIRED[0].iter().copied().chain(OPTIONAL);
    let younger = library(&directory, "younger-ibverbs.so", functions);
    let rdmacm = library(&directory, "younger-rdmacm.so", Verbs::REQUIRED[1].iter().copied());
    let verbs = open(&younger, &rdmacm).unwrap();
    assert!(verbs._ibv_query_gid_ex.is_some());
    assert!(verbs._ibv_query_gid_table.is_some());
    assert!(verbs.ibv_is_fork_initialized.is_some());
}

#[test]
fn the_libraries_of_this_machine_load_once_and_name_states() {
    let verbs = match Verbs::load() {
        Ok(verbs) => verbs,
        Err(error @ LoadError::Library { .. }) => {
            skip_report::skipped!("the RDMA libraries are not installed: {error}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    assert!(std::ptr::eq(verbs, Verbs::load().unwrap()));
    // SAFETY: both take any number and give a C string that is never freed.
    let (status, event) = unsafe {
        (
            CStr::from_ptr((verbs.ibv_wc_status_str)(crate::IBV_WC_REM_ACCESS_ERR)),
            CStr::from_ptr((verbs.rdma_event_str)(crate::RDMA_CM_EVENT_ESTABLISHED)),
        )
    };
    assert_eq!(status, c"remote access error");
    assert_eq!(event, c"RDMA_CM_EVENT_ESTABLISHED");
}
