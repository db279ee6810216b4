//! Many connections take their messages from one queue of receives: memory for the messages that come, not for the
//! connections that there are.
//!
//! ```sh
//! cargo run --example shared_receives -- serve tcp://127.0.0.1:7204 2
//! cargo run --example shared_receives -- tcp://127.0.0.1:7204 Ada     # in two terminals
//! ```
//!
//! The number is that of the connections to serve. The completion names the connection that a message came on, and carries
//! the number that its receive was posted with: here that of the buffer.

mod shared;

use std::process::ExitCode;

use pmof::access::{AcceptOptions, Access, Outcome, Progress, QueueOptions, Signal};
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
    // A thread of the queue serves those who are there while this one waits for those who are not.
    let queue = peer.completion_queue(QueueOptions { progress: Progress::Thread, ..QueueOptions::default() })?;
    let memory = peer.allocate(BUFFERS * BUFFER_BYTES, Access::empty())?;
    let buffer = |number: u64| memory.slice(number * BUFFER_BYTES..(number + 1) * BUFFER_BYTES);
    let receives = peer.shared_receive_queue(usize::try_from(BUFFERS)?);
    for number in 0..BUFFERS {
        receives.post(buffer(number)?, number)?;
    }

    let options = AcceptOptions { shared_receives: Some(receives.clone()), ..AcceptOptions::default() };
    let mut connections = Vec::new();
    while connections.len() < count {
        connections.push(shared::next_request(&listener)?.accept(&queue, &options)?);
    }
    for _ in 0..count * MESSAGES as usize {
        let done = queue.wait(PATIENCE).ok_or("a message is missing")?;
        let Outcome::Received { len_bytes, .. } = done.outcome? else { return Err("no receive".into()) };
        let mut text = vec![0; usize::try_from(len_bytes)?];
        memory.read(done.context * BUFFER_BYTES, &mut text)?;
        // The buffer is free again, for whichever connection needs it next.
        receives.post(buffer(done.context)?, done.context)?;
        println!("connection {}: {}", done.connection, String::from_utf8_lossy(&text));
    }
    for connection in &connections {
        shared::serve_until_closed(connection)?;
    }
    Ok(())
}

fn send(arguments: &Arguments) -> Result<(), Failure> {
    let word = arguments.more.first().map_or("hello", String::as_str);
    let peer = arguments.peer()?;
    let queue = peer.completion_queue(QueueOptions::default())?;
    let connection = peer.connect(&arguments.address, &queue, &arguments.options([]))?;
    let mut batch = connection.batch();
    batch.signal(Signal::OnError);
    for number in 1..=MESSAGES {
        batch.send(&format!("{word} {number}"))?;
    }
    batch.submit();
    println!("sent {MESSAGES} messages");
    connection.close(PATIENCE);
    Ok(())
}
