//! The doctor's findings for people.

use std::fmt::Write;

use super::{LimitsReport, MediumReport, Report};
use crate::output;

/// What each level of durability means, in the order of `Durability::ALL`.
const MEANINGS: [&str; 3] = [
    "others read the new bytes, no failure survived",
    "the bytes survive the death of the target",
    "the bytes survive loss of power",
];

/// What each mechanism does.
const MECHANISMS: [(&str, &str); 4] = [
    ("store", "the write itself is enough"),
    ("fence", "the CPU finishes its writes; its caches survive too"),
    ("cache-line write-back", "the CPU writes its caches back to persistent memory"),
    ("file sync", "the kernel writes the file to its disk and empties the disk's cache"),
];

impl Report {
    pub(super) fn text(&self) -> String {
        // Writing to a string cannot fail, here and below.
        let mut text = String::new();
        let _ = writeln!(text, "What this machine can promise\n\nCPU\n  {}", self.cpu.model);
        let _ = match &self.cpu.write_back {
            Some(instruction) => writeln!(
                text,
                "  writes cache lines ({} bytes) back with {instruction}, which persistent memory needs and disks do not",
                self.cpu.cache_line_bytes
            ),
            None => writeln!(text, "  has no instruction to write cache lines back: persistent memory cannot be used"),
        };
        self.persistent_memory_text(&mut text);
        text += "\nWhere pools could lie\n";
        for medium in &self.media {
            medium.text(&mut text);
        }
        text += "Transports\n";
        for transport in &self.transports {
            let _ = writeln!(text, "  {:<8} {}", transport.name, transport.why.unwrap_or("available"));
        }
        self.limits.text(&mut text);
        text
    }

    fn persistent_memory_text(&self, text: &mut String) {
        *text += "\nPersistent memory (memory that keeps its bytes without power)\n";
        if let Some(error) = &self.persistent_memory_error {
            let _ = writeln!(text, "  cannot be asked about: {error}");
        } else if self.persistent_memory.is_empty() {
            *text += "  the kernel reports none\n";
        }
        for region in &self.persistent_memory {
            let _ = writeln!(text, "  {:<10} {}; {}", region.name, region.persistence_domain, region.meaning);
        }
    }
}

impl MediumReport {
    fn text(&self, text: &mut String) {
        let _ = match (&self.medium, &self.file_system) {
            (Some(medium), Some(file_system)) => writeln!(text, "  {}: {medium} ({file_system})", self.path),
            _ => writeln!(text, "  {}", self.path),
        };
        for (level, meaning) in self.levels.iter().zip(MEANINGS) {
            let answer = if level.available { "yes" } else { "no" };
            let _ = writeln!(text, "    {:<12}  {meaning:<47}  {answer}", level.durability);
            if let (Some(mechanism), Some(evidence)) = (&level.mechanism, &level.evidence) {
                let means = MECHANISMS.iter().find(|(name, _)| name == mechanism).map_or("", |(_, means)| means);
                let _ = writeln!(text, "    {:<12}  by {mechanism}: {means} ({evidence})", "");
            }
        }
        for (index, sentence) in self.evidence_found.iter().enumerate() {
            let _ = writeln!(text, "    {:<12}  {sentence}", if index == 0 { "known from" } else { "" });
        }
        if let Some(mend) = &self.mend {
            let _ = writeln!(text, "    {:<12}  {mend}", "to do");
        }
        if let Some(error) = &self.error {
            let _ = writeln!(text, "    {error}");
        }
        *text += "\n";
    }
}

impl LimitsReport {
    fn text(&self, text: &mut String) {
        let count = |limit: Option<u64>| limit.map_or("no limit".to_owned(), |limit| limit.to_string());
        *text += "\nLimits\n";
        let _ = writeln!(
            text,
            "  open files     {}, at most {}; each connection takes one, and pmof serve asks for the most",
            count(self.open_files),
            count(self.open_files_most)
        );
        let memory = self.locked_memory_bytes.map_or("no limit".to_owned(), output::size);
        let _ = writeln!(text, "  locked memory  {memory}; tcp needs none");
        let _ = writeln!(text, "  CPUs           {}", self.cpus);
    }
}
