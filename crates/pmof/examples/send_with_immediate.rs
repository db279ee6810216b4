//! A message with an immediate: 32 bits beside its bytes, which come with the completion of the receive.
//!
//! ```sh
//! cargo run -p pmof --example send_with_immediate -- serve tcp://127.0.0.1:7204
//! cargo run -p pmof --example send_with_immediate -- tcp://127.0.0.1:7204
//! ```
//!
//! The receiver learns what a message is before it looks at its bytes, and a message needs no bytes at all.

mod shared;

use std::process::ExitCode;

use pmof::access::{AcceptOptions, Access, Outcome, QueueOptions};
use shared::{Arguments, Failure, PATIENCE};

/// What the immediate says here: what kind of message it is.
const ORDER: u32 = 1;
const END: u32 = 2;

const MESSAGE_BYTES: u64 = 64;

fn main() -> ExitCode {
    shared::run(("", serve), ("", send))
}

fn serve(arguments: &Arguments) -> Result<(), Failure> {
    let (peer, listener) = arguments.listen()?;
    let queue = peer.completion_queue(QueueOptions::default())?;
    let inbox = peer.allocate(MESSAGE_BYTES, Access::empty())?;
    let connection = shared::next_request(&listener)?.accept(&queue, &AcceptOptions::default())?;
    loop {
        let receive = connection.receive(inbox.slice(..)?, 0)?;
        let Outcome::Received { len_bytes, immediate } = shared::outcome(&connection, receive)? else {
            return Err("a receive that is no receive".into());
        };
        match immediate {
            Some(ORDER) => {
                let mut text = vec![0; usize::try_from(len_bytes)?];
                inbox.read(0, &mut text)?;
                println!("an order: {}", String::from_utf8_lossy(&text));
            }
            Some(END) => {
                println!("the end, in {len_bytes} bytes");
                return shared::serve_until_closed(&connection);
            }
            other => return Err(format!("a message of no known kind: {other:?}").into()),
        }
    }
}

fn send(arguments: &Arguments) -> Result<(), Failure> {
    let peer = arguments.peer()?;
    let queue = peer.completion_queue(QueueOptions::default())?;
    let connection = peer.connect(&arguments.address, &queue, &arguments.options([]))?;
    let mut batch = connection.batch();
    batch.send_with_immediate("two teas", ORDER)?;
    batch.send_with_immediate("one coffee", ORDER)?;
    let last = batch.send_with_immediate("", END)?;
    batch.submit();
    shared::outcome(&connection, last)?;
    println!("sent two orders and the end");
    connection.close(PATIENCE);
    Ok(())
}
