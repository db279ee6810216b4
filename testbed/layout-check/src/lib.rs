//! Bindings of a C library beside a C compiler's view of its headers: what must hold, as static assertions of a C program.

use std::{fmt::Write as _, path::Path, process::Command};

/// Something that the headers must agree with.
#[derive(Clone, Debug)]
pub struct Check {
    /// What is compared, such as `size of fi_info`.
    pub name: String,
    /// It holds: a constant expression in C.
    pub expression: String,
}

impl Check {
    /// A check.
    pub fn new(name: impl Into<String>, expression: impl Into<String>) -> Self {
        Self { name: name.into(), expression: expression.into() }
    }
}

/// What the C compiler says of the checks: nothing where all hold. `includes`: the lines of the program before them. `directory`: where headers
/// are looked for first.
///
/// # Panics
///
/// Where the compiler does not run, or says something else.
pub fn compile(includes: &str, directory: Option<&Path>, checks: &[Check]) -> String {
    let mut program = format!("#include <stddef.h>\n{includes}");
    for Check { name, expression } in checks {
        writeln!(program, "_Static_assert({expression}, \"{name}\");").expect("a string takes it");
    }
    let place = tempfile::tempdir().expect("a directory");
    let source = place.path().join("layout.c");
    std::fs::write(&source, program).expect("the program");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-w", "-fsyntax-only", "-fmax-errors=0"]);
    if let Some(directory) = directory {
        compiler.arg("-I").arg(directory);
    }
    let output = compiler.arg(&source).output().expect("cc, which Rust links with");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.success(), text.is_empty(), "{text}");
    text
}

/// The control: checks that are made wrong are found by `compile`, and nothing else. `broken`: the name of a check, a part of its expression, and
/// what takes that part's place.
///
/// # Panics
///
/// Where one is not found, or there is no such check.
pub fn assert_found(mut checks: Vec<Check>, broken: &[(&str, &str, &str)], compile: impl Fn(&[Check]) -> String) {
    for (name, right, wrong) in broken {
        let check = checks.iter_mut().find(|check| check.name == *name).unwrap_or_else(|| panic!("no check {name}"));
        assert!(check.expression.contains(right), "{name}: {}", check.expression);
        check.expression = check.expression.replace(right, wrong);
    }
    let complaints = compile(&checks);
    for (name, ..) in broken {
        assert!(complaints.contains(&format!("\"{name}\"")), "{name} was not found: {complaints}");
    }
    assert_eq!(complaints.matches("static assertion failed").count(), broken.len(), "{complaints}");
}
