//! The report as one page that needs nothing else.

use anyhow::Result;
use maud::{DOCTYPE, Markup, PreEscaped, html as markup};
use pmof_console::output::size;

use crate::{document::Document, matrix::Metric};
use figures::{Figure, Row, figures};
use words::{bytes, interval, number, over_floor, x_text};

mod figures;
mod glance;
mod plot;
mod words;

/// uPlot 1.6.32, which draws the charts; its licence goes into each page.
const UPLOT: &str = include_str!("../assets/uplot/uPlot.iife.min.js");
const UPLOT_STYLE: &str = include_str!("../assets/uplot/uPlot.min.css");
const UPLOT_LICENCE: &str = include_str!("../assets/uplot/LICENSE");

const STYLE: &str = include_str!("../assets/report.css");
const SCRIPT: &str = include_str!("../assets/report.js");

/// The page loads nothing: whoever looks at it is seen by nobody.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:";

/// An empty picture, so that no browser asks a server for one.
const ICON: &str = "data:,";

/// The whole page.
///
/// # Errors
/// A cell has a result that is none.
pub fn html(document: &Document) -> Result<String> {
    let figures = figures(document)?;
    let glance = glance::glance(document)?;
    let data = serde_json::to_string(&figures.iter().map(Figure::data).collect::<Vec<_>>())?;
    // Within a script, only the end of the script ends it.
    let data = data.replace('<', "\\u003c");
    let page = markup! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="color-scheme" content="light dark";
                link rel="icon" href=(ICON);
                title { "pmof report: " (document.machine.cpu) }
                style { (PreEscaped(UPLOT_STYLE)) (PreEscaped(STYLE)) }
            }
            body {
                (head(document))
                main {
                    (glance)
                    (contents(&figures))
                    @for figure in &figures { (section(figure)) }
                    (machine(document))
                    (reading(document))
                }
                footer {
                    p { "Written by pmof " (document.machine.pmof) ". Charts are drawn by uPlot 1.6.32, whose licence follows." }
                    details { summary { "Licence of uPlot" } pre { (UPLOT_LICENCE) } }
                }
                script type="application/json" id="data" { (PreEscaped(data)) }
                script { (PreEscaped(UPLOT)) }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    Ok(page.into_string())
}

fn head(document: &Document) -> Markup {
    let machine = &document.machine;
    let (measured, skipped) = document.counts();
    let day = document.started.get(..10).unwrap_or(&document.started);
    markup! {
        header {
            h1 { "What pmof costs on this machine" }
            p class="lead" {
                "Each operation beside the bare work of its transport, measured in the same run, in turns. "
                "Lower is better for latencies, higher for bandwidth; the dashed lines are the floors."
            }
            p class="facts" {
                (machine.cpu) ", " (machine.cpus) " CPUs"
                @if machine.is_virtual { ", virtual" }
                " · " (machine.kernel) " · pmof " (machine.pmof) " · " (day) " · "
                (measured) " cells measured, " (skipped) " skipped"
                @if document.plan.quick { " · quick" }
            }
            @for warning in warnings(document) { p class="warning" role="note" { (warning) } }
        }
    }
}

/// What takes the worth from the numbers.
fn warnings(document: &Document) -> Vec<String> {
    let machine = &document.machine;
    let mut warnings = Vec::new();
    if machine.build != "release" {
        warnings.push(format!("This is a {} build of pmof: its numbers say little.", machine.build));
    }
    if machine.load_average >= 0.5 {
        warnings.push(format!(
            "The machine was busy when this began (load {:.1}): floors and results both suffer, and their ratio is the steadier number.",
            machine.load_average
        ));
    }
    if document.plan.rounds < 6 {
        warnings.push(format!("{} rounds are too few for 95 % confidence, which takes six.", document.plan.rounds));
    }
    warnings
}

fn contents(figures: &[Figure]) -> Markup {
    markup! {
        nav aria-label="Charts" {
            ul { @for figure in figures { li { a href={ "#" (figure.id) } { (figure.title) } } } }
        }
    }
}

fn section(figure: &Figure) -> Markup {
    markup! {
        section id=(figure.id) {
            h2 { (figure.title) }
            p class="fixed" { (figure.chart.fixed) }
            @if figure.lines.is_empty() {
                p class="none" { "Nothing of this could be measured here." }
            } @else {
                figure {
                    div class="chart" data-chart=(figure.id) data-points=(figure.points()) role="img"
                        aria-label={ (figure.title) "; the numbers are in the table below" } { (plot::plot(figure)) }
                }
                (summary_table(figure))
                details { summary { "All numbers of this chart, with spread and command" } (full_table(figure)) }
            }
            @for (what, why) in figure.skipped() {
                p class="skipped" { strong { "Skipped: " (what) "." } " " (why) }
            }
        }
    }
}

/// A line for each place on the axis, a column for each series: the median and, over the floor, the ratio.
fn summary_table(figure: &Figure) -> Markup {
    let unit = figure.chart.metric.unit();
    markup! {
        div class="scroll" {
            table {
                caption {
                    "Median in " (unit) "; behind it, times the floor: the median of the rounds' ratios and, in parentheses, their extremes. "
                    "! marks a round more than twice or less than half of the median, or one that the medians shown do not agree with."
                }
                thead { tr {
                    th scope="col" { (figure.chart.axis.label()) }
                    @for series in figure.measured() { th scope="col" { (series.short) } }
                } }
                tbody { @for x in figure.places() { tr {
                    th scope="row" { (x_text(figure.chart.axis, x)) }
                    @for series in figure.measured() { td { (summary_cell(figure.row(series.index, x))) } }
                } } }
            }
        }
    }
}

fn summary_cell(row: Option<&Row>) -> Markup {
    match row {
        None => markup! {},
        Some(row) => match &row.measured {
            Err(_) => markup! { span class="absent" { "skipped" } },
            Ok(measured) => markup! {
                (number(row.metric.of(&measured.own).median))
                @if let Ok(floor) = &measured.floor {
                    " " span class="ratio" { (over_floor(row.metric, &measured.own, floor)) }
                }
            },
        },
    }
}

fn full_table(figure: &Figure) -> Markup {
    let is_latency = figure.chart.metric == Metric::Latency;
    markup! {
        div class="scroll" {
            table class="full" {
                thead { tr {
                    th scope="col" { "series" }
                    th scope="col" { (figure.chart.axis.label()) }
                    th scope="col" { (figure.chart.metric.unit()) ", median" }
                    th scope="col" { "95 % confidence" }
                    @if is_latency {
                        th scope="col" { "p99" } th scope="col" { "p99.9" } th scope="col" { "p99.99" } th scope="col" { "max" }
                        th scope="col" { "std. dev." }
                    } @else {
                        th scope="col" { "p50 µs" } th scope="col" { "p99 µs" }
                    }
                    th scope="col" { "floor" }
                    th scope="col" { "times floor (min to max)" }
                    th scope="col" { "CPU µs, both ends" }
                    th scope="col" { "bytes out, in" }
                    th scope="col" { "samples" }
                    th scope="col" { "command" }
                } }
                tbody { @for row in &figure.rows { (full_row(figure, row, is_latency)) } }
            }
        }
    }
}

fn full_row(figure: &Figure, row: &Row, is_latency: bool) -> Markup {
    markup! {
        tr {
            th scope="row" { (figure.series[row.series].short) }
            td { (x_text(figure.chart.axis, row.x)) }
            @match &row.measured {
                Err(why) => { td colspan=(if is_latency { 12 } else { 9 }) class="why" { "skipped: " (why) } }
                Ok(measured) => {
                    @let own = &measured.own;
                    @let value = row.metric.of(own);
                    td { (number(value.median)) }
                    td { (interval(value)) }
                    @if is_latency {
                        @for us in [own.p99_us, own.p999_us, own.p9999_us, own.max_us, own.stddev_us] { td { (number(us)) } }
                    } @else {
                        td { (number(own.p50_us.median)) } td { (number(own.p99_us)) }
                    }
                    @match &measured.floor {
                        Ok(floor) => {
                            td { (number(row.metric.of(&floor.numbers).median)) }
                            td { (over_floor(row.metric, own, floor)) }
                        }
                        Err(why) => { td colspan="2" class="why" { (why) } }
                    }
                    td { @if let Some([initiator, target]) = own.cpu_us { (number(initiator)) " + " (number(target)) } }
                    td { @if let Some([sent, received]) = own.moved_bytes { (number(sent)) ", " (number(received)) } }
                    td { (own.samples) }
                }
            }
            td { code { (row.command) } }
        }
    }
}

fn machine(document: &Document) -> Markup {
    let machine = &document.machine;
    let plan = &document.plan;
    let yes = |is: bool| if is { "yes" } else { "no" };
    markup! {
        section id="machine" {
            h2 { "Machine and software" }
            dl {
                dt { "CPU" } dd { (machine.cpu) ", " (machine.cpus) " usable, clock set by " (machine.governor.as_deref().unwrap_or("nobody that the kernel names")) }
                dt { "Virtual" } dd { (yes(machine.is_virtual)) }
                dt { "Memory" } dd { (size(machine.memory_bytes)) }
                dt { "System" } dd { (machine.system) ", Linux " (machine.kernel) }
                dt { "RDMA devices" } dd { @if machine.rdma_devices.is_empty() { "none" } @else { (machine.rdma_devices.join(", ")) } }
                dt { "pmof" } dd { (machine.pmof) ", " (machine.build) " build" }
                @for lies in &machine.media {
                    dt { "Medium " (lies.medium) }
                    dd { (lies.file_system) " at " (lies.directory) ": " (lies.durability) " by " (lies.mechanism) ", without a declaration" }
                }
                dt { "Measured" } dd { (document.started) " to " (document.finished) }
                dt { "Each cell" } dd {
                    (plan.rounds) " rounds; each contender " (plan.seconds) " s in all; pools of " (bytes(16 << 20))
                }
            }
        }
    }
}

fn reading(document: &Document) -> Markup {
    markup! {
        section id="reading" {
            h2 { "How to read this" }
            ul {
                li { strong { "Floor. " } "The same bytes without pmof: over tcp a raw exchange (or stream) with an answer, for files with pwrite and fdatasync between; "
                    "over verbs and libfabric the same work requests on bare queue pairs or endpoints, over shm the same stores and write-back within the process. A mix has no floor of its own." }
                li { strong { "Ratio. " } "The median over the rounds of each round's own ratio, and their extremes: floor and pmof take turns of a fraction of a second, and meet the same disturbances. "
                    "Fewer than six rounds give no median, only the extremes. A ! marks a round whose ratio is more than twice or less than half of the median, and ratios that the two medians shown do not agree with: repeat such a cell." }
                li { strong { "Whiskers. " } "The median of a round lies between them with 95 % confidence (order statistics, at least six rounds)." }
                li { strong { "Durability. " } em { "visible" } ": others read the bytes. " em { "process-crash" } ": they survive the target process. " em { "power-failure" }
                    ": they reached the medium's persistence domain. The label names the method of the flush and whether the level was probed or declared." }
                li { strong { "Peers. " } "What users have instead, measured in the same rounds on the same CPUs; each promises what its label says, by its documentation. "
                    "Their numbers are those of Debian's servers as installed, with one client." }
                li { strong { "Bytes. " } "What each operation gave to the transport and took from it at the initiator, headers of pmof's protocol included, those of TCP/IP or of a device's network not; "
                    "what goes past messages (shared memory, an RDMA device) counts by its payload." }
                li { strong { "Methods. " } "gpspm (send-after-write): the target's CPU flushes. apm (read-after-write): a read pushes the bytes out of the device. "
                    "native: the device's own FLUSH. auto: the cheapest that reaches the level, as programs have it." }
                li { strong { "Closed loop. " } "An operation starts when the one before is done, so that a pause counts once. "
                    code { "pmof bench latency --rate" } " measures with an open loop." }
            }
            p { "To compare two reports: " code { "pmof report compare A.json B.json" } ". Raw histograms of every cell are in the JSON file. "
                "This one took its cells from " (document.started) " on." }
        }
    }
}

#[cfg(test)]
mod tests;
