//! `pmof pool check` of pools at URLs.

use anyhow::{Context, bail};
use pmof::{Durability, Pool, PoolOptions, PoolUrl};
use pmof_console::{
    output::{self, say, with_mend},
    reach::ConnectArgs,
};
use serde::Serialize;

use crate::{
    copy::progress::Progress,
    failure::Differs,
    named::{self, LeftOut},
    quiet::Quiet,
    unequal::{PAGE_BYTES, odd_ones},
};

/// Bytes that are read of each replica at a time.
const WINDOW_BYTES: usize = 1 << 20;

#[derive(Debug, Serialize)]
struct Report {
    len_bytes: u64,
    made_count: usize,
    compared: Vec<String>,
    not_compared: Vec<LeftOut>,
    differing: Vec<Differing>,
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
    let quiet = Quiet::before_opening(&options).context("cannot check the pool")?;
    let pool = options.open_read_only().map_err(with_mend).context("cannot check the pool")?;
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
    let report = compare(&pool, urls, &progress).map_err(with_mend).context("cannot read the replicas")?;
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
        return Err(Differs::error(text + &named::and_not_compared(&report.not_compared)));
    }
    named::check_none(&report.not_compared)?;
    if report.compared.len() < report.made_count {
        let (compared, made) = (report.compared.len(), report.made_count);
        bail!("{compared} of {made} replicas were compared: name the others, too");
    }
    Ok(())
}

fn compare(pool: &Pool, named: &[&PoolUrl], progress: &Progress) -> Result<Report, pmof::PoolError> {
    let all = pool.replicas();
    let used = all.iter().enumerate().filter(|(_, (_, why))| why.is_none());
    let used: Vec<_> = used.map(|(index, (replica, _))| (index, replica.to_string())).collect();
    let out_of_use = all.iter().filter_map(|(replica, why)| Some(LeftOut::new(replica, why.as_ref()?)));
    let mut not_compared: Vec<_> = out_of_use.collect();
    for left_out in named::left_out(pool, named) {
        if not_compared.iter().all(|told| told.url != left_out.url) {
            not_compared.push(left_out);
        }
    }
    let mut differing: Vec<Differing> = Vec::new();
    let mut windows = vec![vec![0; WINDOW_BYTES]; used.len()];
    let (mut offset, len_bytes) = (0, pool.len_bytes());
    while offset < len_bytes {
        let len = (len_bytes - offset).min(WINDOW_BYTES as u64) as usize;
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
    Ok(Report { len_bytes, made_count: pool.made_count(), compared, not_compared, differing })
}

impl Report {
    fn tell(&self) {
        say!("{} bytes read of {} of {} replicas", self.len_bytes, self.compared.len(), self.made_count);
        for Differing { offset, len_bytes, replicas } in &self.differing {
            let end = offset + len_bytes;
            match replicas {
                Some(replicas) => {
                    say!("bytes {offset}..{end} differ on {} from what most replicas have", replicas.join(", "));
                }
                None => say!("bytes {offset}..{end} differ, and nothing says which replica is right"),
            }
        }
        let is_all = self.compared.len() == self.made_count && self.not_compared.is_empty();
        match (self.compared.len(), self.differing.is_empty()) {
            (1, _) => say!("there is no other replica to compare it with"),
            (_, true) if is_all => say!("all replicas are equal"),
            (_, true) => say!("these replicas are equal"),
            _ => {}
        }
    }
}
