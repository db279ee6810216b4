//! Machines whose NVDIMMs lie behind the cache model: booted, cut, and booted again on what survived.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use cache_model::{Choice, Counters, Options, Outcome, RangeOptions, Tear};

use super::{
    arguments::NVDIMM_ADDRESSES,
    machine::Machine,
    testbed::{Media, RunDirectory, Testbed},
    tools,
};
use crate::release;

/// The end of an NVDIMM's image, which the firmware reads and writes: no memory of the guest.
const LABEL_BYTES: u64 = 2 << 20;

/// The plugins and programs of the referees, built for release.
#[derive(Debug)]
pub(crate) struct Referees {
    target: PathBuf,
}

impl Referees {
    /// Builds them where they are not up to date.
    pub(crate) fn build(testbed: &Testbed) -> Result<Self> {
        release::build(testbed.workspace())?;
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or("target".into(), PathBuf::from);
        Ok(Self { target: testbed.workspace().join(target).join("release") })
    }

    /// The plugin `cache-model`.
    pub(crate) fn cache_model(&self) -> PathBuf {
        self.target.join("libcache_model_plugin.so")
    }

    /// QEMU's `-plugin` argument for the instruction counter.
    pub(crate) fn instruction_counter(&self, log: &Path) -> String {
        let file = self.target.join("libinstruction_counter_plugin.so");
        format!("file={},log={}", file.display(), log.display())
    }

    /// The program that `vm bench` compares with bare verbs.
    pub(crate) fn persist_bench(&self) -> PathBuf {
        self.target.join("persist-bench")
    }

    /// The program that tests the referees in a guest.
    pub(crate) fn probe(&self) -> PathBuf {
        self.target.join("referee-probe")
    }
}

/// Own copies of all images, with a medium beside each NVDIMM. They vanish with the value.
#[derive(Debug)]
pub(crate) struct Modelled {
    directory: RunDirectory,
    media: Media,
}

impl Modelled {
    /// Fresh copies of the prepared images.
    pub(crate) fn new(testbed: &Testbed) -> Result<Self> {
        let directory = testbed.run_directory()?;
        let media = testbed.prepared_media()?.copy_to(directory.path())?;
        let modelled = Self { directory, media };
        modelled.renew_shadows()?;
        Ok(modelled)
    }

    /// The directory, for further files of the run.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The images that a machine uses: what its programs saw, until [`Self::power_on`].
    pub(crate) fn media(&self) -> &Media {
        &self.media
    }

    /// The model of both NVDIMMs, counting into a file; the other options are the caller's to set.
    pub(crate) fn options(&self) -> Result<Options> {
        let range = |(image, physical): (&Path, u64)| {
            Ok(RangeOptions { shadow: shadow(image), physical, length: memory_bytes(image)?, image: image.to_owned() })
        };
        let ranges = self.nvdimms().into_iter().zip(NVDIMM_ADDRESSES).map(range).collect::<Result<_>>()?;
        Ok(Options { ranges, counters: Some(self.counters_file()), ..Options::default() })
    }

    /// A machine on these images, behind the model.
    pub(crate) fn machine<'a>(&self, testbed: &'a Testbed, referees: &Referees, options: &Options) -> Machine<'a> {
        Machine::new(testbed).media(self.media.clone()).plugin(options.plugin_argument(&referees.cache_model()))
    }

    /// What the model has counted: of the running machine, or of the last one.
    pub(crate) fn counters(&self) -> Result<Counters> {
        Ok(Counters::read(&self.counters_file())?)
    }

    /// The counters of a machine whose verdict counts: the model was able to follow it.
    pub(crate) fn followed(&self) -> Result<Counters> {
        let counters = self.counters()?;
        ensure!(counters.blind() == 0, "the model could not follow everything: {counters}");
        Ok(counters)
    }

    /// Makes what the power cut of the dead machine left the images of the next one.
    pub(crate) fn power_on(&self, choice: Choice, tear: Tear) -> Result<[Outcome; 2]> {
        let outcomes = self.nvdimms().map(|image| survive(image, choice, tear));
        let [devdax, fsdax] = outcomes;
        let outcomes = [devdax?, fsdax?];
        self.renew_shadows()?;
        Ok(outcomes)
    }

    fn renew_shadows(&self) -> Result<()> {
        self.nvdimms().iter().try_for_each(|image| tools::copy_sparse(image, &shadow(image)))
    }

    fn nvdimms(&self) -> [&Path; 2] {
        [&self.media.devdax, &self.media.fsdax]
    }

    fn counters_file(&self) -> PathBuf {
        self.directory.path().join("counters")
    }
}

/// The medium of an image.
pub(crate) fn shadow(image: &Path) -> PathBuf {
    image.with_extension("medium")
}

fn memory_bytes(image: &Path) -> Result<u64> {
    let metadata = fs::metadata(image).with_context(|| format!("looking at {}", image.display()))?;
    metadata.len().checked_sub(LABEL_BYTES).with_context(|| format!("{} is too short for labels", image.display()))
}

/// Makes what survived the image.
fn survive(image: &Path, choice: Choice, tear: Tear) -> Result<Outcome> {
    let outcome = cache_model::survivors(image, &shadow(image), memory_bytes(image)?, choice, tear)?;
    fs::rename(shadow(image), image).with_context(|| format!("replacing {}", image.display()))?;
    Ok(outcome)
}
