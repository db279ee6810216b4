//! Whether the host's processor really executes a guest: `/dev/kvm` alone promises nothing, in a nested machine least.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context as _, Result};

use super::{
    machine::{Accelerator, Machine},
    recipe,
    running::End,
    testbed::Testbed,
    tools,
};

const LIMIT: Duration = Duration::from_secs(20);

/// Whether a guest has booted on KVM and run a command; tried once for each kernel, QEMU and guest.
pub(crate) fn works(testbed: &Testbed) -> Result<bool> {
    let device = fs::OpenOptions::new().read(true).write(true).open("/dev/kvm");
    if device.is_err() {
        return Ok(false);
    }
    let guest = testbed.guest()?;
    let kernel = fs::read("/proc/version").context("reading /proc/version")?;
    let qemu = tools::run(tools::command("qemu-system-x86_64").arg("--version"))?;
    let key = recipe::hash([&kernel[..], qemu.as_bytes(), guest.root_image.as_os_str().as_encoded_bytes()]);
    let note = testbed.note(&format!("kvm-{key}.txt"));
    if let Some(known) = read_note(&note) {
        return Ok(known);
    }
    let finished = Machine::new(testbed).accelerator(Accelerator::Kvm).start()?.wait(LIMIT)?;
    let works = finished.end == End::Exited(0);
    let text = if works { "works\n".to_owned() } else { format!("does not work: {}\n", finished.explain()) };
    fs::write(&note, text).with_context(|| format!("writing {}", note.display()))?;
    Ok(works)
}

fn read_note(note: &Path) -> Option<bool> {
    let text = fs::read_to_string(note).ok()?;
    Some(text.starts_with("works"))
}
