//! Counting of the instructions that a program spends, user and kernel apart.
//!
//! A program inside the machine executes a *mark* before and after the work to be counted: one long `nop` with an id in
//! it, which costs an ordinary processor nothing. The plugin `instruction-counter-plugin` writes a line into its log at
//! each mark; [`read_log`] reads them and [`between`] takes differences. A C program gets the same mark from
//! `include/pmof_mark.h`.

use std::{fs, io, path::Path};

/// The bytes of a mark but its id: `0f 1f 80 ID ab 50 51` is `nopl 0x5150abID(%rax)`.
const MARK: [u8; 7] = [0x0f, 0x1f, 0x80, 0x00, 0xab, 0x50, 0x51];

/// Executes the mark with an id of 0 to 255, known when compiling. Nothing else is changed: registers, flags and memory
/// stay, but the compiler moves no memory access across it.
#[macro_export]
macro_rules! mark {
    ($id:expr) => {{
        const ID: u8 = $id;
        // SAFETY: a nop with a memory operand does not access memory; it changes no register and no flag.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            ::core::arch::asm!(
                ".byte 0x0f, 0x1f, 0x80, {id}, 0xab, 0x50, 0x51",
                id = const ID,
                options(nostack, preserves_flags)
            );
        }
    }};
}

/// The id of the mark that an instruction's bytes are; `None` for every other instruction.
pub fn mark_id(instruction: &[u8]) -> Option<u8> {
    let id = *instruction.get(3)?;
    let mut expected = MARK;
    expected[3] = id;
    (instruction == expected).then_some(id)
}

/// One executed mark: what all processors together had executed until then since the machine's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Which mark.
    pub id: u8,
    /// The virtual processor that executed it.
    pub processor: u32,
    /// Instructions below the middle of the address space: the programs.
    pub user: u64,
    /// Instructions above it: the kernel.
    pub kernel: u64,
}

/// What was executed between two marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spent {
    /// Instructions of programs.
    pub user: u64,
    /// Instructions of the kernel.
    pub kernel: u64,
}

impl Mark {
    /// The mark as a line of the log, without the line's end.
    pub fn to_line(&self) -> String {
        format!("mark {} processor {} user {} kernel {}", self.id, self.processor, self.user, self.kernel)
    }

    fn from_line(line: &str) -> Option<Mark> {
        let mut words = line.split(' ');
        let mut field = |name: &str| (words.next()? == name).then(|| words.next())?;
        let mark = Mark {
            id: field("mark")?.parse().ok()?,
            processor: field("processor")?.parse().ok()?,
            user: field("user")?.parse().ok()?,
            kernel: field("kernel")?.parse().ok()?,
        };
        words.next().is_none().then_some(mark)
    }
}

/// Why a log cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The file cannot be read.
    #[error("reading the instruction counter's log {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// Why not.
        source: io::Error,
    },
    /// A line is not one of the plugin's.
    #[error("line {line} of {path} is no mark: {text:?}; is this the log of the instruction counter?")]
    Line {
        /// The file.
        path: String,
        /// The line, from 1.
        line: usize,
        /// Its text.
        text: String,
    },
}

/// All marks of a log in the order in which they were executed. A last line without its end, left by a killed machine,
/// is left out.
pub fn read_log(path: &Path) -> Result<Vec<Mark>, LogError> {
    let name = path.display().to_string();
    let text = fs::read_to_string(path).map_err(|source| LogError::Read { path: name.clone(), source })?;
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole
        .lines()
        .enumerate()
        .map(|(index, line)| {
            Mark::from_line(line).ok_or_else(|| LogError::Line {
                path: name.clone(),
                line: index + 1,
                text: line.to_owned(),
            })
        })
        .collect()
}

/// What each stretch from a mark `from` to the next mark `to` took, in the log's order. The mark at the end is itself
/// counted once in every stretch.
pub fn between(marks: &[Mark], from: u8, to: u8) -> Vec<Spent> {
    let mut stretches = Vec::new();
    let mut start: Option<&Mark> = None;
    for mark in marks {
        if mark.id == to {
            if let Some(begun) = start.take() {
                stretches.push(Spent { user: mark.user - begun.user, kernel: mark.kernel - begun.kernel });
            }
        }
        if mark.id == from {
            start = Some(mark);
        }
    }
    stretches
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_mark_is_recognised_and_nothing_else() {
        assert_eq!(mark_id(&[0x0f, 0x1f, 0x80, 0x07, 0xab, 0x50, 0x51]), Some(7));
        assert_eq!(mark_id(&[0x0f, 0x1f, 0x80, 0x07, 0xab, 0x50, 0x52]), None);
        assert_eq!(mark_id(&[0x0f, 0x1f, 0x80, 0x00, 0x00, 0x00, 0x00]), None);
        assert_eq!(mark_id(&[0x90]), None);
        assert_eq!(mark_id(&[0x0f, 0x1f, 0x80, 0x07, 0xab, 0x50, 0x51, 0x90]), None);
    }

    #[test]
    fn the_macro_runs_on_this_processor() {
        mark!(3);
    }

    #[test]
    fn the_header_for_c_makes_the_same_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let (source, object) = (directory.path().join("mark.c"), directory.path().join("mark.o"));
        fs::write(&source, "#include \"pmof_mark.h\"\nvoid mark(void) { PMOF_MARK(201); }\n").unwrap();
        let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include");
        let status = Command::new("cc").args(["-c", include, "-o"]).args([&object, &source]).status().unwrap();
        assert!(status.success());
        let code = fs::read(object).unwrap();
        assert!(code.windows(MARK.len()).any(|bytes| mark_id(bytes) == Some(201)));
    }

    #[test]
    fn a_log_is_read_back_without_its_torn_last_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mark = Mark { id: 1, processor: 0, user: 10, kernel: 20 };
        fs::write(&path, format!("{}\nmark 2 proc", mark.to_line())).unwrap();
        assert_eq!(read_log(&path).unwrap(), [mark]);
        fs::write(&path, "mark 1 processor 0 user x kernel 1\n").unwrap();
        assert!(matches!(read_log(&path), Err(LogError::Line { line: 1, .. })));
        assert!(matches!(read_log(&directory.path().join("none")), Err(LogError::Read { .. })));
    }

    #[test]
    fn stretches_are_differences() {
        let mark = |id, user, kernel| Mark { id, processor: 0, user, kernel };
        let marks =
            [mark(1, 5, 5), mark(2, 15, 6), mark(2, 90, 90), mark(1, 100, 100), mark(1, 110, 100), mark(2, 113, 107)];
        assert_eq!(between(&marks, 1, 2), [Spent { user: 10, kernel: 1 }, Spent { user: 3, kernel: 7 }]);
        let back_to_back = [mark(1, 1, 0), mark(1, 3, 0), mark(1, 7, 0)];
        assert_eq!(between(&back_to_back, 1, 1), [Spent { user: 2, kernel: 0 }, Spent { user: 4, kernel: 0 }]);
    }
}
