//! What the command does for sets with remote replicas, as a program calls it: over a real sshd.

use std::{fs, os::unix::fs::FileExt as _, path::PathBuf};

use pmof::{Pool, SetOptions, TargetOptions, causes};
use pmof_pool::{RemoteState, SetRemoval, SetRemovalError, SshReplicas};
use pmof_pool_set::{
    NewPool, NewSet, PoolSet, RemoteReplicas as _, ReplicaState, SyncError, SyncOptions, TransformOptions,
};

use crate::support::Sshd;

const MIB: u64 = 1 << 20;

struct Fixture {
    sshd: Sshd,
    options: TargetOptions,
}

impl Fixture {
    fn new() -> Self {
        let sshd = Sshd::start();
        let options = TargetOptions::default().ssh(sshd.options());
        sshd.configure_client("Host away\n  ProxyCommand exit 1\n");
        let fixture = Self { sshd, options };
        for name in ["a", "b"] {
            let text = format!("PMEMPOOLSET\n9M {}\n", fixture.path(name).display());
            fs::write(fixture.sshd.directory().join(format!("root/{name}.set")), text).unwrap();
        }
        fixture
    }

    fn path(&self, name: &str) -> PathBuf {
        self.sshd.directory().join(name)
    }

    fn set(&self, remotes: &str) -> PoolSet {
        let text = format!("PMEMPOOLSET\n9M {}\n{remotes}", self.path("one").display());
        PoolSet::parse(&self.path("set"), text.as_bytes()).unwrap()
    }

    fn pool(&self, set: &PoolSet) -> SetOptions {
        Pool::from_set(set.clone()).target(self.options.clone())
    }

    fn states(&self, set: &PoolSet) -> Vec<ReplicaState> {
        let report = self.pool(set).check(&mut |_| {}).unwrap();
        (0..set.replicas.len()).map(|index| report.state(index)).collect()
    }

    fn poke(&self, name: &str, offset: u64) {
        fs::File::options().write(true).open(self.path(name)).unwrap().write_all_at(&[0xee], offset).unwrap();
    }
}

#[test]
#[ignore = "needs sshd: the suite `ssh` of `cargo xtask test` runs it"]
fn sets_are_checked_restored_changed_and_removed_by_calls() {
    use ReplicaState::{Differs, Equal, Sound, Unchecked, Unsound};
    let fixture = Fixture::new();
    let set = fixture.set("REPLICA 127.0.0.1 a.set\nREPLICA localhost b.set\n");
    let new = NewSet::new(NewPool::Obj { layout: "test".into() });
    fixture.pool(&set).create(&new).unwrap().close().unwrap();
    assert_eq!(fixture.states(&set), [Sound, Equal, Equal]);
    fixture.poke("a", 8 * MIB);
    fixture.poke("b", 30);
    fixture.poke("b", 8 * MIB + 1);
    assert_eq!(fixture.states(&set), [Sound, Differs, Unsound]);
    let mut replicas = SshReplicas::new(&fixture.options);
    let state = replicas.state(set.replicas[2].remote().unwrap());
    assert!(matches!(&state, RemoteState::Unsound(why) if why.starts_with("on localhost: the header")), "{state:?}");
    // Opening compares as check does.
    assert!(fixture.pool(&set).open().is_err());

    // What lies behind the damaged header may be newer.
    let asked = fixture.pool(&set).sync(&SyncOptions::default(), &mut |_| {}).unwrap_err();
    assert!(matches!(asked, SyncError::Kept { index: 2, source_index: 0, offset } if offset == 8 * MIB + 1), "{asked}");
    let sync = |dry_run| {
        let how = SyncOptions::default().dry_run(dry_run).from(Some(0));
        fixture.pool(&set).sync(&how, &mut |_| {}).unwrap()
    };
    assert!(sync(true).replicas[1].damage.is_some());
    assert_eq!(fixture.states(&set), [Sound, Differs, Unsound]);
    assert_eq!(sync(false).replicas[0].copied.blocks, 1);
    assert_eq!(fixture.states(&set), [Sound, Equal, Equal]);
    fixture.pool(&set).open().unwrap().close().unwrap();
    // Where it is not, nobody is asked.
    fixture.poke("b", 30);
    assert_eq!(fixture.states(&set), [Sound, Equal, Unsound]);
    let done = fixture.pool(&set).sync(&SyncOptions::default(), &mut |_| {}).unwrap();
    assert!(done.replicas[1].damage.is_some() && done.replicas[0].copied.blocks == 0, "{done:?}");
    assert_eq!(fixture.states(&set), [Sound, Equal, Equal]);

    // The same replica at a host that does not answer.
    let away = fixture.set("REPLICA 127.0.0.1 a.set\nREPLICA away b.set\n");
    assert_eq!(fixture.states(&away), [Sound, Equal, Unchecked]);
    let fewer = fixture.set("REPLICA 127.0.0.1 a.set\n");
    let transform = |lost: &[&str]| {
        let lost = lost.iter().map(|host| (*host).to_owned()).collect();
        let how = TransformOptions::default().lost(lost);
        fixture.pool(&away).transform(&fewer, &how, &mut |_| {})
    };
    assert!(matches!(transform(&[]), Err(SyncError::HostAway { index: 2, .. })));
    assert_eq!(transform(&["away"]).unwrap().left, [2]);
    assert_eq!(fixture.states(&fewer), [Sound, Equal]);
    let refused = SetRemoval::prepare(&away, true, &fixture.options).unwrap_err();
    assert!(matches!(&refused, SetRemovalError::Refused { reasons, .. } if reasons.len() == 1), "{refused}");
    SetRemoval::prepare(&fewer, false, &fixture.options).unwrap().carry_out().unwrap();
    let left = set.replicas[2].remote().unwrap();
    let RemoteState::Sound { attributes, .. } = replicas.state(left) else { panic!("it is left as it was") };
    fixture.poke("b", 200);
    // For another pool nothing is removed or overwritten, though the header is damaged.
    let before = fs::read(fixture.path("b")).unwrap();
    for refused in [replicas.check_removable(left, &[9; 16]), replicas.remove(left, &[9; 16])] {
        let text = causes(&*refused.unwrap_err()).to_string();
        assert!(text.contains("looks like a damaged part of the pool set") && text.contains("localhost"), "{text}");
    }
    let other = fixture.set("");
    fixture.pool(&other).create(&new).unwrap().close().unwrap();
    let mixed = fixture.set("REPLICA localhost b.set\n");
    let failed = fixture.pool(&mixed).sync(&SyncOptions::default(), &mut |_| {}).unwrap_err();
    let failed = causes(&failed).to_string();
    assert!(failed.contains("replica 1 failed: ") && failed.contains("is not overwritten"), "{failed}");
    assert!(fs::read(fixture.path("b")).unwrap() == before);
    SetRemoval::prepare(&other, false, &fixture.options).unwrap().carry_out().unwrap();
    replicas.remove(left, &attributes.poolset_uuid).unwrap();
    assert!(["one", "a", "b"].iter().all(|name| !fixture.path(name).exists()));
}
