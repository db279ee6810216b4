//! Sizes, offsets, prototypes and constants of the bindings beside a C compiler's view of libfabric's headers: those of
//! `PMOF_FABRIC_HEADERS`, an include directory with `rdma/fabric.h`, else those of `/usr/include`.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

use layout_check::{Check, assert_found};
use pmof_fabric_sys::{CONSTANTS, OPERATIONS, STRUCTURES, Structure};

/// Structures that pmof allocates and the library reads or fills in: these may not be longer in the headers.
const ALLOCATED_HERE: [&str; 9] = [
    "fi_av_attr",
    "fi_cq_attr",
    "fi_eq_attr",
    "fi_eq_cm_entry",
    "fi_cq_data_entry",
    "fi_context2",
    "fi_rma_iov",
    "fi_msg",
    "fi_msg_rma",
];

/// Lengths in bytes in the headers of 1.11.0, whose interface is asked for; later ones only append.
const OLDEST_BYTES: [(&str, usize); 37] = [
    ("fid", 24),
    ("fi_tx_attr", 80),
    ("fi_rx_attr", 64),
    ("fi_ep_attr", 96),
    ("fi_domain_attr", 192),
    ("fi_fabric_attr", 32),
    ("fi_info", 120),
    ("fid_fabric", 40),
    ("fid_domain", 40),
    ("fid_mr", 40),
    ("fid_av", 32),
    ("fid_cq", 32),
    ("fid_eq", 32),
    ("fid_pep", 40),
    ("fid_ep", 80),
    ("fi_av_attr", 48),
    ("fi_eq_attr", 32),
    ("fi_eq_err_entry", 48),
    ("fi_eq_cm_entry", 16),
    ("fi_cq_attr", 40),
    ("fi_cq_data_entry", 40),
    ("fi_cq_err_entry", 80),
    ("fi_context2", 64),
    ("fi_rma_iov", 24),
    ("fi_msg", 48),
    ("fi_msg_rma", 64),
    ("fi_ops", 56),
    ("fi_ops_fabric", 48),
    ("fi_ops_domain", 88),
    ("fi_ops_mr", 32),
    ("fi_ops_av", 64),
    ("fi_ops_cq", 64),
    ("fi_ops_eq", 48),
    ("fi_ops_ep", 64),
    ("fi_ops_cm", 80),
    ("fi_ops_msg", 80),
    ("fi_ops_rma", 80),
];

/// Without headers: what a table of 1.11 does not have is not there to be called.
#[test]
fn no_structure_is_longer_than_in_the_oldest_version() {
    for Structure { name, size_bytes, .. } in STRUCTURES.iter().chain(OPERATIONS) {
        let (_, oldest) = OLDEST_BYTES.iter().find(|(known, _)| known == name).unwrap_or_else(|| panic!("{name}"));
        assert!(size_bytes <= oldest, "{name} has {size_bytes} bytes, and {oldest} in 1.11");
    }
}

#[test]
fn the_headers_agree_with_the_bindings() {
    let Some(headers) = headers() else { return };
    let checks = checks();
    assert!(checks.len() > 450, "only {} checks", checks.len());
    let complaints = compile(&headers, &checks);
    assert!(complaints.is_empty(), "the headers of {} differ: {complaints}", headers.display());
}

/// The control: a wrong number or prototype of each kind is found, and nothing else.
#[test]
fn a_wrong_number_is_found() {
    let Some(headers) = headers() else { return };
    let broken = [
        ("size of fi_cq_attr", " == 40", " == 48"),
        ("size of fi_info", " >= 120", " >= 4096"),
        ("alignment of fi_msg", " == 8", " == 4"),
        ("offset of fi_domain_attr.mr_mode", " == 36", " == 40"),
        ("type of fi_domain_attr.mr_mode", "int", "long"),
        ("constant FI_RMA_PMEM", " == 562949953421312", " == 281474976710656"),
        ("prototype of fi_ops_cq.read", "void *", "int *"),
        ("prototype of fi_getinfo", "uint32_t", "uint64_t"),
    ];
    assert_found(checks(), &broken, |checks| compile(&headers, checks));
}

/// The include directory to compare with; none, with the reason said, where the machine has no headers.
fn headers() -> Option<PathBuf> {
    let named = std::env::var_os("PMOF_FABRIC_HEADERS").map(PathBuf::from);
    let directory = named.clone().unwrap_or_else(|| "/usr/include".into());
    let has = directory.join("rdma/fabric.h").exists();
    assert!(has || named.is_none(), "PMOF_FABRIC_HEADERS={}: no rdma/fabric.h", directory.display());
    if !has {
        skip_report::skipped!(
            "no headers of libfabric in {} (libfabric-dev); name some by PMOF_FABRIC_HEADERS",
            directory.display()
        );
    }
    has.then_some(directory)
}

fn checks() -> Vec<Check> {
    let mut checks = Vec::new();
    for structure in STRUCTURES.iter().chain(OPERATIONS) {
        structure_checks(structure, &mut checks);
    }
    for (name, value) in CONSTANTS {
        let expression = format!("(uint64_t)({name}) == {value}ULL");
        checks.push(Check { name: format!("constant {name}"), expression });
    }
    for (name, result, parameters) in [
        (
            "fi_getinfo",
            "int",
            "uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **",
        ),
        ("fi_freeinfo", "void", "struct fi_info *"),
        ("fi_dupinfo", "struct fi_info *", "const struct fi_info *"),
        ("fi_fabric", "int", "struct fi_fabric_attr *, struct fid_fabric **, void *"),
        ("fi_strerror", "const char *", "int"),
        ("fi_version", "uint32_t", "void"),
    ] {
        let expression = format!("__builtin_types_compatible_p(__typeof__(&{name}), {result} (*)({parameters}))");
        checks.push(Check { name: format!("prototype of {name}"), expression });
    }
    checks
}

fn structure_checks(structure: &Structure, checks: &mut Vec<Check>) {
    let Structure { name, size_bytes, alignment_bytes, fields } = structure;
    let relation = if ALLOCATED_HERE.contains(name) { "==" } else { ">=" };
    let expression = format!("sizeof(struct {name}) {relation} {size_bytes}");
    checks.push(Check { name: format!("size of {name}"), expression });
    let expression = format!("_Alignof(struct {name}) == {alignment_bytes}");
    checks.push(Check { name: format!("alignment of {name}"), expression });
    for (field, rust_type, offset_bytes) in *fields {
        let field = field.strip_suffix('_').unwrap_or(field);
        let expression = format!("offsetof(struct {name}, {field}) == {offset_bytes}");
        checks.push(Check { name: format!("offset of {name}.{field}"), expression });
        let rust_type: String = rust_type.split_whitespace().collect::<Vec<_>>().join(" ");
        let place = format!("((struct {name} *)0)->{field}");
        if let Some(c_type) = function_of(&rust_type) {
            let expression = format!("__builtin_types_compatible_p(__typeof__({place}), {c_type})");
            checks.push(Check { name: format!("prototype of {name}.{field}"), expression });
        } else if let Some(c_type) = number_of(&rust_type) {
            // An enumeration of the headers is a number of 32 bits here.
            let expression = format!("sizeof({place}) == sizeof({c_type})");
            checks.push(Check { name: format!("type of {name}.{field}"), expression });
        }
    }
}

/// A function pointer in C: `Option<unsafe extern "C" fn(A, B) -> R>`.
fn function_of(rust_type: &str) -> Option<String> {
    let (_, rest) = rust_type.split_once("fn(")?;
    let (parameters, result) = rest.rsplit_once("->")?;
    let parameters = parameters.trim().trim_end_matches(')').trim().trim_end_matches(',');
    let parameters: Vec<_> = parameters.split(',').map(|parameter| c_type(parameter.trim())).collect();
    let result = c_type(result.trim().trim_end_matches([',', ' ', '>']));
    Some(format!("{result} (*)({})", parameters.join(", ")))
}

fn number_of(rust: &str) -> Option<&'static str> {
    Some(match rust {
        "c_int" => "int",
        "u32" => "uint32_t",
        "u64" | "fi_addr_t" => "uint64_t",
        "usize" => "size_t",
        "isize" => "ssize_t",
        "c_void" => "void",
        "c_char" => "char",
        _ => return None,
    })
}

/// A Rust type in C.
fn c_type(rust: &str) -> String {
    if let Some(target) = rust.strip_prefix("*mut ") {
        return format!("{} *", c_type(target));
    }
    if let Some(target) = rust.strip_prefix("*const ") {
        return format!("const {} *", c_type(target));
    }
    number_of(rust).map_or_else(|| format!("struct {rust}"), ToOwned::to_owned)
}

/// What the C compiler says of the checks: nothing where all hold.
fn compile(headers: &Path, checks: &[Check]) -> String {
    let mut includes = "#include <stdint.h>\n#include <sys/uio.h>\n".to_owned();
    for header in ["fabric", "fi_errno", "fi_domain", "fi_eq", "fi_endpoint", "fi_cm", "fi_rma"] {
        writeln!(includes, "#include <rdma/{header}.h>").unwrap();
    }
    layout_check::compile(&includes, Some(headers).filter(|headers| *headers != Path::new("/usr/include")), checks)
}
