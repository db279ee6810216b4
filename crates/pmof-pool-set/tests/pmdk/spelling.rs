//! Set files in every spelling: what PMDK's parser makes of each, and what ours does.
//!
//! The table holds the verdicts of PMDK 1.12.1. Ours are compared with it everywhere, PMDK's own where its libraries are. Where
//! both read a set they must read the same: the files that PMDK makes of it are the parts that we read, in their order, and the
//! remote replicas that it asks librpmem for are ours.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Once,
};

use pmof_pool_set::{LocalSet, OpenFor, PartSize, PoolSet, ReplicaSpec};
use tempfile::tempdir_in;

use super::{MIB, ONE_AT_A_TIME, PLACE, SOURCES, program};

/// What PMDK makes of a set file.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Pmdk {
    /// It is read, and a pool can be made of it.
    Makes,
    /// It is read; nothing can be made of it.
    Reads,
    /// It is refused as it is read.
    Refuses,
}

/// What we make of it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ours {
    /// As PMDK does.
    Same,
    /// We refuse what PMDK reads, and why.
    Refuse(&'static str),
    /// We read what PMDK refuses, and why nothing can be mistaken.
    Read(&'static str),
}

use Ours::{Read, Refuse, Same};
use Pmdk::{Makes, Reads, Refuses};

const BLANKS: &str = "nothing is on the line";
const LOCAL: &str = "it names no node";
const CANNOT_BE: &str = "nothing can be made of it";
const ONE_FILE: &str = "it is one file";
const OUTSIDE: &str = "it would leave the target's directory";
const NO_NODE: &str = "ssh would take it for an option, or finds no host";
const CUT: &str = "what follows the NUL is lost";
const AT_OPENING: &str = "reading asks no device; opening does";

/// `@` is the directory of the parts; `{P}` the first line.
const SETS: &[(&str, Pmdk, Ours)] = &[
    ("{P}8M @/a\n", Makes, Same),
    ("{P}8M @/a", Makes, Same),
    // Comments.
    ("{P}8M @/a # c", Makes, Same),
    ("{P}8M @/a\n# c", Makes, Same),
    ("{P}#\n8M @/a\n", Makes, Same),
    ("{P}# c\n8M @/a\n", Makes, Same),
    ("{P}8M @/a # c # d\n", Makes, Same),
    ("{P}8M @/a#c\n", Makes, Same),
    ("{P}8M #@/a\n", Refuses, Same),
    ("{P}8M# @/a\n", Refuses, Same),
    ("{P}  # c\n8M @/a\n", Refuses, Read(BLANKS)),
    ("{P}\t# c\n8M @/a\n", Refuses, Read(BLANKS)),
    ("{P}8M @/a\n  # c\n", Refuses, Read(BLANKS)),
    ("{P}8M @/a\nREPLICA# c\n8M @/b\n", Makes, Same),
    ("{P}8M @/a\nREPLICA # c\n8M @/b\n", Refuses, Read(LOCAL)),
    ("{P}8M @/a\nREPLICA far s # c\n", Makes, Same),
    ("{P}8M @/a\nREPLICA far s#c\n", Makes, Same),
    ("{P}8M @/a\nREPLICA far # s\n", Refuses, Same),
    ("{P}OPTION SINGLEHDR # c\n8M @/a\n", Makes, Same),
    ("{P}OPTION SINGLEHDR#c\n8M @/a\n", Makes, Same),
    ("{P}OPTION # c\n8M @/a\n", Refuses, Same),
    // Blanks, tabs, lines with nothing on them.
    ("{P}\n8M @/a\n\n\n", Makes, Same),
    ("{P}  \n8M @/a\n", Refuses, Read(BLANKS)),
    ("{P}\t\n8M @/a\n", Refuses, Read(BLANKS)),
    ("{P}8M @/a\n  \n", Refuses, Read(BLANKS)),
    ("{P}8M @/a\n  ", Refuses, Read(BLANKS)),
    ("{P}8M @/a\n \nREPLICA\n8M @/b\n", Refuses, Read(BLANKS)),
    ("{P}  8M @/a\n", Makes, Same),
    ("{P}\t8M\t@/a\t\n", Makes, Same),
    ("{P}8M \t  @/a  \t\n", Makes, Same),
    ("{P}8M\u{b}@/a\n", Refuses, Same),
    // CR LF, and other control characters.
    ("PMEMPOOLSET\r\n8M @/a\r\n", Makes, Same),
    ("PMEMPOOLSET\r\n8M @/a\n", Makes, Same),
    ("{P}8M @/a\r\n", Makes, Same),
    ("{P}8M @/a \r\n", Makes, Same),
    ("{P}8M @/a\n\r\n", Makes, Same),
    ("{P}# c\r\n8M @/a # d\r\n", Makes, Same),
    ("{P}OPTION SINGLEHDR\r\n8M @/a\r\n", Makes, Same),
    ("{P}8M @/a\r\nREPLICA\r\n8M @/b\r\nREPLICA far s\r\n", Makes, Same),
    ("{P}8M @/a\r", Makes, Same),
    ("{P}8M @/a\r\r\n", Makes, Same),
    ("{P}8M @/a\r \n", Makes, Same),
    ("{P}8M @/a\rb\n", Makes, Same),
    ("{P}8M @/a\u{c}\u{1b}\u{7f}\n", Makes, Same),
    ("{P}8M @/a\n8M @/b\0c\n", Makes, Refuse(CUT)),
    // The first line.
    ("PMEMPOOLSET", Refuses, Same),
    ("{P}", Refuses, Same),
    ("PMEMPOOLSET \n8M @/a\n", Refuses, Same),
    ("PMEMPOOLSET\t\n8M @/a\n", Refuses, Same),
    ("PMEMPOOLSET # x\n8M @/a\n", Refuses, Same),
    ("PMEMPOOLSET#x\n8M @/a\n", Refuses, Same),
    ("PMEMPOOLSETS\n8M @/a\n", Refuses, Same),
    (" PMEMPOOLSET\n8M @/a\n", Refuses, Same),
    ("pmempoolset\n8M @/a\n", Refuses, Same),
    ("\nPMEMPOOLSET\n8M @/a\n", Refuses, Same),
    ("\u{feff}PMEMPOOLSET\n8M @/a\n", Refuses, Same),
    ("{P}{P}8M @/a\n", Refuses, Same),
    ("{P}8M @/a\nPMEMPOOLSET\n", Refuses, Same),
    // Parts.
    ("{P}8M @/a x\n", Refuses, Same),
    ("{P}8M \"@/a\"\n", Refuses, Same),
    ("{P}8M @/\"a\"\n", Makes, Same),
    ("{P}8M @/a b\n", Refuses, Same),
    ("{P}8M @/a\\ b\n", Refuses, Same),
    ("{P}8M @/\u{e4}\n", Makes, Same),
    ("{P}8M @/dir/../b\n", Makes, Same),
    ("{P}8M a\n", Refuses, Same),
    ("{P}8M ./a\n", Refuses, Same),
    ("{P}@/a 8M\n", Refuses, Same),
    ("{P}@/a\n", Refuses, Same),
    ("{P}8M\n", Refuses, Same),
    ("{P}8M @/a\n8M @/a\n", Reads, Refuse(ONE_FILE)),
    ("{P}8M @/a\n8M @//a\n", Reads, Refuse(ONE_FILE)),
    ("{P}AUTO @/a\n", Refuses, Read(AT_OPENING)),
    ("{P}auto @/a\n", Refuses, Same),
    // Directories.
    ("{P}OPTION SINGLEHDR\n16M @/dir\n", Makes, Same),
    ("{P}OPTION SINGLEHDR\n16M @/dir/\n", Makes, Same),
    ("{P}16M @/dir\n", Reads, Same),
    // Replicas.
    ("{P}8M @/a\nREPLICA\n8M @/b\n", Makes, Same),
    ("{P}8M @/a\n9M @/b\nREPLICA\n16M @/c\nREPLICA\n10M @/d\n11M @/e\n", Makes, Same),
    ("{P}8M @/a\nREPLICA \n8M @/b\n", Refuses, Read(LOCAL)),
    ("{P}8M @/a\nREPLICA\t\n8M @/b\n", Refuses, Read(LOCAL)),
    ("{P}8M @/a\n REPLICA\n8M @/b\n", Refuses, Same),
    ("{P}8M @/a\nREPLICAS\n8M @/b\n", Refuses, Same),
    ("{P}8M @/a\nREPLICA:\n8M @/b\n", Refuses, Same),
    ("{P}8M @/a\nREPLICA 1\n8M @/b\n", Refuses, Same),
    ("{P}8M @/a\nreplica\n8M @/b\n", Refuses, Same),
    ("{P}8M @/a\nREPLICA\n", Refuses, Same),
    ("{P}8M @/a\nREPLICA", Refuses, Same),
    ("{P}8M @/a\nREPLICA\nREPLICA\n8M @/b\n", Refuses, Same),
    ("{P}REPLICA\n8M @/a\n", Refuses, Same),
    // Remote replicas.
    ("{P}8M @/a\nREPLICA far s\n", Makes, Same),
    ("{P}8M @/a\nREPLICA far s", Makes, Same),
    ("{P}8M @/a\nREPLICA\tuser_far\tdir/s \n", Makes, Same),
    ("{P}8M @/a\nREPLICA far ./s\n", Makes, Same),
    ("{P}8M @/a\nREPLICA far s\nREPLICA\n8M @/b\n", Makes, Same),
    ("{P}8M @/a\nREPLICA far s\nREPLICA far s\n", Makes, Refuse(ONE_FILE)),
    ("{P}8M @/a\nREPLICA far ../s\n", Makes, Refuse(OUTSIDE)),
    ("{P}8M @/a\nREPLICA -far s\n", Makes, Refuse(NO_NODE)),
    ("{P}8M @/a\nREPLICA far/x s\n", Makes, Refuse(NO_NODE)),
    ("{P}8M @/a\nREPLICA far\u{1b} s\n", Makes, Refuse(NO_NODE)),
    ("{P}8M @/a\nREPLICA far /s\n", Refuses, Same),
    ("{P}8M @/a\nREPLICA far\n", Refuses, Same),
    ("{P}8M @/a\nREPLICA far s x\n", Refuses, Same),
    ("{P}8M @/a\nREPLICA far s\n8M @/b\n", Refuses, Same),
    ("{P}8M @/a\nREPLICAfar s\n", Refuses, Same),
    ("{P}REPLICA far s\n8M @/a\n", Refuses, Same),
    // Options.
    ("{P}OPTION SINGLEHDR\n8M @/a\n8M @/b\n", Makes, Same),
    ("{P}OPTION SINGLEHDR\nOPTION SINGLEHDR\n8M @/a\n", Makes, Same),
    ("{P}OPTION SINGLEHDR SINGLEHDR\n8M @/a\n", Makes, Same),
    ("{P}8M @/a\nOPTION SINGLEHDR\nREPLICA\n8M @/b\n", Makes, Same),
    ("{P}8M @/a\nREPLICA\nOPTION SINGLEHDR\n8M @/b\n", Makes, Same),
    ("{P}8M @/a\nOPTION SINGLEHDR", Makes, Same),
    ("{P}OPTION\tSINGLEHDR\t\n8M @/a\n", Makes, Same),
    ("{P}OPTIONSINGLEHDR\n8M @/a\n8M @/b\n", Makes, Same),
    ("{P}OPTIONSINGLEHDR SINGLEHDR\n8M @/a\n8M @/b\n", Makes, Same),
    (" {P}OPTION SINGLEHDR\n8M @/a\n", Refuses, Same),
    ("{P} OPTION SINGLEHDR\n8M @/a\n", Refuses, Same),
    ("{P} OPTIONSINGLEHDR\n8M @/a\n", Refuses, Same),
    ("{P}OPTION\n8M @/a\n", Refuses, Same),
    ("{P}OPTION \n8M @/a\n", Refuses, Same),
    ("{P}OPTION SINGLE\n8M @/a\n", Refuses, Same),
    ("{P}OPTION SINGLEHDRX\n8M @/a\n", Refuses, Same),
    ("{P}OPTION SINGLEHDR\u{1b}\n8M @/a\n", Refuses, Same),
    ("{P}OPTION singlehdr\n8M @/a\n", Refuses, Same),
    ("{P}OPTION SINGLEHDR,NOHDRS\n8M @/a\n", Refuses, Same),
    ("{P}OPTIONS SINGLEHDR\n8M @/a\n", Refuses, Same),
    ("{P}option SINGLEHDR\n8M @/a\n", Refuses, Same),
    ("{P}OPTION NOHDRS\n8M @/a\n", Reads, Same),
    ("{P}OPTION SINGLEHDR NOHDRS\n8M @/a\n", Reads, Refuse(CANNOT_BE)),
    ("{P}OPTION NOHDRS\n8M @/a\nREPLICA\n8M @/b\n", Reads, Refuse(CANNOT_BE)),
];

/// Sizes of a part, and how many bytes PMDK takes them for.
const SIZES: &[(&str, Option<u64>, Ours)] = &[
    ("8388608", Some(8 * MIB), Same),
    ("8388608B", Some(8 * MIB), Same),
    ("8192K", Some(8 * MIB), Same),
    ("8192KiB", Some(8 * MIB), Same),
    ("9000kB", Some(9_000_000), Same),
    ("8M", Some(8 * MIB), Same),
    ("08M", Some(8 * MIB), Same),
    ("+8M", Some(8 * MIB), Same),
    ("8MiB", Some(8 * MIB), Same),
    ("9MB", Some(9_000_000), Same),
    ("8G", Some(8 << 30), Same),
    ("8GiB", Some(8 << 30), Same),
    ("8GB", Some(8_000_000_000), Same),
    ("8T", Some(8 << 40), Same),
    ("8TiB", Some(8 << 40), Same),
    ("8TB", Some(8_000_000_000_000), Same),
    ("8P", Some(8 << 50), Same),
    ("8PiB", Some(8 << 50), Same),
    ("8PB", Some(8_000_000_000_000_000), Same),
    ("9223372036854775807", Some(u64::MAX >> 1), Same),
    ("9223372036854775808", Some(1 << 63), Refuse(CANNOT_BE)),
    ("18446744073709551616", Some(u64::MAX), Refuse(CANNOT_BE)),
    ("8192P", Some(1 << 63), Refuse(CANNOT_BE)),
    ("-8M", Some(0_u64.wrapping_sub(8 * MIB)), Refuse(CANNOT_BE)),
    ("-18446744073701163008", Some(8 * MIB), Refuse("it is not the size that is written")),
    ("16384P", None, Same),
    ("8m", None, Same),
    ("8mb", None, Same),
    ("8Mb", None, Same),
    ("8mib", None, Same),
    ("8MIB", None, Same),
    ("8KB", None, Same),
    ("8k", None, Same),
    ("8kiB", None, Same),
    ("8b", None, Same),
    ("8g", None, Same),
    ("8E", None, Same),
    ("8Mi", None, Same),
    ("8MM", None, Same),
    ("8M\u{1b}", None, Same),
    ("0", None, Same),
    ("0M", None, Same),
    ("M", None, Same),
    ("++8M", None, Same),
    ("+", None, Same),
    ("8.5M", None, Same),
    ("8,5M", None, Same),
    ("1e7", None, Same),
    ("0x800000", None, Same),
    ("8_000M", None, Same),
    ("AUTO8M", None, Same),
];

/// Where a set says that its parts are, and the set.
struct Spelled {
    directory: tempfile::TempDir,
    path: PathBuf,
    text: Vec<u8>,
}

impl Spelled {
    fn new(text: &str) -> Self {
        let directory = tempdir_in(PLACE).unwrap();
        fs::create_dir(directory.path().join("dir")).unwrap();
        let place = directory.path().to_str().unwrap();
        // A node with a user contains the character that represents the directory.
        let text = text.replace("{P}", "PMEMPOOLSET\n").replace('@', place).replace("user_", "user@").into_bytes();
        let path = directory.path().join("s.set");
        fs::write(&path, &text).unwrap();
        Self { directory, path, text }
    }

    fn ours(&self) -> Result<PoolSet, pmof_pool_set::SetError> {
        PoolSet::parse(&self.path, &self.text)
    }

    /// What PMDK makes of it, and what it says: why it does not, or the remote replicas.
    fn pmdk(&self) -> (Pmdk, String) {
        let run = Command::new(program().unwrap())
            .args([Path::new("create"), &self.path])
            .env("LD_LIBRARY_PATH", stand_in())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&run.stdout).into_owned();
        let is_refused = said.contains("s.set [") || said.contains("file is not a poolset file");
        match (run.status.success(), is_refused) {
            (true, _) => (Makes, said),
            (false, true) => (Refuses, said),
            (false, false) => (Reads, said),
        }
    }

    /// What PMDK made is what we read: each part with its bytes, in its replica and at its place, and each remote replica.
    fn assert_same_meaning(&self, set: &PoolSet, said: &str) {
        let text = String::from_utf8_lossy(&self.text);
        let mut remotes = String::new();
        for replica in &set.replicas {
            match replica {
                ReplicaSpec::Local(parts) => {
                    for part in parts.iter().filter(|part| !part.path.is_dir()) {
                        let found = fs::metadata(&part.path).unwrap_or_else(|error| panic!("{text}{part:?}: {error}"));
                        assert_eq!(PartSize::Bytes(found.len()), part.size, "{text}{part:?}");
                    }
                }
                ReplicaSpec::Remote(remote) => {
                    remotes.extend(["REMOTE\t", &remote.node, "\t", &remote.set.to_string_lossy(), "\n"]);
                }
            }
        }
        assert_eq!(said.replace("\t./", "\t"), remotes, "{text}");
        let opened = LocalSet::open(set, OpenFor::Read, None).unwrap_or_else(|error| panic!("{text}{error}"));
        drop(opened);
        let again = PoolSet::parse(&self.path, &set.to_bytes()).unwrap();
        let paths = |set: &PoolSet| {
            let parts = set.replicas.iter().filter_map(ReplicaSpec::local).flatten();
            parts.map(|part| part.path.clone()).collect::<Vec<_>>()
        };
        assert_eq!(paths(&again), paths(set), "{text}");
        assert_eq!(again.to_bytes(), set.to_bytes(), "{text}");
    }
}

/// The directory of the librpmem that libpmemobj finds.
fn stand_in() -> &'static Path {
    static BUILT: Once = Once::new();
    let directory = Path::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/librpmem-of-pmdk-tests"));
    BUILT.call_once(|| {
        fs::create_dir_all(directory).unwrap();
        let new = directory.join(std::process::id().to_string());
        let source = Path::new(SOURCES).join("tests/pmdk/librpmem.c");
        let built = Command::new("cc").args(["-O1", "-Wall", "-shared", "-fPIC", "-o"]).arg(&new).arg(source).output();
        let built = built.unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        fs::rename(new, directory.join("librpmem.so.1")).unwrap();
    });
    directory
}

/// Whether our verdict is the one that the table has for us.
fn fits(is_read: bool, pmdk: bool, ours: Ours) -> bool {
    match ours {
        Same => is_read == pmdk,
        Refuse(_) => pmdk && !is_read,
        Read(_) => !pmdk && is_read,
    }
}

#[test]
fn spellings_are_read_as_the_table_says() {
    let mut wrong = Vec::new();
    for (text, pmdk, ours) in SETS {
        let spelled = Spelled::new(text);
        let found = spelled.ours();
        if !fits(found.is_ok(), *pmdk != Refuses, *ours) {
            wrong.push(format!("{text:?}: PMDK {pmdk:?}, ours {ours:?}, found {found:?}"));
        }
    }
    for (size, pmdk, ours) in SIZES {
        let found = Spelled::new(&format!("{{P}}{size} @/a\n")).ours();
        let bytes = found.as_ref().ok().map(|set| set.replicas[0].local().unwrap()[0].size);
        let is_same = bytes.is_none() || bytes == pmdk.map(PartSize::Bytes);
        if !is_same || !fits(found.is_ok(), pmdk.is_some(), *ours) {
            wrong.push(format!("{size}: PMDK {pmdk:?}, ours {ours:?}, found {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn pmdk_reads_spellings_as_the_table_says() {
    need_pmdk!();
    let mut wrong = Vec::new();
    for (text, expected, _) in SETS {
        let spelled = Spelled::new(text);
        let (found, said) = spelled.pmdk();
        if found != *expected {
            wrong.push(format!("{text:?}: {found:?}: {said}"));
        } else if let (Makes, Ok(set)) = (found, spelled.ours()) {
            spelled.assert_same_meaning(&set, &said);
        }
    }
    for (size, expected, _) in SIZES {
        let spelled = Spelled::new(&format!("{{P}}{size} @/a\n"));
        // A file of another length than the set's has PMDK say which it expects.
        fs::File::create(spelled.directory.path().join("a")).unwrap().set_len(3 * MIB).unwrap();
        let (found, said) = spelled.pmdk();
        let bytes = said.trim_end().rsplit_once(" != ").and_then(|(_, bytes)| bytes.parse::<u64>().ok());
        if bytes != *expected || (found == Refuses) == expected.is_some() {
            wrong.push(format!("{size}: {said}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
