//! The report as a table of comma-separated values: a line for each cell.

use anyhow::{Context as _, Result};

use crate::document::{Beside, Document, Measured, Numbers, Outcome};

const HEAD: [&str; 40] = [
    "chart",
    "transport",
    "series",
    "x",
    "status",
    "reason",
    "durability",
    "method",
    "mechanism",
    "evidence",
    "samples",
    "p50_us",
    "p50_us_low",
    "p50_us_high",
    "p90_us",
    "p99_us",
    "p999_us",
    "p9999_us",
    "max_us",
    "mean_us",
    "stddev_us",
    "mib_per_s",
    "mib_per_s_low",
    "mib_per_s_high",
    "operations_per_s",
    "initiator_cpu_us",
    "target_cpu_us",
    "sent_bytes",
    "received_bytes",
    "floor_p50_us",
    "floor_p99_us",
    "floor_mib_per_s",
    "ratio_p50",
    "ratio_p50_min",
    "ratio_p50_max",
    "ratio_bandwidth",
    "ratio_bandwidth_min",
    "ratio_bandwidth_max",
    "no_floor",
    "command",
];

/// All cells, skipped ones with their reason and without numbers. Peers follow the cell that they were measured in, each under its name as the series.
///
/// # Errors
/// A cell has a result that is none.
pub fn csv(document: &Document) -> Result<String> {
    let mut table = csv::Writer::from_writer(Vec::new());
    table.write_record(HEAD)?;
    let mut beside = Vec::new();
    for cell in &document.cells {
        let place = &cell.place;
        let mut row = vec![place.chart.clone(), place.transport.clone(), place.series.clone(), place.x.to_string()];
        match (&cell.outcome, cell.measured()?) {
            (Outcome::Skipped(why), _) => {
                fill(&mut row, Err(why));
            }
            (_, measured) => {
                let measured = measured.context("a result without numbers")?;
                for Beside { name, measured, .. } in &measured.peers {
                    let mut row = [&row[..2], &[name.clone(), row[3].clone()]].concat();
                    fill(&mut row, measured.as_ref());
                    row.push(cell.command.clone());
                    beside.push(row);
                }
                fill(&mut row, Ok(&measured));
            }
        }
        row.push(cell.command.clone());
        table.write_record(&row)?;
        beside.drain(..).try_for_each(|row| table.write_record(&row))?;
    }
    Ok(String::from_utf8(table.into_inner()?)?)
}

/// Everything between a place and its command.
fn fill(row: &mut Vec<String>, measured: Result<&Measured, &String>) {
    match measured {
        Ok(measured) => {
            row.extend(["measured".to_owned(), String::new()]);
            row.extend(numbers(measured));
        }
        Err(why) => {
            row.extend(["skipped".to_owned(), why.clone()]);
            row.resize(HEAD.len() - 1, String::new());
        }
    }
}

fn numbers(measured: &Measured) -> Vec<String> {
    let Measured { own, floor, reached, .. } = measured;
    let mut row = match reached {
        Some(reached) => {
            [&reached.durability, &reached.method, &reached.mechanism, &reached.evidence].map(String::clone).to_vec()
        }
        None => vec![String::new(); 4],
    };
    let Numbers { samples, p50_us, mib_per_s, .. } = own;
    row.push(samples.to_string());
    let mut put = |values: &[f64]| row.extend(values.iter().map(ToString::to_string));
    put(&[p50_us.median, p50_us.low, p50_us.high, own.p90_us, own.p99_us, own.p999_us, own.p9999_us]);
    put(&[own.max_us, own.mean_us, own.stddev_us, mib_per_s.median, mib_per_s.low, mib_per_s.high]);
    put(&[own.operations_per_s]);
    for pair in [own.cpu_us, own.moved_bytes] {
        row.extend(pair.map_or([const { String::new() }; 2], |pair| pair.map(|number| number.to_string())));
    }
    let mut put = |values: &[f64]| row.extend(values.iter().map(ToString::to_string));
    match floor {
        Ok(floor) => {
            put(&[floor.numbers.p50_us.median, floor.numbers.p99_us, floor.numbers.mib_per_s.median]);
            for ratio in [floor.ratio_p50, floor.ratio_bandwidth] {
                put(&[ratio.median, ratio.min, ratio.max]);
            }
            row.push(String::new());
        }
        Err(why) => {
            row.extend(vec![String::new(); 9]);
            row.push(why.clone());
        }
    }
    row
}

#[cfg(test)]
mod tests;
