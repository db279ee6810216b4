//! The plugin's options: `key=value`, as QEMU's `-plugin` passes them.

use std::{fmt::Write, path::PathBuf};

use crate::Counter;

/// What is inside the persistence domain in addition to the medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Domain {
    /// Nothing: a store is lost until its line is written back.
    #[default]
    Adr,
    /// The caches: every store is kept. The plugin counts, but does not change the shadow: the live image is what survives.
    Eadr,
}

/// Where inbound writes go. Soft-RoCE, and TCP, copy inbound bytes with the target's CPU in the kernel, so that they are
/// ordinary stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Inbound {
    /// Into the caches, as every store.
    #[default]
    Cache,
    /// Straight to the medium, as of a device without direct cache access. The model cannot tell the kernel's copy of
    /// inbound bytes from its other stores, so that all stores of the kernel go directly to the medium.
    Memory,
}

/// Whether locked instructions end a write-back as `sfence` does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Locked {
    /// They do, as hardware has it (Intel SDM volume 2, `CLWB`). Every system call locks something, so that a forgotten
    /// `sfence` is rarely seen.
    #[default]
    Fence,
    /// They do not: only `sfence` and `mfence` count. Stricter than hardware; it finds forgotten fences.
    Nothing,
}

/// When the plugin kills its own machine, counted from the start or from the mark that arms it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutAfter {
    /// When that many fences of modelled memory are done.
    Fences(u64),
    /// When that many lines were written back, the last one not yet fenced.
    WriteBacks(u64),
    /// When that many stores to modelled memory are done. Every store of the machine is watched: slow.
    Stores(u64),
    /// When one processor has executed about that many instructions (counted by translated block). Slow.
    Instructions(u64),
}

/// One range of persistent memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeOptions {
    /// The file that backs the memory, shared: what programs see.
    pub image: PathBuf,
    /// A copy of it: what a power cut leaves.
    pub shadow: PathBuf,
    /// Physical address of its first byte, a multiple of 4096.
    pub physical: u64,
    /// Bytes of the file that the guest has as memory, a multiple of 4096; the rest, its label area, is written by
    /// firmware calls and is not modelled.
    pub length: u64,
}

/// All options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The modelled memory.
    pub ranges: Vec<RangeOptions>,
    /// `domain=adr|eadr`.
    pub domain: Domain,
    /// `inbound=cache|memory`.
    pub inbound: Inbound,
    /// `locked=fence|nothing`.
    pub locked: Locked,
    /// `cut_after=fences:N|writebacks:N|stores:N|instructions:N`.
    pub cut_after: Option<CutAfter>,
    /// `arm=ID`: `cut_after` counts from the first execution of the mark with this id.
    pub arm: Option<u8>,
    /// `counters=FILE`: where to keep what [`Counter`] names.
    pub counters: Option<PathBuf>,
}

/// Why options are refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// Not of the form `key=value`, or an unknown key.
    #[error("{0:?} is no option of the cache model: see testbed/README.md, Referees")]
    Unknown(String),
    /// A value that the key does not take.
    #[error("{key}={value}: expected {expected}")]
    Value {
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// What it takes.
        expected: &'static str,
    },
    /// `shadow`, `phys` or `len` before any `image`.
    #[error("{0} comes before image=, which starts a range")]
    BeforeImage(String),
    /// A range without one of its options.
    #[error("the range of image={image} has no {missing}")]
    Missing {
        /// The image.
        image: PathBuf,
        /// What is not there.
        missing: &'static str,
    },
    /// No range at all.
    #[error("no image= is given: there is nothing to model")]
    NoRange,
}

impl Options {
    /// Reads the arguments of the plugin. `image=` starts a range; `shadow=`, `phys=` and `len=` follow it.
    pub fn parse<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Result<Options, OptionsError> {
        let mut options = Options::default();
        for argument in arguments {
            let (key, value) = argument.split_once('=').ok_or_else(|| OptionsError::Unknown(argument.to_owned()))?;
            let wrong = |expected| OptionsError::Value { key: key.to_owned(), value: value.to_owned(), expected };
            match key {
                "image" => options.ranges.push(RangeOptions {
                    image: value.into(),
                    shadow: PathBuf::new(),
                    physical: 0,
                    length: 0,
                }),
                "shadow" | "phys" | "len" => {
                    let range =
                        options.ranges.last_mut().ok_or_else(|| OptionsError::BeforeImage(argument.to_owned()))?;
                    let aligned =
                        || number(value).filter(|n| n % 4096 == 0 && *n > 0).ok_or_else(|| wrong("a multiple of 4096"));
                    match key {
                        "shadow" => range.shadow = value.into(),
                        "phys" => range.physical = aligned()?,
                        _ => range.length = aligned()?,
                    }
                }
                "domain" => options.domain = domain(value).ok_or_else(|| wrong("adr or eadr"))?,
                "inbound" => options.inbound = inbound(value).ok_or_else(|| wrong("cache or memory"))?,
                "locked" => options.locked = locked(value).ok_or_else(|| wrong("fence or nothing"))?,
                "cut_after" => {
                    options.cut_after = Some(CutAfter::parse(value).ok_or_else(|| {
                        wrong("fences:N, writebacks:N, stores:N or instructions:N with N of at least 1")
                    })?);
                }
                "arm" => options.arm = Some(value.parse().map_err(|_| wrong("the id of a mark, 0 to 255"))?),
                "counters" => options.counters = Some(value.into()),
                _ => return Err(OptionsError::Unknown(argument.to_owned())),
            }
        }
        options.check()?;
        Ok(options)
    }

    /// The argument of QEMU's `-plugin` for the plugin at `file`. Commas in names are doubled, as QEMU wants them.
    pub fn plugin_argument(&self, file: &std::path::Path) -> String {
        let name = |path: &std::path::Path| path.display().to_string().replace(',', ",,");
        let mut argument = format!("file={}", name(file));
        for range in &self.ranges {
            let _ = write!(
                argument,
                ",image={},shadow={},phys={:#x},len={:#x}",
                name(&range.image),
                name(&range.shadow),
                range.physical,
                range.length
            );
        }
        argument += if self.domain == Domain::Eadr { ",domain=eadr" } else { "" };
        argument += if self.inbound == Inbound::Memory { ",inbound=memory" } else { "" };
        argument += if self.locked == Locked::Nothing { ",locked=nothing" } else { "" };
        if let Some(cut) = self.cut_after {
            let (what, count) = cut.named();
            let _ = write!(argument, ",cut_after={what}:{count}");
        }
        if let Some(id) = self.arm {
            let _ = write!(argument, ",arm={id}");
        }
        if let Some(counters) = &self.counters {
            let _ = write!(argument, ",counters={}", name(counters));
        }
        argument
    }

    /// Whether each store of the machine must be looked at.
    pub fn watches_all_stores(&self) -> bool {
        matches!(self.cut_after, Some(CutAfter::Stores(_)))
    }

    fn check(&self) -> Result<(), OptionsError> {
        if self.ranges.is_empty() {
            return Err(OptionsError::NoRange);
        }
        for range in &self.ranges {
            let missing = match range {
                range if range.shadow.as_os_str().is_empty() => "shadow=",
                range if range.physical == 0 => "phys=",
                range if range.length == 0 => "len=",
                _ => continue,
            };
            return Err(OptionsError::Missing { image: range.image.clone(), missing });
        }
        Ok(())
    }
}

impl CutAfter {
    /// The counter that reaches the number, and the number; none for instructions, which are no counter of the model.
    pub fn counter(self) -> Option<(Counter, u64)> {
        match self {
            CutAfter::Fences(count) => Some((Counter::Fences, count)),
            CutAfter::WriteBacks(count) => Some((Counter::WriteBacks, count)),
            CutAfter::Stores(count) => Some((Counter::Stores, count)),
            CutAfter::Instructions(_) => None,
        }
    }

    fn named(self) -> (&'static str, u64) {
        match self {
            CutAfter::Fences(count) => ("fences", count),
            CutAfter::WriteBacks(count) => ("writebacks", count),
            CutAfter::Stores(count) => ("stores", count),
            CutAfter::Instructions(count) => ("instructions", count),
        }
    }

    fn parse(value: &str) -> Option<CutAfter> {
        let (what, count) = value.split_once(':')?;
        let count = number(count).filter(|count| *count > 0)?;
        match what {
            "fences" => Some(CutAfter::Fences(count)),
            "writebacks" => Some(CutAfter::WriteBacks(count)),
            "stores" => Some(CutAfter::Stores(count)),
            "instructions" => Some(CutAfter::Instructions(count)),
            _ => None,
        }
    }
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn domain(value: &str) -> Option<Domain> {
    match value {
        "adr" => Some(Domain::Adr),
        "eadr" => Some(Domain::Eadr),
        _ => None,
    }
}

fn inbound(value: &str) -> Option<Inbound> {
    match value {
        "cache" => Some(Inbound::Cache),
        "memory" => Some(Inbound::Memory),
        _ => None,
    }
}

fn locked(value: &str) -> Option<Locked> {
    match value {
        "fence" => Some(Locked::Fence),
        "nothing" => Some(Locked::Nothing),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn all() -> Options {
        let range = |name: &str, physical| RangeOptions {
            image: name.into(),
            shadow: format!("{name}.shadow").into(),
            physical,
            length: 0x20_0000,
        };
        Options {
            ranges: vec![range("a", 0x1_0000_0000), range("b", 0x2_0000_0000)],
            domain: Domain::Eadr,
            inbound: Inbound::Memory,
            locked: Locked::Nothing,
            cut_after: Some(CutAfter::WriteBacks(12)),
            arm: Some(7),
            counters: Some("c".into()),
        }
    }

    #[test]
    fn an_argument_is_read_back() {
        for cut in [CutAfter::Fences(1), CutAfter::WriteBacks(2), CutAfter::Stores(3), CutAfter::Instructions(4)] {
            let options = Options { cut_after: Some(cut), ..all() };
            let argument = options.plugin_argument(Path::new("x.so"));
            assert_eq!(Options::parse(argument.split(',').skip(1)).unwrap(), options);
        }
        let plain = Options { ranges: all().ranges, ..Options::default() };
        let argument = plain.plugin_argument(Path::new("x,y.so"));
        assert!(argument.starts_with("file=x,,y.so,image=a,shadow=a.shadow,phys=0x100000000,len=0x200000,image=b"));
    }

    #[test]
    fn bad_options_say_what_is_wrong() {
        let parse = |text: &str| Options::parse(text.split(',')).unwrap_err().to_string();
        assert!(parse("image").contains("no option"));
        assert!(parse("speed=1").contains("no option"));
        assert!(parse("phys=1").contains("before image="));
        assert!(parse("image=a,phys=1").contains("multiple of 4096"));
        assert!(parse("image=a,shadow=b,phys=0x1000").contains("no len="));
        assert!(parse("image=a,phys=0x1000,len=4096").contains("no shadow="));
        assert!(parse("domain=adr").contains("nothing to model"));
        assert!(parse("domain=ram").contains("adr or eadr"));
        assert!(parse("inbound=x").contains("cache or memory"));
        assert!(parse("locked=x").contains("fence or nothing"));
        assert!(parse("arm=256").contains("0 to 255"));
        for cut in ["fences", "fences:0", "fences:x", "days:1"] {
            assert!(parse(&format!("cut_after={cut}")).contains("fences:N"), "{cut}");
        }
    }
}
