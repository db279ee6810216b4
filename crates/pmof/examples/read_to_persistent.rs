//! The initiator copies a target's memory straight into persistent memory of its own, and makes it durable there.
//!
//! ```sh
//! cargo run -p pmof --example read_to_persistent -- serve tcp://127.0.0.1:7204
//! cargo run -p pmof --example read_to_persistent -- tcp://127.0.0.1:7204 copy.pmem
//! ```
//!
//! The file may lie anywhere. A device writes straight to where it can (devdax, for one); elsewhere the bytes take a step
//! between. On DAX cache lines are written back, elsewhere the kernel syncs the file. What that gives is judged when the file
//! is mapped. Without a file the copy dies with the program, and the program says so.

mod shared;

use std::{process::ExitCode, sync::Arc};

use pmof::{
    Durability,
    access::{AcceptOptions, Access, QueueOptions},
};
use shared::{Arguments, DATA_OFFSET, Failure, PATIENCE};

const TEXT: &[u8] = b"Worth keeping.";

fn main() -> ExitCode {
    shared::run(("", serve), ("[FILE]", read))
}

fn serve(arguments: &Arguments) -> Result<(), Failure> {
    let (peer, listener) = arguments.listen()?;
    let queue = peer.completion_queue(QueueOptions::default())?;
    let memory = peer.allocate(TEXT.len() as u64, Access::READ)?;
    memory.store(0, TEXT)?;
    let options = AcceptOptions::default().private_data(memory.descriptor().to_vec());
    let connection = shared::next_request(&listener)?.accept(&queue, &options)?;
    shared::serve_until_closed(&connection)
}

fn read(arguments: &Arguments) -> Result<(), Failure> {
    let memory = arguments.memory()?;
    let peer = arguments.peer()?;
    let queue = peer.completion_queue(QueueOptions::default())?;
    let connection = peer.connect(&arguments.address, &queue, &arguments.options([]))?;
    let remote = connection.remote_region(connection.private_data())?;
    let len_bytes = remote.len_bytes();

    let local = peer.register(Arc::clone(&memory), DATA_OFFSET, len_bytes, Access::empty())?;
    shared::outcome(&connection, connection.read(&remote, 0, local.slice(..)?)?)?;

    // The bytes are there, and visible. Durable they are once they were written back, however they came.
    memory.write_back(DATA_OFFSET, len_bytes)?;
    memory.fence()?;
    match Durability::ALL.into_iter().rev().find_map(|level| Some((level, memory.promise(level)?))) {
        Some((level, promise)) => {
            println!("{len_bytes} bytes in {}: {level} ({}, {})", memory.kind(), promise.mechanism, promise.evidence);
        }
        None => println!("{len_bytes} bytes in {}: no promise at all", memory.kind()),
    }
    connection.close(PATIENCE);
    Ok(())
}
