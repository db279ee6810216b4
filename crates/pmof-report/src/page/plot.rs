//! Charts as static pictures, for readers without JavaScript; the script draws its own in their places.

use maud::{Markup, html};

use super::{
    figures::{Figure, Line, tick},
    words::{number, x_text},
};

const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 46.0;
/// Whiskers longer than this many times the median do not make the axis longer.
const WHISKER: f64 = 2.5;

/// Where values lie on the picture. The vertical axis is logarithmic.
struct Scales {
    is_logarithmic: bool,
    x: [f64; 2],
    y: [f64; 2],
}

impl Scales {
    fn of(figure: &Figure) -> Self {
        let is_logarithmic = figure.chart.axis.is_logarithmic();
        let places = figure.places();
        let ends = [places.first(), places.last()].map(|place| place.map_or(1.0, |place| *place as f64));
        let pad = ((ends[1] - ends[0]) * 0.05).max(0.2);
        let x = if is_logarithmic { [ends[0] / 1.2, ends[1] * 1.2] } else { [ends[0] - pad, ends[1] + pad] };
        let points = figure.lines.iter().flat_map(|line| &line.points);
        let values = points.flat_map(|[_, y, low, high]| [low.max(y / WHISKER), high.min(y * WHISKER), *y]);
        let (least, most) = values
            .filter(|value| *value > 0.0)
            .fold((f64::MAX, 0.0_f64), |(least, most), value| (least.min(value), most.max(value)));
        let y = if most > 0.0 { [least / 1.25, most * 1.25] } else { [0.1, 10.0] };
        Self { is_logarithmic, x, y }
    }

    fn x(&self, value: f64) -> f64 {
        let at = |value: f64| if self.is_logarithmic { value.ln() } else { value };
        let [low, high] = self.x.map(at);
        LEFT + (at(value) - low) / (high - low) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        let [low, high] = self.y.map(f64::ln);
        let part = (value.max(f64::MIN_POSITIVE).ln() - low) / (high - low);
        HEIGHT - BOTTOM - part.clamp(0.0, 1.0) * (HEIGHT - TOP - BOTTOM)
    }

    /// 1, 2 and 5 of each power of ten; only powers where those are many.
    fn splits(&self) -> Vec<f64> {
        let [low, high] = self.y.map(f64::log10);
        let steps: &[f64] = if high - low > 3.5 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let powers = low.floor() as i32..=high.ceil() as i32;
        let all = powers.flat_map(|power| steps.iter().map(move |step| step * 10_f64.powi(power)));
        all.filter(|value| (self.y[0]..=self.y[1]).contains(value)).collect()
    }
}

/// A chart and its key.
pub(super) fn plot(figure: &Figure) -> Markup {
    let scales = Scales::of(figure);
    let (end, floor) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    let unit = figure.chart.metric.unit();
    html! {
        svg class="plot" viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } {
            @for value in scales.splits() {
                @let y = scales.y(value);
                line class="grid" x1=(LEFT) x2=(end) y1=(y) y2=(y) {}
                text x=(LEFT - 8.0) y=(y + 4.0) text-anchor="end" { (number(value)) }
            }
            @for x in figure.places() {
                @let at = scales.x(x as f64);
                line class="grid" x1=(at) x2=(at) y1=(TOP) y2=(floor) {}
                text x=(at) y=(floor + 18.0) text-anchor="middle" { (tick(figure.chart.axis, x)) }
            }
            text x=(f64::midpoint(LEFT, end)) y=(HEIGHT - 6.0) text-anchor="middle" { (figure.chart.axis.label()) ", vertically " (unit) }
            @for line in &figure.lines { (drawn(figure, line, &scales, unit)) }
        }
        ul class="key" {
            @for line in &figure.lines {
                li { span style={ "color:" (stroke(line)) } { (if line.is_floor { "- -" } else { "━━" }) } (line.label) }
            }
        }
    }
}

fn drawn(figure: &Figure, line: &Line, scales: &Scales, unit: &str) -> Markup {
    let style = format!("stroke:{0};fill:{0}", stroke(line));
    let course = line.points.iter().map(|[x, y, ..]| format!("{:.1},{:.1}", scales.x(*x), scales.y(*y)));
    let course = course.collect::<Vec<_>>().join(" ");
    let dash = line.is_floor.then_some("6 5");
    html! {
        g style=(style) {
            polyline points=(course) fill="none" style="fill:none" stroke-width=(if line.is_floor { 1.5 } else { 2.25 }) stroke-dasharray=[dash] {}
            @for [x, y, low, high] in &line.points {
                @let at = scales.x(*x);
                line x1=(at) x2=(at) y1=(scales.y(*low)) y2=(scales.y(*high)) stroke-opacity="0.65" {}
                circle cx=(at) cy=(scales.y(*y)) r=(if line.is_floor { 2.5 } else { 4.0 }) {
                    title { (line.label) ", " (x_text(figure.chart.axis, (*x as i64).unsigned_abs())) ": " (number(*y)) " " (unit) }
                }
            }
        }
    }
}

fn stroke(line: &Line) -> String {
    if line.color.starts_with("--") { format!("var({})", line.color) } else { line.color.clone() }
}
