//! Manual pages from a header: each function's comment and prototype become one.

use std::{fmt::Write as _, fs, path::Path};

use anyhow::{Context as _, Result, ensure};

/// A function as the header has it.
#[derive(Debug, PartialEq, Eq)]
struct Function {
    name: String,
    /// What it does, a sentence at least.
    description: String,
    /// Which errors it has; empty where it has none.
    errors: String,
    prototype: String,
}

/// Writes a page of section 3 for every function into `directory`; returns how many.
pub(super) fn write(header: &Path, library: &str, directory: &Path) -> Result<usize> {
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
        let (description, errors) = words.split_once("Errors: ").unwrap_or((words, ""));
        ensure!(!description.is_empty(), "{name} has no description");
        functions.push(Function {
            name: name.to_owned(),
            description: description.trim().to_owned(),
            errors: errors.trim().to_owned(),
            prototype: prototype.split_whitespace().collect::<Vec<_>>().join(" "),
        });
    }
    Ok(functions)
}

/// roff, with what it would take for a request made harmless.
fn roff(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    text.strip_prefix(['.', '\'']).map_or_else(|| text.clone(), |rest| format!("\\&.{rest}"))
}

fn page(function: &Function, library: &str, include: &str) -> String {
    let Function { name, description, errors, prototype } = function;
    let summary = description.split(['.', ';', ':']).next().unwrap_or(description);
    let mut page = format!(
        ".TH {} 3 \"\" pmof \"{library}\"\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n.nf\n#include <{include}>\n.PP\n{};\n.fi\n",
        name.to_uppercase(),
        roff(name),
        roff(&summary.to_lowercase().replace("rdma", "RDMA").replace("tcp", "TCP")),
        roff(prototype),
    );
    let _ = write!(page, ".SH DESCRIPTION\n{}\n", roff(description));
    if prototype.starts_with("int ") {
        page += ".SH RETURN VALUE\n0, or a negative number that rpma_err_2str(3) names. Where it fails, what it would have written stays as it was.\n";
    }
    if !errors.is_empty() {
        let _ = write!(page, ".SH ERRORS\n{}\n", roff(errors));
    }
    page + ".SH SEE ALSO\ndocs/librpma.md of pmof\n"
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
        assert!(page(&found[0], "library", "h.h").contains("rpma_open \\- opens it"));
    }
}
