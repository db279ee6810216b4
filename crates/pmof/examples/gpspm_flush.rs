//! A flush made by hand: write, ask the target's program by a message to make it durable, wait for its answer (GPSPM, the
//! general-purpose server persistency method).
//!
//! ```sh
//! cargo run -p pmof --example gpspm_flush -- serve tcp://127.0.0.1:7204 example.pmem
//! cargo run -p pmof --example gpspm_flush -- tcp://127.0.0.1:7204
//! ```
//!
//! This is what `Connection::flush` does by the method send-after-write, and better: it names what was written, shares a
//! flush among many writes, needs no code at the target, and leaves the target's CPU alone where devices can flush. By hand
//! it is for targets that do more on the way.

mod shared;

use std::{process::ExitCode, sync::Arc};

use pmof::{
    Durability,
    access::{AcceptOptions, Access, Medium, OperationError, Outcome, QueueOptions, Signal},
};
use shared::{Arguments, DATA_OFFSET, Failure, PATIENCE};

const LEN_BYTES: u64 = 4096;
/// Offset and length in the region, and a number that comes back: 8 bytes each.
const REQUEST_BYTES: u64 = 24;
/// The number, and whether the bytes now survive loss of power.
const REPLY_BYTES: u64 = 9;

fn main() -> ExitCode {
    shared::run(("[FILE]", serve), ("", write))
}

fn serve(arguments: &Arguments) -> Result<(), Failure> {
    let memory = arguments.memory()?;
    let (peer, listener) = arguments.listen()?;
    let queue = peer.completion_queue(QueueOptions::default())?;
    // No right to flush: whoever wants that asks.
    let region = peer.register(Arc::clone(&memory), DATA_OFFSET, LEN_BYTES, Access::WRITE)?;
    let inbox = peer.allocate(REQUEST_BYTES, Access::empty())?;
    let options = AcceptOptions::default().private_data(region.descriptor().to_vec());
    let connection = shared::next_request(&listener)?.accept(&queue, &options)?;
    connection.receive(inbox.slice(..)?, 0)?;
    loop {
        let done = queue.wait(PATIENCE).ok_or("the other side asks for nothing")?;
        match done.outcome {
            Ok(Outcome::Received { len_bytes: REQUEST_BYTES, .. }) => {}
            Err(OperationError::ConnectionEnded(_)) => return shared::serve_until_closed(&connection),
            other => return Err(format!("not a request: {other:?}").into()),
        }
        let [offset, len_bytes, number] = words(|at, word| inbox.read(at, word))?;
        // The message came after the write, so all of it has arrived. What a peer asks for is checked all the same.
        let end = offset.checked_add(len_bytes).filter(|end| *end <= LEN_BYTES).ok_or("a range outside the region")?;
        memory.write_back(DATA_OFFSET + offset, len_bytes)?;
        memory.fence()?;
        println!("wrote back bytes {offset} to {end}");
        connection.receive(inbox.slice(..)?, 0)?;
        let is_durable = memory.promise(Durability::PowerFailure).is_some();
        let mut reply = number.to_le_bytes().to_vec();
        reply.push(u8::from(is_durable));
        let mut batch = connection.batch();
        batch.signal(Signal::OnError).send(&reply)?;
    }
}

fn write(arguments: &Arguments) -> Result<(), Failure> {
    const NUMBER: u64 = 42;
    let peer = arguments.peer()?;
    let queue = peer.completion_queue(QueueOptions::default())?;
    let connection = peer.connect(&arguments.address, &queue, &arguments.options([]))?;
    let remote = connection.remote_region(connection.private_data())?;
    let inbox = peer.allocate(REPLY_BYTES, Access::empty())?;

    let text = b"made durable by request";
    let answer = connection.receive(inbox.slice(..)?, 0)?;
    let request = [0, text.len() as u64, NUMBER].map(u64::to_le_bytes).concat();
    let mut batch = connection.batch();
    batch.signal(Signal::OnError);
    batch.write(&remote, 0, text)?;
    batch.send(&request)?;
    batch.submit();
    let Outcome::Received { len_bytes: REPLY_BYTES, .. } = shared::outcome(&connection, answer)? else {
        return Err("not a reply".into());
    };
    let mut reply = [0; REPLY_BYTES as usize];
    inbox.read(0, &mut reply)?;
    if reply[..8] != NUMBER.to_le_bytes() {
        return Err("the reply is to something else".into());
    }
    let survives =
        if reply[8] == 1 { "loss of power" } else { "no loss of power: the target's memory cannot promise it" };
    println!("{} bytes survive {survives}", text.len());
    connection.close(PATIENCE);
    Ok(())
}

/// The numbers of a request.
fn words<E>(read: impl Fn(u64, &mut [u8]) -> Result<(), E>) -> Result<[u64; 3], E> {
    let mut words = [0; 3];
    for (word, at) in words.iter_mut().zip([0, 8, 16]) {
        let mut bytes = [0; 8];
        read(at, &mut bytes)?;
        *word = u64::from_le_bytes(bytes);
    }
    Ok(words)
}
