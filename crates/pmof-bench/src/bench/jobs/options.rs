//! The options of a job, checked and typed.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use super::parse::{Section, Setting, bytes, time};

/// Port of the first connection, unless another is named: librpma's.
const PORT_DEFAULT: u16 = 7204;

/// Percentiles that fio prints.
const PERCENTILES: [f64; 17] =
    [1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99];
/// As many as a `percentile_list` may have.
const PERCENTILES_MAX: usize = 20;

/// fio's four engines of librpma.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IoEngine {
    ApmClient,
    ApmServer,
    GpspmClient,
    GpspmServer,
}

impl IoEngine {
    pub(super) const NAMES: [(&'static str, Self); 4] = [
        ("librpma_apm_client", Self::ApmClient),
        ("librpma_apm_server", Self::ApmServer),
        ("librpma_gpspm_client", Self::GpspmClient),
        ("librpma_gpspm_server", Self::GpspmServer),
    ];

    pub(super) fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, engine)| *engine == self).map_or("", |(name, _)| name)
    }

    pub(super) fn is_server(self) -> bool {
        matches!(self, Self::ApmServer | Self::GpspmServer)
    }
}

/// A job of a file.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub(super) struct Job {
    pub(super) name: String,
    pub(super) engine: IoEngine,
    pub(super) server_ip: String,
    pub(super) port: u16,
    pub(super) count: u16,
    pub(super) rw: String,
    pub(super) read_percent: u8,
    pub(super) random: bool,
    pub(super) block_bytes: u64,
    /// `None`: all of the server's memory.
    pub(super) size_bytes: Option<u64>,
    pub(super) io_bytes: Option<u64>,
    pub(super) operations: Option<u64>,
    pub(super) depth: u32,
    pub(super) batch: u32,
    pub(super) is_sync: bool,
    pub(super) is_timed: bool,
    pub(super) run: Option<Duration>,
    pub(super) ramp: Duration,
    pub(super) file: Option<String>,
    pub(super) direct_write: bool,
    pub(super) polling: bool,
    pub(super) grouped: bool,
    pub(super) lat_percentiles: bool,
    /// No completion latencies are reported.
    pub(super) disable_clat: bool,
    pub(super) percentiles: Vec<f64>,
    pub(super) seed: u64,
    /// As they were written: the job's own, and the global ones.
    pub(super) own: Vec<(String, String)>,
    pub(super) global: Vec<(String, String)>,
}

impl Job {
    pub(super) fn of(section: &Section) -> Result<Self> {
        let kb_base = section.settings.iter().rev().find(|setting| setting.key == "kb_base");
        let kb_base = match kb_base.map(|setting| setting.value.as_deref()) {
            None | Some(Some("1024")) => 1024,
            Some(Some("1000")) => 1000,
            Some(other) => bail!("[{}]: kb_base is 1000 or 1024, not {}", section.name, other.unwrap_or("empty")),
        };
        let mut job = Self::with_defaults(section)?;
        for setting in &section.settings {
            let is_known = job.set(setting, kb_base).with_context(|| setting.place.to_string())?;
            let (key, engine) = (&setting.key, job.engine.name());
            ensure!(is_known, "{}: {key} is not an option of {engine} that pmof knows", setting.place);
        }
        job.check().with_context(|| format!("{}, [{}]", section.place, section.name))?;
        Ok(job)
    }

    fn with_defaults(section: &Section) -> Result<Self> {
        let written = |settings: &[Setting]| -> Vec<(String, String)> {
            settings.iter().map(|setting| (setting.key.clone(), setting.value.clone().unwrap_or_default())).collect()
        };
        let engine = section.settings.iter().rev().find(|setting| setting.key == "ioengine");
        let engine = engine.and_then(|setting| setting.value.as_deref());
        let known = IoEngine::NAMES.iter().find(|(name, _)| Some(*name) == engine).map(|(_, engine)| *engine);
        let names = IoEngine::NAMES.map(|(name, _)| name).join(", ");
        let found = engine.unwrap_or("none");
        let engine = known.with_context(|| {
            format!("{}, [{}]: ioengine is {found}, not one of {names}", section.place, section.name)
        })?;
        let own = written(&section.settings[section.global..]);
        let global = written(&section.settings[..section.global]);
        Ok(Self { own, global, ..Self::blank(&section.name, engine) })
    }

    fn blank(name: &str, engine: IoEngine) -> Self {
        Self {
            name: name.to_owned(),
            engine,
            server_ip: String::new(),
            port: PORT_DEFAULT,
            count: 1,
            rw: "read".to_owned(),
            read_percent: 100,
            random: false,
            block_bytes: 4096,
            size_bytes: None,
            io_bytes: None,
            operations: None,
            depth: 1,
            batch: 1,
            is_sync: false,
            is_timed: false,
            run: None,
            ramp: Duration::ZERO,
            file: None,
            direct_write: false,
            polling: true,
            grouped: false,
            lat_percentiles: false,
            disable_clat: false,
            percentiles: PERCENTILES.to_vec(),
            seed: 1,
            own: Vec::new(),
            global: Vec::new(),
        }
    }

    /// Whether the option is known.
    fn set(&mut self, setting: &Setting, kb_base: u64) -> Result<bool> {
        let key = setting.key.as_str();
        let flag = || truth(key, setting.value.as_deref());
        let value = || setting.value.as_deref().filter(|value| !value.is_empty()).with_context(|| no_value(setting));
        match key {
            "ioengine" | "kb_base" | "description" => drop(value()?),
            "serverip" => value()?.clone_into(&mut self.server_ip),
            "port" => self.port = number(key, value()?)?,
            "numjobs" => self.count = number(key, value()?)?,
            "rw" | "readwrite" => value()?.clone_into(&mut self.rw),
            "rwmixread" => self.read_percent = percent(key, value()?)?,
            "rwmixwrite" => self.read_percent = 100 - percent(key, value()?)?,
            "bs" | "blocksize" => self.block_bytes = bytes(value()?, kb_base)?,
            "size" => self.size_bytes = Some(bytes(value()?, kb_base)?),
            "io_size" | "io_limit" => self.io_bytes = Some(bytes(value()?, kb_base)?),
            "number_ios" => self.operations = Some(number(key, value()?)?),
            "iodepth" => self.depth = number(key, value()?)?,
            "iodepth_batch" | "iodepth_batch_submit" => self.batch = number(key, value()?)?,
            "sync" => self.is_sync = value().map(|value| value != "none" && value != "0")?,
            "time_based" => self.is_timed = flag()?,
            "runtime" | "timeout" => self.run = Some(time(value()?)?),
            "ramp_time" => self.ramp = time(value()?)?,
            "filename" => self.file = Some(value()?.to_owned()),
            "direct_write_to_pmem" => self.direct_write = flag()?,
            "busy_wait_polling" => self.polling = flag()?,
            "group_reporting" => self.grouped = flag()?,
            "lat_percentiles" => self.lat_percentiles = flag()?,
            "disable_clat" => self.disable_clat = flag()?,
            "percentile_list" => self.percentiles = percentiles(value()?)?,
            "randseed" => self.seed = number(key, value()?)?,
            "create_serialize" => ensure!(!flag()?, "create_serialize has to be 0: servers wait for their clients"),
            "thread" => ensure!(flag()?, "thread has to be set: jobs of these engines are threads"),
            // What they ask for is so, or changes nothing here.
            "iodepth_batch_complete" | "iodepth_batch_complete_min" | "iodepth_batch_complete_max" | "iodepth_low" => {
                number::<u32>(key, value()?).map(|_| ())?;
            }
            "iomem_align" | "mem_align" => {
                bytes(value()?, kb_base)?;
            }
            "disable_slat" | "norandommap" | "randrepeat" | "create_on_open" | "clat_percentiles" | "direct" => {
                flag()?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn check(&mut self) -> Result<()> {
        ensure!(!self.server_ip.is_empty(), "serverip is missing: the address that the server listens on");
        ensure!(self.count > 0, "numjobs is 0: there is nothing to run");
        let last = self.port.checked_add(self.count - 1);
        ensure!(last.is_some(), "ports {} to {} + numjobs - 1 leave the range", self.port, self.port);
        if self.engine.is_server() {
            self.size_bytes
                .filter(|size| *size > 0)
                .context("size is missing: the bytes of each connection's memory")?;
            self.file.as_ref().context("filename is missing: a devdax device, a file, or malloc")?;
            return Ok(());
        }
        ensure!(self.block_bytes > 0, "the block size is 0");
        ensure!((1..=1000).contains(&self.depth), "iodepth is {}, which is not 1 to 1000", self.depth);
        ensure!(
            (1..=self.depth).contains(&self.batch),
            "iodepth_batch_submit is {}, which is not 1 to iodepth",
            self.batch
        );
        ensure!(!self.is_timed || self.run.is_some(), "time_based needs a runtime");
        let mixed = self.global.iter().chain(&self.own).any(|(key, _)| key.starts_with("rwmix"));
        (self.read_percent, self.random) = match self.rw.as_str() {
            "read" => (100, false),
            "randread" => (100, true),
            "write" => (0, false),
            "randwrite" => (0, true),
            "rw" | "readwrite" => (if mixed { self.read_percent } else { 50 }, false),
            "randrw" => (if mixed { self.read_percent } else { 50 }, true),
            other => bail!("rw={other} is not read, write, randread, randwrite, rw, readwrite or randrw"),
        };
        ensure!(
            self.engine == IoEngine::ApmClient || self.read_percent == 0,
            "{} writes only: rw is write or randwrite",
            self.engine.name()
        );
        Ok(())
    }

    /// Writes that share a flush: those submitted together, of sequential writes.
    pub(super) fn writes_per_flush(&self) -> u32 {
        if self.random || self.read_percent > 0 || self.is_sync { 1 } else { self.batch }
    }

    /// Operations in flight, of so many writes each.
    pub(super) fn slots(&self) -> usize {
        if self.is_sync { 1 } else { (self.depth / self.writes_per_flush()).max(1) as usize }
    }
}

/// Whether a job of librpma's engines has this option.
pub(super) fn is_known(setting: &Setting) -> bool {
    // A value that is wrong is that of an option.
    Job::blank("", IoEngine::ApmServer).set(setting, 1024).unwrap_or(true)
}

/// The note for an option that is accepted and has no effect.
pub(super) fn note(setting: &Setting) -> Option<String> {
    let why = match setting.key.as_str() {
        "iomem_align" | "mem_align" => "memory is aligned to pages here",
        "disable_slat" => "there is no submission latency here: it is part of lat",
        _ => {
            let name = setting.unset.as_ref()?;
            return Some(format!("{}: the environment has no {name}, which counts as empty", setting.place));
        }
    };
    Some(format!("{}: {} changes nothing: {why}", setting.place, setting.key))
}

pub(super) fn no_value(setting: &Setting) -> String {
    let why = setting.unset.as_ref().map_or_else(String::new, |name| format!(": the environment has no {name}"));
    format!("{} has no value{why}", setting.key)
}

/// `99.0:99.9`, in any order.
fn percentiles(text: &str) -> Result<Vec<f64>> {
    let one = |text: &str| text.trim().parse().ok().filter(|percent: &f64| *percent > 0.0 && *percent <= 100.0);
    let mut found = text
        .split(':')
        .map(|text| one(text).with_context(|| format!("{text:?} in percentile_list is not more than 0 and up to 100")))
        .collect::<Result<Vec<_>>>()?;
    ensure!(found.len() <= PERCENTILES_MAX, "percentile_list has more than {PERCENTILES_MAX} numbers");
    found.sort_by(f64::total_cmp);
    Ok(found)
}

/// `key` alone and `key=1` say yes.
pub(super) fn truth(key: &str, value: Option<&str>) -> Result<bool> {
    match value {
        None | Some("1") => Ok(true),
        Some("0") => Ok(false),
        Some(other) => bail!("{key} is 0 or 1, not {other}"),
    }
}

pub(super) fn number<T: std::str::FromStr>(key: &str, value: &str) -> Result<T> {
    value.parse().ok().with_context(|| format!("{key}={value} is no number that it takes"))
}

fn percent(key: &str, value: &str) -> Result<u8> {
    let percent: u8 = number(key, value)?;
    ensure!(percent <= 100, "{key} is {percent}, more than 100 %");
    Ok(percent)
}
