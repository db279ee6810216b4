//! Errors print their own words and leave the rest to `source()`, or print all causes and have no source, as those of pools do: a program that prints an error
//! with its causes prints each once. This reads the
//! sources of all crates, since most errors cannot be brought about.

use std::{
    fs,
    path::{Path, PathBuf},
};

use syn::{Attribute, Fields, Item, LitStr, parse::Parser};

/// An error's variant, or an error that is a struct.
struct Told {
    /// The words and their arguments; `None` where it is transparent.
    words: Option<(String, String)>,
    /// The field that is the source.
    source: Option<String>,
    /// A field is an error that is not the source.
    has_other_error: bool,
}

/// Damage is told in one piece, to people and to other machines, with what to do about it at the end: its error is part of the words.
const IN_ONE_PIECE: [&str; 1] = ["PoolSetError::Header"];

fn is(attribute: &Attribute, name: &str) -> bool {
    attribute.path().is_ident(name)
}

fn told(attributes: &[Attribute], fields: &Fields) -> Option<Told> {
    let tokens = &attributes.iter().find(|attribute| is(attribute, "error"))?.meta.require_list().ok()?.tokens;
    let (mut source, mut has_other_error) = (None, false);
    for (index, field) in fields.iter().enumerate() {
        let name = field.ident.as_ref().map_or_else(|| index.to_string(), ToString::to_string);
        if name == "source" || field.attrs.iter().any(|attribute| is(attribute, "source") || is(attribute, "from")) {
            source = Some(name);
        } else if let syn::Type::Path(path) = &field.ty {
            has_other_error |= path.path.segments.last().is_some_and(|last| last.ident.to_string().ends_with("Error"));
        }
    }
    let split = |input: syn::parse::ParseStream<'_>| {
        let words: LitStr = input.parse()?;
        Ok((words.value(), input.parse::<proc_macro2::TokenStream>()?.to_string()))
    };
    Some(Told { words: split.parse2(tokens.clone()).ok(), source, has_other_error })
}

/// Whether the words hold those of the field.
fn tells((words, arguments): &(String, String), field: &str) -> bool {
    let by_name = words.contains(&format!("{{{field}}}")) || words.contains(&format!("{{{field}:"));
    by_name || arguments.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == field)
}

/// What is wrong with the errors of a source file.
fn wrong(source: &str) -> (usize, Vec<String>) {
    let (mut count, mut wrong) = (0, Vec::new());
    let mut check = |name: String, attributes: &[Attribute], fields: &Fields| {
        let Some(Told { words, source, has_other_error }) = told(attributes, fields) else { return };
        count += 1;
        let Some(words) = words else { return };
        if source.as_ref().is_some_and(|field| tells(&words, field)) {
            wrong.push(format!("{name} prints its source, which prints itself"));
        }
        let is_told = words.1.contains("causes");
        if source.is_none() && has_other_error && !is_told && !IN_ONE_PIECE.contains(&&*name) {
            wrong.push(format!("{name} holds an error that is not its source"));
        }
    };
    for item in syn::parse_file(source).unwrap().items {
        match item {
            Item::Enum(error) => error.variants.iter().for_each(|variant| {
                check(format!("{}::{}", error.ident, variant.ident), &variant.attrs, &variant.fields);
            }),
            Item::Struct(error) => check(error.ident.to_string(), &error.attrs, &error.fields),
            _ => {}
        }
    }
    (count, wrong)
}

fn sources(directory: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

#[test]
fn no_error_prints_what_its_source_prints() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    if !crates.join("pmof-mem/src").is_dir() {
        skip_report::skipped!("the sources are not on this machine");
        return;
    }
    let mut files = Vec::new();
    for package in fs::read_dir(&crates).unwrap() {
        sources(&package.unwrap().path().join("src"), &mut files);
    }
    let (mut count, mut all) = (0, Vec::new());
    for file in files {
        let (found, wrong) = wrong(&fs::read_to_string(&file).unwrap());
        count += found;
        all.extend(wrong.into_iter().map(|wrong| format!("{}: {wrong}", file.display())));
    }
    assert!(count > 200, "the premise: errors are found, {count} of them");
    assert!(all.is_empty(), "{all:#?}");
}

#[test]
fn an_error_that_prints_its_source_is_found() {
    let of = |variant: &str| wrong(&format!("enum E {{ {variant} }}")).1.len();
    assert_eq!(of(r#"#[error("a: {source}")] A { source: io::Error }"#), 1);
    assert_eq!(of(r#"#[error("a: {0:#}")] A(#[from] io::Error)"#), 1);
    assert_eq!(of(r#"#[error("a: {}", error.kind())] A { #[source] error: io::Error }"#), 1);
    assert_eq!(of(r#"#[error("a: {0}")] A(MemError)"#), 1);
    assert_eq!(of(r#"#[error("a")] A { source: io::Error }"#), 0);
    // All of it is in the words, and there is no source.
    assert_eq!(of(r#"#[error("a: {}", causes(source))] A { r#source: io::Error }"#), 0);
    assert_eq!(of(r#"#[error("a: {}", causes(.0))] A(MemError)"#), 0);
    assert_eq!(of(r"#[error(transparent)] A(#[from] io::Error)"), 0);
    assert_eq!(of(r#"#[error("of {sources}")] A { sources: u32, source: io::Error }"#), 0);
}
