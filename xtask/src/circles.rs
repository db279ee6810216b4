//! Files that import each other in a circle: a reader of one must read them all. Circles of more than three are refused in every crate.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use syn::{
    File, Ident, Item, ItemMod, ItemUse, UseTree,
    visit::{self, Visit},
};

/// Files of a circle, at most.
const LARGEST: usize = 3;

/// A module that is a file, as its path in the crate.
type Module = Vec<String>;

/// What one file has to do with others.
#[derive(Default)]
struct Uses {
    /// Paths that are used, as they are written.
    paths: Vec<Vec<String>>,
    /// Names that are exported again, and the paths they are of.
    exports: Vec<(String, Vec<String>)>,
}

fn flatten(tree: &UseTree, above: &[String], into: &mut Vec<(String, Vec<String>)>) {
    let below = |ident: &Ident| above.iter().cloned().chain([ident.to_string()]).collect::<Vec<_>>();
    match tree {
        UseTree::Path(path) => flatten(&path.tree, &below(&path.ident), into),
        UseTree::Name(name) if name.ident == "self" => into.push((String::new(), above.to_vec())),
        UseTree::Name(name) => into.push((name.ident.to_string(), below(&name.ident))),
        UseTree::Rename(rename) => into.push((rename.rename.to_string(), below(&rename.ident))),
        UseTree::Glob(_) => into.push(("*".to_owned(), above.to_vec())),
        UseTree::Group(group) => group.items.iter().for_each(|item| flatten(item, above, into)),
    }
}

impl<'ast> Visit<'ast> for Uses {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        // Tests in the same file may use whatever they test.
        if !module.attrs.iter().any(|attribute| attribute.path().is_ident("cfg")) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let mut found = Vec::new();
        flatten(&item.tree, &[], &mut found);
        if matches!(item.vis, syn::Visibility::Inherited) {
            self.paths.extend(found.into_iter().map(|(_, path)| path));
        } else {
            self.exports.extend(found);
        }
    }

    /// `pub(in crate::pool)` says who may use an item, and imports nothing.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if segments.len() > 1 && ["crate", "super"].contains(&segments[0].as_str()) {
            self.paths.push(segments);
        }
        visit::visit_path(self, path);
    }
}

/// The files of one crate, but those of tests.
struct Crate {
    files: BTreeMap<Module, Uses>,
}

impl Crate {
    fn read(directory: &Path) -> Self {
        let mut files = BTreeMap::new();
        for path in sources(directory) {
            let mut module: Module = path
                .strip_prefix(directory)
                .unwrap()
                .with_extension("")
                .iter()
                .map(|part| part.to_str().unwrap().to_owned())
                .collect();
            if module.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
                module.pop();
            }
            let file: File = syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap();
            let mut uses = Uses::default();
            file.items.iter().for_each(|item: &Item| uses.visit_item(item));
            files.insert(module, uses);
        }
        Self { files }
    }

    /// The path from the crate's root on that a path in `module` means; `None` where it is of another crate.
    fn absolute(&self, module: &Module, path: &[String]) -> Option<Vec<String>> {
        let mut above = module.clone();
        let mut rest = path;
        match rest.first()?.as_str() {
            "crate" => above.clear(),
            "self" => {}
            "super" => {
                while rest.first().is_some_and(|first| first == "super") {
                    above.pop()?;
                    rest = &rest[1..];
                }
                above.extend_from_slice(rest);
                return Some(above);
            }
            child => {
                let is_child = self.files.contains_key(&[module.clone(), vec![child.to_owned()]].concat());
                above.extend_from_slice(path);
                return is_child.then_some(above);
            }
        }
        above.extend_from_slice(&rest[1..]);
        Some(above)
    }

    /// The file that has what a path means, through all files that export it again.
    fn file_of(&self, path: &[String], depth: usize) -> Option<&Module> {
        let (module, _) = (0..=path.len()).rev().find_map(|count| self.files.get_key_value(&path[..count]))?;
        let Some(name) = path.get(module.len()) else { return Some(module) };
        let exports = &self.files[module].exports;
        let again =
            exports.iter().filter(|(exported, _)| exported == name).find_map(|(_, path)| self.absolute(module, path));
        match again {
            Some(path) if depth < 8 => self.file_of(&path, depth + 1),
            _ => Some(module),
        }
    }

    /// Each file with those that it uses.
    fn edges(&self) -> BTreeMap<&Module, BTreeSet<&Module>> {
        let uses = |(module, uses): (_, &Uses)| {
            let of = |path: &Vec<String>| self.file_of(&self.absolute(module, path)?, 0);
            let used: BTreeSet<_> = uses.paths.iter().filter_map(of).filter(|used| *used != module).collect();
            (module, used)
        };
        self.files.iter().map(uses).collect()
    }

    /// The files that each file is in a circle with, itself among them; those of one circle are the same.
    fn circles(&self) -> BTreeSet<BTreeSet<&Module>> {
        let edges = self.edges();
        let reached = |from: &Module| {
            let (mut reached, mut open) = (BTreeSet::new(), vec![&edges[from]]);
            while let Some(next) = open.pop() {
                let new: Vec<_> = next.iter().copied().filter(|module| reached.insert(*module)).collect();
                open.extend(new.into_iter().map(|module| &edges[module]));
            }
            reached
        };
        let all: BTreeMap<_, _> = edges.keys().map(|module| (*module, reached(module))).collect();
        let circle =
            |module: &&Module| all[*module].iter().copied().filter(|other| all[*other].contains(*module)).collect();
        edges.keys().map(circle).collect()
    }
}

fn sources(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        if path.is_dir() && name != "bin" && !name.contains("tests") {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") && !name.contains("tests") {
            found.push(path);
        }
    }
    found
}

/// The folders with a crate's sources.
fn crates() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let of = |directory: &str| fs::read_dir(root.join(directory)).unwrap().map(|entry| entry.unwrap().path());
    let all = of("crates").chain(of("capi")).chain(of("testbed")).chain([root.join("xtask")]);
    all.map(|directory| directory.join("src")).filter(|directory| directory.is_dir()).collect()
}

#[test]
fn no_more_than_three_files_import_each_other_in_a_circle() {
    let crates = crates();
    assert!(crates.len() > 20, "{crates:?}");
    let mut too_large = Vec::new();
    for directory in &crates {
        let read = Crate::read(directory);
        let names = |circle: BTreeSet<&Module>| circle.iter().map(|module| module.join("::")).collect::<Vec<_>>();
        let large = read.circles().into_iter().filter(|circle| circle.len() > LARGEST).map(names);
        too_large.extend(large.map(|names| format!("{}: {}", directory.display(), names.join(", "))));
    }
    assert!(too_large.is_empty(), "{}", too_large.join("\n"));
}

#[test]
fn a_circle_is_found_through_what_is_exported_again() {
    let directory = tempfile::tempdir().unwrap();
    let files = [
        ("lib.rs", "mod a; mod b; mod c; mod d; pub use a::A;"),
        ("a.rs", "use crate::b::B; pub struct A;"),
        ("b.rs", "use super::c; pub struct B;"),
        ("c.rs", "fn c(_: crate::d::D) {}"),
        ("d.rs", "use crate::A; #[cfg(test)] mod tests { use super::D; }"),
    ];
    for (name, text) in files {
        fs::write(directory.path().join(name), text).unwrap();
    }
    let read = Crate::read(directory.path());
    let largest = read.circles().into_iter().max_by_key(BTreeSet::len).unwrap();
    assert_eq!(largest.into_iter().flatten().collect::<Vec<_>>(), ["a", "b", "c", "d"]);
}
