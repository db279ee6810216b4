//! Many connections take their messages from one queue of receives: memory for the messages that come, not for the
//! connections that there are.
//!
//! ```sh
//! cargo run -p pmof --example shared_receives -- serve tcp://127.0.0.1:7204 2
//! cargo run -p pmof --example shared_receives -- tcp://127.0.0.1:7204 Ada     # in two terminals
//! ```
//!
//! The number is that of the connections to serve. The completion names the connection that a message came on, and carries
//! the number that its receive was posted with: here that of the buffer.

mod shared;

use std::{collections::HashMap, process::ExitCode, time::Duration};

use pmof::access::{AcceptOptions, Access, Outcome, QueueOptions, Signal};
use shared::{Arguments, Failure, PATIENCE};

/// The buffers, and the longest message.
const BUFFERS: u64 = 8;
const BUFFER_BYTES: u64 = 64;
const MESSAGES: u32 = 5;

fn main() -> ExitCode {
    shared::run(("[COUNT]", serve), ("[WORD]", send))
}

fn serve(arguments: &Arguments) -> Result<(), Failure> {
    let count: usize = match arguments.more.first() {
        Some(word) => word.parse().map_err(|_| shared::misuse(format!("{word:?} is no number of connections")))?,
        None => 2,
    };
    let (peer, listener) = arguments.listen()?;
    let queue = peer.completion_queue(QueueOptions::default())?;
    let memory = peer.allocate(BUFFERS * BUFFER_BYTES, Access::empty())?;
    let buffer = |number: u64| memory.slice(number * BUFFER_BYTES..(number + 1) * BUFFER_BYTES);
    let receives = peer.shared_receive_queue(usize::try_from(BUFFERS)?);
    for number in 0..BUFFERS {
        receives.post(buffer(number)?, number)?;
    }

    let options = AcceptOptions::default().shared_receives(Some(receives.clone()));
    let mut connections = HashMap::new();
    let mut served = 0;
    while served < count {
        if let Some(request) = listener.next_request(Duration::ZERO)? {
            let connection = request.accept(&queue, &options)?;
            connections.insert(connection.id(), connection);
        }
        let Some(done) = queue.wait(Duration::from_millis(10)) else { continue };
        let Outcome::Received { len_bytes, immediate } = done.outcome? else { continue };
        let mut text = vec![0; usize::try_from(len_bytes)?];
        memory.read(done.context * BUFFER_BYTES, &mut text)?;
        // The buffer is free again, for whichever connection needs it next.
        receives.post(buffer(done.context)?, done.context)?;
        println!("connection {}: {}", done.connection, String::from_utf8_lossy(&text));
        if let (Some(0), Some(connection)) = (immediate, connections.get(&done.connection)) {
            connection.send("thank you")?;
            served += 1;
        }
    }
    for connection in connections.values() {
        shared::serve_until_closed(connection)?;
    }
    Ok(())
}

fn send(arguments: &Arguments) -> Result<(), Failure> {
    let word = arguments.more.first().map_or("hello", String::as_str);
    let peer = arguments.peer()?;
    let queue = peer.completion_queue(QueueOptions::default())?;
    let connection = peer.connect(&arguments.address, &queue, &arguments.options([]))?;
    let answer = peer.allocate(BUFFER_BYTES, Access::empty())?;
    let thanks = connection.receive(answer.slice(..)?, 0)?;
    let mut batch = connection.batch();
    batch.signal(Signal::OnError);
    for number in 1..=MESSAGES {
        // The immediate says how many are still to come.
        batch.send_with_immediate(&format!("{word} {number}"), MESSAGES - number)?;
    }
    batch.submit();
    // What still waits for a receive when a connection closes is lost, so the other side's program has the last word.
    shared::outcome(&connection, thanks)?;
    println!("sent {MESSAGES} messages, and was thanked");
    connection.close(PATIENCE);
    Ok(())
}
