//! The images that machines write to: a guest makes name spaces and file systems on them, once.

use std::{
    fs::{self, File},
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

use super::{Media, Testbed};
use crate::vm::{
    machine::{Machine, Mode},
    recipe,
    running::End,
    tools,
};

/// 256 MiB of data and 2 MiB of labels.
const NVDIMM_BYTES: u64 = 258 << 20;
const FILE_DISK_BYTES: u64 = 256 << 20;
const PREPARE_TIMEOUT: Duration = Duration::from_secs(120);

impl Testbed {
    /// The prepared images. They are not to be written to: see [`Media::copy_to`].
    pub(crate) fn prepared_media(&self) -> Result<Media> {
        let guest = self.guest()?;
        let scripts = recipe::hash_of_files(&self.recipe, &["devices.sh"])?;
        let name = guest.directory.file_name().context("the guest's directory has a name")?;
        let hash = recipe::hash([name.as_encoded_bytes(), scripts.as_bytes()]);
        let make = |into: &Path| self.make_media(into);
        Ok(Media::in_directory(&self.component("media", &hash, make)?))
    }

    /// The prepared images of [`Media`] in a directory: a guest makes name spaces and file systems on them.
    fn make_media(&self, into: &Path) -> Result<()> {
        let media = Media::in_directory(into);
        for (image, bytes) in
            [(&media.devdax, NVDIMM_BYTES), (&media.fsdax, NVDIMM_BYTES), (&media.file, FILE_DISK_BYTES)]
        {
            File::create(image)?.set_len(bytes)?;
        }
        self.say("preparing NVDIMMs and a disk: booting a guest");
        let finished = Machine::new(self).mode(Mode::Prepare).media(media.clone()).start()?.wait(PREPARE_TIMEOUT)?;
        if finished.end != End::Exited(0) {
            bail!("the guest that prepares the images did not finish: {}", finished.explain());
        }
        // Holes again where zeros were written.
        for image in [&media.devdax, &media.fsdax, &media.file] {
            let sparse = image.with_extension("sparse");
            tools::copy_sparse(image, &sparse)?;
            fs::rename(&sparse, image)?;
        }
        Ok(())
    }
}
