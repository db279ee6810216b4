use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::net::UnixListener,
    path::PathBuf,
    sync::mpsc,
    thread,
    time::Duration,
};

use rustix::fs::{CWD, FileType};

use super::*;

/// Longer than opening takes on a busy machine.
const LONG: Duration = Duration::from_secs(20);

/// What `act` gives, which must not wait for anybody.
fn at_once<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, outcome) = mpsc::channel();
    thread::spawn(move || done.send(act()));
    outcome.recv_timeout(LONG).expect("it waits for nobody")
}

fn pipe(directory: &tempfile::TempDir) -> PathBuf {
    let path = directory.path().join("pipe");
    rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    path
}

#[test]
fn only_regular_files_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "text").unwrap();
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    for path in [&file, &link] {
        let mut text = String::new();
        open_to_read(path).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
    }
    assert_eq!(open_to_read(Path::new("/dev/null")).unwrap().read_to_end(&mut Vec::new()).unwrap(), 0);
    let socket = directory.path().join("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    for (path, kind) in [
        (pipe(&directory), "a pipe"),
        (directory.path().to_owned(), "a directory"),
        (socket, "a socket"),
        ("/dev/zero".into(), "a device"),
    ] {
        let error = at_once(move || open_to_read(&path)).unwrap_err();
        assert!(error.kind() == io::ErrorKind::InvalidInput && error.to_string().contains(kind), "{kind}: {error}");
    }
    assert_eq!(open_to_read(&directory.path().join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn what_can_be_appended_to_is_opened_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    for text in ["one ", "two"] {
        open_to_append(&file, true).unwrap().write_all(text.as_bytes()).unwrap();
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "one two");
    open_to_append(Path::new("/dev/null"), false).unwrap().write_all(b"text").unwrap();
    let path = pipe(&directory);
    let own = path.clone();
    let error = at_once(move || open_to_append(&own, false)).unwrap_err();
    assert!(error.to_string().contains("nobody reads"), "{error}");
    // One that somebody reads is written to as usual: it waits where the reader is slow.
    let own = path.clone();
    let reader = thread::spawn(move || {
        let mut bytes = Vec::new();
        File::open(own).unwrap().read_to_end(&mut bytes).unwrap();
        bytes.len()
    });
    let mut writer = loop {
        match open_to_append(&path, false) {
            Ok(writer) => break writer,
            Err(_) => thread::sleep(Duration::from_millis(1)),
        }
    };
    writer.write_all(&vec![b'x'; 1 << 20]).unwrap();
    drop(writer);
    assert_eq!(reader.join().unwrap(), 1 << 20);
    let error = open_to_append(directory.path(), false).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::IsADirectory);
}
