//! Sizes, offsets, constants and prototypes of the bindings beside a C compiler's view of rdma-core's headers.
//!
//! `src/bindings/types.rs` holds the numbers and asserts, when it is compiled, that Rust lays the structures out by them.
//! Here the same numbers become a C program of `_Static_assert`s on the headers of `PMOF_RDMA_HEADERS`, an include
//! directory with `infiniband/` and `rdma/` of rdma-core 45 or later, or else on those of `/usr/include`.
//! They are those of x86-64: elsewhere the C library's mutex has another size.
#![cfg(target_arch = "x86_64")]

use std::{
    collections::{BTreeMap, BTreeSet},
    mem::offset_of,
    os::unix::fs::symlink,
    path::PathBuf,
};

use layout_check::{Check, assert_found};
use pmof_verbs_sys::{ibv_send_wr, ibv_wc, rdma_addr};

const TYPES: &str = include_str!("../src/bindings/types.rs");
const FUNCTIONS: &str = include_str!("../src/bindings/functions.rs");

/// The offsets that bindgen does not assert: those of fields without a name in C.
const ANONYMOUS: [(&str, &str, usize); 5] = [
    ("ibv_wc", "__bindgen_anon_1", offset_of!(ibv_wc, __bindgen_anon_1)),
    ("ibv_send_wr", "__bindgen_anon_1", offset_of!(ibv_send_wr, __bindgen_anon_1)),
    ("ibv_send_wr", "__bindgen_anon_2", offset_of!(ibv_send_wr, __bindgen_anon_2)),
    ("rdma_addr", "__bindgen_anon_1", offset_of!(rdma_addr, __bindgen_anon_1)),
    ("rdma_addr", "__bindgen_anon_2", offset_of!(rdma_addr, __bindgen_anon_2)),
];

#[test]
fn the_headers_agree_with_the_bindings() {
    let Some(headers) = headers() else { return };
    let checks = Bindings::read().checks();
    assert!(checks.len() > 900, "only {} checks: the bindings are not read rightly", checks.len());
    let complaints = compile(&headers, &checks);
    assert!(complaints.is_empty(), "the headers of {} differ: {complaints}", headers.display());
}

/// The control: a wrong number or prototype of each kind is found, and nothing else.
#[test]
fn a_wrong_number_is_found() {
    let Some(headers) = headers() else { return };
    let broken = [
        ("size of ibv_wc", " == 48", " == 49"),
        ("alignment of ibv_sge", " == 8", " == 4"),
        ("offset of ibv_qp_ex.wr_flush", " == 3", " == 4"),
        ("offset of ibv_send_wr.wr.rdma.rkey", " == ", " == 1"),
        ("constant IBV_WC_ATOMIC_WRITE", " == 9", " == 8"),
        ("prototype of rdma_get_cm_event", "rdma_cm_event **", "rdma_cm_event *"),
    ];
    assert_found(Bindings::read().checks(), &broken, |checks| compile(&headers, checks));
}

/// The include directory to compare with; none, with the reason said, where the machine has no headers that are new
/// enough.
fn headers() -> Option<PathBuf> {
    let named = std::env::var_os("PMOF_RDMA_HEADERS").map(PathBuf::from);
    let directory = named.clone().unwrap_or_else(|| "/usr/include".into());
    let verbs = std::fs::read_to_string(directory.join("infiniband/verbs.h")).unwrap_or_default();
    let new_enough = verbs.contains("wr_flush") && directory.join("rdma/rdma_cma.h").exists();
    assert!(new_enough || named.is_none(), "PMOF_RDMA_HEADERS={}: no headers of rdma-core >= 45", directory.display());
    if !new_enough {
        skip_report::skipped!(
            "no headers of rdma-core >= 45 in {}; name some by PMOF_RDMA_HEADERS",
            directory.display()
        );
        return None;
    }
    Some(directory)
}

/// What the C compiler says of the checks: nothing where all hold.
fn compile(headers: &std::path::Path, checks: &[Check]) -> String {
    let directory = tempfile::tempdir().unwrap();
    // Only the headers of RDMA: those of the C library are the compiler's own.
    for part in ["infiniband", "rdma"] {
        symlink(headers.canonicalize().unwrap().join(part), directory.path().join(part)).unwrap();
    }
    let includes = "#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n#include <rdma/ib_user_verbs.h>\n";
    layout_check::compile(includes, Some(directory.path()), checks)
}

/// What `types.rs` says.
struct Bindings {
    /// Of a structure or union: `struct` or `union`.
    kinds: BTreeMap<String, &'static str>,
    /// Of a type that bindgen had to name: the type and the field in which it is.
    places: BTreeMap<String, (String, String)>,
    /// `Size of`, `Alignment of` or `Offset of field:`, of what, and the number.
    numbers: Vec<(String, String, usize)>,
    /// The name, the type and the value.
    constants: Vec<(String, String, String)>,
    /// Of every name for a number: its bytes.
    aliases: BTreeMap<String, usize>,
}

/// Where the fields of a type are for C: those of an anonymous part belong to the structure around it.
struct Place {
    /// The type, in C.
    c_type: String,
    /// The Rust name of the type that has a name.
    base: String,
    anonymous: bool,
    offset_bytes: usize,
}

impl Bindings {
    fn read() -> Self {
        let mut bindings = Self {
            kinds: BTreeMap::new(),
            places: BTreeMap::new(),
            numbers: numbers(),
            constants: Vec::new(),
            aliases: BTreeMap::new(),
        };
        let mut within = String::new();
        for line in TYPES.lines() {
            let words: Vec<_> =
                line.trim_end_matches([',', ';', ' ']).split([' ', ':']).filter(|word| !word.is_empty()).collect();
            match *words {
                ["pub", kind @ ("struct" | "union"), name, "{"] => {
                    name.clone_into(&mut within);
                    bindings.kinds.insert(name.to_owned(), if kind == "struct" { "struct" } else { "union" });
                }
                ["pub", field, r#type] if r#type.contains("__bindgen_ty_") => {
                    bindings.places.insert(r#type.to_owned(), (within.clone(), field.to_owned()));
                }
                ["pub", "const", name, r#type, "=", value] => {
                    bindings.constants.push((name.to_owned(), r#type.to_owned(), value.to_owned()));
                }
                ["pub", "type", name, "=", .., number] => {
                    bindings.aliases.insert(name.to_owned(), if number.contains("long") { 8 } else { 4 });
                }
                _ => {}
            }
        }
        bindings
    }

    fn checks(&self) -> Vec<Check> {
        let mut checks: Vec<_> = self.numbers.iter().filter_map(|number| self.number_check(number)).collect();
        let mut enums = BTreeSet::new();
        for (name, r#type, value) in &self.constants {
            checks.push(Check { name: format!("constant {name}"), expression: format!("{name} == {value}") });
            enums.insert(r#type);
        }
        for name in enums.into_iter().filter(|name| self.aliases.contains_key(*name) && !name.starts_with('_')) {
            let expression = format!("sizeof(enum {name}) == {}", self.aliases[name]);
            checks.push(Check { name: format!("size of {name}"), expression });
        }
        checks.extend(prototypes().map(|prototype| self.prototype_check(&prototype)));
        checks
    }

    /// None where C has no name for what was measured.
    fn number_check(&self, (what, of, number): &(String, String, usize)) -> Option<Check> {
        let (owner, field) = of.split_once("::").unwrap_or((of, ""));
        let place = self.place(owner);
        match (what.as_str(), place.anonymous) {
            ("Size of" | "Alignment of", true) => None,
            ("Size of", false) => Some(Check {
                name: format!("size of {of}"),
                expression: format!("sizeof({}) == {number}", place.c_type),
            }),
            ("Alignment of", false) => Some(Check {
                name: format!("alignment of {of}"),
                expression: format!("_Alignof({}) == {number}", place.c_type),
            }),
            _ if field.starts_with("_bindgen") || field.starts_with("__bindgen") => None,
            _ => {
                // Rust's keywords get an underscore.
                let field = field.strip_suffix('_').unwrap_or(field);
                let offset_bytes = place.offset_bytes + number;
                Some(Check {
                    name: format!("offset of {}.{field}", self.words_of(&place.base)),
                    expression: format!("offsetof({}, {field}) == {offset_bytes}", place.c_type),
                })
            }
        }
    }

    fn place(&self, name: &str) -> Place {
        let Some((parent, field)) = self.places.get(name) else {
            let kind = self.kinds.get(name).unwrap_or_else(|| panic!("no type {name} in the bindings"));
            return Place {
                c_type: format!("{kind} {name}"),
                base: name.to_owned(),
                anonymous: false,
                offset_bytes: 0,
            };
        };
        let around = self.place(parent);
        if field.starts_with("__bindgen_anon_") {
            let (.., offset_bytes) = ANONYMOUS
                .iter()
                .find(|(name, anonymous, _)| (*name, *anonymous) == (parent, field))
                .unwrap_or_else(|| panic!("{parent}::{field} is missing in ANONYMOUS"));
            return Place { anonymous: true, offset_bytes: around.offset_bytes + offset_bytes, ..around };
        }
        let c_type = format!("__typeof__((({} *)0)->{field})", around.c_type);
        Place { c_type, base: name.to_owned(), anonymous: false, offset_bytes: 0 }
    }

    /// A type's name in words of C: the fields that lead to it, where it has no name.
    fn words_of(&self, name: &str) -> String {
        match self.places.get(name) {
            Some((parent, field)) if field.starts_with("__bindgen_anon_") => self.words_of(parent),
            Some((parent, field)) => format!("{}.{field}", self.words_of(parent)),
            None => name.to_owned(),
        }
    }

    fn prototype_check(&self, prototype: &str) -> Check {
        let (name, rest) = prototype.split_once('(').expect("a parameter list");
        let (parameters, result) = rest.split_once(')').expect("the end of the parameters");
        let result = result.trim().strip_prefix("->").map_or_else(|| "void".to_owned(), |result| self.c_type(result));
        let parameters: Vec<_> = parameters
            .split(',')
            .filter_map(|parameter| parameter.split_once(':'))
            .map(|(_, r#type)| self.c_type(r#type))
            .collect();
        let parameters = if parameters.is_empty() { "void".to_owned() } else { parameters.join(", ") };
        Check {
            name: format!("prototype of {name}"),
            expression: format!("__builtin_types_compatible_p(__typeof__(&{name}), {result} (*)({parameters}))"),
        }
    }

    /// A Rust type in C.
    fn c_type(&self, rust: &str) -> String {
        let rust = rust.trim();
        if let Some(target) = rust.strip_prefix("*mut ") {
            let target = self.c_type(target);
            return if target.ends_with('*') { format!("{target}*") } else { format!("{target} *") };
        }
        if let Some(target) = rust.strip_prefix("*const ") {
            return format!("const {} *", self.c_type(target));
        }
        let number = match rust.strip_prefix("core::ffi::c_").unwrap_or(rust) {
            "int" => "int",
            "uint" => "unsigned int",
            "char" => "char",
            "void" => "void",
            "u8" => "uint8_t",
            "u32" => "uint32_t",
            "u64" => "uint64_t",
            "usize" => "size_t",
            "isize" => "ssize_t",
            "sockaddr" => "struct sockaddr",
            big_endian if big_endian.starts_with("__be") => big_endian,
            name if self.aliases.contains_key(name) => return format!("enum {name}"),
            name => return self.place(name).c_type,
        };
        number.to_owned()
    }
}

/// The assertions that bindgen wrote: `["Offset of field: ibv_sge::addr"][... - 0usize]`.
fn numbers() -> Vec<(String, String, usize)> {
    let assertion = |text: &str| {
        let (label, rest) = text.split_once("\"]")?;
        let (_, number) = rest.split_once(" - ")?;
        let (what, of) = label.rsplit_once(' ')?;
        let number = number.split_once("usize")?.0.parse().ok()?;
        let what = if what.starts_with("Offset") { "Offset" } else { what };
        Some((what.to_owned(), of.to_owned(), number))
    };
    TYPES
        .split("[\"")
        .skip(1)
        .map(|text| assertion(text).unwrap_or_else(|| panic!("not an assertion: {text}")))
        .collect()
}

/// The prototypes in `functions.rs`: the name, the parameters in parentheses, and the result.
fn prototypes() -> impl Iterator<Item = String> {
    FUNCTIONS.split("pub fn ").skip(1).map(|text| {
        let prototype = text.split_once(';').expect("the end of a prototype").0;
        prototype.split_whitespace().collect::<Vec<_>>().join(" ")
    })
}
