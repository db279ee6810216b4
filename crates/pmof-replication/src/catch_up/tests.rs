//! Writers and a copier whose steps meet in every order that a seed gives, against two replicas that are arrays of pages.

use proptest::prelude::*;

use super::*;
use crate::pages::PAGE_BYTES;

const PAGES: usize = 6;
const WINDOW: Limit = Limit { ranges: 2, bytes: 2 * PAGE_BYTES };

/// One write, step by step: it looks at the window, is posted on the source and on the replica that catches up, and looks again.
#[derive(Clone, Copy, Debug)]
struct Writer {
    page: usize,
    value: u32,
    step: u8,
    before: u64,
}

/// What the copier has done of a window.
#[derive(Clone, Debug)]
enum Copier {
    Idle,
    Open(Vec<Range<u64>>),
    Read(Vec<Range<u64>>, Vec<u32>),
    Written(Vec<Range<u64>>),
}

struct World {
    catch_up: CatchUp,
    source: [u32; PAGES],
    behind: [u32; PAGES],
    copier: Copier,
    from: u64,
    /// The control: writers do not look at the window behind them.
    looks_again: bool,
}

impl World {
    fn new(looks_again: bool) -> Self {
        let catch_up = CatchUp::new(PageMap::full(PAGES as u64 * PAGE_BYTES));
        Self { catch_up, source: [1; PAGES], behind: [0; PAGES], copier: Copier::Idle, from: 0, looks_again }
    }

    fn pages(window: &[Range<u64>]) -> Vec<usize> {
        let pages = |range: &Range<u64>| (range.start / PAGE_BYTES) as usize..range.end.div_ceil(PAGE_BYTES) as usize;
        window.iter().flat_map(pages).collect()
    }

    fn write(&mut self, writer: &mut Writer) {
        let begin = writer.page as u64 * PAGE_BYTES;
        match writer.step {
            0 => writer.before = self.catch_up.before_write(),
            1 => self.source[writer.page] = writer.value,
            2 => self.behind[writer.page] = writer.value,
            3 if self.looks_again => self.catch_up.after_write(writer.before, &(begin..begin + 1)),
            _ => {}
        }
        writer.step += 1;
    }

    fn copy(&mut self) {
        self.copier = match std::mem::replace(&mut self.copier, Copier::Idle) {
            Copier::Idle => {
                let window = self.catch_up.open_window(self.from, WINDOW);
                self.from = window.as_ref().and_then(|window| window.last()).map_or(0, |last| last.end);
                window.map_or(Copier::Idle, Copier::Open)
            }
            Copier::Open(window) => {
                let bytes = Self::pages(&window).into_iter().map(|page| self.source[page]).collect();
                Copier::Read(window, bytes)
            }
            Copier::Read(window, bytes) => {
                Self::pages(&window).into_iter().zip(bytes).for_each(|(page, value)| self.behind[page] = value);
                Copier::Written(window)
            }
            Copier::Written(window) => {
                self.catch_up.close_window(&window);
                Copier::Idle
            }
        };
    }

    /// Whether both are equal when everybody is done. Writes of one page come one after the other, as those of one lane do.
    fn run(mut self, choices: &[(u8, u8)]) -> bool {
        let mut writers: Vec<Option<Writer>> = vec![None; 3];
        let mut value = 1;
        for (who, page) in choices {
            let who = usize::from(*who) % 5;
            if let Some(slot) = writers.get(who) {
                let page = usize::from(*page) % PAGES / 3 * 3 + who;
                value += 1;
                let mut writer = slot.unwrap_or(Writer { page, value, step: 0, before: 0 });
                self.write(&mut writer);
                writers[who] = (writer.step < 4).then_some(writer);
            } else {
                self.copy();
            }
        }
        for mut writer in writers.into_iter().flatten() {
            while writer.step < 4 {
                self.write(&mut writer);
            }
        }
        while self.catch_up.missing_bytes() > 0 || !matches!(self.copier, Copier::Idle) {
            self.copy();
        }
        self.source == self.behind
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn in_every_order_both_are_equal_in_the_end(choices in proptest::collection::vec(any::<(u8, u8)>(), 0..200)) {
        prop_assert!(World::new(true).run(&choices));
    }
}

/// The control: without the second look, a copy overwrites what is newer.
#[test]
fn without_the_second_look_a_newer_write_is_lost() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let choices = proptest::collection::vec(any::<(u8, u8)>(), 0..200);
    assert!(
        runner
            .run(&choices, |choices| {
                prop_assert!(World::new(false).run(&choices));
                Ok(())
            })
            .is_err()
    );
}

#[test]
fn an_interrupted_window_is_missing_again() {
    let catch_up = CatchUp::new(PageMap::full(4 * PAGE_BYTES));
    let window = catch_up.open_window(0, WINDOW).unwrap();
    assert!(window.iter().cloned().eq(std::iter::once(0..2 * PAGE_BYTES)), "{window:?}");
    assert_eq!(catch_up.missing_bytes(), 2 * PAGE_BYTES);
    assert_eq!(catch_up.interrupted(&window).count_bytes(), 4 * PAGE_BYTES);
}

/// Of a pool that is written all over, only what meets the pages on their way is copied again.
#[test]
fn a_window_of_pages_apart_is_met_by_writes_of_these_alone() {
    let missing = PageMap::new(PAGES as u64 * PAGE_BYTES);
    for page in [0, 2, 4] {
        missing.mark(page * PAGE_BYTES..page * PAGE_BYTES + 1);
    }
    let catch_up = CatchUp::new(missing);
    let page = |page: u64| page * PAGE_BYTES..(page + 1) * PAGE_BYTES;
    let window = catch_up.open_window(0, WINDOW).unwrap();
    assert_eq!(window, [page(0), page(2)]);
    let before = catch_up.before_write();
    catch_up.after_write(before, &page(1));
    assert_eq!(catch_up.missing_bytes(), PAGE_BYTES);
    catch_up.after_write(before, &page(2));
    catch_up.close_window(&window);
    assert_eq!(catch_up.open_window(0, WINDOW).unwrap(), [page(2), page(4)]);
}

#[test]
fn a_write_that_was_not_posted_is_missing() {
    let catch_up = CatchUp::new(PageMap::new(PAGES as u64 * PAGE_BYTES));
    catch_up.missed_write(&(PAGE_BYTES + 1..PAGE_BYTES + 2));
    let window = catch_up.open_window(0, WINDOW).unwrap();
    assert!(window.iter().cloned().eq(std::iter::once(PAGE_BYTES..2 * PAGE_BYTES)), "{window:?}");
}

/// A crash may take back what was copied behind the flush that was asked for.
#[test]
fn what_is_copied_while_the_replica_flushes_is_not_durable_with_that() {
    let catch_up = CatchUp::new(PageMap::full(4 * PAGE_BYTES));
    let copy = |from| {
        let window = catch_up.open_window(from, WINDOW).unwrap();
        catch_up.close_window(&window);
    };
    copy(0);
    catch_up.begin_flush();
    copy(2 * PAGE_BYTES);
    assert_eq!(catch_up.missing_bytes(), 0);
    catch_up.note_flushed();
    let left = catch_up.interrupted(&[]);
    assert!(!left.meets(&(0..2 * PAGE_BYTES)) && left.meets(&(2 * PAGE_BYTES..3 * PAGE_BYTES)), "{left:?}");
    catch_up.begin_flush();
    assert_eq!(catch_up.interrupted(&[]).count_bytes(), 2 * PAGE_BYTES);
}

/// A crash may take back what a flush that never ended was to make durable.
#[test]
fn what_an_unfinished_flush_covers_is_missing_again() {
    let catch_up = CatchUp::new(PageMap::full(2 * PAGE_BYTES));
    let window = catch_up.open_window(0, WINDOW).unwrap();
    catch_up.close_window(&window);
    catch_up.begin_flush();
    assert_eq!(catch_up.missing_bytes(), 0);
    assert_eq!(catch_up.interrupted(&[]).count_bytes(), 2 * PAGE_BYTES);
}
