//! A line on stderr that says how far a report is, and how long it will take.

use std::{
    io::{IsTerminal as _, Write as _, stderr},
    time::{Duration, Instant},
};

use crate::matrix::Cell;

/// How far it is.
#[derive(Debug)]
pub(crate) struct Progress {
    done: usize,
    total: usize,
    /// What the cells that are left should take.
    left_s: f64,
    /// What those of this run should have taken, and did take.
    planned_s: f64,
    taken_s: f64,
    since: Instant,
    is_terminal: bool,
}

impl Progress {
    /// At the start, with so many cells done before.
    pub(crate) fn new(done: usize, left: &[Cell]) -> Self {
        Self {
            done,
            total: done + left.len(),
            left_s: left.iter().map(|cell| cell.estimate_s).sum(),
            planned_s: 0.0,
            taken_s: 0.0,
            since: Instant::now(),
            is_terminal: stderr().is_terminal(),
        }
    }

    /// A cell begins.
    pub(crate) fn begin(&mut self, cell: &Cell) {
        self.since = Instant::now();
        let (number, total) = (self.done + 1, self.total);
        let text = format!("[{number}/{total}] {}, {} left", cell.place, left_text(self.left()));
        self.say(&text, false);
    }

    /// A cell ended. One that was skipped says nothing of how long others take.
    pub(crate) fn end(&mut self, cell: &Cell, is_measured: bool) {
        self.done += 1;
        self.left_s = (self.left_s - cell.estimate_s).max(0.0);
        if is_measured {
            self.planned_s += cell.estimate_s;
            self.taken_s += self.since.elapsed().as_secs_f64();
        }
    }

    /// Something that stays on the screen.
    pub(crate) fn note(&self, text: &str) {
        self.say(text, true);
    }

    /// All is done.
    pub(crate) fn finish(&self) {
        if self.is_terminal {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }

    /// As planned, corrected by how long cells took until now.
    fn left(&self) -> Duration {
        let pace = if self.planned_s > 0.0 { self.taken_s / self.planned_s } else { 1.0 };
        Duration::from_secs_f64(self.left_s * pace)
    }

    fn say(&self, text: &str, stays: bool) {
        // Nobody may read it: then there is nobody to tell.
        let _ = match (self.is_terminal, stays) {
            (true, false) => write!(stderr(), "\r\x1b[K{text}").and_then(|()| stderr().flush()),
            (true, true) => writeln!(stderr(), "\r\x1b[K{text}"),
            (false, _) => writeln!(stderr(), "{text}"),
        };
    }
}

/// `1 h 02 min`, `3 min`, `40 s`.
fn left_text(left: Duration) -> String {
    let seconds = left.as_secs();
    match seconds {
        0..90 => format!("{seconds} s"),
        90..5400 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{} h {:02} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Place;

    fn cell(x: u64) -> Cell {
        let place = Place { chart: "a".into(), transport: "tcp".into(), series: "b".into(), x };
        Cell { place, arguments: Vec::new(), estimate_s: 10.0 }
    }

    #[test]
    fn time_left_follows_the_pace() {
        let cells = [cell(1), cell(2), cell(3)];
        let mut progress = Progress::new(4, &cells);
        assert_eq!(progress.left(), Duration::from_secs(30));
        progress.end(&cells[0], true);
        progress.taken_s = 20.0;
        assert_eq!((progress.done, progress.total), (5, 7));
        assert_eq!(progress.left(), Duration::from_secs(40), "cells take twice as long as planned");
        progress.end(&cells[1], false);
        assert_eq!(progress.left(), Duration::from_secs(20), "a skipped cell takes no time");
    }

    #[test]
    fn times_are_written_for_people() {
        let text = |seconds| left_text(Duration::from_secs(seconds));
        assert_eq!((text(0).as_str(), text(89).as_str()), ("0 s", "89 s"));
        assert_eq!((text(90).as_str(), text(3600).as_str()), ("2 min", "60 min"));
        assert_eq!(text(7260), "2 h 01 min");
    }
}
