//! Many writes, one flush: the initiator names the failure that they are to survive, and learns how that was reached.
//!
//! ```sh
//! cargo run -p pmof --example flush -- serve tcp://127.0.0.1:7204 example.pmem
//! cargo run -p pmof --example flush -- tcp://127.0.0.1:7204 power-failure
//! ```
//!
//! Levels: `visible`, `process-crash`, `power-failure`. Without one the strongest that the target's memory can give is taken.
//! One that it cannot give is refused when the flush is posted. Of the methods the cheapest that gives the level is used;
//! `ConnectOptions::method` would force one.

mod shared;

use std::{process::ExitCode, sync::Arc};

use pmof::{
    Durability,
    access::{AcceptOptions, Access, Outcome, QueueOptions, Signal},
};
use shared::{Arguments, DATA_OFFSET, Failure, PATIENCE};

const LINES: u64 = 100;
const LINE_BYTES: u64 = 64;

fn main() -> ExitCode {
    shared::run(("[FILE]", serve), ("[LEVEL]", write))
}

fn serve(arguments: &Arguments) -> Result<(), Failure> {
    let memory = arguments.memory()?;
    let (peer, listener) = arguments.listen()?;
    let queue = peer.completion_queue(QueueOptions::default())?;
    let access = Access::READ | Access::WRITE | Access::FLUSH_PERSISTENT;
    let region = peer.register(Arc::clone(&memory), DATA_OFFSET, LINES * LINE_BYTES, access)?;
    if let Some(why) = region.why_not_direct() {
        println!("devices cannot reach this memory, so that this CPU serves it: {why}");
    }
    let options = AcceptOptions::default().private_data(region.descriptor().to_vec());
    let connection = shared::next_request(&listener)?.accept(&queue, &options)?;
    shared::serve_until_closed(&connection)
}

fn level(word: &str) -> Result<Durability, Failure> {
    match word {
        "visible" => Ok(Durability::Visible),
        "process-crash" => Ok(Durability::ProcessCrash),
        "power-failure" => Ok(Durability::PowerFailure),
        _ => Err(shared::misuse(format!("{word:?} is no level: write visible, process-crash or power-failure"))),
    }
}

fn write(arguments: &Arguments) -> Result<(), Failure> {
    let asked = arguments.more.first().map(|word| level(word)).transpose()?;
    let peer = arguments.peer()?;
    let queue = peer.completion_queue(QueueOptions::default())?;
    let connection = peer.connect(&arguments.address, &queue, &arguments.options([]))?;
    let remote = connection.remote_region(connection.private_data())?;

    // Over shm the memory is mapped first: until then the target's CPU would do what this one can.
    connection.prepare(&remote, PATIENCE);
    for level in Durability::ALL {
        match connection.flush_method(&remote, level) {
            Ok((method, promise)) => println!("{level}: {method} ({}, {})", promise.mechanism, promise.evidence),
            Err(refused) => println!("{level}: {refused}"),
        }
    }

    let level = asked.unwrap_or_else(|| remote.strongest());
    let mut batch = connection.batch();
    // The writes say something only if they fail: the flush vouches for all that was posted before it.
    batch.signal(Signal::OnError);
    for line in 0..LINES {
        batch.write(&remote, line * LINE_BYTES, format!("line {line}").as_bytes())?;
    }
    let flush = batch.signal(Signal::Always).flush(&remote, .., level)?;
    batch.submit();
    let Outcome::Flushed(flushed) = shared::outcome(&connection, flush)? else {
        return Err("a flush that is no flush".into());
    };
    println!("{LINES} writes, one flush: {}", flushed.durability);
    connection.close(PATIENCE);
    Ok(())
}
