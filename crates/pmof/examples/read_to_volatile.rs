//! A target lends memory for reading; the initiator copies it into memory of its own.
//!
//! ```sh
//! cargo run -p pmof --example read_to_volatile -- serve tcp://127.0.0.1:7204
//! cargo run -p pmof --example read_to_volatile -- tcp://127.0.0.1:7204
//! ```
//!
//! Over verbs the devices carry the read out, over shm the initiator's CPU does, over tcp the target's. The program is the
//! same: it asks for a *region*, whose descriptor says what may be done with it and how it is reached.

mod shared;

use std::process::ExitCode;

use pmof::access::{AcceptOptions, Access, Outcome, QueueOptions};
use shared::{Arguments, Failure, PATIENCE};

const TEXT: &[u8] = b"The target's program did nothing while you read this.";

fn main() -> ExitCode {
    shared::run(("", serve), ("", read))
}

fn serve(arguments: &Arguments) -> Result<(), Failure> {
    let (peer, listener) = arguments.listen()?;
    let queue = peer.completion_queue(QueueOptions::default())?;
    let memory = peer.allocate(TEXT.len() as u64, Access::READ)?;
    memory.store(0, TEXT)?;

    // Whoever has the descriptor may use the region, so it goes along with the acceptance and nowhere else.
    let options = AcceptOptions::default().private_data(memory.descriptor().to_vec());
    let connection = shared::next_request(&listener)?.accept(&queue, &options)?;
    shared::serve_until_closed(&connection)
}

fn read(arguments: &Arguments) -> Result<(), Failure> {
    let peer = arguments.peer()?;
    let queue = peer.completion_queue(QueueOptions::default())?;
    let connection = peer.connect(&arguments.address, &queue, &arguments.options([]))?;
    let remote = connection.remote_region(connection.private_data())?;

    // Memory of this side that others may not touch; reads arrive in registered memory, since a device may bring them.
    let local = peer.allocate(remote.len_bytes(), Access::empty())?;
    let ticket = connection.read(&remote, 0, local.slice(..)?)?;
    let Outcome::Done { len_bytes } = shared::outcome(&connection, ticket)? else {
        return Err("a read that is no read".into());
    };
    let mut text = vec![0; usize::try_from(len_bytes)?];
    local.read(0, &mut text)?;
    println!("read {len_bytes} bytes from {}: {}", remote.kind(), String::from_utf8_lossy(&text));

    // What the region does not grant is refused before anything is sent.
    if let Err(refused) = connection.write(&remote, 0, b"mine") {
        println!("a write is refused: {refused}");
    }
    connection.close(PATIENCE);
    Ok(())
}
