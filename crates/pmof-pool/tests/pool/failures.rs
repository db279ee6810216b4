//! What targets refuse, and what is left when some of them die.

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use pmof_access::{Durability, OperationError, RemoteRegion};
use pmof_control::{Claim, MessageHead, NewPool, OpenFor, PoolName, PoolRefusal, Reply, Request};
use pmof_mem::causes;
use pmof_pool::{Acknowledge, PersistFailure, Pool, PoolError, ReplicaError};
use pmof_target::{Service, ServiceOptions};

use crate::support::{LONG, RawInitiator, Target, assert_refused, of_replica, options, read, urls};

fn persist_failure(error: PoolError) -> PersistFailure {
    match error {
        PoolError::Persist(failure) => *failure,
        other => panic!("not a failed persist: {other:?}"),
    }
}

#[test]
fn a_second_writer_learns_who_writes() {
    let target = Target::start();
    let pools = options([target.url("orders")]);
    let writer = pools.create(4096).expect("a pool");
    let error = pools.open().expect_err("busy");
    assert_refused(&error, &target.url("orders"), PoolRefusal::Busy);
    let holder = pools.info().expect("info")[0].open_by.clone().expect("a holder");
    assert!(holder.contains("127.0.0.1:"), "{holder}");
    assert!(causes(&error).to_string().contains(&holder), "{error}");
    assert!(error.is_busy() && !error.is_replica_lost(), "{error:?}");
    let error = pools.remove().expect_err("busy");
    assert_refused(&error, &target.url("orders"), PoolRefusal::Busy);
    // Reading it would not remove it.
    assert!(error.is_busy() && !causes(&error).to_string().contains("reading"), "{error:?}");
    writer.close().expect("closed");
    pools.open().expect("free at once").close().expect("closed");
    pools.remove().expect("free at once");
}

#[test]
fn a_level_that_one_replica_cannot_give_leaves_nothing() {
    let (disk, memory) = (Target::start(), Target::on_tmpfs(ServiceOptions::default()));
    let pools = options([disk.url("orders"), memory.url("orders")]);
    let error = pools.clone().require(Durability::PowerFailure).create(4096).expect_err("tmpfs");
    assert_refused(&error, &memory.url("orders"), PoolRefusal::NotDurable);
    assert!(
        causes(&error).to_string().contains("power-failure") && causes(&error).to_string().contains("tmpfs"),
        "{error}"
    );
    assert!(disk.files().is_empty() && memory.files().is_empty());

    // What it can give, it gives; and an open pool is judged in the same way.
    pools.create(4096).expect("a pool").close().expect("closed");
    let error = pools.clone().require(Durability::PowerFailure).open().expect_err("tmpfs");
    assert_refused(&error, &memory.url("orders"), PoolRefusal::NotDurable);
    pools.open().expect("free at once, also on the other").close().expect("closed");
    assert!(matches!(Pool::options().replica(disk.url("orders")).open(), Err(PoolError::NoDurability)));
}

#[test]
fn a_create_that_one_replica_refuses_is_undone_on_the_others() {
    let (a, b, c) = (Target::start(), Target::start(), Target::start());
    let theirs = options([b.url("orders")]).create(4096).expect("somebody's pool");
    theirs.persist(0, b"theirs").expect("a receipt");
    let uuid = theirs.uuid();
    theirs.close().expect("closed");

    let error = options([&a, &b, &c].map(|target| target.url("orders"))).create(4096).expect_err("a taken name");
    assert_refused(&error, &b.url("orders"), PoolRefusal::AlreadyExists);
    assert!(a.files().is_empty() && c.files().is_empty());
    let theirs = options([b.url("orders")]).open().expect("untouched");
    assert_eq!((theirs.uuid(), read(&theirs, 0, 6)), (uuid, b"theirs".to_vec()));
}

#[test]
fn replicas_of_different_pools_are_not_opened_together() {
    let (a, b) = (Target::start(), Target::start());
    let urls = [a.url("orders"), b.url("orders")];
    for (url, size_bytes) in urls.iter().zip([4096, 8192]) {
        options([url]).create(size_bytes).expect("a pool").close().expect("closed");
    }
    let error = options(&urls).open().expect_err("two pools");
    let (replica, why) = of_replica(&error);
    assert_eq!(replica.to_string(), urls[1]);
    assert!(matches!(why, ReplicaError::Mismatch { size_bytes: 4096, found_bytes: 8192, .. }), "{why}");
    // Neither was kept open.
    for url in &urls {
        options([url]).open().expect("free at once").close().expect("closed");
    }
}

#[test]
fn a_dead_replica_is_named_and_the_others_keep_the_data() {
    let (a, mut b, c) = (Target::start(), Target::start(), Target::start());
    let urls = [&a, &b, &c].map(|target| target.url("orders"));
    let pool = options(&urls).create(4096).expect("a pool");
    pool.persist(0, b"before").expect("a receipt");
    b.stop();
    for attempt in [b"first!", b"second"] {
        let receipt = pool.persist(0, attempt).expect("two are enough of three");
        assert_eq!(receipt.missing.iter().map(ToString::to_string).collect::<Vec<_>>(), [urls[1].clone()]);
        let kept: Vec<_> = receipt.replicas.iter().map(|replica| replica.replica.to_string()).collect();
        assert_eq!(kept, [urls[0].clone(), urls[2].clone()]);
        assert_eq!(receipt.replica_count, 3);
        assert!(receipt.to_string().contains("process-crash on 2/3"), "{receipt}");
    }
    assert!(matches!(pool.replicas()[1].1.as_deref(), Some(ReplicaError::Ended(_))), "{:?}", pool.replicas());
    // Asked for itself, the dead one says why it is out of use, and goes on saying so.
    let mut bytes = [0; 6];
    let first = pool.read_replica(1, 0, &mut bytes).expect_err("dead").to_string();
    assert_eq!(pool.read_replica(1, 0, &mut bytes).expect_err("dead").to_string(), first);
    assert_eq!(read(&pool, 0, 6), b"second");
    pool.close().expect("nothing that was not told");
    for url in [&urls[0], &urls[2]] {
        assert_eq!(read(&options([url]).min_replicas(1).open_read_only().expect("closed"), 0, 6), b"second");
    }
}

#[test]
fn a_loss_that_nobody_makes_up_for_is_reported_by_the_close() {
    for (is_waited_for, is_asked) in [(false, false), (false, true), (true, false)] {
        let mut b = Target::start();
        let lost = b.url("orders");
        let pool = options([&lost]).create(4096).expect("a pool");
        pool.persist(0, b"kept").expect("a receipt");
        b.stop();
        let mut lane = pool.lane();
        lane.write(0, b"new!").expect("posted");
        let flush = lane.flush();
        if is_waited_for {
            flush.wait().expect_err("it is dead");
        }
        if is_asked {
            pool.persist(0, b"newer").expect_err("it is dead");
        }
        let closed = pool.close();
        if is_waited_for {
            closed.expect("it was told");
        } else {
            // The program knows of the loss, but not how the first flush ended.
            let error = closed.expect_err("a write is lost");
            assert_eq!(of_replica(&error).0.to_string(), lost);
            assert!(error.is_replica_lost() && !error.is_busy(), "{error:?}");
        }
    }
}

#[test]
fn a_loss_is_reported_in_one_line_and_each_cause_once() {
    let told = |error: PoolError| {
        let text = format!("{error:?}");
        assert_eq!(text, causes(&error).to_string());
        for words in ["the connection was lost", "the connection cannot take operations"] {
            assert!(text.matches(words).count() <= 1 && !text.contains('\n'), "{text}");
        }
    };
    let root = tempfile::tempdir().expect("a directory");
    let socket = format!("shm://{}", root.path().join("socket").display());
    for address in ["tcp://127.0.0.1:0", &socket] {
        for is_persisted in [true, false] {
            let service =
                Service::start(root.path(), &[address.parse().expect("an address")], ServiceOptions::default());
            let service = service.expect("a target");
            let address = service.addresses()[0].to_string();
            let name = if address.starts_with("shm") { "?pool=" } else { "/" };
            let pools = options([format!("{address}{name}orders")]);
            let pool = pools.open_or_create(4096).expect("a pool");
            pool.lane().write(0, b"on its way").expect("posted");
            drop(service);
            if is_persisted {
                told(pool.persist(0, b"lost").expect_err("it is dead"));
                told(pool.read_replica(0, 0, &mut [0]).expect_err("it is dead"));
            }
            told(pool.close().expect_err("it is dead"));
        }
    }
}

/// What another thread was told, or a look at the replicas, says nothing of a write that was not persisted.
#[test]
fn a_close_does_not_hide_a_write_that_too_few_have() {
    for lost_count in [2, 3] {
        for is_persisted in [false, true] {
            let mut targets = [Target::start(), Target::start(), Target::start()];
            let urls: Vec<_> = targets.iter().map(|target| target.url("orders")).collect();
            let pool = options(&urls).create(8192).expect("a pool");
            pool.persist(0, b"kept").expect("a receipt");
            targets[..lost_count].iter_mut().for_each(Target::stop);
            if is_persisted {
                pool.persist(0, b"lost").expect_err("too few are left");
            } else {
                while pool.replicas().iter().filter(|(_, lost)| lost.is_some()).count() < lost_count {
                    thread::sleep(Duration::from_millis(5));
                }
            }
            let mut lane = pool.lane();
            lane.write(4096, b"hidden").expect("posted");
            let error = pool.close().expect_err("it is on too few");
            assert!(error.is_replica_lost(), "{error:?}");
        }
    }
}

#[test]
fn reads_fall_over_to_the_next_replica() {
    let (mut a, mut b) = (Target::start(), Target::start());
    let pool = options([a.url("orders"), b.url("orders")]).create(4096).expect("a pool");
    let last = b.url("orders");
    pool.persist(0, b"kept").expect("a receipt");
    a.stop();
    assert_eq!(read(&pool, 0, 4), b"kept");
    b.stop();
    let failure = persist_failure(pool.persist(0, b"lost").expect_err("all are dead"));
    assert_eq!((failure.failed.len(), failure.receipt.replicas.len()), (2, 0));
    match pool.read(0, &mut [0; 4]) {
        Err(PoolError::NoneLeft { replica, .. }) => assert_eq!(replica.to_string(), last),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_closed_port_and_a_foreign_service_are_reported_in_time() {
    let mut target = Target::start();
    let gone = target.url("orders");
    target.stop();
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mute = format!("tcp://{}/orders", silent.local_addr().expect("an address"));
    for (url, word) in [(&gone, "refused"), (&mute, "did not answer within")] {
        let error = options([url]).connect_timeout(Duration::from_millis(300)).open().expect_err("nobody there");
        assert!(matches!(of_replica(&error).1, ReplicaError::Connect(_)), "{error:?}");
        assert!(
            causes(&error).to_string().contains(url.as_str()) && causes(&error).to_string().contains(word),
            "{error}"
        );
    }
}

#[test]
fn a_stale_initiator_cannot_write_to_a_pool_that_another_opened() {
    let target = Target::start();
    let pools = options([target.url("orders")]);
    pools.create(4096).expect("a pool").close().expect("closed");
    let name = PoolName::new("orders").expect("a name");
    let open = Request::Open { name, access: OpenFor::Write, require: Durability::ProcessCrash, may_be_older: false };

    let stale = RawInitiator::connect(&target.address());
    let Reply::Opened { descriptor, .. } = stale.ask(&open) else { panic!("not opened") };
    let old = RemoteRegion::from_descriptor(&descriptor).expect("a descriptor");
    let write = |initiator: &RawInitiator| {
        let ticket = initiator.connection.write(&old, 0, b"stale").expect("posted");
        initiator.queue.wait_for(initiator.connection.id(), ticket, LONG).expect("in time").outcome
    };
    write(&stale).expect("positive control: it is open");
    assert_eq!(stale.ask(&Request::Close { in_order: true }), Reply::Closed);

    let pool = pools.open().expect("free");
    pool.persist(0, b"newer").expect("a receipt");
    // By its own connection, and by a new one with the descriptor kept from before.
    for initiator in [stale, RawInitiator::connect(&target.address())] {
        let refused = write(&initiator);
        assert!(matches!(refused, Err(OperationError::Refused { .. })), "{refused:?}");
    }
    assert_eq!(read(&pool, 0, 5), b"newer");
    pool.persist(0, b"newest").expect("not disturbed");
}

#[test]
fn an_initiator_that_vanishes_frees_its_pool() {
    let target = Target::start();
    let pools = options([target.url("orders")]);
    drop(pools.create(4096).expect("a pool"));
    pools.open().expect("free again");
}

/// A writer that died and is started again comes before its target has noticed.
#[test]
fn whoever_comes_waits_a_moment_for_a_writer_that_goes() {
    const PAUSE: Duration = Duration::from_millis(150);
    let target = Target::start();
    let pools = options([target.url("orders")]);
    let waits = |writer: Pool, ask: &dyn Fn()| {
        let goes = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(PAUSE);
                goes.store(true, Ordering::SeqCst);
                drop(writer);
            });
            ask();
            assert!(goes.load(Ordering::SeqCst), "two had the pool");
        });
    };
    waits(pools.create(4096).expect("a pool"), &|| pools.open().expect("free").close().expect("closed"));
    waits(pools.open().expect("free"), &|| pools.remove().expect("free"));
}

#[test]
fn nonsense_is_refused_and_the_connection_goes_on() {
    let target = Target::start();
    let initiator = RawInitiator::connect(&target.address());
    let mut newer = Request::Close { in_order: true }.encode(MessageHead::newest(7)).expect("fits");
    newer[0] = 9;
    for message in [&b"hello"[..], &newer] {
        assert!(matches!(initiator.ask_bytes(message), Reply::Refused { code: 256, .. }));
    }
    assert_eq!(initiator.ask(&Request::Close { in_order: true }), Reply::Closed);
    let create = |name: &str| Request::Create {
        name: PoolName::new(name).expect("a name"),
        new: NewPool {
            size_bytes: 1,
            pool_uuid: uuid::Uuid::from_u128(1),
            epoch: uuid::Uuid::from_u128(2),
            replica_index: 0,
            replica_count: 1,
            require: Durability::Visible,
            user_flags: [0; 16],
            protection: None,
        },
        publish_on_close: false,
    };
    assert!(matches!(initiator.ask(&create("one")), Reply::Opened { .. }));
    assert!(matches!(initiator.ask(&create("two")), Reply::Refused { code: 257, .. }));
    assert_eq!(target.files(), ["one"]);
}

/// A frame without a payload, as docs/design.md lays it out; `fields` are bytes by their offset.
fn frame(opcode: u8, fields: &[(usize, &[u8])]) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[0] = opcode;
    for (offset, field) in fields {
        bytes[*offset..*offset + field.len()].copy_from_slice(field);
    }
    let crc = crc32c::crc32c(&bytes[..60]);
    bytes[60..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

#[test]
fn connections_that_end_before_they_are_taken_do_not_count() {
    let target =
        Target::start_with(tempfile::tempdir().expect("a directory"), ServiceOptions::default().max_connections(1));
    let url = target.url("orders");
    let address = url.strip_prefix("tcp://").and_then(|rest| rest.split('/').next()).expect("an address").to_owned();
    // A hello with a payload checksum (that of nothing, 0), and right behind it a disconnect.
    let (message, payload, queue) = (4096_u32.to_le_bytes(), (1_u64 << 20).to_le_bytes(), 64_u32.to_le_bytes());
    let versions = [1, 0, 1, 0];
    let hello = frame(
        0xf0,
        &[(1, &[2]), (4, b"PMOF"), (8, &versions), (24, &message), (28, &[4]), (32, &payload), (48, &queue)],
    );
    let both = [hello, frame(0x41, &[])].concat();
    for _ in 0..2 {
        let mut client = TcpStream::connect(&address).expect("a target");
        client.write_all(&both).expect("sent");
        // Until the target has closed; that it did is all that counts.
        let _ = client.read_to_end(&mut Vec::new());
    }
    let pools = options([url]);
    let deadline = Instant::now() + LONG;
    loop {
        match pools.create(4096) {
            Ok(pool) => break pool.close().expect("closed"),
            Err(error) => assert!(Instant::now() < deadline, "the gone ones still count: {error}"),
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_file_that_lost_its_name_is_reported_within_a_mark_and_at_the_close() {
    let target = Target::start();
    let path = target.root.path().join("orders");
    let aside = target.root.path().join("aside");
    let pools = options([target.url("orders")]);
    let pool = pools.create(4096).expect("a pool");
    pool.persist(0, b"named").expect("a receipt");
    // A file that is put back, say.
    fs::copy(&path, &aside).expect("a copy");
    fs::rename(&aside, &path).expect("a rename");
    thread::sleep(Duration::from_millis(1100));
    match pool.persist(0, b"lost!") {
        Err(PoolError::Persist(failure)) => {
            assert!(failure.to_string().contains("was replaced or removed by another process"), "{failure}");
        }
        other => panic!("{other:?}"),
    }
    drop(pool);

    let pool = pools.open().expect("free again");
    pool.persist(0, b"again").expect("a receipt");
    fs::remove_file(&path).expect("removed");
    let error = pool.close().expect_err("closed without a name");
    assert!(causes(&error).to_string().contains("was replaced or removed by another process"), "{error}");
}

#[test]
fn what_asks_for_no_replicas_is_refused() {
    let target = Target::start();
    let all = options([target.url("orders")]);
    all.create(4096).unwrap().close().unwrap();
    for (asked, option) in [
        (all.clone().min_replicas(0), "min_replicas"),
        (all.clone().acknowledge(Acknowledge::AtLeast(0)), "acknowledge (AtLeast)"),
    ] {
        for error in [asked.open(), asked.open_read_only(), asked.create(4096), asked.open_or_create(4096)]
            .map(Result::unwrap_err)
        {
            assert!(matches!(error, PoolError::Zero { option: said } if said == option), "{error}");
        }
    }
    all.min_replicas(1).open().unwrap().close().unwrap();
}

/// Answers everybody as a web server does.
fn web_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("tcp://{}/orders", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.write_all(&b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n".repeat(4));
            thread::spawn(move || stream.read_to_end(&mut Vec::new()));
        }
    });
    url
}

#[test]
fn a_wrong_address_is_no_lost_replica_and_the_others_go_on_without_it() {
    let three: [Target; 3] = std::array::from_fn(|_| Target::start_fixed());
    options(urls(&three)).create(4096).unwrap().close().unwrap();
    for wrong in ["tcp://no-such-host.invalid:7204/orders".to_owned(), web_server()] {
        let error = options([&wrong]).open().unwrap_err();
        let why = error.replica_error().unwrap();
        assert!(!error.is_replica_lost() && !why.is_lost() && why.is_out_of_reach(), "{error:?}");
        let pool = options([wrong, three[0].url("orders"), three[1].url("orders")]).open().unwrap();
        assert!(!pool.left_out()[0].1.is_lost(), "{:?}", pool.left_out());
        pool.persist(0, b"here").unwrap();
        pool.close().unwrap();
    }
    let unreachable = options(["tcp://127.0.0.1:1/orders"]).open().unwrap_err();
    assert!(unreachable.is_replica_lost(), "nobody listens there now: {unreachable:?}");
}

#[test]
fn a_persist_of_a_writer_that_was_fenced_says_so_once() {
    let three: [Target; 3] = std::array::from_fn(|_| Target::start_fixed());
    let pool = options(urls(&three)).create(4096).unwrap();
    let successor = options(urls(&three)).take_over(Duration::ZERO).open().unwrap();
    let error = pool.persist(0, b"late").unwrap_err();
    let said = error.to_string();
    assert!(error.is_fenced() && said.matches("was taken over by").count() == 1, "{said}");
    assert!(urls(&three).iter().all(|url| said.contains(url)), "{said}");
    successor.close().unwrap();
}

#[test]
fn errors_say_what_to_do() {
    let two: [Target; 2] = std::array::from_fn(|_| Target::start_fixed());
    let url = two[0].url("orders");
    let said = |error: PoolError| format!("{error:?}");
    assert!(said(options([&url, &url]).open().unwrap_err()).contains("name each replica once"));
    let pool = options([&url]).create(4096).unwrap();
    assert!(said(pool.persist(4000, &[0; 100]).unwrap_err()).contains("end at its last byte"));
    options([two[1].url("orders")]).create(4096).unwrap().close().unwrap();
    pool.close().unwrap();
    assert!(said(pool.persist(0, b"late").unwrap_err()).contains("open it again"));
    assert!(said(options(urls(&two)).open().unwrap_err()).contains("name replicas of one pool"));
}

/// However long it takes, the initiator knows that the target is at it.
#[test]
fn work_on_a_set_is_told_of() {
    let target = Target::start();
    let initiator = RawInitiator::connect(&target.address());
    let set = || pmof_control::SetName::new("p.set").expect("a name");
    let text = format!("PMEMPOOLSET\n2M {}\n", target.root.path().join("part").display());
    fs::write(target.root.path().join("p.set"), text).expect("a set file");
    let require = Durability::Visible;
    let attributes = pmof_pool_set::Attributes { poolset_uuid: [1; 16], uuid: [2; 16], ..<_>::default() }.to_bytes();
    for (request, is_told_of) in [
        (Request::SetFiles { name: set(), first: 0 }, true),
        (Request::CreateSet { name: set(), size_bytes: 0, attributes: Some(attributes), require }, true),
        (Request::KeepSet, true),
        (Request::Boot, false),
        (Request::SetAttributes { attributes }, true),
        (Request::Close { in_order: true }, true),
        (Request::Close { in_order: true }, false),
        (Request::OpenSet { name: set(), size_bytes: 0, access: OpenFor::Read, require }, true),
        (Request::Close { in_order: true }, true),
        (Request::PrepareReplacement { name: set(), member: [1; 16] }, true),
        (Request::PrepareRemoval { name: set(), force: true, set_file: false, member: None }, true),
        (Request::RemoveSet { name: set(), force: true, set_file: false }, true),
        (Request::List { after: None }, false),
    ] {
        initiator.connection.send(&request.encode(MessageHead::newest(7)).expect("fits")).expect("posted");
        let mut reply = initiator.next_message();
        assert_eq!(reply == Reply::Working, is_told_of, "{request:?}");
        while reply == Reply::Working {
            reply = initiator.next_message();
        }
        assert!(!matches!(reply, Reply::Refused { .. }), "{request:?}: {reply:?}");
    }
}

/// Whoever finds it first: the writer that closes the pool, or the one that takes it over.
#[test]
fn a_file_that_is_gone_is_counted_once() {
    let require = Durability::ProcessCrash;
    for is_taken_over in [false, true] {
        let target = Target::start();
        options([target.url("orders")]).create(4096).expect("a pool").close().expect("closed");
        let name = PoolName::new("orders").expect("a name");
        let (writer, next) = (RawInitiator::connect(&target.address()), RawInitiator::connect(&target.address()));
        let open = Request::Open { name: name.clone(), access: OpenFor::Write, require, may_be_older: false };
        assert!(matches!(writer.ask(&open), Reply::Opened { .. }));
        fs::remove_file(target.root.path().join("orders")).expect("removed");
        assert_eq!(target.files_lost(), 0);
        let reply = if is_taken_over {
            next.ask(&Request::TakeOver { name, require, silent_ms: 0, claim: Claim::None })
        } else {
            writer.ask(&Request::Close { in_order: true })
        };
        assert!(matches!(reply, Reply::Refused { code: 15, .. }), "{reply:?}");
        assert_eq!(target.files_lost(), 1, "taken over: {is_taken_over}");
    }
}
