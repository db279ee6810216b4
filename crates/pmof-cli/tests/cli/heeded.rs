//! Commands that messages advise, taken from the message and run in the state in which it is printed: they succeed, and the state is mended.

use std::{fs, os::unix::fs::FileExt as _, path::PathBuf};

use pmof::{Durability, Pool, PoolOptions};
use pmof_control::DATA_OFFSET;
use tempfile::TempDir;

use crate::support::{Said, Target, directory, pmof, text, wait_until};

mod targets;

const SIZE_BYTES: u64 = 1 << 20;

fn options<'u>(urls: impl IntoIterator<Item = &'u String>) -> PoolOptions {
    urls.into_iter().fold(Pool::options().require(Durability::ProcessCrash), PoolOptions::replica)
}

/// Four targets, with a pool on the first `count` of them; the others are for new members.
struct Four {
    targets: [Target; 4],
    urls: Vec<String>,
    count: usize,
    place: TempDir,
}

impl Four {
    fn with_pool_on(count: usize) -> Self {
        let targets: [Target; 4] = std::array::from_fn(|_| Target::start());
        let urls: Vec<_> = targets.iter().map(|target| target.url("orders")).collect();
        options(&urls[..count]).create(SIZE_BYTES).unwrap().close().unwrap();
        Self { targets, urls, count, place: directory() }
    }

    fn open(&self) -> Pool {
        options(&self.urls[..self.count]).open().unwrap()
    }

    fn write(&self, bytes: &[u8]) {
        let pool = self.open();
        pool.persist(0, bytes).unwrap();
        pool.close().unwrap();
    }

    fn file(&self, at: usize) -> PathBuf {
        self.targets[at].file("orders")
    }

    fn aside(&self) -> PathBuf {
        self.place.path().join("aside")
    }

    /// Has member `at` miss what is written meanwhile.
    fn left_behind(&self, at: usize) {
        fs::rename(self.file(at), self.aside()).unwrap();
        self.write(b"without it");
        fs::rename(self.aside(), self.file(at)).unwrap();
    }

    /// Puts an older copy where member `at` is.
    fn rolled_back(&self, at: usize) {
        fs::copy(self.file(at), self.aside()).unwrap();
        self.write(b"behind it");
        fs::copy(self.aside(), self.file(at)).unwrap();
    }

    /// Changes a byte of member `at`, to another one for each.
    fn flip(&self, at: usize) {
        let file = fs::File::options().read(true).write(true).open(self.file(at)).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, DATA_OFFSET + 5000).unwrap();
        file.write_all_at(&[byte[0] ^ (1 << at)], DATA_OFFSET + 5000).unwrap();
    }

    fn status(&self, at: usize) -> Said {
        pmof(["pool", "status", &self.url(at)])
    }

    /// Where it is now: a target that was started again has another address.
    fn url(&self, at: usize) -> String {
        self.targets[at].url("orders")
    }

    /// As many members are in sync as it has, and their bytes are equal.
    #[track_caller]
    fn is_mended(&self, at: usize, members: usize) {
        let said = self.status(at).done();
        assert!(said.contains(&format!("in sync    {members} of {members}")) && !said.contains("\nmend"), "{said}");
        if members > 1 {
            pmof(["pool", "check", &self.url(at)]).done();
        }
    }
}

/// The command that begins with these words, in backticks or in parentheses, without `pmof`.
#[track_caller]
fn advised(message: &str, words: &str) -> Vec<String> {
    let begin = ["`pmof ", "(pmof "].map(|before| format!("{before}{words}"));
    let at = begin.iter().find_map(|begin| message.find(begin)).unwrap_or_else(|| panic!("no {words} in {message}"));
    let command = &message[at + "`pmof ".len()..];
    let command = command.split(['`', ')', ',']).next().unwrap_or_default();
    command.split(' ').map(str::to_owned).collect()
}

/// Runs it, with these words in the place of those that stand for others, and with what it lacks.
#[track_caller]
fn heed(message: &str, words: &str, places: &[(&str, &str)], more: &[&str]) -> Said {
    let command = advised(message, words).into_iter().map(|word| {
        let place = places.iter().find(|(place, _)| *place == word);
        place.map_or(word, |(_, meant)| (*meant).to_owned())
    });
    let command = command.filter(|word| !word.is_empty());
    let said = pmof(command.chain(more.iter().map(|&word| word.to_owned())));
    assert_eq!(said.code, Some(0), "{words}: {said:?}");
    said
}

#[test]
fn members_that_are_behind_catch_up_by_the_scrub_that_is_advised() {
    for (name, make) in [("left behind", Four::left_behind as fn(&Four, usize)), ("rolled back", Four::rolled_back)] {
        let four = Four::with_pool_on(3);
        make(&four, 2);
        let said = four.status(0).done();
        assert!(said.contains("2 behind"), "{name}: {said}");
        heed(&said, "pool scrub", &[], &[&four.urls[0]]);
        four.is_mended(2, 3);
    }
}

#[test]
fn of_two_members_that_with_an_older_file_is_made_anew() {
    let four = Four::with_pool_on(2);
    let [a, b] = [&*four.urls[0], &four.urls[1]];
    four.rolled_back(1);
    let said = pmof(["pool", "scrub", a]);
    said.failed(&["its file is an older copy"]);
    heed(&said.errors, "pool remove --force", &[], &[a, "1"]);
    heed(&said.errors, "pool rm", &[], &[b]);
    heed(&said.errors, "pool add", &[], &[a, b]);
    four.is_mended(1, 2);
}

#[test]
fn of_two_members_one_that_is_lost_for_good_is_replaced_as_is_advised() {
    for is_status in [true, false] {
        let mut four = Four::with_pool_on(2);
        four.targets[1].kill();
        let [a, new] = [&*four.urls[0], &four.urls[2]];
        let read = four.place.path().join("read");
        let forced = if is_status {
            let said = four.status(0);
            assert_eq!(said.code, Some(1), "{said:?}");
            heed(&said.errors, "cp --min-replicas 1", &[("MEMBER", a), ("FILE", text(&read))], &[]);
            heed(&said.errors, "pool replace", &[("MEMBER", a), ("N", "1"), ("NEW", new)], &[])
        } else {
            let said = pmof(["pool", "scrub", a]);
            said.failed(&["1 of the pool's 2 members can be opened"]);
            heed(&said.errors, "pool replace --force", &[], &[a, "1", new])
        };
        assert!(forced.errors.contains("by force"), "{forced:?}");
        let shown = heed(&forced.errors, "pool status", &[], &[a]).output;
        if is_status {
            heed(&shown, "pool clear", &[("MEMBER", a)], &[]);
        } else {
            assert!(shown.contains("\nforced "), "{shown}");
            heed(&forced.errors, "pool clear", &[], &[a]);
        }
        assert!(!four.status(0).done().contains("\nforced "));
        four.is_mended(2, 2);
    }
}

#[test]
fn members_that_are_gone_or_damaged_are_made_anew_at_their_own_address() {
    for is_damaged in [false, true] {
        let four = Four::with_pool_on(3);
        let [a, b] = [&*four.urls[0], &four.urls[1]];
        if is_damaged {
            let file = fs::File::options().write(true).open(four.file(1)).unwrap();
            file.write_all_at(&[0xff; 64], 100).unwrap();
        } else {
            fs::remove_file(four.file(1)).unwrap();
        }
        let said = four.status(0).done();
        let mend = said.lines().find(|line| line.starts_with("mend")).unwrap_or_else(|| panic!("{said}"));
        heed(mend, "pool remove", &[("MEMBER", a)], &[]);
        if is_damaged {
            heed(mend, "pool rm", &[], &[b]);
        }
        heed(mend, "pool add", &[], &[a, b]);
        four.is_mended(1, 3);
    }
}

#[test]
fn what_is_left_of_a_member_is_removed_before_it_is_added_again() {
    let four = Four::with_pool_on(2);
    let [a, b] = [&*four.urls[0], &four.urls[1]];
    pmof(["pool", "remove", a, "1"]).done();
    let named = pmof(["pool", "status", a, b]).done();
    assert!(named.contains("it is no member of the pool: it was removed"), "{named}");
    let said = pmof(["pool", "add", a, b]);
    said.failed(&["is a replica of this pool, and no member"]);
    heed(&said.errors, "pool rm", &[], &[]);
    pmof(["pool", "add", a, b]).done();
    four.is_mended(0, 2);
}

#[test]
fn an_address_that_is_taken_by_the_pool_is_made_free_as_is_advised() {
    let four = Four::with_pool_on(2);
    let [a, b, other] = [&*four.urls[0], &four.urls[1], &four.urls[2]];
    for (taken, wanted) in [("--spare", "--witness"), ("--witness", "--spare")] {
        assert_eq!(pmof(["pool", "add", taken, a, other]).code, Some(0));
        let said = pmof(["pool", "add", wanted, a, other]);
        said.failed(&["of the pool: choose another address"]);
        heed(&said.errors, "pool remove", &[], &[a, other]);
        if taken == "--witness" {
            pmof(["pool", "rm", other]).done();
        }
        assert_eq!(pmof(["pool", "add", wanted, a, other]).code, Some(0));
        pmof(["pool", "remove", a, other]).done();
        if wanted == "--witness" {
            pmof(["pool", "rm", other]).done();
        }
        four.is_mended(0, 2);
    }

    // A program that asks for it is told the same.
    let pool = four.open();
    let told = pool.replace("1", b).unwrap_err().to_string();
    pool.close().unwrap();
    heed(&told, "pool remove", &[], &[a, "1"]);
    let left = &told[told.find("(pmof pool rm").unwrap()..];
    heed(left, "pool rm", &[], &[b]);
    heed(left, "pool add", &[], &[a, b]);
    four.is_mended(0, 2);
}

#[test]
fn a_witness_that_is_lost_for_good_is_removed_before_it_is_added_again() {
    let four = Four::with_pool_on(2);
    let [a, witness] = [&*four.urls[0], &four.urls[2]];
    assert_eq!(pmof(["pool", "add", "--witness", a, witness]).code, Some(0));
    fs::remove_file(four.file(2)).unwrap();
    let said = pmof(["pool", "add", "--witness", a, witness]);
    said.failed(&["is a witness, and lost"]);
    heed(&said.errors, "pool remove", &[], &[a, witness]);
    assert_eq!(pmof(["pool", "add", "--witness", a, witness]).code, Some(0));
    assert!(four.status(0).done().contains("2 of 2, and a witness"));
}

#[test]
fn one_member_is_removed_after_it_was_made_none() {
    let four = Four::with_pool_on(3);
    let said = pmof(["pool", "rm", &four.urls[1]]);
    said.failed(&["is member 1 of a pool that has others"]);
    heed(&said.errors, "pool remove", &[], &[]);
    pmof(["pool", "rm", &four.urls[1]]).done();
    four.is_mended(0, 2);

    // What belongs to an asynchronous member goes with it.
    let [a, far] = [&*four.urls[0], &four.urls[3]];
    pmof(["pool", "add", "--async", a, far]).done();
    let staging = four.targets[3].url("orders.changes");
    let said = pmof(["pool", "rm", &staging]);
    said.failed(&["is the staging area of"]);
    heed(&said.errors, "pool remove", &[], &[]);
    pmof(["pool", "rm", far, &staging]).done();
    assert!(four.targets[3].files().is_empty());
}

#[test]
fn a_promoted_pool_is_cleared_and_its_former_members_removed_as_is_advised() {
    for is_at_once in [false, true] {
        let four = Four::with_pool_on(2);
        let [a, b, far] = [&*four.urls[0], &four.urls[1], &four.urls[3]];
        pmof(["pool", "add", "--async", a, far]).done();
        let promoted = pmof(["pool", "promote", "--force", far]).done();
        let said = pmof(["pool", "rm", a, b, far]);
        said.failed(&["others that are named are no members of it any more", "nothing was removed"]);
        if is_at_once {
            heed(&said.errors, &format!("pool rm {a} {b}"), &[], &[]);
        } else {
            heed(&promoted, &format!("pool rm {a}"), &[], &[]);
            heed(&promoted, &format!("pool rm {b}"), &[], &[]);
        }
        assert!(four.targets[..2].iter().all(|target| target.files().is_empty()));
        let shown = heed(&promoted, "pool status", &[], &[far]).output;
        assert!(shown.contains("\nforced "), "{shown}");
        let refused = pmof(["pool", "rm", far]);
        refused.failed(&["may be one of two histories"]);
        heed(&refused.errors, "pool status", &[], &[far]);
        if is_at_once {
            heed(&refused.errors, "pool clear", &[], &[]);
        } else {
            heed(&promoted, "pool clear", &[], &[far]);
        }
        heed(&said.errors, &format!("pool rm {far}"), &[], &[]);
        assert!(four.targets[3].files().is_empty());
    }
}

#[test]
fn a_pool_whose_members_are_lost_is_promoted_as_is_advised() {
    for is_status in [true, false] {
        let mut four = Four::with_pool_on(1);
        let (a, far) = (four.urls[0].clone(), four.urls[3].clone());
        pmof(["pool", "add", "--async", &a, &far]).done();
        four.targets[0].kill();
        let promoted = if is_status {
            let said = four.status(3);
            heed(&said.errors, "pool promote", &[], &[])
        } else {
            let said = pmof(["pool", "scrub", &far]);
            heed(&said.errors, "pool promote", &[], &[&far])
        };
        // It could not be told: it is removed where it comes back.
        let untold = promoted.errors;
        assert!(untold.contains("(pmof pool rm"), "{untold}");
        four.targets[0].restart();
        let back = four.targets[0].url("orders");
        heed(&untold, "pool rm", &[(&a, &back)], &[]);
        pmof(["pool", "clear", &far]).done();
        four.is_mended(3, 1);
    }
}

#[test]
fn a_member_that_went_back_to_a_point_is_promoted_as_is_advised() {
    for is_lost in [false, true] {
        let mut four = Four::with_pool_on(1);
        let (a, far) = (four.urls[0].clone(), four.urls[3].clone());
        let place = four.place.path().join("copy");
        pmof(["pool", "add", "--async", "--keep-points", "2", &a, &far]).done();
        let pool = four.open();
        wait_until("it follows", || {
            matches!(pool.status().unwrap().asynchronous[0].state, pmof::AsynchronousState::Following)
        });
        pool.persist(0, b"one").unwrap();
        pool.consistency_point("one").unwrap();
        pool.close().unwrap();
        let said = pmof(["cp", "--at-point", "never", &a, text(&place)]);
        said.failed(&["never"]);
        let points = heed(&said.errors, "pool points", &[], &[&a]).output;
        assert!(points.contains("\"one\""), "{points}");
        let rolled = pmof(["pool", "rollback", &far, "one"]);
        if is_lost {
            four.targets[0].kill();
            heed(&rolled.output, "pool promote tcp", &[], &[]);
        } else {
            heed(&rolled.output, "pool promote --force", &[], &[]);
        }
        let mut bytes = [0; 3];
        options([&far]).open().unwrap().read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"one");
    }
}

#[test]
fn pages_that_differ_are_shown_and_repaired_as_is_advised() {
    let four = Four::with_pool_on(3);
    let all: Vec<_> = four.urls[..3].iter().map(String::as_str).collect();
    let copied = four.place.path().join("copied");
    let copy = || pmof(["cp", all[0], "--replica", all[1], "--replica", all[2], text(&copied)]);
    four.flip(1);
    let said = copy();
    said.differs(&["replicas differ"]);
    // It shows what differs, and its exit status says so.
    let shown = pmof(advised(&said.errors, "pool check").iter().map(String::as_str).chain(all.iter().copied()));
    shown.differs(&["pages differ: 1"]);
    heed(&said.errors, "pool scrub", &[], &all);
    copy().done();
    four.flip(1);
    heed(&shown.errors, "pool scrub", &[], &all);
    four.is_mended(0, 3);

    // A writer that died leaves what no scrub has looked at.
    let pool = four.open();
    pool.persist(0, b"more").unwrap();
    drop(pool);
    let is_open = || four.status(0).output.contains("none, not closed");
    wait_until("its target has noticed", is_open);
    let said = pmof(["pool", "check", all[0]]);
    said.failed(&["its writer died"]);
    heed(&said.errors, "pool scrub", &[], &all);
    four.is_mended(0, 3);
}

#[test]
fn where_nothing_says_which_replica_is_right_the_others_are_removed() {
    let four = Four::with_pool_on(3);
    let [a, b, c] = [&*four.urls[0], &four.urls[1], &four.urls[2]];
    (0..3).for_each(|at| four.flip(at));
    let said = pmof(["pool", "scrub", a]);
    said.differs(&["no content is on more than half of the replicas"]);
    for other in ["1", "2"] {
        heed(&said.errors, "pool remove", &[], &[a, other]);
    }
    for other in [b, c] {
        pmof(["pool", "rm", other]).done();
        pmof(["pool", "add", a, other]).done();
    }
    four.is_mended(0, 3);

    let four = Four::with_pool_on(2);
    let [a, new] = [&*four.urls[0], &four.urls[2]];
    four.flip(1);
    let said = pmof(["pool", "add", a, new]);
    said.differs(&["nothing says which is right; nothing was changed"]);
    let shown = pmof(advised(&said.errors, "pool check").iter().map(String::as_str).chain([a]));
    shown.differs(&["pages differ: 1"]);
    heed(&said.errors, "pool remove", &[], &[a, "1"]);
    pmof(["pool", "add", a, new]).done();
    four.is_mended(0, 2);
}

#[test]
fn pools_are_listed_as_is_advised() {
    let four = Four::with_pool_on(1);
    let said = pmof(["pool", "info", &four.targets[0].url("order")]);
    said.failed(&["there is no pool order"]);
    assert!(heed(&said.errors, "pool ls", &[], &[]).output.contains("orders"));
    let directory = format!("file://{}", text(four.targets[0].root.path()));
    let said = pmof(["status", &directory]);
    said.failed(&["is a directory"]);
    assert!(heed(&said.errors, "pool ls -l", &[], &[]).output.contains("orders"));
}

/// Each of two histories, or of two pools of one identity, is looked at and read by itself.
#[test]
fn what_is_of_another_history_is_read_alone_and_removed() {
    let four = Four::with_pool_on(1);
    let [a, far, import] = [&*four.urls[0], &four.urls[3], &four.urls[1]];
    let [export, read] = ["export", "read"].map(|name| four.place.path().join(name));
    pmof(["pool", "export", a, text(&export)]).done();
    pmof(["pool", "import", "--durability", "process-crash", text(&export), import]).done();
    let said = pmof(["pool", "add", a, import]);
    said.failed(&["as where one was made by `pmof pool import`"]);
    for url in [a, import] {
        heed(&said.errors, "pool status", &[("of", url), ("each", ""), ("alone", "")], &[]);
    }
    assert!(!pmof(["pool", "rm", import]).done().is_empty());

    pmof(["pool", "add", "--async", a, far]).done();
    pmof(["pool", "promote", "--force", far]).done();
    let said = pmof(["pool", "add", far, a]);
    said.failed(&["a pool was made of an asynchronous member"]);
    heed(&said.errors, "cp --min-replicas 1", &[], &[a, text(&read)]);
    heed(&said.errors, &format!("pool rm {a}"), &[], &[]);
    pmof(["pool", "add", far, a]).done();
    // The pool was forced, and is known to be.
    pmof(["pool", "clear", a]).done();
    four.is_mended(0, 2);
}

#[test]
fn of_two_histories_each_is_read_alone_and_one_removed() {
    let mut four = Four::with_pool_on(1);
    let read = four.place.path().join("read");
    let (a, far) = (four.urls[0].clone(), four.urls[3].clone());
    pmof(["pool", "add", "--async", &a, &far]).done();
    four.targets[0].kill();
    assert_eq!(pmof(["pool", "promote", &far]).code, Some(0));
    options([&far]).open().unwrap().close().unwrap();
    four.targets[3].kill();
    four.targets[0].restart();
    let a = four.targets[0].url("orders");
    options([&a]).open().unwrap().close().unwrap();
    four.targets[3].restart();
    let far = four.targets[3].url("orders");
    let shown = pmof(["pool", "status", &a, &far]);
    shown.differs(&["there are two histories of the pool"]);
    let said = pmof(["pool", "rm", &a, &far]);
    said.failed(&["it is another history of the same pool"]);
    for url in [&a, &far] {
        heed(&shown.errors, "cp --min-replicas 1", &[], &["--force", url, text(&read)]);
        heed(&said.errors, "cp --min-replicas 1", &[], &["--force", url, text(&read)]);
    }
    heed(&said.errors, "pool rm --force", &[], &[&a]);
    pmof(["pool", "clear", &far]).done();
    four.is_mended(3, 1);
}

#[test]
fn a_copy_of_a_member_is_removed_alone() {
    let four = Four::with_pool_on(2);
    let copy = four.targets[2].url("copy");
    fs::copy(four.file(1), four.targets[2].file("copy")).unwrap();
    let said = pmof(["pool", "rm", &copy]);
    said.failed(&["it is a copy of replica 1"]);
    heed(&said.errors, "pool rm --force", &[], &[&copy]);
    assert!(four.targets[2].files().is_empty());
    four.is_mended(0, 2);
}

#[test]
fn a_member_that_went_on_separately_is_read_alone_and_replaced() {
    let four = Four::with_pool_on(3);
    let [a, c, new] = [&*four.urls[0], &four.urls[2], &four.urls[3]];
    let alone = options([&four.urls[2]]).min_replicas(1);
    let away = |at: usize| four.place.path().join(at.to_string());
    (0..2).for_each(|at| fs::rename(four.file(at), away(at)).unwrap());
    let pool = alone.open().unwrap();
    pool.persist(0, b"alone").unwrap();
    pool.close().unwrap();
    (0..2).for_each(|at| fs::rename(away(at), four.file(at)).unwrap());
    four.left_behind(2);
    let said = pmof(["pool", "status", a, c]).output;
    assert!(said.contains("it and the others went on separately"), "{said}");
    let read = four.place.path().join("read");
    assert_eq!(pmof(["cp", "--min-replicas", "1", c, text(&read)]).code, Some(0));
    assert!(fs::read(&read).unwrap().starts_with(b"alone"));
    heed(&said, "pool replace", &[], &[a, "2", new]);
    four.is_mended(3, 3);
}
