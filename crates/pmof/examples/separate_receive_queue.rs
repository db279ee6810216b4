//! Outcomes of receives on one completion queue, those of writes and sends on another: each has its own thread.
//!
//! ```sh
//! cargo run -p pmof --example separate_receive_queue -- serve tcp://127.0.0.1:7204
//! cargo run -p pmof --example separate_receive_queue -- tcp://127.0.0.1:7204
//! ```
//!
//! The part of a program that reacts to messages never sees the outcomes of what another part posts. Either queue drives the
//! connection.

mod shared;

use std::{process::ExitCode, thread};

use pmof::access::{
    AcceptOptions, Access, CompletionQueue, Connection, OperationKind, Outcome, QueueOptions, Region, Signal,
};
use shared::{Arguments, Failure, PATIENCE};

const MESSAGES: u64 = 20;
const MESSAGE_BYTES: u64 = 8;

fn main() -> ExitCode {
    shared::run(("", serve), ("", talk))
}

/// The target sends every message back.
fn serve(arguments: &Arguments) -> Result<(), Failure> {
    let (peer, listener) = arguments.listen()?;
    let queue = peer.completion_queue(QueueOptions::default())?;
    let inbox = peer.allocate(MESSAGE_BYTES, Access::empty())?;
    let connection = shared::next_request(&listener)?.accept(&queue, &AcceptOptions::default())?;
    for _ in 0..MESSAGES {
        let receive = connection.receive(inbox.slice(..)?, 0)?;
        shared::outcome(&connection, receive)?;
        let mut batch = connection.batch();
        batch.signal(Signal::OnError).send(&number(&inbox, 0)?.to_le_bytes())?;
    }
    shared::serve_until_closed(&connection)
}

fn talk(arguments: &Arguments) -> Result<(), Failure> {
    let peer = arguments.peer()?;
    let queue = peer.completion_queue(QueueOptions::default())?;
    let receives = peer.completion_queue(QueueOptions::default())?;
    let options = arguments.options([]).receive_queue(Some(receives.clone()));
    let connection = peer.connect(&arguments.address, &queue, &options)?;
    let inbox = peer.allocate(MESSAGES * MESSAGE_BYTES, Access::empty())?;
    for message in 0..MESSAGES {
        let slot = message * MESSAGE_BYTES..(message + 1) * MESSAGE_BYTES;
        connection.receive(inbox.slice(slot)?, message)?;
    }

    let sum = thread::scope(|scope| {
        let listening = scope.spawn(|| add_up(&receives, &inbox).map_err(|error| error.to_string()));
        send_all(&connection, &queue)?;
        listening.join().map_err(|_| "the thread of the receives panicked")?.map_err(Failure::from)
    })?;
    println!("sent {MESSAGES} numbers, and what came back adds up to {sum}");
    connection.close(PATIENCE);
    Ok(())
}

/// Sees sends alone.
fn send_all(connection: &Connection, queue: &CompletionQueue) -> Result<(), Failure> {
    for message in 0..MESSAGES {
        connection.send(&message.to_le_bytes())?;
        let done = queue.wait(PATIENCE).ok_or("no outcome in time")?;
        done.outcome?;
        if done.kind != OperationKind::Send {
            return Err(format!("among the sends there is a {:?}", done.kind).into());
        }
    }
    Ok(())
}

/// Sees receives alone.
fn add_up(receives: &CompletionQueue, inbox: &Region) -> Result<u64, Failure> {
    let mut sum = 0;
    for _ in 0..MESSAGES {
        let done = receives.wait(PATIENCE).ok_or("no message in time")?;
        match done.outcome? {
            Outcome::Received { len_bytes: MESSAGE_BYTES, .. } => sum += number(inbox, done.context)?,
            other => return Err(format!("among the receives there is {other:?}").into()),
        }
    }
    Ok(sum)
}

fn number(inbox: &Region, slot: u64) -> Result<u64, Failure> {
    let mut bytes = [0; MESSAGE_BYTES as usize];
    inbox.read(slot * MESSAGE_BYTES, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}
