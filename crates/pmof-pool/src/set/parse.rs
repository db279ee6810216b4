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
    if without_return(first) != SET_SIGNATURE || rest.is_empty() {
        return Err(at(1, SetProblem::FirstLine));
    }
    let rest = &rest[1..];
    let text = rest.strip_suffix(b"\n").unwrap_or(rest);
    let mut line = 1;
    if !rest.is_empty() {
        for content in text.split(|byte| *byte == b'\n') {
            line += 1;
            parser.line(line, content).map_err(|problem| at(line, problem))?;
        }
    }
    parser.finish(path, line + 1)
}

/// A line without the CR at its end, as PMDK has it: files that came from elsewhere end their lines in CR LF.
fn without_return(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
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
        let content = without_return(content).split(|byte| *byte == b'#').next().unwrap_or(&[]);
        if let Some(byte) = content.iter().find(|byte| byte.is_ascii_control() && **byte != b'\t') {
            return Err(SetProblem::ControlCharacter { byte: *byte });
        }
        let is_indented = content.first().is_some_and(|byte| is_blank(*byte));
        let words: Vec<_> = content.split(|byte| is_blank(*byte)).filter(|word| !word.is_empty()).collect();
        let Some((first, others)) = words.split_first() else { return Ok(()) };
        for word in [REPLICA, OPTION] {
            if *first == word.as_bytes() {
                if is_indented {
                    return Err(SetProblem::IndentedKeyword { word });
                }
                return if word == REPLICA { self.replica(line, others) } else { self.option(line, others) };
            }
            if first.starts_with(word.as_bytes()) {
                return Err(SetProblem::JoinedKeyword { found: text(first), word });
            }
        }
        self.part(line, first, others)
    }

    fn option(&mut self, line: u64, names: &[&[u8]]) -> Result<(), SetProblem> {
        if names.is_empty() {
            return Err(SetProblem::OptionExpected);
        }
        for name in names {
            match *name {
                b"SINGLEHDR" => self.options.single_header = true,
                b"NOHDRS" => self.options.no_headers = true,
                name => return Err(SetProblem::UnknownOption { name: text(name) }),
            }
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
    } else if !node.is_ascii() {
        Some("it has characters that are not ASCII")
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

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// A word for messages, and where only ASCII is looked for.
fn text(word: &[u8]) -> String {
    String::from_utf8_lossy(word).into_owned()
}
