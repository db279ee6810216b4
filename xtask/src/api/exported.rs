//! Which names of the crates behind the facade it exports.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
};

use anyhow::{Context as _, Result};
use serde::Deserialize;

use super::{BEHIND, FACADE, rustdoc_json};

/// What is read of rustdoc's JSON.
#[derive(Debug, Deserialize)]
struct Documented {
    index: HashMap<String, Item>,
}

#[derive(Debug, Deserialize)]
struct Item {
    inner: Inner,
}

#[derive(Debug, Deserialize)]
struct Inner {
    #[serde(rename = "use")]
    exports: Option<Export>,
}

/// A `pub use`.
#[derive(Clone, Debug, Deserialize)]
struct Export {
    name: String,
    source: String,
}

impl Export {
    /// The crate behind the facade that it exports of, and the name there.
    fn of_crate(&self) -> Option<(&'static str, String)> {
        let (crate_name, path) = self.source.split_once("::")?;
        let behind = BEHIND.into_iter().find(|behind| behind.replace('-', "_") == crate_name)?;
        Some((behind, path.rsplit("::").next()?.to_owned()))
    }
}

/// The names that the facade exports, by the crates behind it that they come from or through.
#[derive(Debug, Default)]
pub(super) struct Exported {
    names: BTreeMap<&'static str, BTreeSet<String>>,
}

impl Exported {
    /// Reads it of the crates' JSON.
    pub(super) fn read() -> Result<Self> {
        let crates = BEHIND.into_iter().map(|name| Ok((name, exports(name)?))).collect::<Result<_>>()?;
        Ok(Self::of_exports(&exports(FACADE)?, &crates))
    }

    fn of_exports(facade: &[Export], crates: &BTreeMap<&'static str, Vec<Export>>) -> Self {
        let mut exported = Self::default();
        let mut left: Vec<_> = facade.iter().filter_map(Export::of_crate).collect();
        while let Some((crate_name, name)) = left.pop() {
            let again = crates[crate_name].iter().filter(|export| export.name == name);
            left.extend(again.filter_map(Export::of_crate));
            exported.names.entry(crate_name).or_default().insert(name);
        }
        exported
    }

    /// The lines of a crate's listing that tell of names which the facade exports.
    pub(super) fn of(&self, crate_name: &str, listing: &[String]) -> Vec<String> {
        let Some(names) = self.names.get(crate_name) else { return Vec::new() };
        let prefix = format!("{}::", crate_name.replace('-', "_"));
        let is_exported = |rest: &str| {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            names.contains(&rest[..end])
        };
        let tells_of_exported = |line: &&String| {
            // An item begins with its path; an impl names its type last.
            let mut paths = line.split(&prefix).skip(1);
            let subject = if line.starts_with("impl") { paths.last() } else { paths.next() };
            !line.starts_with("pub use ") && subject.is_some_and(is_exported)
        };
        listing.iter().filter(tells_of_exported).cloned().collect()
    }

    /// The types of crates behind the facade that a line names, and that it does not export.
    pub(super) fn unnamed(&self, line: &str) -> Vec<String> {
        if line.starts_with("impl") {
            return Vec::new();
        }
        let paths = line.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
        let unnamed = |path: &str| {
            let (crate_name, rest) = path.trim_end_matches(':').split_once("::")?;
            let is_behind = BEHIND.iter().any(|behind| behind.replace('-', "_") == crate_name);
            let name = rest.split("::").find(|segment| segment.starts_with(char::is_uppercase))?;
            let is_exported = |segment: &str| self.names.values().any(|names| names.contains(segment));
            // A constant's name is all of capitals.
            let is_type = name.contains(char::is_lowercase);
            (is_behind && is_type && !rest.split("::").any(is_exported)).then(|| path.to_owned())
        };
        paths.filter_map(unnamed).collect()
    }
}

fn exports(crate_name: &str) -> Result<Vec<Export>> {
    let json = rustdoc_json(crate_name);
    let text = fs::read_to_string(&json).with_context(|| format!("reading {}", json.display()))?;
    let documented: Documented = serde_json::from_str(&text).with_context(|| format!("reading {}", json.display()))?;
    Ok(documented.index.into_values().filter_map(|item| item.inner.exports).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export(name: &str, source: &str) -> Export {
        Export { name: name.to_owned(), source: source.to_owned() }
    }

    fn exported() -> Exported {
        let mut crates: BTreeMap<_, _> = BEHIND.into_iter().map(|name| (name, Vec::new())).collect();
        crates.insert(
            "pmof-access",
            vec![
                export("Signal", "pmof_proto::post::Signal"),
                export("Peer", "peer::Peer"),
                export("X", "pmof_mem::X"),
            ],
        );
        Exported::of_exports(
            &[export("Signal", "pmof_access::Signal"), export("limits", "pmof_proto::limits")],
            &crates,
        )
    }

    #[test]
    fn what_is_exported_through_a_crate_is_public_in_both() {
        let names: Vec<_> =
            exported().names.into_iter().map(|(name, names)| (name, names.into_iter().collect())).collect();
        let proto = vec!["Signal".to_owned(), "limits".to_owned()];
        assert_eq!(names, [("pmof-access", vec!["Signal".to_owned()]), ("pmof-proto", proto)]);
    }

    #[test]
    fn of_a_crate_behind_the_facade_what_that_exports_is_public() {
        let listing = [
            "pub mod pmof_proto",
            "pub mod pmof_proto::limits",
            "pub const pmof_proto::limits::MAX: u8",
            "pub struct pmof_proto::SignalMask",
            "impl core::fmt::Debug for pmof_proto::Signal",
            "pub pmof_proto::Signal::On",
            "pub fn pmof_proto::other() -> pmof_proto::Signal",
            "pub use pmof_proto::Signal",
        ]
        .map(str::to_owned);
        let reached = exported().of("pmof-proto", &listing);
        assert_eq!(reached, [&listing[1], &listing[2], &listing[4], &listing[5]].map(String::as_str));
    }

    #[test]
    fn a_type_without_a_name_is_found() {
        let exported = exported();
        let line = "pub fn pmof_access::Signal::ask(&self, pmof_proto::post::Mask, &[u8; pmof_proto::LEN]) -> core::option::Option<pmof_proto::Signal>";
        assert_eq!(exported.unnamed(line), ["pmof_proto::post::Mask"]);
    }
}
