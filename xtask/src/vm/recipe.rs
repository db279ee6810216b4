//! The recipe of the guest: the files under `testbed/guest`, and the hash that names what was made from them.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};

/// Goes up when the code that makes the components changes what it makes.
const VERSION: u64 = 2;

/// A hash of file contents, as 16 hexadecimal digits: FNV-1a over each length and content, in order.
///
/// It tells recipes apart; it is no protection against a recipe made to collide.
pub(crate) fn hash<'a>(contents: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut state = 0xcbf2_9ce4_8422_2325_u64;
    let mut take = |bytes: &[u8]| {
        for byte in bytes {
            state = (state ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    take(&VERSION.to_le_bytes());
    for content in contents {
        take(&(content.len() as u64).to_le_bytes());
        take(content);
    }
    format!("{state:016x}")
}

/// The hash of some files of a directory.
pub(crate) fn hash_of_files(directory: &Path, names: &[&str]) -> Result<String> {
    let contents = names
        .iter()
        .map(|name| {
            let path = directory.join(name);
            fs::read(&path).with_context(|| format!("reading {}", path.display()))
        })
        .collect::<Result<Vec<_>>>()?;
    Ok(hash(contents.iter().map(Vec::as_slice)))
}

/// The words of each line that has some, without comments.
pub(crate) fn lines_of_words(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines()
        .map(|line| line.split_once('#').map_or(line, |(before, _)| before).split_whitespace().collect::<Vec<_>>())
        .filter(|words| !words.is_empty())
}

/// Kernel modules and when they are loaded, as the file `modules` lists them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Modules {
    /// For the initial RAM disk.
    pub(crate) boot: Vec<String>,
    /// All, the former included.
    pub(crate) all: Vec<String>,
}

impl Modules {
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let mut modules = Self { boot: Vec::new(), all: Vec::new() };
        for words in lines_of_words(text) {
            let [when @ ("boot" | "start" | "carry"), name] = words[..] else {
                anyhow::bail!(
                    "the list of modules has a line that is not `boot|start|carry NAME`: {}",
                    words.join(" ")
                );
            };
            modules.all.push(name.to_owned());
            if when == "boot" {
                modules.boot.push(name.to_owned());
            }
        }
        Ok(modules)
    }
}

/// The files of the modules and of all that they need, each after what it needs; from a `modules.dep`.
pub(crate) fn with_dependencies(modules_dep: &str, names: &[String]) -> Result<Vec<String>> {
    let mut files: Vec<String> = Vec::new();
    for name in names {
        let wanted = canonical(name);
        let (file, needs) = modules_dep
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(file, _)| canonical(module_name(file)) == wanted)
            .with_context(|| format!("this kernel has no module {name}"))?;
        // modules.dep names the nearest need first.
        for file in needs.split_whitespace().rev().chain([file]) {
            if !files.iter().any(|known| known == file) {
                files.push(file.to_owned());
            }
        }
    }
    Ok(files)
}

fn module_name(file: &str) -> &str {
    let name = file.rsplit('/').next().unwrap_or(file);
    name.split_once(".ko").map_or(name, |(name, _)| name)
}

/// The kernel does not tell `-` from `_` in a module's name.
fn canonical(name: &str) -> String {
    name.replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_sees_content_order_and_borders() {
        let of = |contents: &[&[u8]]| hash(contents.iter().copied());
        assert_eq!(of(&[b"a", b"b"]), of(&[b"a", b"b"]));
        let different = [of(&[b"a", b"b"]), of(&[b"b", b"a"]), of(&[b"ab"]), of(&[b"ab", b""]), of(&[])];
        for (index, one) in different.iter().enumerate() {
            assert_eq!(one.len(), 16);
            assert!(different[index + 1..].iter().all(|other| other != one), "{different:?}");
        }
    }

    #[test]
    fn a_changed_file_changes_the_hash_and_a_missing_one_is_named() {
        let directory = std::env::temp_dir().join(format!("pmof-recipe-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("one"), "1").unwrap();
        let before = hash_of_files(&directory, &["one"]).unwrap();
        assert_eq!(hash_of_files(&directory, &["one"]).unwrap(), before);
        fs::write(directory.join("one"), "2").unwrap();
        assert_ne!(hash_of_files(&directory, &["one"]).unwrap(), before);
        let error = hash_of_files(&directory, &["two"]).unwrap_err();
        assert!(format!("{error:#}").contains("two"), "{error:#}");
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn modules_are_read_by_when_they_load() {
        let modules = Modules::parse("# a list\nboot ext4 # the root\n\nstart rdma_rxe\ncarry xfs\n").unwrap();
        assert_eq!(modules.boot, ["ext4"]);
        assert_eq!(modules.all, ["ext4", "rdma_rxe", "xfs"]);
        for wrong in ["later ext4", "ext4", "boot ext4 xfs"] {
            assert!(Modules::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn needs_come_before_who_needs_them_and_once() {
        let dep = "kernel/a/top-one.ko.xz: kernel/a/mid.ko.xz kernel/b/low.ko.xz\n\
                   kernel/a/mid.ko.xz: kernel/b/low.ko.xz\nkernel/b/low.ko.xz:\n";
        let files = with_dependencies(dep, &["mid".into(), "top_one".into()]).unwrap();
        assert_eq!(files, ["kernel/b/low.ko.xz", "kernel/a/mid.ko.xz", "kernel/a/top-one.ko.xz"]);
        assert!(with_dependencies(dep, &["none".into()]).unwrap_err().to_string().contains("none"));
    }
}
