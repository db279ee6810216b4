//! Flushes as futures: several in flight at once, on any runtime. This one has the smallest there is.
//!
//! ```sh
//! cargo run -p pmof --example awaited -- tcp://127.0.0.1:7204/awaited
//! ```

use std::{
    env,
    error::Error,
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
};

use pmof::{Durability, Lane, Pool, PoolError};

fn main() -> Result<(), Box<dyn Error>> {
    let mut options = Pool::options().require(Durability::ProcessCrash);
    for url in env::args().skip(1) {
        options = options.replica(url);
    }
    let pool = options.open_or_create(1 << 20)?;
    block_on(serve(&pool))?;
    Ok(pool.close()?)
}

async fn serve(pool: &Pool) -> Result<(), PoolError> {
    let mut lanes: Vec<_> = (0..4).map(|_| pool.lane()).collect();
    for (request, lane) in lanes.iter_mut().enumerate() {
        lane.write(4096 * request as u64, format!("request {request}").as_bytes())?;
    }
    // All are in flight before the first is awaited.
    let flushes: Vec<_> = lanes.iter_mut().map(Lane::flush).collect();
    for (request, flush) in flushes.into_iter().enumerate() {
        println!("request {request}: {}", flush.await?);
    }
    Ok(())
}

/// Runs a future on this thread.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
