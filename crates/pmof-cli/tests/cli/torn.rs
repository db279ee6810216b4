//! The newest copy of a state that an earlier version wrote is damaged: what is advised then works.

use std::{fs, os::unix::fs::FileExt as _};

use pmof::{Durability, Pool, PoolOptions};
use pmof_control::{STATE_BYTES, STATE_OFFSET};

use crate::support::{Target, directory, pmof, text};

fn options(urls: &[String]) -> PoolOptions {
    urls.iter().fold(Pool::options().require(Durability::ProcessCrash), |options, url| options.replica(url.as_str()))
}

/// As an earlier version left it that kept each state in one of two slots, and died while it wrote one.
fn tear_newest_state(target: &Target, name: &str) {
    let file = fs::File::options().read(true).write(true).open(target.file(name)).unwrap();
    let (mut page, slot_bytes) = ([0; STATE_BYTES], STATE_BYTES / 2);
    file.read_exact_at(&mut page, STATE_OFFSET).unwrap();
    let sequence = |page: &[u8], slot: usize| page[slot * slot_bytes + 8..][..8].to_vec();
    let newest = usize::from(sequence(&page, 1) > sequence(&page, 0));
    for slot in page.chunks_mut(slot_bytes) {
        slot[50] = 0;
        let checksum = crc32c::crc32c(&slot[..slot_bytes - 4]).to_le_bytes();
        slot[slot_bytes - 4..].copy_from_slice(&checksum);
    }
    page[newest * slot_bytes + 1000..][..8].fill(0xee);
    file.write_all_at(&page, STATE_OFFSET).unwrap();
}

#[test]
fn a_state_that_is_torn_on_all_members_is_read_and_made_anew() {
    let (two, place): ([Target; 2], _) = (std::array::from_fn(|_| Target::start()), directory());
    let urls: Vec<_> = two.iter().map(|target| target.url("orders")).collect();
    let file = place.path().join("orders");
    let bytes: Vec<u8> = (0..10_000_u32).map(|at| at as u8).collect();
    fs::write(&file, &bytes).unwrap();
    pmof(["cp", "--durability", "process-crash", text(&file), &urls[0], "--replica", &urls[1]]).done();
    for target in &two {
        tear_newest_state(target, "orders");
    }

    let read = place.path().join("read");
    let said = pmof(["cp", &urls[0], "--replica", &urls[1], text(&read)]);
    said.failed(&["pmof cp --min-replicas 1 MEMBER FILE", "pmof pool rm --force", "pmof cp FILE POOL"]);
    for url in &urls {
        let said = pmof(["cp", "--min-replicas", "1", url, text(&read), "--force"]);
        assert!(said.code == Some(0) && said.errors.contains("others may have newer data"), "{said:?}");
        assert!(fs::read(&read).unwrap() == bytes, "{url}");
    }
    pmof(["pool", "rm", "--force", &urls[0], &urls[1]]).done();
    pmof(["cp", "--durability", "process-crash", text(&read), &urls[0], "--replica", &urls[1]]).done();
    options(&urls).open().unwrap().close().unwrap();
}

#[test]
fn a_member_whose_state_is_torn_is_replaced() {
    let four: [Target; 4] = std::array::from_fn(|_| Target::start());
    let urls: Vec<_> = four.iter().map(|target| target.url("orders")).collect();
    options(&urls[..3]).create(1 << 20).unwrap().close().unwrap();
    tear_newest_state(&four[2], "orders");
    let opened = options(&urls[..3]).open().unwrap();
    let [(_, why)] = opened.left_out() else { panic!("{:?}", opened.left_out()) };
    assert!(why.to_string().contains("replace it (pmof pool replace)"), "{why}");
    opened.close().unwrap();
    pmof(["pool", "replace", &urls[0], &urls[2], &urls[3]]).done();
    let opened = options(&[urls[0].clone(), urls[1].clone(), urls[3].clone()]).open().unwrap();
    assert!(opened.left_out().is_empty(), "{:?}", opened.left_out());
}
