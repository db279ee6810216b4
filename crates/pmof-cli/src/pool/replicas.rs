//! `pmof pool check` of pools at URLs.

use anyhow::{Context, bail};
use pmof::{Durability, Pool, PoolOptions, PoolUrl, causes};
use pmof_console::{
    output::{self, say, with_mend},
    reach::ConnectArgs,
};
use serde::Serialize;

use crate::{copy::progress::Progress, failure::Differs, quiet::Quiet};

/// Bytes that are read of each replica at a time.
const WINDOW_BYTES: usize = 1 << 20;
/// What is told to differ or not.
const PAGE_BYTES: usize = 4096;

#[derive(Debug, Serialize)]
struct Report {
    pool_bytes: u64,
    replicas_made: usize,
    compared: Vec<String>,
    not_compared: Vec<NotCompared>,
    differing: Vec<Differing>,
}

#[derive(Debug, Serialize)]
struct NotCompared {
    replica: String,
    why: String,
}

/// Pages, one behind the other, that differ in the same way.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Differing {
    offset: u64,
    len_bytes: u64,
    /// Those that have something else than more than half of the replicas; null where no content is on more than half.
    replicas: Option<Vec<String>>,
}

/// Reads all replicas in full, and compares them. Nothing is changed.
pub(super) fn check(urls: &[&PoolUrl], is_json: bool, connect: ConnectArgs) -> anyhow::Result<()> {
    let options = urls.iter().map(ToString::to_string).fold(connect.pools(), PoolOptions::replica);
    let options = options.require(Durability::Visible);
    let pool = options.open_read_only().map_err(with_mend).context("cannot check the pool")?;
    let quiet = Quiet::begin(&options).map_err(with_mend)?;
    if let Some(writer) = quiet.writer() {
        bail!(
            "{writer} has the pool open for writing, and replicas may differ then without any damage: check it when it is closed"
        );
    }
    if !pool.was_closed() {
        bail!(
            "its writer died and did not close it, and replicas may differ in what was not acknowledged: the next program that opens it for writing makes them equal, \
             and so does `pmof pool scrub`; check it then"
        );
    }
    let progress = Progress::new("comparing", pool.len_bytes(), !is_json);
    let report = compare(&pool, &progress).map_err(with_mend).context("cannot read the replicas")?;
    drop(progress);
    if let Err(written) = quiet.end().map_err(with_mend)? {
        bail!("{written}: nothing is known of its replicas; check it when it is closed");
    }
    if is_json {
        output::print_json(&report)?;
    } else {
        report.tell();
    }
    let pages: u64 = report.differing.iter().map(|range| range.len_bytes.div_ceil(PAGE_BYTES as u64)).sum();
    if pages > 0 {
        let text = format!(
            "pages differ: {pages}; `pmof pool scrub` of all replicas repairs those that more than half of them agree on"
        );
        return Err(Differs::error(text));
    }
    if !report.not_compared.is_empty() {
        let told = report.not_compared.iter().map(|missing| format!("{}: {}", missing.replica, missing.why));
        bail!("not compared: {}", told.collect::<Vec<_>>().join("; "));
    }
    if report.compared.len() < report.replicas_made {
        let (compared, made) = (report.compared.len(), report.replicas_made);
        bail!("{compared} of {made} replicas were compared: name the others, too");
    }
    Ok(())
}

fn compare(pool: &Pool, progress: &Progress) -> Result<Report, pmof::PoolError> {
    let all = pool.replicas();
    let used = all.iter().enumerate().filter(|(_, (_, why))| why.is_none());
    let used: Vec<_> = used.map(|(index, (replica, _))| (index, replica.to_string())).collect();
    let not_compared = all.iter().filter_map(|(replica, why)| {
        Some(NotCompared { replica: replica.to_string(), why: causes(&**why.as_ref()?).to_string() })
    });
    let mut differing: Vec<Differing> = Vec::new();
    let mut windows = vec![vec![0; WINDOW_BYTES]; used.len()];
    let (mut offset, pool_bytes) = (0, pool.len_bytes());
    while offset < pool_bytes {
        let len = (pool_bytes - offset).min(WINDOW_BYTES as u64) as usize;
        for ((index, _), window) in used.iter().zip(&mut windows) {
            pool.read_replica(*index, offset, &mut window[..len])?;
        }
        for at in (0..len).step_by(PAGE_BYTES) {
            let page = at..(at + PAGE_BYTES).min(len);
            let pages: Vec<_> = windows.iter().map(|window| &window[page.clone()]).collect();
            if pages.windows(2).all(|two| two[0] == two[1]) {
                continue;
            }
            let replicas = odd_ones(&pages).map(|odd| odd.into_iter().map(|at| used[at].1.clone()).collect());
            let (offset, len_bytes) = (offset + at as u64, page.len() as u64);
            match differing.last_mut() {
                Some(last) if last.offset + last.len_bytes == offset && last.replicas == replicas => {
                    last.len_bytes += len_bytes;
                }
                _ => differing.push(Differing { offset, len_bytes, replicas }),
            }
        }
        offset += len as u64;
        progress.set(offset);
    }
    let compared = used.iter().map(|(_, replica)| replica.clone()).collect();
    let (replicas_made, not_compared) = (pool.made_count(), not_compared.collect());
    Ok(Report { pool_bytes, replicas_made, compared, not_compared, differing })
}

/// Those that differ from what more than half have, if there is such.
fn odd_ones(pages: &[&[u8]]) -> Option<Vec<usize>> {
    let has_most = |page: &&&[u8]| 2 * pages.iter().filter(|other| other == page).count() > pages.len();
    let most = pages.iter().find(has_most)?;
    Some((0..pages.len()).filter(|at| pages[*at] != *most).collect())
}

impl Report {
    fn tell(&self) {
        say!("{} bytes read of {} of {} replicas", self.pool_bytes, self.compared.len(), self.replicas_made);
        for Differing { offset, len_bytes, replicas } in &self.differing {
            let end = offset + len_bytes;
            match replicas {
                Some(replicas) => {
                    say!("bytes {offset}..{end} differ on {} from what most replicas have", replicas.join(", "));
                }
                None => say!("bytes {offset}..{end} differ, and nothing says which replica is right"),
            }
        }
        match (self.compared.len(), self.differing.is_empty()) {
            (1, _) => say!("there is no other replica to compare it with"),
            (count, true) if count == self.replicas_made => say!("all replicas are equal"),
            (_, true) => say!("these replicas are equal"),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_half_of_the_replicas_are_right() {
        let odd = |pages: &[&[u8]]| odd_ones(pages);
        assert_eq!(odd(&[b"a", b"a", b"b"]), Some(vec![2]));
        assert_eq!(odd(&[b"b", b"a", b"a", b"c", b"a"]), Some(vec![0, 3]));
        assert_eq!(odd(&[b"a", b"b"]), None);
        assert_eq!(odd(&[b"a", b"a", b"b", b"b"]), None);
    }
}
