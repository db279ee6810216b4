//! What pmof tells the program's logger: connections that come, are refused and get lost, and how flushes go.
//!
//! ```sh
//! cargo run -p pmof --example logging -- serve tcp://127.0.0.1:7204 info
//! cargo run -p pmof --example logging -- tcp://127.0.0.1:7204 debug
//! ```
//!
//! pmof uses the crate `log`, so any logger will do; here is a small one. Without one nothing is told. The word is the
//! threshold: `error`, `warn`, `info`, `debug`. The page of the crate `pmof_access` lists what is told at which.

mod shared;

use std::process::ExitCode;

use log::{LevelFilter, Log, Metadata, Record};
use pmof::{
    Durability,
    access::{AcceptOptions, Access, ConnectionEvent, QueueOptions, Refusal},
};
use shared::{Arguments, Failure, PATIENCE};

fn main() -> ExitCode {
    shared::run(("[LEVEL]", serve), ("[LEVEL]", connect))
}

/// Prints what pmof says, and nothing of other libraries.
struct Printer;

impl Log for Printer {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("pmof::")
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            println!("{} {}: {}", record.level(), record.target(), record.args());
        }
    }

    fn flush(&self) {}
}

fn start_logging(arguments: &Arguments) -> Result<(), Failure> {
    let level = match arguments.more.first() {
        Some(word) => word.parse().map_err(|_| shared::misuse(format!("{word:?} is no level of logging")))?,
        None => LevelFilter::Debug,
    };
    log::set_logger(&Printer)?;
    log::set_max_level(level);
    Ok(())
}

fn serve(arguments: &Arguments) -> Result<(), Failure> {
    start_logging(arguments)?;
    let (peer, listener) = arguments.listen()?;
    let queue = peer.completion_queue(QueueOptions::default())?;
    let memory = peer.allocate(64, Access::WRITE | Access::FLUSH_VISIBLE)?;
    let options = AcceptOptions::default().private_data(memory.descriptor().to_vec());

    shared::next_request(&listener)?.reject(Refusal::Rejected, &[])?;
    let connection = shared::next_request(&listener)?.accept(&queue, &options)?;
    while let Some(event) = connection.next_event(PATIENCE) {
        match event {
            ConnectionEvent::Closed => return Err("the other side did not vanish".into()),
            // The log has said so already, and why.
            ConnectionEvent::Lost(_) => return Ok(()),
            _ => {}
        }
    }
    Err("the other side stays for ever".into())
}

fn connect(arguments: &Arguments) -> Result<(), Failure> {
    start_logging(arguments)?;
    let peer = arguments.peer()?;
    let queue = peer.completion_queue(QueueOptions::default())?;
    if peer.connect(&arguments.address, &queue, &arguments.options([])).is_ok() {
        return Err("the first request is to be refused".into());
    }
    let connection = peer.connect(&arguments.address, &queue, &arguments.options([]))?;
    let remote = connection.remote_region(connection.private_data())?;
    connection.prepare(&remote, PATIENCE);
    for _ in 0..3 {
        connection.write(&remote, 0, "told")?;
        // How it goes is told once.
        shared::outcome(&connection, connection.flush(&remote, .., Durability::Visible)?)?;
    }
    // Gone without a word, as a program that is killed: the other side counts this as a loss.
    std::process::exit(0)
}
