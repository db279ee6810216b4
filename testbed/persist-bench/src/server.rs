//! The target.

use std::{
    io::Write as _,
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result};
use pmof_access::{
    AcceptOptions, Access, ConnectionEvent, DeviceChoice, ListenOptions, Location, Medium, Memory, Peer, Progress,
    QueueOptions, VerbsOptions, Waiting,
};

/// Longer than any run.
const LONG: Duration = Duration::from_secs(3600);

pub(crate) fn serve(address: IpAddr, port: u16, medium: &Path, len_bytes: u64) -> Result<()> {
    let options = VerbsOptions::default().device(DeviceChoice::Local(address));
    let peer = Peer::open_verbs(&options)?;
    // The device does the work; nothing is to be looked for meanwhile.
    let waiting = Waiting::Adaptive { spin: Duration::ZERO };
    let queue = peer.completion_queue(QueueOptions::default().waiting(waiting).progress(Progress::Thread))?;
    let memory: Arc<dyn Medium> = match medium {
        dram if dram == Path::new("dram") => Arc::new(Memory::anonymous(len_bytes)?),
        path => Arc::new(Memory::open(path, None)?),
    };
    let region = peer.register(memory, 0, len_bytes, Access::all())?;
    let listener = peer.listen(SocketAddr::new(address, port), ListenOptions::default().trust_network(true))?;
    if let Location::Ip(at) = listener.local_address() {
        println!("listening {}", at.port());
        std::io::stdout().flush()?;
    }
    let request = listener.next_request(LONG)?.context("no client came")?;
    let accepted = AcceptOptions::default().private_data(region.descriptor().to_vec());
    let connection = request.accept(&queue, &accepted)?;
    while matches!(connection.next_event(LONG).context("the client stays")?, ConnectionEvent::Established) {}
    Ok(())
}
