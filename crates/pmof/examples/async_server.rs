//! An async server that keeps what its clients send: each line is answered when it is durable on all replicas in sync, and has its slot from then on,
//! whatever is killed. A server that starts again goes on behind the last line that is there.
//!
//! ```sh
//! cargo run -p pmof --example async_server -- 127.0.0.1:7300 tcp://127.0.0.1:7204/lines
//! printf 'one\ntwo\n' | nc -N 127.0.0.1 7300                                     # answers: 0 on 1/1, 1 on 1/1
//! cargo run -p pmof --example async_server -- - tcp://127.0.0.1:7204/lines       # prints what is there
//! ```
//!
//! There is room for 4096 lines of up to 248 bytes. What does not fit is answered with `not kept: ...`, and the server goes on. A crash may leave a slot
//! empty whose line was not answered yet.
//!
//! The runtime here is tokio's, with one thread. Opening and flushing are futures that work on any.

use std::{
    env,
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use pmof::{Durability, Pool, PoolOptions};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
};

const SLOTS: u64 = 4096;
/// Room for one line: the length of the line and 1 as a word that is written last, then the line. The word of an empty slot is 0.
const SLOT_BYTES: u64 = 256;
const WORD_BYTES: u64 = 8;
const LINE_BYTES: usize = (SLOT_BYTES - WORD_BYTES) as usize;

type Failure = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let mut arguments = env::args().skip(1);
    let address = arguments.next().ok_or("usage: async_server ADDRESS|- URL...")?;
    let options = arguments.fold(Pool::options().require(Durability::ProcessCrash), PoolOptions::replica);
    tokio::runtime::Builder::new_current_thread().enable_io().build()?.block_on(async {
        if address == "-" {
            for (slot, line) in lines(&options.open_read_only_async().await?).await? {
                println!("{slot}: {}", String::from_utf8_lossy(&line));
            }
            return Ok(());
        }
        let pool = options.open_or_create_async(SLOTS * SLOT_BYTES).await?;
        // Behind the last line, not the first gap: lines of several clients become durable in any order.
        let end = lines(&pool).await?.last().map_or(0, |(slot, _)| slot + 1);
        let listener = TcpListener::bind(address).await?;
        println!("ready {}", listener.local_addr()?);
        let next = Arc::new(AtomicU64::new(end));
        loop {
            let (client, _) = listener.accept().await?;
            let (pool, next) = (pool.clone(), Arc::clone(&next));
            tokio::spawn(async move {
                if let Err(error) = serve(client, &pool, &next).await {
                    eprintln!("a client: {error}");
                }
            });
        }
    })
}

/// The lines that are there, and their slots.
async fn lines(pool: &Pool) -> Result<Vec<(u64, Vec<u8>)>, Failure> {
    let bytes = pool.read_async(0, (SLOTS * SLOT_BYTES) as usize).await?;
    let mut lines = Vec::new();
    for (slot, bytes) in (0..).zip(bytes.chunks_exact(SLOT_BYTES as usize)) {
        let (word, line) = bytes.split_at(WORD_BYTES as usize);
        let Some(len_bytes) = u64::from_le_bytes(word.try_into()?).checked_sub(1) else { continue };
        let line = usize::try_from(len_bytes).ok().and_then(|len_bytes| line.get(..len_bytes));
        lines.push((slot, line.ok_or("this is no pool of async_server")?.to_vec()));
    }
    Ok(lines)
}

async fn serve(mut client: TcpStream, pool: &Pool, next: &AtomicU64) -> Result<(), Failure> {
    let (input, mut output) = client.split();
    let mut lines = BufReader::new(input).split(b'\n');
    // A client's own ordered stream. Those of all clients share one connection a replica.
    let mut lane = pool.lane();
    while let Some(line) = lines.next_segment().await? {
        let answer = if line.len() > LINE_BYTES {
            format!("not kept: a line has at most {LINE_BYTES} bytes\n")
        } else {
            let slot = next.fetch_add(1, Ordering::Relaxed);
            if slot < SLOTS {
                let at = slot * SLOT_BYTES;
                lane.write(at + WORD_BYTES, &line)?;
                // Other clients are served meanwhile.
                lane.flush().await?;
                // Only now: with one flush for both, the word might be durable without the line.
                lane.atomic_write(at, line.len() as u64 + 1)?;
                let receipt = lane.flush().await?;
                format!("{slot} on {}/{}\n", receipt.replicas.len(), receipt.made_count)
            } else {
                format!("not kept: all {SLOTS} places are taken\n")
            }
        };
        output.write_all(answer.as_bytes()).await?;
    }
    Ok(())
}
