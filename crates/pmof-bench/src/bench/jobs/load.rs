//! Jobs of fio's engine `cpuio`: threads that load the CPU beside the others.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};

use super::{
    options::{is_known, no_value, number, truth},
    parse::{Section, Setting, time},
};

pub(super) const ENGINE: &str = "cpuio";
/// How long a thread is busy at a time, by fio's default.
const CHUNK: Duration = Duration::from_millis(50);

/// Threads that are busy for a part of the time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CpuLoad {
    pub(super) name: String,
    pub(super) count: u16,
    /// Busy in this share of the time; with 0 there is no load.
    pub(super) percent: u8,
    chunk: Duration,
    run: Option<Duration>,
}

impl CpuLoad {
    /// `None`: the section has another engine.
    pub(super) fn of(section: &Section) -> Result<Option<Self>> {
        let engine = section.settings.iter().rev().find(|setting| setting.key == "ioengine");
        if engine.and_then(|setting| setting.value.as_deref()) != Some(ENGINE) {
            return Ok(None);
        }
        let mut load = Self { name: section.name.clone(), count: 1, percent: 0, chunk: CHUNK, run: None };
        for setting in &section.settings {
            load.set(setting).with_context(|| setting.place.to_string())?;
        }
        let place = || format!("{}, [{}]", section.place, section.name);
        let is_given = section.settings.iter().any(|setting| setting.key == "cpuload");
        ensure!(is_given, "{}: cpuload is missing: the share of the time, in percent", place());
        ensure!(load.count > 0, "{}: numjobs is 0: there is nothing to run", place());
        Ok(Some(load))
    }

    fn set(&mut self, setting: &Setting) -> Result<()> {
        let key = setting.key.as_str();
        let value = || setting.value.as_deref().filter(|value| !value.is_empty()).with_context(|| no_value(setting));
        match key {
            "numjobs" => self.count = number(key, value()?)?,
            // More than all is all.
            "cpuload" => self.percent = number::<u32>(key, value()?)?.min(100) as u8,
            "cpuchunks" => {
                self.chunk = Duration::from_micros(number(key, value()?)?);
                ensure!(!self.chunk.is_zero(), "cpuchunks is 0");
            }
            "cpumode" => ensure!(value()? == "noop", "cpumode is noop: pmof has no other way to be busy"),
            "runtime" | "timeout" => self.run = Some(time(value()?)?),
            // So it is.
            "exit_on_io_done" => {
                truth(key, setting.value.as_deref())?;
            }
            // Of the other jobs, in the global section.
            _ if is_known(setting) => {}
            _ => bail!("{key} is not an option of {ENGINE} that pmof knows"),
        }
        Ok(())
    }

    /// One thread, until the other jobs have ended, or for its `runtime`.
    pub(super) fn run(&self, is_over: &AtomicBool) {
        let start = Instant::now();
        let percent = u32::from(self.percent);
        if percent == 0 {
            return;
        }
        let pause = self.chunk * (100 - percent) / percent;
        while !is_over.load(Ordering::Relaxed) && self.run.is_none_or(|run| start.elapsed() < run) {
            let begin = Instant::now();
            while begin.elapsed() < self.chunk {
                std::hint::spin_loop();
            }
            thread::sleep(pause);
        }
    }
}
