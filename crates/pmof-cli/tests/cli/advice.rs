//! Every command that a message advises, and the test that runs it in the state in which it is advised.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// File, command, and the test of this directory that reads the advice from the message and runs it; empty where none does yet.
const ADVICE: &[(&str, &str, &str)] = &[
    ("pmof-cli/src/backup/format.rs", "pool export", "what_is_no_moment_of_a_pool_is_copied_as_is_advised"),
    ("pmof-cli/src/copy/moment.rs", "pool add", "what_is_no_moment_of_a_pool_is_copied_as_is_advised"),
    ("pmof-cli/src/copy/moment.rs", "pool export", "what_is_no_moment_of_a_pool_is_copied_as_is_advised"),
    ("pmof-cli/src/pool/change.rs", "pool", "a_witness_is_made_anew_as_a_witness"),
    ("pmof-cli/src/pool/change.rs", "pool check", "where_nothing_says_which_replica_is_right_the_others_are_removed"),
    ("pmof-cli/src/pool/change.rs", "pool remove", "a_witness_is_made_anew_as_a_witness"),
    ("pmof-cli/src/pool/change.rs", "pool rm", "a_witness_is_made_anew_as_a_witness"),
    (
        "pmof-cli/src/pool/change/force.rs",
        "pool clear",
        "of_two_members_one_that_is_lost_for_good_is_replaced_as_is_advised",
    ),
    (
        "pmof-cli/src/pool/change/force.rs",
        "pool status",
        "of_two_members_one_that_is_lost_for_good_is_replaced_as_is_advised",
    ),
    ("pmof-cli/src/pool/check.rs", "pool sync", "a_pool_set_is_brought_in_order_as_is_advised"),
    ("pmof-cli/src/pool/points.rs", "pool promote", "a_member_that_went_back_to_a_point_is_promoted_as_is_advised"),
    ("pmof-cli/src/pool/points.rs", "pool status", "a_rollback_that_was_interrupted_goes_on_as_is_advised"),
    (
        "pmof-cli/src/pool/promote.rs",
        "pool clear",
        "a_promoted_pool_is_cleared_and_its_former_members_removed_as_is_advised",
    ),
    (
        "pmof-cli/src/pool/promote.rs",
        "pool rm",
        "a_promoted_pool_is_cleared_and_its_former_members_removed_as_is_advised",
    ),
    (
        "pmof-cli/src/pool/promote.rs",
        "pool status",
        "a_promoted_pool_is_cleared_and_its_former_members_removed_as_is_advised",
    ),
    (
        "pmof-cli/src/pool/removable.rs",
        "pool clear",
        "a_promoted_pool_is_cleared_and_its_former_members_removed_as_is_advised",
    ),
    ("pmof-cli/src/pool/removable.rs", "pool remove", "one_member_is_removed_after_it_was_made_none"),
    (
        "pmof-cli/src/pool/removable.rs",
        "pool rm",
        "a_promoted_pool_is_cleared_and_its_former_members_removed_as_is_advised",
    ),
    (
        "pmof-cli/src/pool/removable.rs",
        "pool status",
        "a_promoted_pool_is_cleared_and_its_former_members_removed_as_is_advised",
    ),
    ("pmof-cli/src/pool/replicas.rs", "pool scrub", "pages_that_differ_are_shown_and_repaired_as_is_advised"),
    ("pmof-cli/src/pool/scrub.rs", "pool remove", "where_nothing_says_which_replica_is_right_the_others_are_removed"),
    ("pmof-cli/src/pool/status.rs", "cp", "of_two_members_one_that_is_lost_for_good_is_replaced_as_is_advised"),
    ("pmof-cli/src/pool/status.rs", "pool add", "members_that_are_gone_or_damaged_are_made_anew_at_their_own_address"),
    ("pmof-cli/src/pool/status.rs", "pool clear", "of_two_members_one_that_is_lost_for_good_is_replaced_as_is_advised"),
    ("pmof-cli/src/pool/status.rs", "pool promote", "a_pool_whose_members_are_lost_is_promoted_as_is_advised"),
    (
        "pmof-cli/src/pool/status.rs",
        "pool remove",
        "members_that_are_gone_or_damaged_are_made_anew_at_their_own_address",
    ),
    (
        "pmof-cli/src/pool/status.rs",
        "pool replace",
        "a_lost_member_of_a_pool_that_is_open_is_replaced_when_that_is_closed",
    ),
    ("pmof-cli/src/status.rs", "pool ls", "pools_are_listed_as_is_advised"),
    ("pmof-cli/src/unequal.rs", "pool check", "pages_that_differ_are_shown_and_repaired_as_is_advised"),
    ("pmof-cli/src/unequal.rs", "pool scrub", "pages_that_differ_are_shown_and_repaired_as_is_advised"),
    ("pmof-console/src/output.rs", "pool ls", "pools_are_listed_as_is_advised"),
    ("pmof-console/src/output.rs", "pool rm", "a_target_of_another_user_is_not_trusted"),
    ("pmof-control/src/header.rs", "cp", "a_state_that_is_torn_on_all_members_is_read_and_made_anew"),
    ("pmof-control/src/header.rs", "pool replace", "a_member_whose_state_is_torn_is_replaced"),
    ("pmof-control/src/header.rs", "pool rm", "a_state_that_is_torn_on_all_members_is_read_and_made_anew"),
    ("pmof-pool/src/error.rs", "cp", "what_is_of_another_history_is_read_alone_and_removed"),
    ("pmof-pool/src/error.rs", "pool add", "of_two_members_that_with_an_older_file_is_made_anew"),
    ("pmof-pool/src/error.rs", "pool check", "a_pool_set_is_brought_in_order_as_is_advised"),
    ("pmof-pool/src/error.rs", "pool import", "what_is_of_another_history_is_read_alone_and_removed"),
    ("pmof-pool/src/error.rs", "pool points", "a_member_that_went_back_to_a_point_is_promoted_as_is_advised"),
    ("pmof-pool/src/error.rs", "pool promote", "a_pool_whose_members_are_lost_is_promoted_as_is_advised"),
    ("pmof-pool/src/error.rs", "pool remove", "of_two_members_that_with_an_older_file_is_made_anew"),
    ("pmof-pool/src/error.rs", "pool replace", "of_two_members_one_that_is_lost_for_good_is_replaced_as_is_advised"),
    ("pmof-pool/src/error.rs", "pool rm", "of_two_members_that_with_an_older_file_is_made_anew"),
    ("pmof-pool/src/error.rs", "pool scrub", "members_that_are_behind_catch_up_by_the_scrub_that_is_advised"),
    ("pmof-pool/src/error.rs", "pool status", "what_is_of_another_history_is_read_alone_and_removed"),
    ("pmof-pool/src/error.rs", "pool sync", "a_pool_set_is_brought_in_order_as_is_advised"),
    ("pmof-pool/src/error.rs", "serve", "targets_are_told_apart_as_is_advised"),
    (
        "pmof-pool/src/pool/changes/error.rs",
        "pool add",
        "an_address_that_is_taken_by_the_pool_is_made_free_as_is_advised",
    ),
    (
        "pmof-pool/src/pool/changes/error.rs",
        "pool remove",
        "an_address_that_is_taken_by_the_pool_is_made_free_as_is_advised",
    ),
    ("pmof-pool/src/pool/changes/error.rs", "pool rm", "what_is_left_of_a_member_is_removed_before_it_is_added_again"),
    ("pmof-pool/src/pool/changes/error.rs", "pool status", ""),
    ("pmof-pool/src/pool/changes/error.rs", "pool sync", "a_pool_set_is_brought_in_order_as_is_advised"),
    ("pmof-pool/src/pool/followers/driver.rs", "pool promote", ""),
    ("pmof-target/src/service.rs", "serve", "limits_of_a_target_are_raised_as_is_advised"),
    ("pmof-target/src/store/error.rs", "cp", "a_pool_of_a_former_format_is_copied_as_is_advised"),
    ("pmof-target/src/store/error.rs", "pool release", "a_pool_whose_writer_hangs_is_released_as_is_advised"),
    ("pmof-target/src/store/error.rs", "serve", "limits_of_a_target_are_raised_as_is_advised"),
];

/// Commands that are advised and that no test runs yet. This number only falls.
const NOT_RUN_MAX: usize = 2;

/// Where commands are advised.
const CRATES: [&str; 5] = ["pmof-cli", "pmof-console", "pmof-control", "pmof-pool", "pmof-target"];

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            if !["tests", "simulation", "model"].contains(&name.as_str()) {
                sources(&path, found);
            }
        } else if path.extension().is_some_and(|kind| kind == "rs")
            && !name.ends_with("tests.rs")
            && name != "model.rs"
            && name != "simulation.rs"
        {
            found.push(path);
        }
    }
}

/// The commands of `line` that stand in backticks or parentheses: up to two words behind `pmof`.
fn commands(line: &str) -> Vec<String> {
    let begins = line.match_indices("pmof ").filter(|(at, _)| line[..*at].ends_with(['`', '(']));
    let words = |(at, found): (usize, &str)| {
        let rest = &line[at + found.len()..];
        let words =
            rest.split(' ').map(|word| word.split(|c: char| !c.is_ascii_lowercase()).next().unwrap_or_default());
        let whole = rest.split(' ').map(|word| word.bytes().all(|byte| byte.is_ascii_lowercase()));
        let mut command = Vec::new();
        for (word, is_whole) in words.zip(whole).take(2) {
            if !word.is_empty() {
                command.push(word);
            }
            if !is_whole || word.is_empty() {
                break;
            }
        }
        command.join(" ")
    };
    begins.map(words).filter(|command| !command.is_empty()).collect()
}

#[test]
fn commands_are_found_in_messages() {
    let line = "\"`pmof pool rm --force URL` or (pmof cp --min-replicas 1), not pmof pool add; `pmof pool add{}`\"";
    assert_eq!(commands(line), ["pool rm", "cp", "pool add"]);
}

/// A message that advises a command comes with a test that runs it.
#[test]
fn each_command_that_is_advised_is_known_here() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = BTreeSet::new();
    for name in CRATES {
        let mut files = Vec::new();
        sources(&crates.join(name).join("src"), &mut files);
        for file in files {
            let text = fs::read_to_string(&file).unwrap();
            let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            let of_lines = text.lines().map(str::trim).filter(|line| !line.starts_with("//")).flat_map(commands);
            let file = file.strip_prefix(&crates).unwrap().to_str().unwrap().to_owned();
            found.extend(of_lines.map(|command| (file.clone(), command)));
        }
    }
    let known: BTreeSet<_> =
        ADVICE.iter().map(|(file, command, _)| ((*file).to_owned(), (*command).to_owned())).collect();
    let new: Vec<_> = found.difference(&known).collect();
    assert!(new.is_empty(), "add these to ADVICE, with the test that runs them: {new:?}");
    let gone: Vec<_> = known.difference(&found).collect();
    assert!(gone.is_empty(), "nothing advises these any more: {gone:?}");

    let mut tests = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli"), &mut tests);
    let tests: String = tests.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
    for (.., test) in ADVICE.iter().filter(|(.., test)| !test.is_empty()) {
        assert!(tests.contains(&format!("fn {test}()")), "there is no test {test}");
    }
    let not_run = ADVICE.iter().filter(|(.., test)| test.is_empty()).count();
    assert_eq!(not_run, NOT_RUN_MAX, "lower NOT_RUN_MAX, or write the test");
}
