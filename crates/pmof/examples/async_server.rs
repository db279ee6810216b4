//! An async server that keeps what its clients send: each line is answered when it is durable on all replicas.
//!
//! ```sh
//! cargo run -p pmof --example async_server -- 127.0.0.1:7300 tcp://127.0.0.1:7204/lines
//! printf 'one\ntwo\n' | nc -N 127.0.0.1 7300
//! ```
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

const POOL_BYTES: u64 = 1 << 20;
/// Room for one line.
const SLOT_BYTES: u64 = 256;

type Failure = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let mut arguments = env::args().skip(1);
    let address = arguments.next().ok_or("usage: async_server ADDRESS URL...")?;
    let options = arguments.fold(Pool::options().require(Durability::ProcessCrash), PoolOptions::replica);
    tokio::runtime::Builder::new_current_thread().enable_io().build()?.block_on(async {
        let pool = options.open_or_create_async(POOL_BYTES).await?;
        let listener = TcpListener::bind(address).await?;
        println!("ready {}", listener.local_addr()?);
        let next = Arc::new(AtomicU64::new(0));
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

async fn serve(mut client: TcpStream, pool: &Pool, next: &AtomicU64) -> Result<(), Failure> {
    let (input, mut output) = client.split();
    let mut lines = BufReader::new(input).lines();
    // A client's own ordered stream. Those of all clients share one connection a replica.
    let mut lane = pool.lane();
    while let Some(line) = lines.next_line().await? {
        let slot = next.fetch_add(1, Ordering::Relaxed);
        let mut record = line.into_bytes();
        record.resize(SLOT_BYTES as usize, 0);
        lane.write(slot * SLOT_BYTES, &record)?;
        // Other clients are served meanwhile.
        let receipt = lane.flush().await?;
        output.write_all(format!("{slot} on {}/{}\n", receipt.replicas.len(), receipt.made_count).as_bytes()).await?;
    }
    Ok(())
}
