//! The pages in Markdown: links lead somewhere, and the book has every page.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace's root")
}

fn pages() -> Vec<PathBuf> {
    let of = |directory: &str| fs::read_dir(root().join(directory)).unwrap().map(|entry| entry.unwrap().path());
    let all = of("").chain(of("docs")).chain(of("testbed"));
    all.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect()
}

/// The targets of `[text](target)`, outside of code.
fn links(page: &str) -> Vec<String> {
    let mut links = Vec::new();
    let mut is_code = false;
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        if !is_code {
            let of_line = line.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
            links.extend(of_line.map(|(target, _)| target.to_owned()));
        }
    }
    links
}

/// What a heading is called in a link: small letters, without punctuation, with hyphens for spaces.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn problem(page: &Path, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (file, fragment) = link.split_once('#').map_or((link, None), |(file, fragment)| (file, Some(fragment)));
    let target = if file.is_empty() { page.to_owned() } else { page.parent()?.join(file) };
    if !target.exists() {
        return Some(format!("{}: {link}: no such file", page.display()));
    }
    let text = fragment.map(|_| fs::read_to_string(&target).unwrap_or_default())?;
    let is_there =
        text.lines().filter(|line| line.starts_with('#')).any(|line| Some(anchor(line).as_str()) == fragment);
    (!is_there).then(|| format!("{}: {link}: no such heading", page.display()))
}

#[test]
fn every_link_leads_somewhere() {
    let of = |page: &PathBuf| {
        let text = fs::read_to_string(page).unwrap();
        links(&text).into_iter().filter_map(|link| problem(page, &link)).collect::<Vec<_>>()
    };
    let problems: Vec<_> = pages().iter().flat_map(of).collect();
    assert!(problems.is_empty(), "{problems:#?}");
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    let page = root().join("README.md");
    assert!(problem(&page, "docs/no-such-page.md").is_some());
    assert!(problem(&page, "docs/design.md#no-such-heading").is_some());
    assert_eq!(problem(&page, "docs/design.md#the-contract"), None);
    assert_eq!(links("see [a](b.md) and [c](d.md#e)\n```sh\n[x](y)\n```\n"), ["b.md", "d.md#e"]);
}

#[test]
fn the_book_has_every_page() {
    let docs = root().join("docs");
    let summary = fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let listed: BTreeSet<_> = links(&summary).into_iter().map(|link| docs.join(link)).collect();
    let there = pages().into_iter().filter(|page| page.starts_with(&docs) && !page.ends_with("SUMMARY.md"));
    assert_eq!(listed, there.collect());
}

/// A built book has its own pages only: a link out of it leads nowhere there.
#[test]
fn the_book_links_only_to_its_own_pages() {
    let docs = root().join("docs");
    let leaves = |link: &String| link.starts_with("../");
    let of = |page: &PathBuf| links(&fs::read_to_string(page).unwrap()).into_iter().filter(leaves).collect::<Vec<_>>();
    let out: Vec<_> = pages().iter().filter(|page| page.starts_with(&docs)).flat_map(of).collect();
    assert!(out.is_empty(), "name the file in backquotes instead: {out:#?}");
}

/// What `pmof report rows` prints as the head of its table, and begins its last line with.
const QUOTED_HEAD: &str = "| operation | pmof | beside | it takes | pmof over it |";
const QUOTED_SOURCE: &str = "Measured 20";

/// The tables of a page that were printed by `pmof report rows`, each with the first line of text behind it.
fn quoted(page: &str) -> Vec<Option<&str>> {
    let starts = page.match_indices(QUOTED_HEAD).map(|(at, _)| &page[at..]);
    starts.map(|rest| rest.lines().find(|line| !line.is_empty() && !line.starts_with('|'))).collect()
}

#[test]
fn quoted_numbers_carry_the_day_and_the_command_of_their_report() {
    let is_source = |line: &str| line.starts_with(QUOTED_SOURCE) && line.contains("with `pmof report");
    let texts: Vec<_> = pages().iter().map(|page| fs::read_to_string(page).unwrap()).collect();
    let found: Vec<_> = texts.iter().flat_map(|text| quoted(text)).collect();
    assert!(!found.is_empty(), "no page quotes a report");
    assert!(found.iter().all(|source| source.is_some_and(is_source)), "{found:?}");
    let bare = format!("{QUOTED_HEAD}\n|---|---|---|---|---|\n| a | 1 | b | 2 | 0.5 |\n\nOther words.\n");
    assert_eq!(quoted(&bare), [Some("Other words.")]);
    assert!(!is_source("Other words."));
}

#[test]
fn the_readme_fits_a_newcomers_patience() {
    let lines = fs::read_to_string(root().join("README.md")).unwrap().lines().count();
    assert!(lines <= 160, "{lines} lines: what is not for a newcomer goes into docs/");
}
