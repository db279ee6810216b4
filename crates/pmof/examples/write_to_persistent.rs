//! The initiator writes to a target's persistent memory and reads behind the write: what that is worth, and what not.
//!
//! ```sh
//! cargo run -p pmof --example write_to_persistent -- serve tcp://127.0.0.1:7204 example.pmem
//! cargo run -p pmof --example write_to_persistent -- tcp://127.0.0.1:7204
//! ```
//!
//! A read that is posted behind a write pushes it out of the devices: when the read is answered, the target's CPU sees the
//! bytes. Where the CPU's caches survive loss of power too (eADR), that is durable. Anywhere else the bytes may lie in those
//! caches, and the read makes nothing durable. The region's promise tells which it is; `flush` (see the example of that name)
//! knows by itself.

mod shared;

use std::{process::ExitCode, sync::Arc};

use pmof::{
    Durability,
    access::{AcceptOptions, Access, Outcome, QueueOptions},
};
use shared::{Arguments, DATA_OFFSET, Failure, PATIENCE};

const LEN_BYTES: u64 = 64;

fn main() -> ExitCode {
    shared::run(("[FILE]", serve), ("", write))
}

fn serve(arguments: &Arguments) -> Result<(), Failure> {
    let memory = arguments.memory()?;
    let (peer, listener) = arguments.listen()?;
    let queue = peer.completion_queue(QueueOptions::default())?;
    let access = Access::READ | Access::WRITE | Access::FLUSH_PERSISTENT;
    let region = peer.register(Arc::clone(&memory), DATA_OFFSET, LEN_BYTES, access)?;
    let options = AcceptOptions::default().private_data(region.descriptor().to_vec());
    let connection = shared::next_request(&listener)?.accept(&queue, &options)?;
    shared::serve_until_closed(&connection)?;

    let mut found = [0; LEN_BYTES as usize];
    region.read(0, &mut found)?;
    println!("there is now: {}", String::from_utf8_lossy(&found).trim_end_matches('\0'));
    Ok(())
}

fn write(arguments: &Arguments) -> Result<(), Failure> {
    let peer = arguments.peer()?;
    let queue = peer.completion_queue(QueueOptions::default())?;
    let connection = peer.connect(&arguments.address, &queue, &arguments.options([]))?;
    let remote = connection.remote_region(connection.private_data())?;

    // From registered memory a device takes the bytes where they lie. It stays as it is until the write is done.
    let source = peer.allocate(LEN_BYTES, Access::empty())?;
    source.store(0, b"written from afar")?;
    let back = peer.allocate(LEN_BYTES, Access::empty())?;
    let mut batch = connection.batch();
    batch.write(&remote, 0, source.slice(..)?)?;
    let read = batch.read(&remote, 0, back.slice(..)?)?;
    batch.submit();
    // Operations of a connection take effect in the order posted: the read sees what was written before it.
    shared::outcome(&connection, read)?;
    let mut bytes = [[0; LEN_BYTES as usize]; 2];
    source.read(0, &mut bytes[0])?;
    back.read(0, &mut bytes[1])?;
    if bytes[0] != bytes[1] {
        return Err("what was read is not what was written".into());
    }

    match remote.promise(Durability::PowerFailure) {
        Some(promise) if promise.cpu_caches_persist() => {
            println!("{}: power-failure by the read alone, {}", remote.kind(), promise.evidence);
        }
        _ => {
            println!("{}: after the read the bytes are visible, and no more", remote.kind());
            let flush = connection.flush(&remote, .., remote.strongest())?;
            let Outcome::Flushed(flushed) = shared::outcome(&connection, flush)? else {
                return Err("a flush that is no flush".into());
            };
            let promise = flushed.promise;
            println!("after a flush: {} ({}, {})", flushed.durability, promise.mechanism, promise.evidence);
        }
    }
    connection.close(PATIENCE);
    Ok(())
}
