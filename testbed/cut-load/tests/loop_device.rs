//! Pools made, closed, opened and removed on ext4 over a loop device, and after each step a copy of what the device has
//! received by then: what a power cut at that moment leaves.
//!
//! Needs root and loop devices; skipped elsewhere. The machine of the test bed does the same with real cuts.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs::{self, File},
    io::Write as _,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use cut_judge::{
    ledger::{Ledger, Operation},
    states,
};
use pmof::{Declaration, Service, ServiceOptions, StoreOptions, mem::Memory};
use tempfile::TempDir;

const IMAGE_BYTES: u64 = 20 << 20;

/// A step takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// A mounted image. Unmounted when dropped.
struct Mounted(PathBuf);

impl Mounted {
    /// Nothing is written for five minutes but what somebody asks for.
    fn new(image: &Path, at: PathBuf) -> Result<Self, String> {
        fs::create_dir(&at).unwrap();
        run("mount", [OsStr::new("-o"), "loop".as_ref(), image.as_ref(), at.as_ref()])?;
        Ok(Self(at))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A failure shows as a directory that cannot be removed.
        let _ = run("umount", [&self.0]);
        let _ = fs::remove_dir(&self.0);
    }
}

struct Load(Child);

impl Drop for Load {
    fn drop(&mut self) {
        // It has ended already, unless a check failed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run(program: &str, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Result<(), String> {
    let output = Command::new(program).args(arguments).output().map_err(|error| format!("{program}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("{program}: {}: {}", output.status, said.trim_end())) }
}

/// An ext2 or ext4 of its own, mounted; `None`, told, where that cannot be had.
fn file_system(directory: &Path, kind: &str) -> Option<(PathBuf, Mounted)> {
    let image = directory.join("disk");
    File::create(&image).unwrap().set_len(IMAGE_BYTES).unwrap();
    let made = run("mke2fs", ["-q", "-t", kind, "-E", "lazy_itable_init=0,lazy_journal_init=0", image.to_str()?]);
    let mounted = made.and_then(|()| Mounted::new(&image, directory.join("mounted")));
    match mounted {
        Ok(mounted) => Some((image, mounted)),
        Err(why) => {
            skip_report::skipped!("no {kind} on a loop device here ({why})");
            None
        }
    }
}

/// Waits for the next line of the ledger; `None` where the load has ended.
fn next_line(load: &mut Load, ledger: &Path, lines: usize) -> Option<Vec<u8>> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let bytes = fs::read(ledger).unwrap_or_default();
        if bytes.split(|byte| *byte == b'\n').count() > lines + 1 {
            return Some(bytes);
        }
        if let Some(status) = load.0.try_wait().unwrap() {
            assert!(status.success(), "the load ended with {status}");
            return None;
        }
        assert!(Instant::now() < deadline, "the load did nothing for {PATIENCE:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Judges what the device has received until now.
fn judge(directory: &Path, image: &Path, ledger: &[u8], seen: &mut BTreeSet<&'static str>) {
    let copy = directory.join("copy");
    fs::copy(image, &copy).unwrap();
    let mounted = Mounted::new(&copy, directory.join("after")).unwrap();
    let steps = Ledger::parse(ledger).unwrap().steps;
    let last = steps.last().unwrap();
    let names: BTreeSet<_> = steps.iter().map(|step| step.name.as_str()).collect();
    for name in names {
        let found = fs::read(mounted.0.join("pools").join(name)).ok();
        let verdict = states::judge(&steps, name, found.as_deref());
        assert_eq!(verdict, Ok(()), "after {last:?}");
    }
    seen.insert(match last.operation {
        Operation::Create => "create",
        Operation::Fill => "fill",
        Operation::Close => "close",
        Operation::Open => "open",
        Operation::Remove => "remove",
        Operation::Sync => "sync",
    });
}

#[test]
fn what_was_acknowledged_is_there_after_a_power_cut_at_each_step() {
    let directory = TempDir::new().unwrap();
    let Some((image, mounted)) = file_system(directory.path(), "ext4") else {
        return;
    };
    let pools = mounted.0.join("pools");
    fs::create_dir(&pools).unwrap();
    File::open(&mounted.0).unwrap().sync_all().unwrap();

    // Which disks lie below is for others to judge; fdatasync is what is tried here.
    let store = StoreOptions::default().declaration(Some(Declaration::BatteryBacked));
    let options = ServiceOptions::default().store(store);
    let service = Service::start(&pools, &["tcp://127.0.0.1:0".parse().unwrap()], options).unwrap();
    let ledger = directory.path().join("ledger");
    let mut load = Load(
        Command::new(env!("CARGO_BIN_EXE_cut-load"))
            .args(["operations", "--step", "--rounds", "4", "--url", &format!("{}/p", service.addresses()[0])])
            .arg("--ledger")
            .arg(&ledger)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let mut input = load.0.stdin.take().unwrap();
    let (mut lines, mut seen) = (0, BTreeSet::new());
    while let Some(told) = next_line(&mut load, &ledger, lines) {
        lines += 1;
        // At the beginning of an operation nothing has changed since the end of the one before.
        if Ledger::parse(&told).unwrap().steps.last().is_some_and(|step| step.is_done) {
            judge(directory.path(), &image, &told, &mut seen);
        }
        input.write_all(b"\n").unwrap();
    }
    assert_eq!(seen, BTreeSet::from(["close", "create", "fill", "open", "remove"]));
    drop(service);
}

/// ext4 makes its whole journal durable by either fsync; ext2 has none, and makes durable what it is told to.
#[test]
fn a_file_that_was_made_is_there_after_a_power_cut() {
    for kind in ["ext4", "ext2"] {
        let directory = TempDir::new().unwrap();
        let Some((image, mounted)) = file_system(directory.path(), kind) else { return };
        let memory = Memory::create(&mounted.0.join("made"), 1 << 20, None).unwrap();
        let copy = directory.path().join("copy");
        fs::copy(&image, &copy).unwrap();
        let after = Mounted::new(&copy, directory.path().join("after")).unwrap();
        let made = fs::metadata(after.0.join("made")).expect("the file that was made is gone");
        assert_eq!(made.len(), 1 << 20, "{kind}");
        assert!(made.blocks() * 512 >= made.len(), "{kind}: of the file's blocks {} are left", made.blocks());
        drop(memory);
    }
}
