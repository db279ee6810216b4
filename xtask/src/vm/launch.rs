//! Starting processes from one thread that lives as long as xtask.
//!
//! The parent-death signal of Linux is sent when the *thread* that started a process ends (prctl(2)). A QEMU started by
//! a thread of a suite would die with that thread; started here, it dies with xtask, however xtask ends.

use std::{
    io,
    process::{Child, Command},
    sync::{
        OnceLock,
        mpsc::{Sender, channel},
    },
    thread,
};

type Request = (Command, Sender<io::Result<Child>>);

/// Starts a command whose process ends at the latest with xtask, where the command asks for a parent-death signal.
pub(super) fn spawn(command: Command) -> io::Result<Child> {
    static LAUNCHER: OnceLock<Sender<Request>> = OnceLock::new();
    let launcher = LAUNCHER.get_or_init(|| {
        let (sender, receiver) = channel::<Request>();
        thread::spawn(move || {
            for (mut command, reply) in receiver {
                // The asker waits for the answer, so it is there.
                let _ = reply.send(command.spawn());
            }
        });
        sender
    });
    let (reply, answer) = channel();
    launcher.send((command, reply)).map_err(io::Error::other)?;
    answer.recv().map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn sleeper() -> Command {
        let mut command = super::super::tools::command("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "sleep", "60"]);
        command
    }

    #[test]
    fn a_process_outlives_the_thread_that_asked_for_it() {
        let mut child = thread::spawn(|| spawn(sleeper()).unwrap()).join().unwrap();
        thread::sleep(Duration::from_millis(300));
        assert_eq!(child.try_wait().unwrap(), None);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// The control: why the launcher is there.
    #[test]
    fn without_the_launcher_it_would_not() {
        // The child's standard output closes when setpriv has been replaced and sleep has been killed.
        let mut child = thread::spawn(|| {
            let child = sleeper().spawn().unwrap();
            let name = format!("/proc/{}/comm", child.id());
            while std::fs::read_to_string(&name).unwrap().trim() != "sleep" {
                thread::yield_now();
            }
            child
        })
        .join()
        .unwrap();
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn a_command_that_cannot_start_is_an_error() {
        assert_eq!(spawn(Command::new("/no/such/program")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
