use std::sync::Arc;

use pmof_replication::place::elsewhere;
use uuid::Uuid;

use super::*;

fn found(index: u16, url: &str) -> FoundMember {
    FoundMember { index, replica_uuid: Uuid::from_u128(index.into()), url: Arc::new(url.parse().unwrap()) }
}

fn urls(found: &[FoundMember]) -> Vec<Arc<PoolUrl>> {
    found.iter().map(|found| Arc::clone(&found.url)).collect()
}

fn three() -> Vec<FoundMember> {
    vec![found(0, "tcp://a:1/p"), found(1, "tcp://b:1/p"), found(2, "shm:///run/c?pool=p")]
}

#[test]
fn members_that_were_not_found_are_looked_for_where_they_were() {
    let all = three();
    let roster = made(&all);
    let told = |found: &[FoundMember], named: &[Arc<PoolUrl>]| -> Vec<String> {
        elsewhere(&roster, found, named).iter().map(|found| found.url.to_string()).collect()
    };
    assert_eq!(told(&all[..1], &urls(&all[..1])), ["tcp://b:1/p", "shm:///run/c?pool=p"]);
    assert_eq!(told(&all, &urls(&all)), [""; 0]);
    // One that was named and did not answer is not looked for there again.
    assert_eq!(told(&all[..1], &urls(&all[..2])), ["shm:///run/c?pool=p"]);
    // The one that was found lies elsewhere now.
    assert_eq!(told(&[found(1, "tcp://moved:1/p")], &[]), ["tcp://a:1/p", "shm:///run/c?pool=p"]);
}

#[test]
fn no_program_is_started_and_no_file_opened_because_a_roster_says_so() {
    let mut roster = made(&three());
    for url in ["ssh://me@c/p", "file:///srv/p", "", "no URL"] {
        roster.members[2].url = url.to_owned();
        assert_eq!(elsewhere(&roster, &three()[..2], &[]).len(), 0, "{url}");
    }
}

#[test]
fn what_is_noted_is_where_members_were_found_last() {
    let roster = made(&three());
    assert_eq!(noted(&roster, &three()), roster);
    assert_eq!(noted(&roster, &three()[1..]), roster, "of one that was not found nothing is forgotten");
    let moved = noted(&roster, &[found(1, "verbs://b2:1/p")]);
    assert_eq!((moved.age(), moved.members[1].url.as_str()), ((0, 2), "verbs://b2:1/p"));
    assert_eq!((&moved.members[0], &moved.members[2]), (&roster.members[0], &roster.members[2]));
    // From another machine shm leads nowhere.
    assert_eq!(noted(&roster, &[found(1, "shm:///run/b?pool=p")]), roster);
    assert_eq!(noted(&roster, &[found(1, "file:///srv/p")]), roster);
    assert_eq!(noted(&roster, &[found(2, "tcp://c:1/p")]).members[2].url, "tcp://c:1/p");
    assert_eq!(noted(&roster, &[found(2, "shm:///run/c2?pool=p")]).members[2].url, "shm:///run/c2?pool=p");
    assert_eq!(noted(&roster, &[found(7, "tcp://d:1/p")]), roster, "a replica of another index is no member");
}

#[test]
fn of_a_pool_without_a_roster_what_was_found_is_noted() {
    let noted = noted(&Roster::made(3), &three()[..2]);
    assert_eq!((noted.age(), noted.members[1].url.as_str()), ((0, 1), "tcp://b:1/p"));
    assert_eq!((noted.members[2].replica_uuid, noted.members[2].url.as_str()), (Uuid::nil(), ""));
}
