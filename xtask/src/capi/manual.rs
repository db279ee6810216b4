//! Manual pages from a header: each function's comment and prototype become one.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use anyhow::{Context as _, Result, ensure};

/// A function as the header has it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Function {
    name: String,
    /// What it does, a sentence at least.
    description: String,
    /// Which errors it has; empty where it has none.
    errors: String,
    /// What the original does otherwise, and why; empty where nothing.
    differences: String,
    prototype: String,
}

/// What all pages of a library say.
#[derive(Clone, Copy, Debug)]
pub(super) struct Library {
    /// Its name, for the title.
    pub(super) name: &'static str,
    /// What a function that gives an int gives.
    pub(super) int_value: &'static str,
    /// What one that gives a pointer to an object gives; empty where there is none.
    pub(super) object_value: &'static str,
    /// Where more is told.
    pub(super) see_also: &'static str,
}

/// What each function of a header does differently from the original, and why; empty where nothing.
pub(crate) fn differences(header: &Path) -> Result<BTreeMap<String, String>> {
    let text = fs::read_to_string(header).with_context(|| format!("reading {}", header.display()))?;
    Ok(functions(&text)?.into_iter().map(|function| (function.name, function.differences)).collect())
}

/// Writes a page of section 3 for every function into `directory`; returns how many.
pub(super) fn write(header: &Path, library: &Library, directory: &Path) -> Result<usize> {
    let text = fs::read_to_string(header).with_context(|| format!("reading {}", header.display()))?;
    let functions = functions(&text)?;
    fs::create_dir_all(directory)?;
    let include = header.file_name().context("a header has a name")?.to_string_lossy();
    for function in &functions {
        fs::write(directory.join(format!("{}.3", function.name)), page(function, library, &include))?;
    }
    Ok(functions.len())
}

fn functions(header: &str) -> Result<Vec<Function>> {
    let mut functions = Vec::new();
    for (comment, rest) in header.split("\n/*").skip(1).filter_map(|part| part.split_once("*/")) {
        let prototype = rest.trim_start().split_once(';').map_or("", |(prototype, _)| prototype);
        let Some((before, _)) = prototype.split_once('(') else { continue };
        // Types and macros have comments too.
        let is_function = !prototype.contains(['{', '#']) && !prototype.starts_with("typedef");
        let name = before.rsplit([' ', '*']).next().unwrap_or_default();
        if !is_function || rest.trim_start().len() != rest.strip_prefix('\n').unwrap_or(rest).len() {
            continue;
        }
        let words = comment.lines().map(|line| line.trim().trim_start_matches("* ")).collect::<Vec<_>>().join(" ");
        let words = words.trim();
        let (words, differences) = words.split_once("Differs: ").unwrap_or((words, ""));
        let (description, errors) = words.split_once("Errors: ").unwrap_or((words, ""));
        ensure!(!description.is_empty(), "{name} has no description");
        functions.push(Function {
            name: name.to_owned(),
            description: description.trim().to_owned(),
            errors: errors.trim().to_owned(),
            differences: differences.trim().to_owned(),
            prototype: prototype.split_whitespace().collect::<Vec<_>>().join(" "),
        });
    }
    in_full(&functions)
}

/// The same functions; errors that are those of another one, "as NAME" or "as for NAME", are written out.
fn in_full(functions: &[Function]) -> Result<Vec<Function>> {
    let written_out = |function: &Function| {
        let errors = match function.errors.strip_prefix("as ").and_then(|named| named.split_once(['.', ';', ','])) {
            Some((named, rest)) => {
                let named = named.trim_start_matches("for ").trim_end_matches("()").trim();
                let other = functions.iter().find(|other| other.name == named);
                let other = other.with_context(|| format!("{}: there is no {named}", function.name))?;
                ensure!(!other.errors.starts_with("as "), "{}: {named} refers to another one", function.name);
                [other.errors.trim_end_matches('.'), rest.trim()].join("; ").trim_end_matches("; ").to_owned() + "."
            }
            None => function.errors.clone(),
        };
        Ok(Function { errors: errors.replace("..", "."), ..function.clone() })
    };
    functions.iter().map(written_out).collect()
}

/// Errors as a list, each under its code, if all begin with one: "EINVAL an argument; EBUSY it is open."
fn errors_text(errors: &str) -> String {
    let is_code = |word: &str| {
        word.len() > 2
            && (word.starts_with('E') || word.starts_with("RPMA_E_"))
            && word.chars().all(|letter| letter.is_ascii_uppercase() || letter == '_')
    };
    let entries: Vec<_> = errors.trim_end_matches('.').split("; ").map(|entry| entry.split_once(' ')).collect();
    let coded = |entry: &Option<(&str, &str)>| entry.is_some_and(|(code, _)| is_code(code));
    if !entries.iter().all(coded) {
        return format!("{}\n", roff(errors));
    }
    let item = |(code, when): &(&str, &str)| format!(".TP\n.B {}\n{}.\n", roff(code), roff(when));
    entries.iter().flatten().map(item).collect()
}

/// roff, with what it would take for a request made harmless.
fn roff(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    text.strip_prefix(['.', '\'']).map_or_else(|| text.clone(), |rest| format!("\\&.{rest}"))
}

fn page(function: &Function, library: &Library, include: &str) -> String {
    let Function { name, description, errors, differences, prototype } = function;
    let summary = description.split(['.', ';', ':']).next().unwrap_or(description);
    let mut page = format!(
        ".TH {} 3 \"\" pmof \"{}\"\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n.nf\n#include <{include}>\n.PP\n{};\n.fi\n",
        name.to_uppercase(),
        library.name,
        roff(name),
        roff(&summary.to_lowercase().replace("rdma", "RDMA").replace("tcp", "TCP")),
        roff(prototype),
    );
    let _ = write!(page, ".SH DESCRIPTION\n{}\n", roff(description));
    let value = match prototype {
        int if int.starts_with("int ") => library.int_value,
        object if !object.starts_with("const char") && !object.starts_with("void ") => library.object_value,
        _ => "",
    };
    if !value.is_empty() {
        let _ = write!(page, ".SH RETURN VALUE\n{}\n", roff(value));
    }
    if !errors.is_empty() {
        let _ = write!(page, ".SH ERRORS\n{}", errors_text(errors));
    }
    if !differences.is_empty() {
        let (first, rest) = differences.split_at(differences.chars().next().map_or(0, char::len_utf8));
        let _ = write!(page, ".SH DIFFERENCES FROM THE ORIGINAL\n{}{}\n", roff(&first.to_uppercase()), roff(rest));
    }
    page + &format!(".SH SEE ALSO\n{}\n", roff(library.see_also))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_prototypes_become_functions() {
        let header = "\n/* A type. */\nstruct x;\n\n/* Opens it. Errors: E for NULL. */\nint rpma_open(struct x *x,\n\t\tint y);\n\n\
                      /*\n * The name of it;\n * never NULL.\n */\nconst char *rpma_name(int ret);\n#define A (1) /* not one */\nint rpma_bare(void);\n";
        let found = functions(header).unwrap();
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(found[0].prototype, "int rpma_open(struct x *x, int y)");
        assert_eq!((found[0].description.as_str(), found[0].errors.as_str()), ("Opens it.", "E for NULL."));
        assert_eq!(
            (found[1].name.as_str(), found[1].description.as_str()),
            ("rpma_name", "The name of it; never NULL.")
        );
        assert!(page(&found[0], &LIBRARY, "h.h").contains("rpma_open \\- opens it"));
    }

    const LIBRARY: Library =
        Library { name: "x", int_value: "0, or -1", object_value: "One, or NULL", see_also: "x(7)" };

    #[test]
    fn errors_are_in_full_on_each_page() {
        let header = "\n/* Makes it. Errors: EINVAL an argument; EBUSY it is open. */\nobject *a(int x);\n\n\
                      /* Opens it. Errors: as a. */\nobject *b(int x);\n\n\
                      /* Ends it. Errors: as for a(); EIO it fails. */\nint c(int x);\n\n\
                      /* Its name. Errors: some. Others too. */\nconst char *d(void);\n";
        let found = functions(header).unwrap();
        let pages: Vec<_> = found.iter().map(|function| page(function, &LIBRARY, "h.h")).collect();
        for page in &pages[..2] {
            assert!(
                page.contains(".SH ERRORS\n.TP\n.B EINVAL\nan argument.\n.TP\n.B EBUSY\nit is open.\n.SH"),
                "{page}"
            );
            assert!(page.contains(".SH RETURN VALUE\nOne, or NULL\n"), "{page}");
        }
        assert!(pages[2].contains(".B EBUSY\nit is open.\n.TP\n.B EIO\nit fails.\n.SH"), "{}", pages[2]);
        assert!(
            pages[2].contains("0, or \\-1\n") && pages[3].contains(".SH ERRORS\nsome. Others too.\n.SH"),
            "{}",
            pages[3]
        );
        assert!(!pages[3].contains("RETURN VALUE"), "{}", pages[3]);
        functions("\n/* It. Errors: as z. */\nint a(int x);\n").unwrap_err();
        let found =
            functions("\n/* It. Errors: E_A for NULL. Differs: over TCP never, as it is there. */\nint a(int x);\n")
                .unwrap();
        let page = page(&found[0], &LIBRARY, "h.h");
        assert!(
            page.contains("for NULL.\n.SH DIFFERENCES FROM THE ORIGINAL\nOver TCP never, as it is there.\n.SH SEE"),
            "{page}"
        );
    }

    /// The codes that the C program expects of a function by `IS(CALL(rpma_x)(...), RPMA_E_Y)` and its like; of two the first,
    /// the other is that of a device which has no such thing.
    fn expected_codes(source: &str) -> Vec<(&str, &str)> {
        let calls = source.split("CALL(").skip(1);
        let statement = |call| -> Option<(&str, &str)> { Some((call, str::split_once(call, ");")?.0)) };
        let mut found = Vec::new();
        for (call, statement) in calls.filter_map(statement) {
            let Some((name, _)) = call.split_once(')') else { continue };
            let is_word = |letter: char| letter.is_ascii_uppercase() || letter == '_';
            // Behind its arguments, of which a code may be one.
            let behind = statement.match_indices(')').filter_map(|(at, _)| statement[at + 1..].strip_prefix(','));
            let Some(rest) = behind.map(str::trim_start).find(|rest| rest.starts_with("RPMA_E_")) else { continue };
            found.push((name, &rest[..rest.find(|letter| !is_word(letter)).unwrap_or(rest.len())]));
        }
        found
    }

    #[test]
    fn a_statement_names_its_function_and_codes() {
        let source = "IS(CALL(rpma_a)(NULL, 1), RPMA_E_INVAL);\nNEED(CALL(rpma_b)(f(x)));\n\
                      IS_EITHER(CALL(rpma_c)(y),\n  RPMA_E_INVAL, RPMA_E_NOSUPP);";
        let expected = [("rpma_a", "RPMA_E_INVAL"), ("rpma_c", "RPMA_E_INVAL")];
        assert_eq!(expected_codes(source), expected);
    }

    /// Each code that the C program of the test bed sees returned is on the page of its function.
    #[test]
    fn pages_name_the_codes_that_are_seen() {
        let header = fs::read_to_string("../capi/rpma/include/librpma.h").unwrap();
        let functions = functions(&header).unwrap();
        let mut seen = 0;
        for file in fs::read_dir("../testbed/rpma").unwrap() {
            let path = file.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "c") {
                continue;
            }
            let source = fs::read_to_string(&path).unwrap();
            for (name, code) in expected_codes(&source) {
                let Some(function) = functions.iter().find(|function| function.name == name) else { continue };
                assert!(function.errors.contains(code), "{}: {name}: {code}: {}", path.display(), function.errors);
                seen += 1;
            }
        }
        assert!(seen > 150, "{seen}");
    }

    /// What a program gets is what its own library's pages say.
    #[test]
    fn no_page_names_another_library() {
        for library in super::super::LIBRARIES {
            let header = Path::new("..").join(library.directory).join("include").join(library.header);
            let text = fs::read_to_string(header).unwrap();
            let own = library.manual.name.split(' ').next().unwrap();
            for function in functions(&text).unwrap() {
                let page = page(&function, &library.manual, library.header);
                for other in ["librpma", "librpmem"].iter().filter(|other| **other != own) {
                    assert!(!page.contains(other), "{page}");
                }
                let foreign = if own == "librpmem" { "rpma_" } else { "rpmem_" };
                assert!(!page.contains(foreign), "{page}");
                assert!(!page.contains("Errors: as") && !page.contains(".SH ERRORS\nas "), "{page}");
            }
        }
    }
}
