//! What operators are told to do: it fits what is there, and works.

use std::{
    fs::{self, File},
    io::Write as _,
    os::unix::fs::FileExt as _,
};

use pmof::{Durability, Pool, PoolOptions};

use crate::support::{Target, command, directory, pattern, pmof, text, wait_until};

fn options(url: &str) -> PoolOptions {
    Pool::options().require(Durability::ProcessCrash).replica(url)
}

fn made(urls: &[&str]) {
    let options = urls[1..].iter().fold(options(urls[0]), |options, url| options.replica(*url));
    options.create(1 << 20).unwrap().close().unwrap();
}

#[test]
fn what_is_another_pool_of_the_same_identity_is_not_to_be_removed_for_a_new_member() {
    let (mut two, place): ([Target; 2], _) = (std::array::from_fn(|_| Target::start()), directory());
    let [here, there] = std::array::from_fn(|at: usize| two[at].url("r"));
    made(&[&here]);
    let export = place.path().join("r.export");
    pmof(["pool", "export", &here, text(&export)]).done();
    pmof(["pool", "import", "--durability", "process-crash", text(&export), &there]).done();
    let said = pmof(["pool", "add", &here, &there]);
    said.failed(&["same identity and nothing else in common", "choose another name or address"]);
    assert!(!said.errors.contains("remove it first"), "{said:?}");

    let [here, far] = std::array::from_fn(|at: usize| two[at].url("apart"));
    made(&[&here]);
    pmof(["pool", "add", "--async", &here, &far]).done();
    two[0].kill();
    pmof(["pool", "promote", &far]);
    options(&far).open().unwrap().close().unwrap();
    two[0].restart();
    let here = two[0].url("apart");
    // Told of nothing yet, and where it was left.
    let said = pmof(["pool", "status", &far, &here]).done();
    assert!(said.contains("read what the pool lacks from this one alone"), "{said}");
    assert!(!said.contains("is lost"), "{said}");
    pmof(["pool", "add", &far, &here])
        .failed(&["a pool was made of an asynchronous member", "pmof cp --min-replicas 1"]);
    two[1].kill();
    options(&here).open().unwrap().close().unwrap();
    two[1].restart();
    let said = pmof(["pool", "add", &two[1].url("apart"), &here]);
    said.failed(&["another history of the same pool", "choose another name or address"]);
    assert!(!said.errors.contains("remove it first"), "{said:?}");
}

/// The commands open the pool themselves, which a program that has it open keeps them from.
#[test]
fn a_lost_member_of_a_pool_that_is_open_is_replaced_when_that_is_closed() {
    let four: [Target; 4] = std::array::from_fn(|_| Target::start());
    let [a, b, c, new] = std::array::from_fn(|at: usize| four[at].url("orders"));
    let pool = options(&a).replica(&b).replica(&c).create(1 << 20).unwrap();
    fs::remove_file(four[2].file("orders")).unwrap();
    let mend = || {
        let said = pmof(["pool", "status", &a]).output;
        said.lines().find(|line| line.starts_with("mend")).map(str::to_owned)
    };
    wait_until("a member is lost", || {
        pool.persist(0, b"kept").unwrap();
        mend().is_some()
    });
    let advice = mend().unwrap();
    let (before, commands) = advice.split_once("once it has closed the pool, ").unwrap_or_else(|| panic!("{advice}"));
    assert!(!before.contains("`pmof") && before.contains("Pool::replace"), "{advice}");
    let command = commands.split('`').nth(1).unwrap().replace("MEMBER", &a).replace("NEW", &new);
    let run = || pmof(command.strip_prefix("pmof ").unwrap().split(' '));
    run().failed(&["is open for writing by"]);
    pool.close().unwrap();
    assert!(!mend().unwrap().contains("once it has closed"), "{:?}", mend());
    assert_eq!(run().code, Some(0));
    assert_eq!(mend(), None);
}

#[test]
fn a_root_that_is_gone_has_no_list_of_pools() {
    let target = Target::start();
    made(&[&target.url("gone")]);
    fs::remove_dir_all(target.root.path()).unwrap();
    for long in [&[][..], &["--json"], &["-l"]] {
        let said = pmof(["pool", "ls", &target.address].iter().chain(long));
        assert_eq!((said.code, said.output.as_str()), (Some(1), ""), "{said:?}");
        assert!(said.errors.contains("is no longer the directory that this target opened"), "{said:?}");
    }
}

/// An increment of it would be of no use either.
#[test]
fn an_increment_of_a_damaged_export_is_refused() {
    let (target, place) = (Target::start(), directory());
    let url = target.url("orders");
    let pool = options(&url).create(1 << 20).unwrap();
    pool.persist(0, &pattern(1 << 20)).unwrap();
    pool.close().unwrap();
    let [full, next, digests, second] = ["full", "next", "digests", "second"].map(|name| place.path().join(name));
    pmof(["pool", "export", &url, text(&full), "--digests", text(&digests)]).done();
    let since = |base: &std::path::Path| pmof(["pool", "export", &url, text(&next), "--since", text(base), "--force"]);
    since(&digests).done();
    since(&full).done();
    pmof(["pool", "export", &url, text(&second), "--since", text(&next)]).done();
    let sound = fs::read(&full).unwrap();
    let file = File::options().write(true).open(&full).unwrap();
    file.write_all_at(&[!sound[500_000]], 500_000).unwrap();
    since(&full).differs(&["full is of no use here", "do not have their digest"]);
    file.write_all_at(&sound[500_000..500_001], 500_000).unwrap();
    file.set_len(sound.len() as u64 - 1).unwrap();
    since(&full).differs(&["full is of no use here", "cut short"]);
    fs::write(&full, [&sound[..], b"more"].concat()).unwrap();
    since(&full).differs(&["full is of no use here", "something follows its end"]);
    fs::write(&digests, [&fs::read(&digests).unwrap()[..], b"more"].concat()).unwrap();
    since(&digests).differs(&["digests is of no use here", "something follows its end"]);
}

/// It may be anybody's: who removes it is to look at it.
#[test]
fn a_file_that_is_no_pool_is_removed_by_hand() {
    let three: [Target; 3] = std::array::from_fn(|_| Target::start());
    let [here, there, third] = std::array::from_fn(|at: usize| three[at].url("p1"));
    let path = three[1].file("p1");
    for bytes in [&b""[..], &[0x5a; 4096]] {
        made(&[&here, &there, &third]);
        fs::write(&path, bytes).unwrap();
        let by_hand = format!("rm {}", path.display());
        pmof(["pool", "rm", "--force", &there]).failed(&["not touched", &by_hand]);
        pmof(["pool", "remove", &here, "1"]).done();
        let said = pmof(["pool", "add", &here, &there]);
        said.failed(&["exists already", &by_hand]);
        assert!(!said.errors.contains("--force"), "{said:?}");
        assert_eq!(fs::read(&path).unwrap(), bytes);
        fs::remove_file(&path).unwrap();
        pmof(["pool", "add", &here, &there]).done();
        pmof(["pool", "rm", &here, &there, &third]).done();
    }
}

#[test]
fn a_witness_is_made_anew_as_a_witness() {
    let three: [Target; 3] = std::array::from_fn(|_| Target::start());
    let [a, b, witness] = std::array::from_fn(|at: usize| three[at].url("t1"));
    made(&[&a, &b]);
    pmof(["pool", "add", "--witness", &a, &witness]);
    fs::remove_file(three[2].file("t1")).unwrap();
    let said = pmof(["pool", "status", &a]).done();
    let mend = said.lines().find(|line| line.starts_with("mend")).unwrap();
    assert!(mend.contains("`pmof pool add --witness`"), "{said}");
    let said = pmof(["pool", "replace", &a, "2", &witness]);
    said.failed(&[&format!("`pmof pool add --witness {a} {witness}`")]);
    for command in said.errors.split('`').skip(1).step_by(2) {
        let said = pmof(command.strip_prefix("pmof ").unwrap().split(' '));
        assert_eq!(said.code, Some(0), "{said:?}");
    }
    let report = pmof(["pool", "status", "--json", &a]).json();
    assert_eq!(report["members"][2]["state"], "witness", "{report}");
}

#[test]
fn what_is_left_of_a_pool_is_removed_as_is_advised() {
    let three: [Target; 3] = std::array::from_fn(|_| Target::start());
    let [here, there, third] = std::array::from_fn(|at: usize| three[at].url("p1"));
    made(&[&here, &there, &third]);
    let file = File::options().write(true).open(three[1].file("p1")).unwrap();
    file.write_all_at(&[0xff; 64], 100).unwrap();
    let mend = || {
        let said = pmof(["pool", "status", &here]).output;
        said.lines().find(|line| line.starts_with("mend")).unwrap_or_else(|| panic!("{said}")).to_owned()
    };
    assert!(mend().contains("`pmof pool rm --force`"), "{}", mend());
    fs::remove_file(three[1].file("p1")).unwrap();
    assert!(!mend().contains("pool rm"), "{}", mend());
    pmof(["pool", "rm", &here]).failed(&["name all of them"]);
    pmof(["pool", "rm", &here, &there, &third]).failed(&["there is no pool p1", "nothing was removed", "--force"]);
    pmof(["pool", "rm", "--force", &here, &there, &third]).done();
}

#[test]
fn the_name_of_a_pool_in_the_address_of_a_target_is_told() {
    for command in [&["status"][..], &["pool", "ls"]] {
        let said = pmof(command.iter().chain(&["tcp://127.0.0.1:7204/orders"]));
        said.wrong_use(&["names the pool orders", "tcp://127.0.0.1:7204"]);
        assert!(!said.errors.contains("lacks a host"), "{said:?}");
        pmof(command.iter().chain(&["tcp://127.0.0.1:65536/orders"])).wrong_use(&["lacks a host"]);
    }
}

#[test]
fn an_export_is_not_blamed_for_a_target_that_died() {
    let (mut target, source, place) = (Target::start(), Target::start(), directory());
    let (url, size_bytes) = (source.url("orders"), 40 << 20);
    let pool = options(&url).create(size_bytes as u64).unwrap();
    pool.persist(0, &pattern(size_bytes)).unwrap();
    pool.close().unwrap();
    let export = place.path().join("export");
    pmof(["pool", "export", &url, text(&export)]).done();
    let bytes = fs::read(&export).unwrap();
    let arguments = ["pool", "import", "--durability", "process-crash", "-", &target.url("orders")];
    let mut import = command(arguments);
    import
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let mut import = import.spawn().unwrap();
    let mut input = import.stdin.take().unwrap();
    input.write_all(&bytes[..1 << 20]).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    target.kill();
    // It may have ended.
    let _ = input.write_all(&bytes[1 << 20..]);
    drop(input);
    let said = import.wait_with_output().unwrap();
    let errors = String::from_utf8(said.stderr).unwrap();
    assert_eq!(said.status.code(), Some(1), "{errors}");
    assert!(errors.contains("cannot import") && !errors.contains("of no use"), "{errors}");
}
