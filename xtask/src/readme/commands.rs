//! The commands that a section of a page of Markdown shows.

use anyhow::{Context as _, Result, bail};

#[cfg(test)]
mod tests;

/// One command, and what the comment behind it says that comes out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PageCommand {
    /// What a shell is given, without the comment; several lines where it has a here-document.
    pub(crate) text: String,
    /// `# prints: TEXT`: the output holds this text.
    pub(crate) prints: Option<String>,
    /// `(exit status N)` behind the text; 0 otherwise.
    pub(crate) exit_status: i32,
}

/// The commands of the blocks marked `sh` below the heading that begins with `heading`, until the next heading of any level.
///
/// # Errors
/// Where there is no such heading, or no command below it.
pub(crate) fn of_section(page: &str, heading: &str) -> Result<Vec<PageCommand>> {
    let mut lines = page.lines();
    let is_heading = |line: &str| line.starts_with('#') && line.trim_start_matches('#').trim().starts_with(heading);
    lines.find(|line| is_heading(line)).with_context(|| format!("there is no section {heading:?}"))?;
    let (mut commands, mut is_in_block, mut block) = (Vec::new(), false, Vec::new());
    for line in lines {
        match (line.trim_end(), is_in_block) {
            ("```sh", false) => is_in_block = true,
            ("```", true) => {
                is_in_block = false;
                commands.extend(of_block(&std::mem::take(&mut block))?);
            }
            (line, true) => block.push(line),
            (line, false) if line.starts_with('#') => break,
            _ => {}
        }
    }
    if commands.is_empty() {
        bail!("the section {heading:?} shows no command in a block marked sh");
    }
    Ok(commands)
}

fn of_block(lines: &[&str]) -> Result<Vec<PageCommand>> {
    let mut commands = Vec::new();
    let mut lines = lines.iter();
    while let Some(line) = lines.next() {
        let (code, comment) = split_comment(line);
        if code.trim().is_empty() {
            continue;
        }
        let mut text = code.trim_end().to_owned();
        while text.ends_with('\\') {
            text.push('\n');
            text.push_str(lines.next().with_context(|| format!("{line}: it goes on in no line"))?);
        }
        if let Some(end) = here_document(&text) {
            loop {
                let next = lines.next().with_context(|| format!("{line}: its here-document has no end {end}"))?;
                text.push('\n');
                text.push_str(next);
                if *next == end {
                    break;
                }
            }
        }
        let (prints, exit_status) = expected(comment)?;
        commands.push(PageCommand { text, prints, exit_status });
    }
    Ok(commands)
}

/// The word that ends the here-document which a line begins, if it begins one.
fn here_document(line: &str) -> Option<String> {
    let (_, behind) = line.split_once("<<")?;
    let word = behind.split_whitespace().next()?;
    Some(word.trim_matches(['\'', '"']).to_owned())
}

/// A line and the comment behind it: what follows a `#` that begins a word outside of quotes.
fn split_comment(line: &str) -> (&str, &str) {
    let (mut quote, mut before) = (None, ' ');
    for (at, letter) in line.char_indices() {
        match (quote, letter) {
            (None, '\'' | '"') => quote = Some(letter),
            (Some(open), letter) if open == letter => quote = None,
            (None, '#') if before.is_whitespace() => return (&line[..at], line[at + 1..].trim()),
            _ => {}
        }
        before = letter;
    }
    (line, "")
}

/// What a comment says that comes out.
fn expected(comment: &str) -> Result<(Option<String>, i32)> {
    let Some(prints) = comment.strip_prefix("prints: ") else { return Ok((None, 0)) };
    let Some((text, status)) = prints.split_once(" (exit status ") else { return Ok((Some(prints.to_owned()), 0)) };
    let number = status.strip_suffix(')').and_then(|number| number.parse().ok());
    Ok((Some(text.to_owned()), number.with_context(|| format!("{comment:?}: what exit status?"))?))
}
