//! Two ends of a connection in one process.

use std::{
    env,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use pmof_mem::{Medium, Memory};
use pmof_verbs::{
    CmEventKind, CmId, CompletionQueue, ConnectParameters, Device, EventChannel, MemoryRegion, MrAccess, Operation,
    ProtectionDomain, QueuePair, QueuePairOptions, Receive, RemoteAddress, SharedReceiveQueue, WorkCompletion,
    WorkRequest,
};

/// No step here takes longer, on any machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// The length of every region here.
pub(crate) const REGION_BYTES: u64 = 64 << 10;

/// The addresses at the ends of the wire; `None`, and said so, where there is none.
pub(crate) fn wire() -> Option<(IpAddr, IpAddr)> {
    addresses("PMOF_WIRE_A", "PMOF_WIRE_B")
}

/// Two addresses from the environment.
pub(crate) fn addresses(a: &str, b: &str) -> Option<(IpAddr, IpAddr)> {
    let of = |name| env::var(name).ok().map(|text| text.parse().expect("an IP address"));
    let both = of(a).zip(of(b));
    if both.is_none() {
        skip_report::skipped!("{a} and {b} name no RDMA devices here; `cargo xtask vm run` has them");
    }
    both
}

/// Everything that flush and atomic write may ask for.
pub(crate) fn all_access() -> MrAccess {
    MrAccess::all() - MrAccess::ON_DEMAND - MrAccess::FLUSH_PERSISTENT
}

/// What of it a device can register.
fn what_it_has(device: &Device, mut access: MrAccess) -> MrAccess {
    let has = device.capabilities();
    if !has.native_flush_global {
        access.remove(MrAccess::FLUSH_GLOBAL);
    }
    if !has.native_flush_persistent {
        access.remove(MrAccess::FLUSH_PERSISTENT);
    }
    access
}

/// Repeats until there is something.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what} did not happen in time");
        thread::sleep(Duration::from_micros(50));
    }
}

/// The next event of a channel.
pub(crate) fn event(channel: &EventChannel) -> (u64, CmEventKind) {
    let event = until("an event", || channel.next_event().unwrap());
    (event.id, event.kind)
}

/// Exactly so many completions.
pub(crate) fn completions(queue: &CompletionQueue, count: usize) -> Vec<WorkCompletion> {
    let mut taken = Vec::new();
    until("completions", || {
        let mut some = [WorkCompletion::default(); 4];
        let got = queue.poll(&mut some).unwrap();
        taken.extend_from_slice(&some[..got]);
        (taken.len() >= count).then_some(())
    });
    assert_eq!(taken.len(), count, "{taken:?}");
    taken
}

/// How an end is made.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) memory: Option<Arc<dyn Medium>>,
    pub(crate) access: MrAccess,
    pub(crate) send_depth: u32,
    pub(crate) inline_bytes: u32,
    pub(crate) flush: bool,
    pub(crate) atomic_write: bool,
    pub(crate) classic: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            memory: None,
            access: all_access(),
            send_depth: 16,
            inline_bytes: 64,
            flush: true,
            atomic_write: true,
            classic: false,
        }
    }
}

/// One end: the objects of a device, and one region.
pub(crate) struct End {
    pub(crate) device: Device,
    pub(crate) domain: ProtectionDomain,
    pub(crate) queue: CompletionQueue,
    pub(crate) region: MemoryRegion,
    pub(crate) memory: Arc<dyn Medium>,
    pub(crate) options: QueuePairOptions,
}

impl End {
    pub(crate) fn new(device: Device, setup: &Setup) -> Self {
        let domain = device.protection_domain().unwrap();
        let queue = CompletionQueue::new(&device, 64, true).unwrap();
        let memory = match &setup.memory {
            Some(memory) => Arc::clone(memory),
            None => Arc::new(Memory::anonymous(REGION_BYTES).unwrap()),
        };
        let access = what_it_has(&device, setup.access);
        let region = domain.register(Arc::clone(&memory), 0, REGION_BYTES, access).unwrap();
        let options = QueuePairOptions {
            send_cq: queue.clone(),
            receive_cq: queue.clone(),
            srq: None,
            send_depth: setup.send_depth,
            receive_depth: 16,
            inline_bytes: setup.inline_bytes,
            max_sge: 1,
            flush: setup.flush,
            atomic_write: setup.atomic_write,
            classic: setup.classic,
        };
        Self { device, domain, queue, region, memory, options }
    }

    pub(crate) fn sharing(mut self, srq: &SharedReceiveQueue) -> Self {
        self.options.srq = Some(srq.clone());
        self
    }

    pub(crate) fn at(&self, offset: u64) -> RemoteAddress {
        RemoteAddress { address: self.region.address() + offset, rkey: self.region.rkey() }
    }

    pub(crate) fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(offset, &mut bytes).unwrap();
        bytes
    }

    pub(crate) fn receive(&self, id: u64, offset: u64, len_bytes: u64) -> Receive {
        Receive { id, into: self.region.sge(offset, len_bytes).unwrap() }
    }
}

/// An established connection.
pub(crate) struct Link {
    pub(crate) channel: EventChannel,
    pub(crate) listener: CmId,
    pub(crate) client_id: CmId,
    pub(crate) server_id: CmId,
    pub(crate) client: QueuePair,
    pub(crate) server: QueuePair,
}

/// A listener on a free port of the address.
pub(crate) fn listen(channel: &EventChannel, address: IpAddr) -> (CmId, SocketAddr) {
    let listener = CmId::new(channel).unwrap();
    listener.bind(SocketAddr::new(address, 0)).unwrap();
    listener.listen(16).unwrap();
    let address = listener.local_address().unwrap();
    assert_ne!(address.port(), 0);
    (listener, address)
}

/// An identifier with a device and a route.
pub(crate) fn resolve(channel: &EventChannel, from: IpAddr, to: SocketAddr) -> CmId {
    let id = CmId::new(channel).unwrap();
    id.resolve_address(Some(SocketAddr::new(from, 0)), to, Duration::from_secs(5)).unwrap();
    let (key, kind) = event(channel);
    assert!(key == id.key() && matches!(kind, CmEventKind::AddressResolved), "{kind:?}");
    id.resolve_route(Duration::from_secs(5)).unwrap();
    let (key, kind) = event(channel);
    assert!(key == id.key() && matches!(kind, CmEventKind::RouteResolved), "{kind:?}");
    id
}

/// The ends of two devices by the addresses, connected from the first to the second.
pub(crate) fn connected(from: IpAddr, to: IpAddr, client: &Setup, server: &Setup) -> (Link, End, End) {
    let client = End::new(Device::by_local_address(from).unwrap(), client);
    let server = End::new(Device::by_local_address(to).unwrap(), server);
    let link = connect(&client, &server, from, to);
    (link, client, server)
}

/// Connects two ends.
pub(crate) fn connect(client: &End, server: &End, from: IpAddr, to: IpAddr) -> Link {
    let channel = EventChannel::new().unwrap();
    let (listener, address) = listen(&channel, to);
    let client_id = resolve(&channel, from, address);
    let client_qp = client_id.create_queue_pair(&client.domain, &client.options).unwrap();
    client_id.connect(&ConnectParameters::default()).unwrap();
    let (key, kind) = event(&channel);
    let CmEventKind::ConnectRequest { request: server_id, .. } = kind else { panic!("{kind:?}") };
    assert_eq!(key, listener.key());
    let server_qp = server_id.create_queue_pair(&server.domain, &server.options).unwrap();
    server_id.accept(&ConnectParameters::default()).unwrap();
    let mut established = vec![];
    while established.len() < 2 {
        let (key, kind) = event(&channel);
        assert!(matches!(kind, CmEventKind::Established { .. }), "{kind:?}");
        established.push(key);
    }
    established.sort_unstable();
    assert_eq!(established, [client_id.key(), server_id.key()]);
    Link { channel, listener, client_id, server_id, client: client_qp, server: server_qp }
}

/// A request that asks for a completion.
pub(crate) fn signaled(id: u64, operation: Operation<'_>) -> WorkRequest<'_> {
    WorkRequest { id, signaled: true, fence: false, operation }
}
