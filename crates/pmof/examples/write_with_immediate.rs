//! A write with an immediate: the bytes go into the target's region, and a receive of the target tells that they did.
//!
//! ```sh
//! cargo run -p pmof --example write_with_immediate -- serve tcp://127.0.0.1:7204
//! cargo run -p pmof --example write_with_immediate -- tcp://127.0.0.1:7204
//! ```
//!
//! Plain writes tell the target's program nothing. Here the immediate is the number of the slot that was filled; the receive
//! stays empty, since the bytes are in the region. Plain writes posted before it have arrived too.

mod shared;

use std::process::ExitCode;

use pmof::access::{AcceptOptions, Access, OperationKind, Outcome, QueueOptions, Signal};
use shared::{Arguments, Failure, PATIENCE};

const SLOTS: u32 = 3;
const SLOT_BYTES: u64 = 64;

fn main() -> ExitCode {
    shared::run(("", serve), ("", write))
}

fn serve(arguments: &Arguments) -> Result<(), Failure> {
    let (peer, listener) = arguments.listen()?;
    let queue = peer.completion_queue(QueueOptions::default())?;
    let slots = peer.allocate(u64::from(SLOTS) * SLOT_BYTES, Access::WRITE)?;
    let nothing = peer.allocate(1, Access::empty())?;
    let options = AcceptOptions::default().private_data(slots.descriptor().to_vec());
    let connection = shared::next_request(&listener)?.accept(&queue, &options)?;
    for _ in 0..SLOTS {
        connection.receive(nothing.slice(..0)?, 0)?;
    }
    for _ in 0..SLOTS {
        let done = queue.wait(PATIENCE).ok_or("nothing is written")?;
        let Outcome::Received { len_bytes, immediate: Some(slot) } = done.outcome? else {
            return Err("a message without a number".into());
        };
        if done.kind != OperationKind::ReceiveWriteImmediate || slot >= SLOTS || len_bytes > SLOT_BYTES {
            return Err(format!("no slot was filled: {:?} {slot}", done.kind).into());
        }
        let mut text = vec![0; usize::try_from(len_bytes)?];
        slots.read(u64::from(slot) * SLOT_BYTES, &mut text)?;
        println!("slot {slot}: {}", String::from_utf8_lossy(&text));
    }
    shared::serve_until_closed(&connection)
}

fn write(arguments: &Arguments) -> Result<(), Failure> {
    let peer = arguments.peer()?;
    let queue = peer.completion_queue(QueueOptions::default())?;
    let connection = peer.connect(&arguments.address, &queue, &arguments.options([]))?;
    let remote = connection.remote_region(connection.private_data())?;
    let mut batch = connection.batch();
    batch.signal(Signal::OnError);
    for slot in (1..SLOTS).rev() {
        batch.write_with_immediate(&remote, u64::from(slot) * SLOT_BYTES, &format!("written to {slot}"), slot)?;
    }
    let last = batch.signal(Signal::Always).write_with_immediate(&remote, 0, "the last one", 0)?;
    batch.submit();
    shared::outcome(&connection, last)?;
    println!("filled {SLOTS} slots");
    connection.close(PATIENCE);
    Ok(())
}
