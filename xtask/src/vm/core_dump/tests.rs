use std::os::unix::process::ExitStatusExt as _;

use super::*;

/// A process that may leave a core in the directory, and is ended by SIGABRT.
fn aborted(directory: &Path) -> std::process::ExitStatus {
    let [shell, words @ ..] = UNLIMITED;
    let mut command = Command::new(shell);
    command.args(words).args(["sh", "-c", "kill -ABRT $$"]).current_dir(directory);
    command.status().unwrap()
}

#[test]
fn a_core_is_kept_or_said_to_be_elsewhere() {
    let (run, logs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    assert_eq!(aborted(run.path()).signal(), Some(6));
    let (kept, mut log) = (logs.path().join("run.core"), String::new());
    let told = keep(run.path(), Path::new("/bin/sh"), &kept, &mut log).unwrap();
    if kept.exists() {
        assert_eq!(told, format!("core: {}", kept.display()));
        assert!(fs::read(&kept).unwrap().starts_with(b"\x7fELF"));
        assert!(log.contains("== backtraces"), "{log}");
        assert!(tools::find("gdb").is_none() || log.contains("Thread 1"), "{log}");
    } else {
        // The kernel writes cores elsewhere, or may write none.
        assert!(told.contains("core_pattern"), "{told}");
    }
}

#[test]
fn without_a_core_the_kernels_pattern_is_named() {
    let run = tempfile::tempdir().unwrap();
    fs::create_dir(run.path().join("core")).unwrap();
    let told = keep(run.path(), Path::new("/bin/sh"), &run.path().join("kept.core"), &mut String::new()).unwrap();
    assert!(told.starts_with("no core in ") && told.contains("core_pattern"), "{told}");
}

#[test]
fn the_oldest_cores_go() {
    let logs = tempfile::tempdir().unwrap();
    for number in 0..KEPT_CORES + 2 {
        let run = tempfile::tempdir_in(logs.path()).unwrap();
        fs::write(run.path().join("core.17"), "not a core").unwrap();
        keep(run.path(), Path::new("/bin/sh"), &logs.path().join(format!("{number}.core")), &mut String::new())
            .unwrap();
    }
    let left = fs::read_dir(logs.path()).unwrap().flatten().filter(|entry| entry.path().is_file()).count();
    assert_eq!(left, KEPT_CORES);
    assert!(logs.path().join(format!("{}.core", KEPT_CORES + 1)).exists());
}
