//! `cut-judge`: compares what a power cut left with the ledger of the load.
//!
//! ```text
//! cut-judge words --ledger FILE --seed N [--streams K] [--area BYTES] [--base BYTES] [--lagging may-lack]
//!           (--pool FILE | --parts FILE[,FILE...] | --raw FILE)...
//! cut-judge states --ledger FILE (--root DIRECTORY | --device NAME=FILE)...
//! cut-judge sets --ledger FILE --set NAME=FILE[,FILE...]:FILE[,FILE...]... [--checked STATUS] [--synced STATUS]
//!           --seed N [--streams K] [--area BYTES] [--base BYTES] --parts FILE[,FILE...]
//! ```
//!
//! With `--lagging may-lack` a pool that lags behind the others by what they say of themselves may lack what was acknowledged; two of them may not.
//!
//! Prints one line for each replica, `NAME: ...`, and the exit status is 0 where nothing is lost, 1 where something is, 2
//! where it cannot be judged.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Read as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use cut_judge::{
    ledger::{Ledger, Progress, Step},
    parts::Replica,
    pattern::Stream,
    pool_file::{self, PoolFile},
    sets::{self, Standing, Told},
    states,
    words::{self, WORD_BYTES},
};

/// Bytes of an area, unless told otherwise.
const AREA_BYTES: usize = 1 << 20;

/// Of a device that has no length of its own so much is read at most: more than any load uses.
const READ_MAX_BYTES: u64 = 64 << 20;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(what) => {
            eprintln!("cut-judge: {what}");
            ExitCode::from(2)
        }
    }
}

/// Whether nothing is lost.
fn run(arguments: &[String]) -> Result<bool, String> {
    let (command, rest) = arguments.split_first().ok_or("words, states or sets?")?;
    let options = pairs(rest)?;
    let path = last(&options, "ledger").ok_or("--ledger is missing")?;
    let ledger = fs::read(path).map_err(|error| format!("reading {path}: {error}"))?;
    let ledger = Ledger::parse(&ledger)?;
    match command.as_str() {
        "words" => judge_words(&ledger, &options),
        "states" => judge_states(&ledger, &options),
        "sets" => judge_sets(&ledger, &options),
        _ => Err(format!("{command}: words, states or sets?")),
    }
}

fn pairs(words: &[String]) -> Result<Vec<(&str, &str)>, String> {
    let pair = |pair: &'_ [String]| match pair {
        [name, _] if name.starts_with("--") => Ok(()),
        other => Err(format!("{other:?}: --NAME VALUE is expected, for {}", other.len())),
    };
    words.chunks(2).try_for_each(pair)?;
    Ok(words.chunks(2).map(|pair| (&pair[0][2..], pair[1].as_str())).collect())
}

fn last<'a>(options: &[(&'a str, &'a str)], name: &str) -> Option<&'a str> {
    options.iter().rfind(|(found, _)| *found == name).map(|(_, value)| *value)
}

fn number(options: &[(&str, &str)], name: &str, otherwise: usize) -> Result<usize, String> {
    let Some(text) = last(options, name) else { return Ok(otherwise) };
    text.parse().map_err(|_| format!("--{name} {text} is no number"))
}

/// The first bytes of a file or device.
fn contents(path: &Path) -> Result<Vec<u8>, String> {
    let failed = |error| format!("reading {}: {error}", path.display());
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(READ_MAX_BYTES).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

fn parts(list: &str) -> Result<Vec<Vec<u8>>, String> {
    list.split(',').map(|path| contents(Path::new(path))).collect()
}

/// The bytes of a replica, and what a pool says of itself; or why it is lost.
type Found = Result<(Vec<u8>, Option<PoolFile>), String>;

/// The bytes that programs see of one replica, and what a pool says of itself. A replica that is not whole is lost.
fn data(kind: &str, value: &str) -> Found {
    match kind {
        "pool" => {
            let bytes = contents(Path::new(value))?;
            let pool = PoolFile::read(&bytes)?.ok_or("there is no pool")?;
            Ok((pool.data(&bytes).to_vec(), Some(pool)))
        }
        "parts" => Ok((Replica::read(&parts(value)?)?.ok_or("there is no pool")?.pool, None)),
        _ => Ok((contents(Path::new(value))?, None)),
    }
}

fn judge_words(ledger: &Ledger, options: &[(&str, &str)]) -> Result<bool, String> {
    let seed = last(options, "seed").and_then(|seed| seed.parse().ok()).ok_or("--seed is missing")?;
    let (streams, area) = (number(options, "streams", 1)?, number(options, "area", AREA_BYTES)?);
    let base = number(options, "base", 0)?;
    let Progress { issued, acknowledged } = ledger.total();
    let (mut is_good, mut marks) = (true, Vec::new());
    let replicas = options.iter().filter(|(name, _)| ["pool", "parts", "raw"].contains(name));
    let replicas: Vec<_> = replicas.map(|(kind, value)| (value, data(kind, value))).collect();
    let lagging = match last(options, "lagging") {
        None => vec![false; replicas.len()],
        Some("may-lack") => lagging(&replicas)?,
        Some(other) => return Err(format!("--lagging {other}: may-lack?")),
    };
    for ((value, replica), is_lagging) in replicas.into_iter().zip(lagging) {
        if is_lagging {
            println!("{value}: issued {issued}, acknowledged {acknowledged}, lagging 1, lost 0");
            continue;
        }
        let (mut wrong, mut lost, mut words, mut open, mut first) = (0, 0, 0, 0, String::new());
        match replica {
            Err(what) if acknowledged > 0 => (lost, first) = (acknowledged, format!(", first: {what}")),
            Err(_) => {}
            Ok((bytes, pool)) => {
                marks.extend(pool.and_then(|pool| pool.state).map(|state| state.mark));
                for stream in 0..streams {
                    let start = base + stream * area;
                    let bytes = bytes.get(start..start + area).ok_or_else(|| format!("{value} ends before {start}"))?;
                    let pattern = Stream::new(seed, stream as u64, area / WORD_BYTES);
                    let progress = ledger.streams.get(&(stream as u64)).copied().unwrap_or_default();
                    let verdict = words::judge(&pattern, progress, bytes);
                    (wrong, lost) = (wrong + verdict.wrong, lost + verdict.lost.len() as u64);
                    (words, open) = (words + verdict.words, open + verdict.unacknowledged);
                    if let (Some((index, found)), true) = (verdict.first, first.is_empty()) {
                        let batch = verdict.lost.first().copied().unwrap_or_default();
                        first =
                            format!(", first: word {index} of stream {stream} holds {found:#x}, batch {batch} is lost");
                    }
                }
            }
        }
        is_good &= wrong == 0 && lost == 0;
        println!(
            "{value}: issued {issued}, acknowledged {acknowledged}, words {words}, unacknowledged {open}, wrong {wrong}, lost {lost}{first}"
        );
    }
    if !pool_file::marks_agree(&marks) {
        is_good = false;
        println!("marks: issued 0, acknowledged 0, lost 1, first: {marks:?} are more than one apart");
    }
    Ok(is_good)
}

/// Which replicas of a pool lag. Those that cannot be read do not: they are lost.
fn lagging(replicas: &[(&&str, Found)]) -> Result<Vec<bool>, String> {
    let pools: Vec<_> = replicas.iter().filter_map(|(_, found)| found.as_ref().ok()?.1.as_ref()).collect();
    let mut in_sync = pool_file::in_sync(&pools).into_iter();
    let is_lagging =
        |found: &Found| found.as_ref().is_ok_and(|(_, pool)| pool.is_some() && !in_sync.next().unwrap_or_default());
    let lagging: Vec<_> = replicas.iter().map(|(_, found)| found).map(is_lagging).collect();
    match lagging.iter().filter(|lagging| **lagging).count() {
        0 | 1 => Ok(lagging),
        count => Err(format!("{count} replicas lag, and one at a time was kept from keeping up")),
    }
}

fn judge_states(ledger: &Ledger, options: &[(&str, &str)]) -> Result<bool, String> {
    let mut names: Vec<_> = ledger.steps.iter().map(|step| step.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let mut places: Vec<(&str, PathBuf)> = Vec::new();
    for (kind, value) in options {
        match *kind {
            "root" => places.extend(names.iter().map(|name| (*name, Path::new(value).join(name)))),
            "device" => {
                let (name, path) = value.split_once('=').ok_or("--device NAME=FILE")?;
                places.extend(names.contains(&name).then(|| (name, PathBuf::from(path))));
            }
            _ => {}
        }
    }
    let done = ledger.steps.iter().filter(|step| step.is_done).count();
    let mut is_good = true;
    // Replicas of one pool that nothing is under way on have one epoch.
    let mut epochs: BTreeMap<&str, Vec<[u8; 16]>> = BTreeMap::new();
    for (name, path) in places {
        let found = if path.exists() { Some(contents(&path)?) } else { None };
        let verdict = states::judge(&ledger.steps, name, found.as_deref());
        is_good &= verdict.is_ok();
        let begun = ledger.steps.len();
        let outcome = verdict.err().map_or_else(|| "lost 0".to_owned(), |what| format!("lost 1, first: {what}"));
        println!("{}: issued {begun}, acknowledged {done}, {outcome}", path.display());
        let is_at_rest = ledger.steps.iter().rfind(|step| step.name == name).is_some_and(|step| step.is_done);
        let state = found.and_then(|bytes| PoolFile::read(&bytes).ok().flatten()).and_then(|pool| pool.state);
        if let (true, Some(state)) = (is_at_rest, state) {
            epochs.entry(name).or_default().push(state.epoch);
        }
    }
    for (name, epochs) in epochs {
        if epochs.windows(2).any(|pair| pair[0] != pair[1]) {
            is_good = false;
            println!(
                "{name}: issued 0, acknowledged 0, lost 1, first: its replicas have different epochs: {epochs:02x?}"
            );
        }
    }
    Ok(is_good)
}

/// Replicas of a set: by their files, by what `pmof pool check` and `sync` ended with since, and the first one also word by word.
fn judge_sets(ledger: &Ledger, options: &[(&str, &str)]) -> Result<bool, String> {
    let (name, replicas) = last(options, "set").and_then(|set| set.split_once('=')).ok_or("--set NAME=FILE:FILE")?;
    let synced = last(options, "synced");
    let told = Told {
        is_at_rest: synced.is_some() || sets::is_at_rest(ledger, name),
        is_sound: last(options, "checked").map(|status| status == "0"),
    };
    let replicas: Vec<_> =
        replicas.split(':').map(|list| parts(list).and_then(|parts| Replica::read(&parts))).collect();
    let mut standings = sets::judge(&replicas, told);
    if let Some(status) = synced.filter(|status| *status != "0") {
        standings[0] = Standing::Lost(format!("pool sync ended with {status}"));
    }
    let streams = ledger.total();
    let syncs = |is_wanted: fn(&Step) -> bool| ledger.steps.iter().filter(|step| is_wanted(step)).count() as u64;
    let (issued, acknowledged) = (streams.issued + syncs(|_| true), streams.acknowledged + syncs(|step| step.is_done));
    for (index, standing) in standings.iter().enumerate() {
        let (unfinished, lost, why) = match standing {
            Standing::Whole => (0, 0, String::new()),
            Standing::Unfinished(why) => (1, 0, format!(", {why}")),
            Standing::Lost(why) => (0, 1, format!(", first: {why}")),
        };
        println!(
            "{name}, replica {index}: issued {issued}, acknowledged {acknowledged}, unfinished {unfinished}, lost {lost}{why}"
        );
    }
    let is_good = !standings.iter().any(|standing| matches!(standing, Standing::Lost(_)));
    // Without a first replica there are no words.
    Ok(if let Ok(Some(_)) = replicas[0] { judge_words(ledger, options)? & is_good } else { false })
}
