//! A target takes many connections with one thread, one completion queue and one `poll`, and refuses more when it is full.
//!
//! ```sh
//! cargo run -p pmof --example many_connections -- serve tcp://127.0.0.1:7204 2
//! cargo run -p pmof --example many_connections -- tcp://127.0.0.1:7204 Ada     # in several terminals
//! ```
//!
//! The number is that of connections at a time. The target ends when as many have been served. A completion says which
//! connection it belongs to; a connection that ends shows by the outcome of the receive that waits on it.

mod shared;

use std::{collections::HashMap, process::ExitCode, time::Duration};

use pmof::access::{
    AcceptOptions, Access, Completion, CompletionQueue, Connection, ConnectionId, Listener, Outcome, Peer,
    QueueOptions, Refusal, Region,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use shared::{Arguments, Failure, PATIENCE};

const MESSAGE_BYTES: u64 = 256;

fn main() -> ExitCode {
    shared::run(("[COUNT]", serve), ("[WORD]", talk))
}

/// A client, and where its next message goes.
struct Client {
    connection: Connection,
    inbox: Region,
}

fn serve(arguments: &Arguments) -> Result<(), Failure> {
    let most = match arguments.more.first() {
        Some(word) => word.parse().map_err(|_| shared::misuse(format!("{word:?} is no number of connections")))?,
        None => 2,
    };
    let (peer, listener) = arguments.listen()?;
    let queue = peer.completion_queue(QueueOptions::default())?;
    let mut clients = HashMap::new();
    let mut served = 0;
    while served < most {
        // Both are asked until they have no more: what they know already does not show at their descriptors.
        while let Some(client) = take(&peer, &listener, &queue, clients.len() < most)? {
            clients.insert(client.connection.id(), client);
        }
        while served < most {
            let Some(done) = queue.poll() else { break };
            served += usize::from(answer(&mut clients, &done)?);
        }
        let outcomes = PollFd::from_borrowed_fd(queue.fd()?, PollFlags::IN);
        let mut watched = [PollFd::new(&listener, PollFlags::IN), outcomes];
        // Limits of time are noticed by polling alone.
        poll(&mut watched, Some(&Timespec::try_from(Duration::from_secs(1))?))?;
    }
    println!("served {served}");
    Ok(())
}

/// Takes the next connection, or refuses it.
fn take(peer: &Peer, listener: &Listener, queue: &CompletionQueue, has_room: bool) -> Result<Option<Client>, Failure> {
    while let Some(request) = listener.next_request(Duration::ZERO)? {
        if !has_room {
            println!("full: refused one more");
            request.reject(Refusal::TooManyConnections, &[])?;
            continue;
        }
        let connection = request.accept(queue, &AcceptOptions::default())?;
        let inbox = peer.allocate(MESSAGE_BYTES, Access::empty())?;
        connection.receive(inbox.slice(..)?, 0)?;
        return Ok(Some(Client { connection, inbox }));
    }
    Ok(None)
}

/// Answers a message. True if the client has gone.
fn answer(clients: &mut HashMap<ConnectionId, Client>, done: &Completion) -> Result<bool, Failure> {
    let Some(client) = clients.get(&done.connection) else { return Ok(false) };
    match done.outcome {
        Ok(Outcome::Received { len_bytes, .. }) => {
            let mut message = vec![0; usize::try_from(len_bytes)?];
            client.inbox.read(0, &mut message)?;
            println!("connection {} says: {}", done.connection, String::from_utf8_lossy(&message));
            client.connection.receive(client.inbox.slice(..)?, 0)?;
            client.connection.send(&message)?;
            Ok(false)
        }
        Ok(_) => Ok(false),
        Err(_) => Ok(clients.remove(&done.connection).is_some()),
    }
}

fn talk(arguments: &Arguments) -> Result<(), Failure> {
    let word = arguments.more.first().map_or("hello", String::as_str);
    let peer = arguments.peer()?;
    let queue = peer.completion_queue(QueueOptions::default())?;
    let connection = peer.connect(&arguments.address, &queue, &arguments.options([]))?;
    let inbox = peer.allocate(MESSAGE_BYTES, Access::empty())?;
    for _ in 0..3 {
        let answer = connection.receive(inbox.slice(..)?, 0)?;
        connection.send(word)?;
        let Outcome::Received { len_bytes, .. } = shared::outcome(&connection, answer)? else { continue };
        println!("answered with {len_bytes} bytes");
    }
    connection.close(PATIENCE);
    Ok(())
}
