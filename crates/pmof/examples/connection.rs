//! Two programs connect, tell each other something while they do, see what becomes of the connection, and part.
//!
//! ```sh
//! cargo run -p pmof --example connection -- serve tcp://127.0.0.1:7204
//! cargo run -p pmof --example connection -- tcp://127.0.0.1:7204 Ada
//! ```
//!
//! Whoever does not give a name is refused, and told why. It is the same over `shm:///tmp/example.sock`, and over
//! `verbs://IP:7204` with the address of an RDMA device (the target then needs `--trust-network`).

mod shared;

use std::process::ExitCode;

use pmof::access::{AcceptOptions, ConnectError, ConnectionEvent, QueueOptions, Refusal};
use shared::{Arguments, Failure, PATIENCE};

fn main() -> ExitCode {
    shared::run(("", serve), ("[NAME]", connect))
}

fn serve(arguments: &Arguments) -> Result<(), Failure> {
    let (peer, listener) = arguments.listen()?;
    let queue = peer.completion_queue(QueueOptions::default())?;
    let request = loop {
        let request = shared::next_request(&listener)?;
        if !request.private_data().is_empty() {
            break request;
        }
        println!("refused a request without a name");
        request.reject(Refusal::Rejected, b"say who you are")?;
    };
    let name = String::from_utf8_lossy(request.private_data()).into_owned();
    let greeting = format!("Good day, {name}!").into_bytes();
    let connection = request.accept(&queue, &AcceptOptions::default().private_data(greeting))?;

    // Waiting for events drives the connection: without a thread of its own nothing else does.
    while let Some(event) = connection.next_event(PATIENCE) {
        match event {
            ConnectionEvent::Established => println!("{name} is here"),
            ConnectionEvent::Closed => {
                println!("{name} has gone");
                return Ok(());
            }
            ConnectionEvent::Lost(why) => return Err(why.into()),
            other => println!("{other:?}"),
        }
    }
    Err(format!("{name} stays for ever").into())
}

fn connect(arguments: &Arguments) -> Result<(), Failure> {
    let peer = arguments.peer()?;
    let queue = peer.completion_queue(QueueOptions::default())?;
    let private_data = arguments.more.first().cloned().unwrap_or_default().into_bytes();
    let connection = match peer.connect(&arguments.address, &queue, &arguments.options(private_data)) {
        Ok(connection) => connection,
        Err(ConnectError::Refused { private_data, .. }) if !private_data.is_empty() => {
            return Err(format!("refused: {}", String::from_utf8_lossy(&private_data)).into());
        }
        Err(error) => return Err(error.into()),
    };
    println!("{}", String::from_utf8_lossy(connection.private_data()));
    match connection.next_event(PATIENCE) {
        Some(ConnectionEvent::Established) => {
            println!("the connection is established: {}", connection.is_established());
        }
        other => return Err(format!("unexpected: {other:?}").into()),
    }
    // Dropping it would do. Waiting makes sure that the other side hears of an end, and not of a loss.
    if connection.close(PATIENCE) { Ok(()) } else { Err("the other side did not close".into()) }
}
