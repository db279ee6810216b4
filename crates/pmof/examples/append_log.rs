//! A log in a target's persistent memory that another machine appends to: entry, flush, tail by atomic write, flush, and on
//! to the next without waiting for any of it.
//!
//! ```sh
//! cargo run -p pmof --example append_log -- serve tcp://127.0.0.1:7204 log.pmem
//! cargo run -p pmof --example append_log -- tcp://127.0.0.1:7204 hello
//! ```
//!
//! The tail is what makes an entry part of the log. It moves by an atomic write of 8 bytes, which waits for the flush before
//! it: whatever a crash leaves, all that lies before the tail is whole. Run both again, and the log of before is still there.

mod shared;

use std::{process::ExitCode, sync::Arc};

use pmof::access::{AcceptOptions, Access, QueueOptions, Region, Signal};
use shared::{Arguments, DATA_OFFSET, Failure, PATIENCE};

/// The tail comes first: how many bytes of entries there are.
const TAIL_BYTES: u64 = 8;
/// The entries, a line each, in a cache line of their own.
const ENTRIES_OFFSET: u64 = 64;
const ENTRIES_BYTES: u64 = 64 << 10;
const APPENDED: u64 = 10;

fn main() -> ExitCode {
    shared::run(("[FILE]", serve), ("WORD", append))
}

fn serve(arguments: &Arguments) -> Result<(), Failure> {
    let memory = arguments.memory()?;
    let (peer, listener) = arguments.listen()?;
    let queue = peer.completion_queue(QueueOptions::default())?;
    let access = Access::READ | Access::WRITE | Access::FLUSH_PERSISTENT;
    let region = peer.register(Arc::clone(&memory), DATA_OFFSET, ENTRIES_OFFSET + ENTRIES_BYTES, access)?;
    println!("{} entries were there", entries(&region)?.lines().count());

    let options = AcceptOptions::default().private_data(region.descriptor().to_vec());
    let connection = shared::next_request(&listener)?.accept(&queue, &options)?;
    shared::serve_until_closed(&connection)?;
    print!("{}", entries(&region)?);
    Ok(())
}

/// What the log says.
fn entries(region: &Region) -> Result<String, Failure> {
    let len_bytes = tail(region)?;
    let mut bytes = vec![0; usize::try_from(len_bytes)?];
    region.read(ENTRIES_OFFSET, &mut bytes)?;
    Ok(String::from_utf8(bytes)?)
}

fn tail(region: &Region) -> Result<u64, Failure> {
    let mut tail = [0; TAIL_BYTES as usize];
    region.read(0, &mut tail)?;
    match u64::from_le_bytes(tail) {
        tail @ 0..=ENTRIES_BYTES => Ok(tail),
        tail => Err(format!("the log is damaged: its tail is {tail}, beyond {ENTRIES_BYTES}").into()),
    }
}

fn append(arguments: &Arguments) -> Result<(), Failure> {
    let word = arguments.more.first().ok_or_else(|| shared::misuse("a word to append is missing"))?;
    let peer = arguments.peer()?;
    let queue = peer.completion_queue(QueueOptions::default())?;
    let connection = peer.connect(&arguments.address, &queue, &arguments.options([]))?;
    let remote = connection.remote_region(connection.private_data())?;
    let level = remote.strongest();
    connection.prepare(&remote, PATIENCE);

    let local = peer.allocate(TAIL_BYTES, Access::empty())?;
    shared::outcome(&connection, connection.read(&remote, 0, local.slice(..)?)?)?;
    let mut end = tail(&local)?;
    let mut last = None;
    for number in 1..=APPENDED {
        let entry = format!("{word} {number}\n");
        let next = end + entry.len() as u64;
        if next > ENTRIES_BYTES {
            return Err(format!("the log is full: {end} of {ENTRIES_BYTES} bytes").into());
        }
        let mut batch = connection.batch();
        // Success shows by what comes after: the last flush vouches for all.
        batch.signal(Signal::OnError);
        batch.write(&remote, ENTRIES_OFFSET + end, entry.as_bytes())?;
        batch.flush(&remote, ENTRIES_OFFSET + end..ENTRIES_OFFSET + next, level)?;
        batch.atomic_write(&remote, 0, next)?;
        last = Some(batch.signal(Signal::Always).flush(&remote, ..TAIL_BYTES, level)?);
        batch.submit();
        end = next;
    }
    if let Some(last) = last {
        shared::outcome(&connection, last)?;
    }
    println!("appended {APPENDED} entries: {level}");
    connection.close(PATIENCE);
    Ok(())
}
