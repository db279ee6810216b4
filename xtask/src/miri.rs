//! `cargo xtask miri`: tests of unsafe code that Miri can run.
//!
//! It can run few. Most unsafe code maps files, calls the kernel or devices' libraries, or is instructions (`asm!`), none of which Miri knows.

use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};

use crate::counts::{Counts, Runner};

/// Tests of the library of `pmof-mem`, by their names: pointers into anonymous memory, its words and bounds, the shadow medium with its
/// crash images, and errors on request.
const TESTS: [&str; 15] = [
    "faults::tests::all_are_shared_among_threads",
    "faults::tests::the_nth_store_fails_and_stores_nothing",
    "mapping::tests::words_start_at_aligned_addresses",
    "memory::tests::lengths_that_cannot_be_are_refused_before_anything_is_made",
    "memory::tests::ranges_and_alignment_are_checked",
    "order::tests::without_an_instrument_nothing_happens",
    "shadow::tests::a_page_cache_fence_needs_a_write_back_and_then_covers_all",
    "shadow::tests::a_right_commit_survives_every_crash_and_each_wrong_one_is_seen",
    "shadow::tests::a_store_between_write_back_and_fence_is_not_covered",
    "shadow::tests::a_trace_of_a_longer_medium_is_refused",
    "shadow::tests::eight_aligned_bytes_are_never_torn_and_sixteen_are",
    "shadow::tests::images_are_distinct_even_where_a_value_comes_back",
    "shadow::tests::kinds_and_lengths_without_a_domain_are_refused",
    "shadow::tests::lines_tear_in_all_combinations",
    "shadow::tests::the_newest_state_is_in_a_sample_also_where_it_came_before",
];

/// What installs it.
const INSTALLS: &str = "rustup component add miri rust-src --toolchain nightly";

pub(crate) fn run() -> Result<ExitCode> {
    let found = Command::new("cargo").args(["+nightly", "miri", "--version"]).output();
    if !found.is_ok_and(|found| found.status.success()) {
        println!("skipped: there is no Miri; {INSTALLS}");
        println!("{}", Counts { skipped: TESTS.len() as u64, ..Counts::default() });
        return Ok(ExitCode::SUCCESS);
    }
    let output = Command::new("cargo")
        .args(["+nightly", "miri", "test", "--target-dir", "target/miri", "--package", "pmof-mem", "--lib"])
        .args(["--", "--exact"])
        .args(TESTS)
        // The tests ask the machine for its page size and clock.
        .env("MIRIFLAGS", "-Zmiri-disable-isolation")
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("starting cargo")?;
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}");
    let counts = text.lines().filter_map(|line| Runner::Libtest.counts_of_line(line));
    let mut all = Counts::default();
    counts.for_each(|counts| all += counts);
    // A name that no test has runs nothing, without a word.
    ensure!(
        output.status.success() && all.passed == TESTS.len() as u64,
        "{}: {all} of {} tests",
        output.status,
        TESTS.len()
    );
    println!("{all}");
    Ok(ExitCode::SUCCESS)
}
