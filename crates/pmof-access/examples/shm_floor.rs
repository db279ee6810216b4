//! What a persist over shm costs beside its floor: the same bytes stored, written back and fenced on the same kind of
//! mapping, with nothing around them. Run with `cargo run --release -p pmof-access --example shm_floor [FILE]`; FILE is made
//! where it does not exist (a file on fsdax or tmpfs) or opened (a devdax device). Without one, anonymous memory: no
//! write-back, only a fence.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use pmof_access::{
    AcceptOptions, Access, ConnectOptions, Declaration, ListenOptions, Medium, Memory, Peer, Progress, QueueOptions,
    Signal, Transport,
};

const LEN_BYTES: u64 = 1 << 20;
const ROUNDS: usize = 200_000;
const LONG: Duration = Duration::from_secs(10);

fn open(place: Option<&PathBuf>) -> Result<Memory, Box<dyn std::error::Error>> {
    let declaration = Some(Declaration::BatteryBacked);
    Ok(match place {
        Some(path) if path.exists() => Memory::open(path, declaration)?,
        Some(path) => Memory::create(path, LEN_BYTES, declaration)?,
        None => Memory::shared_anonymous(LEN_BYTES, false)?,
    })
}

/// Nanoseconds of each call, sorted; the clock's own time is in them.
fn measure(mut call: impl FnMut(u64)) -> Vec<u64> {
    let mut times = Vec::with_capacity(ROUNDS);
    for round in 0..ROUNDS as u64 {
        let start = Instant::now();
        call(round);
        times.push(start.elapsed().as_nanos() as u64);
    }
    times.sort_unstable();
    times
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let place = std::env::args().nth(1).map(PathBuf::from);
    let memory: Arc<dyn Medium> = Arc::new(open(place.as_ref())?);
    let target = Peer::open(Transport::Shm)?;
    let serving = target.completion_queue(QueueOptions::default().progress(Progress::Thread))?;
    let region = target.register(Arc::clone(&memory), 0, LEN_BYTES, Access::all())?;
    let socket = std::env::temp_dir().join(format!("pmof-shm-floor-{}", std::process::id()));
    let listener = target.listen(Path::new(&socket), ListenOptions::default())?;
    let peer = Peer::open(Transport::Shm)?;
    let queue = peer.completion_queue(QueueOptions::default())?;
    let pending = peer.start_connect(socket.as_path(), &queue, &ConnectOptions::default())?;
    let request = listener.next_request(LONG)?.ok_or("no request")?;
    let _served = request.accept(&serving, &AcceptOptions::default().private_data(region.descriptor().to_vec()))?;
    let connection = pending.finish()?;
    let remote = connection.remote_region(connection.private_data())?;
    if !connection.prepare(&remote, LONG) {
        return Err("the region was not mapped".into());
    }
    let level = remote.strongest();
    println!("{}, {level} by {}", remote.kind(), connection.flush_method(&remote, level)?.0);
    println!("bytes  floor p50  pmof p50  ratio  floor p99  pmof p99 (ns)");
    for len_bytes in [64, 512, 4096, 65_536] {
        let bytes = vec![7; len_bytes];
        let at = |round: u64| round * len_bytes as u64 % LEN_BYTES;
        let floor = |round| {
            let done = memory.store(at(round), &bytes);
            let done = done.and_then(|()| memory.write_back(at(round), len_bytes as u64)).and_then(|()| memory.fence());
            assert!(done.is_ok());
        };
        let persist = |round| {
            let mut batch = connection.batch();
            let ticket = batch
                .signal(Signal::OnError)
                .write(&remote, at(round), &bytes)
                .and_then(|_| batch.signal(Signal::Always).flush(&remote, .., level));
            batch.submit();
            let done = ticket.ok().and_then(|ticket| queue.wait_for(connection.id(), ticket, LONG));
            assert!(done.is_some_and(|done| done.outcome.is_ok()));
        };
        let (floor, pmof) = (measure(floor), measure(persist));
        let p = |times: &[u64], percent: usize| times[times.len() * percent / 100];
        println!(
            "{len_bytes:5}  {:9}  {:8}  {:5.2}  {:9}  {:8}",
            p(&floor, 50),
            p(&pmof, 50),
            p(&pmof, 50) as f64 / p(&floor, 50) as f64,
            p(&floor, 99),
            p(&pmof, 99)
        );
    }
    Ok(())
}
