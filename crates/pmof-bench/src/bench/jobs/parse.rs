//! fio's job files: sections, options, comments, includes, and the units of numbers (fio(1), "JOB FILE FORMAT" and "PARAMETER TYPES").

use std::{
    env, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};

/// Includes within includes: a file that includes itself ends here.
const INCLUDES_MAX: u32 = 16;

/// The place of an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) file: PathBuf,
    pub(super) line: usize,
}

/// `key=value`, or `key` alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) key: String,
    pub(super) value: Option<String>,
    pub(super) place: Place,
    /// An environment variable in it that is not set, and counts as empty.
    pub(super) unset: Option<String>,
}

/// A section but `[global]`, with the options of the global sections before it first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Section {
    pub(super) name: String,
    pub(super) place: Place,
    pub(super) settings: Vec<Setting>,
    /// How many of them are global.
    pub(super) global: usize,
}

/// Reads a job file and what it includes.
pub(super) fn read(path: &Path) -> Result<Vec<Section>> {
    let mut reader = Reader { global: Vec::new(), sections: Vec::new(), in_global: true };
    reader.file(path, 0)?;
    ensure!(!reader.sections.is_empty(), "{} has no section but [global]: there is no job to run", path.display());
    Ok(reader.sections)
}

struct Reader {
    global: Vec<Setting>,
    sections: Vec<Section>,
    in_global: bool,
}

impl Reader {
    fn file(&mut self, path: &Path, depth: u32) -> Result<()> {
        ensure!(depth < INCLUDES_MAX, "{}: files include each other more than {INCLUDES_MAX} deep", path.display());
        let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        for (number, line) in text.lines().enumerate() {
            let place = Place { file: path.to_path_buf(), line: number + 1 };
            self.line(strip_comment(line), &place, depth).with_context(|| place.to_string())?;
        }
        Ok(())
    }

    fn line(&mut self, line: &str, place: &Place, depth: u32) -> Result<()> {
        if line.is_empty() {
            return Ok(());
        }
        if let Some(name) = line.strip_prefix('[') {
            let name = name.strip_suffix(']').context("a section has no ]")?;
            self.in_global = name == "global";
            if !self.in_global {
                let (name, settings) = (name.to_owned(), self.global.clone());
                self.sections.push(Section { name, place: place.clone(), global: settings.len(), settings });
            }
            return Ok(());
        }
        if let Some(file) = line.strip_prefix("include ") {
            return self.file(&place.file.with_file_name(file.trim()), depth + 1);
        }
        let (line, unset) = expand(line)?;
        let (key, value) = match line.split_once('=') {
            Some((key, value)) => (key.trim(), Some(value.trim().to_owned())),
            None => (line.trim(), None),
        };
        let setting = Setting { key: key.to_owned(), value, place: place.clone(), unset };
        match self.sections.last_mut() {
            Some(section) if !self.in_global => section.settings.push(setting),
            _ if self.in_global => self.global.push(setting),
            _ => bail!("there is an option before the first section"),
        }
        Ok(())
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

/// A comment begins with `#` or `;` at the start of a line or behind a blank.
fn strip_comment(line: &str) -> &str {
    let starts = |(at, sign): &(usize, char)| {
        matches!(sign, '#' | ';') && line[..*at].chars().next_back().is_none_or(char::is_whitespace)
    };
    let end = line.char_indices().find(starts).map_or(line.len(), |(at, _)| at);
    line[..end].trim()
}

/// The line with environment variables (`${NAME}`, empty where it is not set) and fio's keywords replaced, and the first variable that is not set
/// (fio(1), "ENVIRONMENT VARIABLES" and "RESERVED KEYWORDS").
fn expand(line: &str) -> Result<(String, Option<String>)> {
    let (mut expanded, mut rest, mut unset) = (String::new(), line, None);
    while let Some((before, behind)) = rest.split_once("${") {
        let (name, behind) = behind.split_once('}').context("a ${ has no }")?;
        expanded += before;
        match env::var_os(name) {
            Some(value) => expanded += &value.to_string_lossy(),
            None => unset = unset.or_else(|| Some(name.to_owned())),
        }
        rest = behind;
    }
    expanded += rest;
    if expanded.contains('$') {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        for (keyword, value) in [
            ("$pagesize", rustix::param::page_size() as u64),
            ("$mb_memory", if expanded.contains("$mb_memory") { memory_mib()? } else { 0 }),
            ("$ncpus", processors as u64),
        ] {
            expanded = expanded.replace(keyword, &value.to_string());
        }
    }
    Ok((expanded, unset))
}

fn memory_mib() -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo").context("$mb_memory is not known: reading /proc/meminfo")?;
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse().ok());
    total.map(|kib: u64| kib / 1024).context("/proc/meminfo does not say what $mb_memory is")
}

/// Bytes. With `kb_base` 1024, fio's default, `k` is 1024 and `kib` 1000, for compatibility; with 1000 they are what they are elsewhere.
pub(super) fn bytes(text: &str, kb_base: u64) -> Result<u64> {
    let lower = text.to_ascii_lowercase();
    let (number, suffix) = split_number(&lower)?;
    let (exponent, rest) = match suffix.chars().next().and_then(|first| "kmgtp".find(first)) {
        Some(index) => (index as u32 + 1, &suffix[1..]),
        None => (0, suffix),
    };
    let base = match (rest, exponent) {
        ("" | "b", _) | ("i", 1..) => kb_base,
        ("ib", 1..) => {
            if kb_base == 1000 {
                1024
            } else {
                1000
            }
        }
        _ => bail!("{text} is no number of bytes: write it as 4096, 4k or 1GiB"),
    };
    let scaled = base.checked_pow(exponent).and_then(|scale| number.checked_mul(scale));
    scaled.with_context(|| format!("{text} is more than 2^64 bytes"))
}

/// A time; in seconds where it has no unit.
pub(super) fn time(text: &str) -> Result<Duration> {
    let lower = text.to_ascii_lowercase();
    let (number, suffix) = split_number(&lower)?;
    let microseconds: u64 = match suffix {
        "us" | "usec" => 1,
        "ms" | "msec" => 1_000,
        "" | "s" => 1_000_000,
        "m" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        _ => bail!("{text} is no time: write it as 60, 60s, 500ms or 365d"),
    };
    let total = number.checked_mul(microseconds).with_context(|| format!("{text} is too long"))?;
    Ok(Duration::from_micros(total))
}

/// A number; hexadecimal behind `0x`.
fn split_number(text: &str) -> Result<(u64, &str)> {
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    let end = digits.find(|digit: char| !digit.is_digit(radix)).unwrap_or(digits.len());
    let number = u64::from_str_radix(&digits[..end], radix);
    Ok((number.with_context(|| format!("{text} is no number"))?, &digits[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What fio 3.33 makes of the same words.
    #[test]
    fn units_are_fios() {
        for (text, with_1024, with_1000) in [
            ("4KiB", 4000, 4096),
            ("4k", 4096, 4000),
            ("4KB", 4096, 4000),
            ("4Ki", 4096, 4000),
            ("0x1000", 4096, 4096),
            ("512b", 512, 512),
            ("512", 512, 512),
            ("100MiB", 100_000_000, 100 << 20),
        ] {
            assert_eq!((bytes(text, 1024).unwrap(), bytes(text, 1000).unwrap()), (with_1024, with_1000), "{text}");
        }
        for wrong in ["", "k", "4x", "4kibb", "-1", "99999999999999999999", "99999999999p"] {
            assert!(bytes(wrong, 1024).is_err(), "{wrong}");
        }
        for (text, seconds) in [("60", 60.0), ("60s", 60.0), ("250ms", 0.25), ("365d", 31_536_000.0), ("5us", 5e-6)] {
            assert!((time(text).unwrap().as_secs_f64() - seconds).abs() < 1e-9, "{text}");
        }
        assert!(time("5 weeks").is_err() && time("").is_err());
    }

    #[test]
    fn sections_take_the_globals_before_them_and_includes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.fio");
        fs::write(directory.path().join("b.fio"), "port=7000 # from b\n").unwrap();
        fs::write(&path, "; comment\n[global]\nthread\ninclude b.fio\n[one]\nbs=4k#x\n\n[global]\nsync=1\n[two]\n")
            .unwrap();
        let sections = read(&path).unwrap();
        let keys =
            |index: usize| -> Vec<&str> { sections[index].settings.iter().map(|setting| &setting.key[..]).collect() };
        assert_eq!((keys(0), keys(1)), (vec!["thread", "port", "bs"], vec!["thread", "port", "sync"]));
        assert_eq!((sections[0].settings[2].value.as_deref(), sections[0].settings[2].place.line), (Some("4k#x"), 6));
        assert_eq!(sections[0].settings[1].value.as_deref(), Some("7000"));
    }

    #[test]
    fn variables_and_keywords_are_replaced() {
        let expanded = |line: &str| expand(line).unwrap();
        // Cargo sets it.
        let package = env!("CARGO_PKG_NAME");
        assert_eq!(expanded("a=${CARGO_PKG_NAME}/${CARGO_PKG_NAME}"), (format!("a={package}/{package}"), None));
        let (line, unset) = expanded("numjobs=1${PMOF_NO_SUCH_VARIABLE}");
        assert_eq!((line.as_str(), unset.as_deref()), ("numjobs=1", Some("PMOF_NO_SUCH_VARIABLE")));
        assert_eq!(expanded("a=$pagesize").0, format!("a={}", rustix::param::page_size()));
        assert!(expanded("a=$ncpus").0[2..].parse::<u64>().unwrap() > 0);
        assert!(expanded("a=$mb_memory").0[2..].parse::<u64>().unwrap() > 0);
        assert!(expand("a=${OPEN").is_err());
    }

    #[test]
    fn files_that_are_none_say_where() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.fio");
        for (text, reason) in
            [("[global]\nthread\n", "no job"), ("[a\n", ":1"), ("include a.fio\n", "deep"), ("[a]\ninclude x\n", "x")]
        {
            fs::write(&path, text).unwrap();
            let error = format!("{:#}", read(&path).unwrap_err());
            assert!(error.contains(reason), "{text:?}: {error}");
        }
    }
}
