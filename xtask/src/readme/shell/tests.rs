use super::*;

fn shell(directory: &Path) -> Shell {
    Shell::start(Command::new("bash").current_dir(directory), &directory.join("outputs")).unwrap()
}

fn command(text: &str, prints: Option<&str>, exit_status: i32) -> PageCommand {
    PageCommand { text: text.to_owned(), prints: prints.map(str::to_owned), exit_status }
}

#[test]
fn commands_share_a_shell_and_are_held_to_their_comments() {
    let directory = tempfile::tempdir().unwrap();
    let mut shell = shell(directory.path());
    shell.run(&command("export GREETING='it is'", None, 0)).unwrap();
    shell.run(&command("cat > words <<END\n$GREETING so\nEND", None, 0)).unwrap();
    shell.run(&command("cat words; exec 3<&0", Some("it is so"), 0)).unwrap();
    shell.run(&command("echo why >&2; false", Some("why"), 1)).unwrap();
}

#[test]
fn what_is_wrong_is_seen() {
    let directory = tempfile::tempdir().unwrap();
    let error = |wrong: PageCommand| format!("{:#}", shell(directory.path()).run(&wrong).unwrap_err());
    assert!(error(command("no-such-program --help", None, 0)).contains("exit status 127"));
    assert!(error(command("echo one", Some("two"), 0)).contains("prints something else"));
    assert!(error(command("echo one", Some("one"), 1)).contains("exit status 0"));
    assert!(error(command("exit 4", None, 0)).contains("bash ended"));
    assert!(error(command("pmof serve --nothing", None, 0)).contains("must say what it prints"));
}

#[test]
fn a_service_runs_until_the_shell_ends() {
    let directory = tempfile::tempdir().unwrap();
    let mut shell = shell(directory.path());
    shell.run(&command("pmof() { echo ready \"$1\"; echo $BASHPID >service; sleep 1000; }", None, 0)).unwrap();
    shell.run(&command("pmof serve --root x", Some("ready serve"), 0)).unwrap();
    shell.run(&command("while [ ! -s service ]; do sleep 0.01; done", None, 0)).unwrap();
    let process = fs::read_to_string(directory.path().join("service")).unwrap();
    let process = Path::new("/proc").join(process.trim());
    assert!(process.exists());
    drop(shell);
    let deadline = Instant::now() + Duration::from_secs(10);
    while process.exists() {
        assert!(Instant::now() < deadline, "the service goes on");
        thread::sleep(POLL);
    }
}
