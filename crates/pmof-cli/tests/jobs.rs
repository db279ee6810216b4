//! `pmof bench run`: job files of fio's librpma engines, and output that fio's own tools read.

use std::{
    cell::{Cell, RefCell},
    fs,
    io::{Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;

/// Ports that nobody listens on now, one after the other.
fn free_ports(count: u16) -> u16 {
    for _ in 0..100 {
        let first = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = first.local_addr().unwrap().port();
        let others: Vec<_> =
            (1..count).map(|index| TcpListener::bind(("127.0.0.1", port.saturating_add(index)))).collect();
        if port < 60_000 && others.iter().all(Result::is_ok) {
            return port;
        }
    }
    panic!("no {count} ports in a row are free")
}

fn global(engine: &str, port: u16) -> String {
    format!(
        "# a job of {engine}\n[global]\nioengine={engine}\ncreate_serialize=0 # has to be\nserverip=127.0.0.1\nport={port}\nthread\n"
    )
}

fn server_file(directory: &Path, engine: &str, port: u16, options: &str) -> PathBuf {
    let path = directory.join(format!("{engine}-server.fio"));
    let engine = format!("librpma_{engine}_server");
    let text = format!("{}kb_base=1000\n\n[server]\nsize=1MiB\n{options}\n", global(&engine, port));
    fs::write(&path, text).unwrap();
    path
}

fn client_file(directory: &Path, engine: &str, port: u16, options: &str) -> PathBuf {
    let path = directory.join(format!("{engine}-client.fio"));
    let engine = format!("librpma_{engine}_client");
    fs::write(&path, format!("{}\n[client]\n{options}\n", global(&engine, port))).unwrap();
    path
}

fn pmof() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pmof"));
    command.args(["bench", "run"]);
    command
}

/// Killed when dropped, if a failed test leaves it behind.
struct Server(Option<Child>);

impl Server {
    fn start(file: &Path) -> Self {
        let child = pmof().arg(file).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Self(Some(child))
    }

    fn output(mut self) -> Output {
        self.0.take().unwrap().wait_with_output().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs both files; what the client printed.
fn run(server: &Path, client: &Path, format: &str) -> String {
    let server = Server::start(server);
    let client = pmof().arg(client).args(["--output-format", format]).output().unwrap();
    let error = String::from_utf8_lossy(&client.stderr).into_owned();
    assert_eq!(client.status.code(), Some(0), "{error}");
    let server = server.output();
    assert_eq!(server.status.code(), Some(0), "{}", String::from_utf8_lossy(&server.stderr));
    let said = String::from_utf8_lossy(&server.stdout);
    assert!(said.contains("Starting ") && said.contains("(groupid=0, jobs="), "{said}");
    String::from_utf8(client.stdout).unwrap()
}

/// In the manner of fio's example of each engine, with short times.
#[test]
fn an_apm_pair_runs_a_mix_and_fios_text_tells_of_it() {
    let (directory, port) = (tempfile::tempdir().unwrap(), free_ports(2));
    let server = server_file(directory.path(), "apm", port, "direct_write_to_pmem=0\nnumjobs=2\nfilename=malloc");
    let client = client_file(
        directory.path(),
        "apm",
        port,
        "numjobs=2 # connections\ngroup_reporting=1\nsync=1\niodepth=2\niodepth_batch_submit=1\nrw=rw\nrwmixread=70\nblocksize=4KiB\n\
         ramp_time=10ms\ntime_based\nruntime=200ms",
    );
    let text = run(&server, &client, "normal");
    for part in [
        "client: (g=0): rw=rw, bs=(R) 4000B-4000B",
        "Starting 2 threads",
        "client: (groupid=0, jobs=2): err= 0",
        "  read: IOPS=",
        "  write: IOPS=",
        "clat percentiles (",
        "99.99th=[",
        "Run status group 0 (all jobs):",
        "   READ: bw=",
        "  WRITE: bw=",
        "flushes reached visible (send-after-write",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn a_gpspm_pair_writes_its_size_once_and_makes_a_file_durable() {
    let (directory, port) = (tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap(), free_ports(1));
    let memory = directory.path().join("memory");
    fs::write(&memory, vec![1; 1 << 20]).unwrap();
    let options = format!("busy_wait_polling=0\niodepth=2\nfilename={}\ntime_based\nruntime=365d", memory.display());
    let server = server_file(directory.path(), "gpspm", port, &options);
    let client = client_file(directory.path(), "gpspm", port, "iodepth=8\niodepth_batch_submit=4\nrw=write\nbs=4k");
    let report: Value = serde_json::from_str(&run(&server, &client, "json")).unwrap();
    let job = &report["jobs"][0];
    assert_eq!((&job["write"]["total_ios"], &job["write"]["io_bytes"]), (&256.into(), &(1 << 20).into()), "{job}");
    assert_eq!(job["read"]["total_ios"], 0);
    assert_eq!(job["job options"]["bs"], "4k");
    assert_eq!(report["global options"]["ioengine"], "librpma_gpspm_client");
    assert!(job["write"]["clat_ns"]["percentile"]["99.990000"].as_u64() > Some(0), "{job}");
    assert!(job["write"]["clat_ns"].get("bins").is_none(), "bins are of json+: {job}");
    assert_eq!(fs::read(&memory).unwrap(), vec![7; 1 << 20], "the bytes are in the server's file");
}

/// One job's JSON+, whose bins hold every operation.
fn json_plus(directory: &TempDir) -> String {
    let port = free_ports(1);
    let server = server_file(directory.path(), "apm", port, "filename=malloc");
    let client = client_file(directory.path(), "apm", port, "rw=randrw\nbs=512\niodepth=4\nnumber_ios=500");
    run(&server, &client, "json+")
}

#[test]
fn bins_of_json_plus_hold_every_operation() {
    let directory = tempfile::tempdir().unwrap();
    let report: Value = serde_json::from_str(&json_plus(&directory)).unwrap();
    let mut total = 0;
    for direction in ["read", "write"] {
        let direction = &report["jobs"][0][direction];
        let bins = direction["clat_ns"]["bins"].as_object().unwrap();
        assert!(bins.keys().all(|key| key.parse::<u64>().is_ok()), "{bins:?}");
        let held: u64 = bins.values().map(|count| count.as_u64().unwrap()).sum();
        assert_eq!(Some(held), direction["total_ios"].as_u64());
        total += held;
    }
    assert_eq!(total, 500);
}

#[test]
fn fios_own_tool_reads_json_plus_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let (json, csv) = (directory.path().join("out.json"), directory.path().join("out.csv"));
    let tool = |more: &[&str]| Command::new("fio_jsonplus_clat2csv").arg(&json).arg(&csv).args(more).output();
    if !tool(&["--help"]).is_ok_and(|output| output.status.success()) {
        return skip_report::skipped!("no fio_jsonplus_clat2csv that runs: install the packages fio and python3-six");
    }
    fs::write(&json, json_plus(&directory)).unwrap();
    for more in [&[][..], &["--validate"]] {
        let output = tool(more).unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{said} {}", String::from_utf8_lossy(&output.stderr));
        assert!(said.contains(if more.is_empty() { "generated" } else { "validated" }), "{said}");
    }
    let table = fs::read_to_string(directory.path().join("out_job0.csv")).unwrap();
    assert!(table.lines().next().unwrap().contains("write_clat_ns_cumulative") && table.lines().count() > 2, "{table}");
}

/// Files as librpma's benchmarks have: values of the environment, percentiles of `lat` alone, and a load of the CPU beside the server.
#[test]
fn files_of_librpmas_benchmarks_run() {
    let (directory, ports) = (tempfile::tempdir().unwrap(), [free_ports(2), free_ports(2)]);
    for (engine, port, mix) in [("apm", ports[0], "randrw"), ("gpspm", ports[1], "write")] {
        let variables = [
            ("PMOF_TEST_IP", "127.0.0.1"),
            ("PMOF_TEST_JOBS", "2"),
            ("PMOF_TEST_DEPTH", "4"),
            ("PMOF_TEST_SYNC", "0"),
            ("PMOF_TEST_MIX", mix),
            ("PMOF_TEST_ENGINE", &format!("librpma_{engine}_client")),
            ("PMOF_TEST_TIME", "300ms"),
            ("PMOF_TEST_FILE", "malloc"),
            ("PMOF_TEST_LOAD", "25"),
        ];
        let file = |side: &str, text: &str| {
            let path = directory.path().join(format!("{engine}-{side}-of-librpma.fio"));
            fs::write(&path, text).unwrap();
            path
        };
        let server = file(
            "server",
            &format!(
                "[global]\nioengine=librpma_{engine}_server\ncreate_serialize=0 # has to be\nkb_base=1000 # units as elsewhere\n\
                 serverip=${{PMOF_TEST_IP}}\nport={port}\nthread\n\n[server]\ndirect_write_to_pmem=0\nnumjobs=${{PMOF_TEST_JOBS}}\n\
                 iodepth=${{PMOF_TEST_DEPTH}}\nsize=1MiB\niomem_align=$pagesize\nfilename=${{PMOF_TEST_FILE}}\nbusy_wait_polling=0\n\
                 time_based\nruntime=365d\n\n[cpuio]\nioengine=cpuio\ncpuload=${{PMOF_TEST_LOAD}}\nnumjobs=1\n"
            ),
        );
        let client = file(
            "client",
            &format!(
                "[global]\nioengine=${{PMOF_TEST_ENGINE}}\ncreate_serialize=0 # has to be\nserverip=${{PMOF_TEST_IP}}\nport={port}\nthread\n\
                 disable_clat=1\nlat_percentiles=1\npercentile_list=99.0:99.9:99.99:99.999\n\n[client]\nsync=${{PMOF_TEST_SYNC}}\n\
                 numjobs=${{PMOF_TEST_JOBS}}\ngroup_reporting=1\niodepth=${{PMOF_TEST_DEPTH}}\nreadwrite=${{PMOF_TEST_MIX}}\n\
                 rwmixread=70 # of a mix only\nblocksize=${{PMOF_TEST_DEPTH}}k\nramp_time=10ms\ntime_based\nruntime=${{PMOF_TEST_TIME}}\n"
            ),
        );
        let run = |format: &str| {
            let mut serve = pmof();
            serve.arg(&server).envs(variables).stdout(Stdio::piped()).stderr(Stdio::piped());
            let serve = Server(Some(serve.spawn().unwrap()));
            let output = pmof().arg(&client).envs(variables).args(["--output-format", format]).output().unwrap();
            assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
            let ended = serve.output();
            let said = String::from_utf8_lossy(&ended.stderr);
            assert_eq!(ended.status.code(), Some(0), "{said}");
            for note in ["iomem_align changes nothing", "[cpuio]: 1 threads load the CPU at 25 %"] {
                assert!(said.contains(note), "{note}: {said}");
            }
            String::from_utf8(output.stdout).unwrap()
        };
        let report: Value = serde_json::from_str(&run("json")).unwrap();
        let of = |direction: &str, what: &str| report["jobs"][0][direction][what].clone();
        assert!(of("write", "total_ios").as_u64() > Some(0), "{report}");
        let percentiles = of("write", "lat_ns")["percentile"].clone();
        let names: Vec<_> = percentiles.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(names, ["99.000000", "99.900000", "99.990000", "99.999000"]);
        assert_eq!((&of("write", "clat_ns")["N"], &of("write", "clat_ns")["percentile"]), (&0.into(), &Value::Null));
        assert_eq!(report["jobs"][0]["job options"]["numjobs"], "2", "{report}");
        let text = run("normal");
        assert!(text.contains("lat percentiles (") && text.contains(" 99.999th=["), "{text}");
        assert!(!text.contains("clat") && !text.contains("50.000th"), "{text}");
    }
}

/// Connects as soon as somebody listens.
fn connect(port: u16) -> TcpStream {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => return stream,
            Err(error) => assert!(Instant::now() < until, "nobody listens: {error}"),
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Carries the bytes of one connection between both ends, each with a delay; for each request, the time by its own clock from when it came from the
/// client until the reply was on its way back to it.
fn observe(from: &TcpListener, to: u16, delay: Duration) -> Vec<Duration> {
    let (client, _) = from.accept().unwrap();
    let server = connect(to);
    let carry = |mut from: &TcpStream, mut to: &TcpStream, note: &dyn Fn(bool)| {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            note(true);
            thread::sleep(delay);
            if to.write_all(&bytes[..count]).is_err() {
                return;
            }
            note(false);
        }
        let _ = to.shutdown(Shutdown::Write);
    };
    client.set_nodelay(true).and_then(|()| server.set_nodelay(true)).unwrap();
    let (asked, observed) = (Cell::new(None), RefCell::new(Vec::new()));
    let (tell, told) = mpsc::channel();
    thread::scope(|scope| {
        let (client, server) = (&client, &server);
        scope.spawn(move || {
            carry(client, server, &|came| {
                if came {
                    tell.send(Instant::now()).unwrap();
                }
            });
        });
        carry(server, client, &|came| {
            if came {
                for time in told.try_iter() {
                    asked.set(Some(time));
                }
            } else if let Some(time) = asked.take() {
                observed.borrow_mut().push(time.elapsed());
            }
        });
    });
    observed.into_inner()
}

/// What is reported over what a proxy between both ends observes: of the best exchange, and of the median.
fn reported_over_observed(directory: &Path) -> (f64, f64) {
    let port = free_ports(1);
    let server = server_file(directory, "gpspm", port, "iodepth=2\nfilename=malloc");
    let server = Server::start(&server);
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let options = "sync=1\niodepth=1\nrw=write\nbs=512\nnumber_ios=60";
    let client = client_file(directory, "gpspm", proxy.local_addr().unwrap().port(), options);
    let observing = thread::spawn(move || observe(&proxy, port, Duration::from_millis(20)));
    let output = pmof().arg(&client).args(["--output-format", "json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let mut observed = observing.join().unwrap();
    server.output();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let reported = &report["jobs"][0]["write"]["clat_ns"];
    observed.sort();
    assert!(observed.len() >= 60, "{} exchanges", observed.len());
    let pairs = [(&reported["min"], observed[0]), (&reported["percentile"]["50.000000"], observed[observed.len() / 2])];
    let [least, median] = pairs.map(|(reported, observed)| reported.as_f64().unwrap() / observed.as_nanos() as f64);
    println!(
        "reported {reported}, observed {:?} to {:?}: {least:.4}, {median:.4}",
        observed[0],
        observed[observed.len() - 1]
    );
    (least, median)
}

/// What is reported is what a third party measures. Never less: on a busy machine it may be more, since the hops between the client and the proxy take
/// milliseconds, but for the best of some thousand; the medians are within 5 % on a quiet one.
#[test]
fn latencies_agree_with_an_observer_between_both_ends() {
    let directory = tempfile::tempdir().unwrap();
    let agrees = (0..20).any(|_| {
        let (least, median) = reported_over_observed(directory.path());
        assert!(least > 0.95 && median > 0.95, "reported over observed: {least}, {median}");
        least < 1.05
    });
    assert!(agrees, "no best exchange of 20 runs was reported as it was observed");
}

#[track_caller]
fn assert_refused(file: &Path, reasons: &[&str]) {
    let output = pmof().arg(file).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(reasons.iter().all(|reason| error.contains(reason)), "{reasons:?} in {error}");
    assert!(output.stdout.is_empty());
}

/// Before anybody listens or waits.
#[test]
fn what_cannot_end_well_is_not_begun() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("memory");
    fs::write(&file, vec![0; 1 << 20]).unwrap();
    let options = format!("filename={}\nnumjobs=2", file.display());
    assert_refused(
        &server_file(directory.path(), "apm", 1, &options),
        &["[server]", "2 times size=1048576", "the 1048576 bytes"],
    );
    let client = client_file(directory.path(), "apm", 1, "rw=write");
    let output = pmof().arg(&client).args(["--output", "/no/such/place.json"]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("cannot write /no/such/place.json"), "{error}");
}

#[test]
fn wrong_files_say_which_line_and_why() {
    let directory = tempfile::tempdir().unwrap();
    for (side, engine, options, reasons) in [
        ("client", "apm", "rw=write\nverify=crc32c", ["apm-client.fio:11", "verify is not an option"]),
        ("client", "apm", "rw=trim", ["apm-client.fio:9", "rw=trim"]),
        ("client", "apm", "rw=write\nbs=4x", ["apm-client.fio:11", "4x is no number of bytes"]),
        ("client", "apm", "time_based", ["[client]", "runtime"]),
        ("client", "apm", "thread=0", ["apm-client.fio:10", "thread"]),
        ("client", "apm", "create_serialize=1", ["apm-client.fio:10", "create_serialize"]),
        ("client", "apm", "ioengine=libaio", ["[client]", "libaio, not one of"]),
        ("client", "apm", "iodepth=2\niodepth_batch=3", ["[client]", "iodepth_batch_submit"]),
        ("client", "gpspm", "rw=randread", ["[client]", "writes only"]),
        ("server", "apm", "filename=malloc\nsize=0", ["[server]", "size"]),
        ("server", "apm", "numjobs=1", ["[server]", "filename"]),
        (
            "client",
            "apm",
            "numjobs=${PMOF_NO_SUCH_VARIABLE}",
            ["numjobs has no value", "the environment has no PMOF_NO_SUCH_VARIABLE"],
        ),
        ("client", "apm", "rw=write\npercentile_list=99:101", ["apm-client.fio:11", "\"101\" in percentile_list"]),
        ("client", "apm", "rw=write\n[load]\nioengine=cpuio", ["[load]", "cpuload is missing"]),
        (
            "client",
            "apm",
            "rw=write\n[load]\nioengine=cpuio\ncpuload=5\nverify=crc32c",
            ["apm-client.fio:14", "verify is not an option of cpuio"],
        ),
        ("client", "apm", "ioengine=cpuio\ncpuload=5", ["only jobs of cpuio", "nothing to measure"]),
    ] {
        let write = if side == "client" { client_file } else { server_file };
        assert_refused(&write(directory.path(), engine, 1, options), &reasons);
    }
    assert_refused(&directory.path().join("none.fio"), &["none.fio", "reading"]);
    for arguments in [&["--output-format", "terse", "x"][..], &[]] {
        assert_eq!(pmof().args(arguments).output().unwrap().status.code(), Some(2), "{arguments:?}");
    }
}
