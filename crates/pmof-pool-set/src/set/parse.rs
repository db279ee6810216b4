//! The parser of pool set files.

use std::{
    collections::HashMap,
    ffi::OsStr,
    os::unix::ffi::OsStrExt as _,
    path::{Component, Path, PathBuf},
};

use super::{
    PartSize, PartSpec, PoolSet, RemoteSpec, ReplicaSpec, SET_LEN_BYTES_MAX, SET_SIGNATURE, SetError, SetOptions,
    SetProblem, size,
};

/// `PATH_MAX` counts the NUL at the end.
const PATH_LEN_BYTES_MAX: usize = 4095;

const REPLICA: &str = "REPLICA";
const OPTION: &str = "OPTION";

pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<PoolSet, SetError> {
    let mut parser = Parser { replicas: vec![Replica::local(1)], ..Parser::default() };
    let at = |line, problem| SetError::Line { path: path.into(), line, problem };
    if bytes.len() as u64 > SET_LEN_BYTES_MAX {
        return Err(at(1, SetProblem::TooLong));
    }
    let (first, rest) = bytes.split_at(bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len()));
    if first.strip_suffix(b"\r").unwrap_or(first) != SET_SIGNATURE || rest.is_empty() {
        return Err(at(1, SetProblem::FirstLine));
    }
    let mut line = 1;
    for content in rest[1..].split_inclusive(|byte| *byte == b'\n') {
        line += 1;
        parser.line(line, content).map_err(|problem| at(line, problem))?;
    }
    parser.finish(path, line + 1)
}

/// A line without its newline, which is LF or CR LF. A CR without an LF behind it is part of a word, as for PMDK.
fn without_newline(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r\n").or_else(|| line.strip_suffix(b"\n")).unwrap_or(line)
}

/// A replica that is being read.
#[derive(Debug)]
struct Replica {
    line: u64,
    spec: ReplicaSpec,
}

impl Replica {
    fn local(line: u64) -> Self {
        Self { line, spec: ReplicaSpec::Local(Vec::new()) }
    }
}

#[derive(Debug, Default)]
struct Parser {
    replicas: Vec<Replica>,
    options: SetOptions,
    /// Where the last option was set.
    option_line: u64,
    /// The line of each path.
    paths: HashMap<PathBuf, u64>,
    /// The line of each set of another machine.
    remotes: HashMap<(String, PathBuf), u64>,
}

impl Parser {
    fn line(&mut self, line: u64, content: &[u8]) -> Result<(), SetProblem> {
        if content.contains(&0) {
            return Err(SetProblem::Nul);
        }
        let content = without_newline(content).split(|byte| *byte == b'#').next().unwrap_or(&[]);
        let mut words = words(content);
        let Some(first) = words.next() else { return Ok(()) };
        if let Some(word) = [REPLICA, OPTION].into_iter().find(|word| first.starts_with(word.as_bytes())) {
            let Some(behind) = content.strip_prefix(word.as_bytes()) else {
                return Err(SetProblem::IndentedKeyword { word });
            };
            // PMDK wants no blank between `OPTION` and the first name.
            let is_joined = first.len() > word.len() && (word == REPLICA || option(&first[word.len()..]).is_none());
            if is_joined {
                return Err(SetProblem::JoinedKeyword { found: text(first), word });
            }
            let others: Vec<_> = self::words(behind).collect();
            return if word == REPLICA { self.replica(line, &others) } else { self.option(line, &others) };
        }
        self.part(line, first, &words.collect::<Vec<_>>())
    }

    fn option(&mut self, line: u64, names: &[&[u8]]) -> Result<(), SetProblem> {
        if names.is_empty() {
            return Err(SetProblem::OptionExpected);
        }
        for name in names {
            let set = option(name).ok_or_else(|| SetProblem::UnknownOption { name: text(name) })?;
            self.options.single_header |= set.single_header;
            self.options.no_headers |= set.no_headers;
        }
        self.option_line = line;
        if self.options.single_header && self.options.no_headers {
            return Err(SetProblem::ExclusiveOptions);
        }
        Ok(())
    }

    fn replica(&mut self, line: u64, words: &[&[u8]]) -> Result<(), SetProblem> {
        self.check_parts()?;
        let replica = match words {
            [] => Replica::local(line),
            [node] => return Err(SetProblem::RemoteSetExpected { node: text(node) }),
            [node, set] => {
                let remote = remote(line, node, set)?;
                let place = (remote.node.clone(), remote.set.clone());
                if let Some(first_line) = self.remotes.insert(place, line) {
                    return Err(SetProblem::DuplicateRemote { node: remote.node, set: remote.set, first_line });
                }
                Replica { line, spec: ReplicaSpec::Remote(remote) }
            }
            [_, _, token, ..] => return Err(SetProblem::ExtraToken { token: text(token) }),
        };
        self.replicas.push(replica);
        Ok(())
    }

    fn part(&mut self, line: u64, size: &[u8], words: &[&[u8]]) -> Result<(), SetProblem> {
        let replica_line = self.current().line;
        if matches!(self.current().spec, ReplicaSpec::Remote(_)) {
            return Err(SetProblem::PartOfRemote { replica_line });
        }
        let path = match words {
            [] => return Err(SetProblem::PartExpected { found: text(size) }),
            [path] => Path::new(OsStr::from_bytes(path)),
            [_, token, ..] => return Err(SetProblem::ExtraToken { token: text(token) }),
        };
        let size = match size {
            b"AUTO" => PartSize::Auto,
            size => PartSize::Bytes(size::parse(&text(size))?),
        };
        if !path.is_absolute() {
            return Err(SetProblem::RelativePath { path: path.into() });
        }
        let len_bytes = path.as_os_str().len();
        if len_bytes > PATH_LEN_BYTES_MAX {
            return Err(SetProblem::PathTooLong { len_bytes });
        }
        // Compared by components, so that doubled slashes and `/./` do not hide that it is the same.
        if let Some(first_line) = self.paths.insert(path.components().collect(), line) {
            return Err(SetProblem::DuplicatePath { path: path.into(), first_line });
        }
        let part = PartSpec { path: path.into(), size, line };
        if let ReplicaSpec::Local(parts) = &mut self.current().spec {
            parts.push(part);
        }
        Ok(())
    }

    /// There is always one: the file begins with the first.
    fn current(&mut self) -> &mut Replica {
        if self.replicas.is_empty() {
            self.replicas.push(Replica::local(1));
        }
        let last = self.replicas.len() - 1;
        &mut self.replicas[last]
    }

    /// A local replica must have parts before another begins and before the file ends.
    fn check_parts(&mut self) -> Result<(), SetProblem> {
        let is_first = self.replicas.len() == 1;
        let replica = self.current();
        match &replica.spec {
            ReplicaSpec::Local(parts) if parts.is_empty() && is_first => Err(SetProblem::NoParts),
            ReplicaSpec::Local(parts) if parts.is_empty() => {
                Err(SetProblem::ReplicaWithoutParts { replica_line: replica.line })
            }
            _ => Ok(()),
        }
    }

    fn finish(mut self, path: &Path, end_line: u64) -> Result<PoolSet, SetError> {
        let at = |line, problem| SetError::Line { path: path.into(), line, problem };
        self.check_parts().map_err(|problem| at(end_line, problem))?;
        if self.options.no_headers && self.replicas.len() > 1 {
            return Err(at(self.option_line, SetProblem::NoHeadersWithReplicas));
        }
        let replicas = self.replicas.into_iter().map(|replica| replica.spec).collect();
        Ok(PoolSet { path: path.into(), replicas, options: self.options })
    }
}

fn remote(line: u64, node: &[u8], set: &[u8]) -> Result<RemoteSpec, SetProblem> {
    let name = text(node);
    let why = if node.starts_with(b"-") {
        Some("ssh would take it for an option")
    } else if !node.iter().all(u8::is_ascii_graphic) {
        Some("it has characters that are not ASCII, or control characters")
    } else {
        let (user, host) = name.rsplit_once('@').map_or((None, name.as_str()), |(user, host)| (Some(user), host));
        if host.is_empty() {
            Some("it has no host")
        } else if user.is_some_and(str::is_empty) {
            Some("there is no user before the @")
        } else if host.starts_with('-') {
            Some("a host does not begin with a hyphen")
        } else if name.contains('/') {
            Some("it has a slash")
        } else {
            None
        }
    };
    if let Some(why) = why {
        return Err(SetProblem::BadNode { node: name, why });
    }
    let set = Path::new(OsStr::from_bytes(set));
    if set.is_absolute() {
        return Err(SetProblem::RemoteSetAbsolute { set: set.into() });
    }
    if set.components().any(|component| component == Component::ParentDir) {
        return Err(SetProblem::RemoteSetOutside { set: set.into() });
    }
    let len_bytes = set.as_os_str().len();
    if len_bytes > PATH_LEN_BYTES_MAX {
        return Err(SetProblem::PathTooLong { len_bytes });
    }
    // `./name` is `name`.
    let plain: PathBuf = set.components().filter(|component| *component != Component::CurDir).collect();
    Ok(RemoteSpec { node: name, set: if plain.as_os_str().is_empty() { set.into() } else { plain }, line })
}

/// The words of a line, with blanks and tabs between them.
fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty())
}

/// What the option `name` sets.
fn option(name: &[u8]) -> Option<SetOptions> {
    match name {
        b"SINGLEHDR" => Some(SetOptions { single_header: true, no_headers: false }),
        b"NOHDRS" => Some(SetOptions { single_header: false, no_headers: true }),
        _ => None,
    }
}

/// A word for messages, and where only ASCII is looked for. Control characters are written as escapes.
fn text(word: &[u8]) -> String {
    let escaped = |character: char| match character {
        '\0'..' ' | '\x7f' => character.escape_default().to_string(),
        _ => character.to_string(),
    };
    String::from_utf8_lossy(word).chars().map(escaped).collect()
}
