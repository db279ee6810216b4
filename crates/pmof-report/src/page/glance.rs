//! The numbers that most readers come for, on cards at the top.

use anyhow::Result;
use maud::{Markup, html};

use super::words::{number, over_floor};
use crate::{
    document::{Document, Finished, Measured},
    matrix::Metric,
};

/// What a card shows: its chart, series and place.
const CARDS: [(&str, &str, u64, &str); 4] = [
    ("latency-write", "auto", 512, "512 B, durable write"),
    ("latency-write", "file", 4096, "4 KiB to a file, durable write"),
    ("latency-read", "auto", 4096, "4 KiB, read"),
    ("bandwidth-write", "stream", 65_536, "64 KiB writes, 16 in flight"),
];

/// A card for each transport and number that was measured.
pub(super) fn glance(document: &Document) -> Result<Markup> {
    let mut cards = Vec::new();
    for transport in &document.plan.transports {
        for (chart, series, x, what) in CARDS {
            let cell = document.cells.iter().find(|cell| {
                let place = &cell.place;
                (place.chart.as_str(), place.series.as_str(), place.x) == (chart, series, x)
                    && place.transport == *transport
            });
            if let Some(measured) = cell.map(Finished::measured).transpose()?.flatten() {
                let metric = if chart.starts_with("latency") { Metric::Latency } else { Metric::Bandwidth };
                cards.push(card(transport, what, metric, &measured));
            }
        }
    }
    Ok(html! { @if !cards.is_empty() { div class="cards" { @for card in &cards { (card) } } } })
}

fn card(transport: &str, what: &str, metric: Metric, measured: &Measured) -> Markup {
    html! {
        div class="card" {
            p class="what" { strong { (transport) } " · " (what) }
            p class="value" { (number(metric.of(&measured.own).median)) " " span { (metric.unit()) } }
            p class="beside" {
                @if let Ok(floor) = &measured.floor {
                    (over_floor(metric, &measured.own, floor)) " the floor's " (number(metric.of(&floor.numbers).median))
                }
                @if let Some(reached) = &measured.reached { br; (reached.durability) ", " (reached.method) }
            }
        }
    }
}
