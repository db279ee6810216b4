//! Ping and pong: messages into receives that were posted for them.
//!
//! ```sh
//! cargo run -p pmof --example messages -- serve tcp://127.0.0.1:7204
//! cargo run -p pmof --example messages -- tcp://127.0.0.1:7204 1000
//! ```
//!
//! A message takes the oldest receive of the other side. Without one it waits in the other side's inbox, and beyond that at
//! the sender: nothing is lost, and nobody has to count receives.

mod shared;

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use pmof::access::{AcceptOptions, Access, Connection, Outcome, QueueOptions, Region, Signal, Ticket};
use shared::{Arguments, Failure, PATIENCE};

/// The longest message.
const MESSAGE_BYTES: u64 = 64;

fn main() -> ExitCode {
    shared::run(("", serve), ("[ROUNDS]", play))
}

fn serve(arguments: &Arguments) -> Result<(), Failure> {
    let (peer, listener) = arguments.listen()?;
    let queue = peer.completion_queue(QueueOptions::default())?;
    let inbox = peer.allocate(MESSAGE_BYTES, Access::empty())?;
    let connection = shared::next_request(&listener)?.accept(&queue, &AcceptOptions::default())?;
    let mut rounds = 0;
    loop {
        let received = connection.receive(inbox.slice(..)?, 0)?;
        match message(&connection, received, &inbox)?.as_str() {
            "ping" => send(&connection, "pong")?,
            "that is all" => break,
            other => return Err(format!("not understood: {other:?}").into()),
        }
        rounds += 1;
    }
    println!("{rounds} times ping");
    shared::serve_until_closed(&connection)
}

fn play(arguments: &Arguments) -> Result<(), Failure> {
    let rounds: u32 = match arguments.more.first() {
        Some(word) => word.parse().map_err(|_| shared::misuse(format!("{word:?} is no number of rounds")))?,
        None => 100,
    };
    let peer = arguments.peer()?;
    let queue = peer.completion_queue(QueueOptions::default())?;
    let connection = peer.connect(&arguments.address, &queue, &arguments.options([]))?;
    let inbox = peer.allocate(MESSAGE_BYTES, Access::empty())?;
    let start = Instant::now();
    for _ in 0..rounds {
        // The receive for the answer is there before anybody can answer.
        let received = connection.receive(inbox.slice(..)?, 0)?;
        send(&connection, "ping")?;
        let answer = message(&connection, received, &inbox)?;
        if answer != "pong" {
            return Err(format!("the answer to a ping was {answer:?}").into());
        }
    }
    let mean = start.elapsed().checked_div(rounds).unwrap_or(Duration::ZERO);
    println!("{rounds} times pong, {mean:?} each");
    send(&connection, "that is all")?;
    connection.close(PATIENCE);
    Ok(())
}

/// Sends without waiting; a completion comes only if it fails.
fn send(connection: &Connection, text: &str) -> Result<(), Failure> {
    let mut batch = connection.batch();
    batch.signal(Signal::OnError).send(text)?;
    batch.submit();
    Ok(())
}

/// The message that this receive takes.
fn message(connection: &Connection, receive: Ticket, inbox: &Region) -> Result<String, Failure> {
    let Outcome::Received { len_bytes, .. } = shared::outcome(connection, receive)? else {
        return Err("a receive that is no receive".into());
    };
    let mut text = vec![0; usize::try_from(len_bytes)?];
    inbox.read(0, &mut text)?;
    Ok(String::from_utf8(text)?)
}
