//! `cargo xtask vm record`: what a guest shows of itself, as a platform for the tests of `pmof-doctor`.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};

/// The script that the guest runs, from the root of the workspace.
const SCRIPT: &str = "testbed/guest/record-platform";

/// The bash script that prints the platform, whose first line says that it is `title`.
///
/// Errors: the script cannot be read; the title is more than a line of plain words.
pub(super) fn script(root: &Path, title: &str) -> Result<String> {
    let is_plain = |letter: char| letter.is_alphanumeric() || " ,.:;=_-()".contains(letter);
    ensure!(title.chars().all(is_plain), "a title is one line of words and , . : ; = _ - ( ): {title}");
    let path = root.join(SCRIPT);
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    Ok(format!("set -- '{title}'\n{text}"))
}
