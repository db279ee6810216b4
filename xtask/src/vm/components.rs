//! Making the test bed's components from Debian packages, without root.

use std::{
    fmt::Write as _,
    fs::{self, File},
    io::ErrorKind,
    os::unix::fs::symlink,
    path::Path,
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

use super::{
    built_modules,
    cpio::Archive,
    packages::Packages,
    recipe::{Modules, lines_of_words, with_dependencies},
    tools,
};

/// The files of the recipe that go into the guest's images, beside the lists of packages.
pub(crate) const GUEST_FILES: &[&str] = &["modules", "initrd.sh"];

const ROOT_IMAGE_BYTES: u64 = 1 << 30;

/// What a guest does not need of its packages.
const DROPPED: &[&str] = &[
    "usr/share/doc",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/man",
    "usr/share/zoneinfo",
    "usr/share/i18n",
    "usr/lib/x86_64-linux-gnu/gconv",
    "var/lib/dpkg",
    // It has each start of a machine look for keys of NVDIMMs, which these have not.
    "etc/modprobe.d/nvdimm-security.conf",
];

/// Unpacks the packages of one of the recipe's lists, and what they depend on.
pub(crate) fn unpack_list(
    packages: &Packages,
    recipe: &Path,
    list: &str,
    into: &Path,
    progress: fn(&str),
) -> Result<()> {
    let path = recipe.join(list);
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let names: Vec<&str> = lines_of_words(&text).flatten().collect();
    progress(&format!("{list}: fetching {} packages and their dependencies (once; some 100 MB)", names.len()));
    let fetched = packages.fetch(&names)?;
    progress(&format!("{list}: unpacking {} packages", fetched.len()));
    let mut manifest = String::new();
    for package in &fetched {
        packages.unpack(package, into)?;
        writeln!(manifest, "{} {}", package.name, package.version)?;
    }
    fs::write(into.join("packages"), manifest)?;
    Ok(())
}

/// `vmlinux`, `initrd.cpio`, `root.img`, `libc-version` and `packages` in a directory.
pub(crate) fn make_guest(packages: &Packages, recipe: &Path, into: &Path, progress: fn(&str)) -> Result<()> {
    let root = into.join("root");
    fs::create_dir(&root)?;
    unpack_list(packages, recipe, "packages.guest", &root, progress)?;
    fs::rename(root.join("packages"), into.join("packages"))?;
    write_libc_version(into)?;

    progress("packages.kernel: fetching the kernel (once; some 110 MB)");
    let list = fs::read_to_string(recipe.join("packages.kernel"))?;
    let metapackage = lines_of_words(&list).flatten().next().context("packages.kernel names no package")?;
    let kernel_package = packages.fetch_dependency(metapackage, "linux-image-6")?;
    let kernel = into.join("kernel");
    fs::create_dir(&kernel)?;
    packages.unpack(&kernel_package, &kernel)?;
    let release = kernel_package.name.trim_start_matches("linux-image-");
    unpack_kernel(&kernel.join("boot").join(format!("vmlinuz-{release}")), &root, &into.join("vmlinux"))?;

    let own_modules = kernel.join("usr/lib/modules").join(release);
    let mut modules = Modules::parse(&fs::read_to_string(recipe.join("modules"))?)?;
    if let Err(error) = built_modules::build(packages, recipe, release, &own_modules, into, progress) {
        // One row of one suite needs it, and says so.
        progress(&format!("the guest will have no soft-iWARP, whose module could not be built: {error:#}"));
        modules.all.retain(|name| name != built_modules::NAME);
    }

    progress("choosing kernel modules");
    let boot_files = install_modules(&kernel, &root, release, &modules)?;
    fs::write(into.join("initrd.cpio"), initial_ram_disk(&root, recipe, release, &boot_files)?)?;

    progress("making the root file system");
    finish_root(&root)?;
    make_image(&root, &into.join("root.img"))?;
    fs::remove_dir_all(&root)?;
    fs::remove_dir_all(&kernel)?;
    Ok(())
}

fn write_libc_version(into: &Path) -> Result<()> {
    let manifest = fs::read_to_string(into.join("packages"))?;
    let version = manifest.lines().find_map(|line| line.strip_prefix("libc6 ")).context("the guest has no libc6")?;
    let upstream = version.split_once('-').map_or(version, |(upstream, _)| upstream);
    fs::write(into.join("libc-version"), upstream)?;
    Ok(())
}

/// Unpacks a kernel by the guest's zstd: every machine would do so at its start, emulated.
fn unpack_kernel(image: &Path, root: &Path, into: &Path) -> Result<()> {
    let bytes = fs::read(image).with_context(|| format!("reading {}", image.display()))?;
    let payload = kernel_payload(&bytes).with_context(|| format!("{} has no kernel by zstd", image.display()))?;
    let packed = into.with_extension("zst");
    fs::write(&packed, payload)?;
    let mut command = tools::of_tree(root, Path::new("usr/bin/zstd"), "zstd");
    tools::run(command.args(["-d", "-q"]).arg(&packed).arg("-o").arg(into))?;
    fs::remove_file(packed)?;
    Ok(())
}

/// The kernel in an image that boot loaders start, packed by zstd. The image's header says where it lies (Linux's boot protocol 2.08); its
/// last four bytes are its size unpacked.
fn kernel_payload(image: &[u8]) -> Option<&[u8]> {
    const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
    let word = |at: usize| Some(u32::from_le_bytes(image.get(at..at + 4)?.try_into().ok()?) as usize);
    let setup_sectors = usize::from(*image.get(0x1f1)?);
    let from = (setup_sectors + 1) * 512 + word(0x248)?;
    image.get(from..(from + word(0x24c)?).checked_sub(4)?).filter(|payload| payload.starts_with(&ZSTD))
}

/// A module without its signature, which a guest would check at each start, emulated.
fn without_signature(module: &[u8]) -> &[u8] {
    const MARK: &[u8] = b"~Module signature appended~\n";
    // Behind the signature is a description of it, which ends with its length.
    const DESCRIPTION_BYTES_BEFORE_LENGTH: usize = 8;
    let signed = || {
        let (rest, length) = module.strip_suffix(MARK)?.split_last_chunk::<4>()?;
        let length = length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        let signature_bytes = length + DESCRIPTION_BYTES_BEFORE_LENGTH;
        rest.get(..rest.len().checked_sub(signature_bytes)?)
    };
    signed().unwrap_or(module)
}

/// Copies the modules and what they need, uncompressed and unsigned; the files that the initial RAM disk loads, in order.
fn install_modules(kernel: &Path, root: &Path, release: &str, modules: &Modules) -> Result<Vec<String>> {
    depmod(root, &kernel.join("usr"), release)?;
    let from = kernel.join("usr/lib/modules").join(release);
    let to = root.join("usr/lib/modules").join(release);
    let dep = fs::read_to_string(from.join("modules.dep"))?;
    for file in with_dependencies(&dep, &modules.all)? {
        let plain = file.strip_suffix(".xz");
        let target = to.join(plain.unwrap_or(&file));
        fs::create_dir_all(target.parent().context("a module lies in a directory")?)?;
        if plain.is_some() {
            let content = Command::new("xz").args(["--decompress", "--stdout"]).arg(from.join(&file)).output()?;
            ensure!(content.status.success(), "unpacking {file}: {}", String::from_utf8_lossy(&content.stderr));
            fs::write(target, without_signature(&content.stdout))?;
        } else {
            fs::copy(from.join(&file), target)?;
        }
    }
    for list in ["modules.builtin", "modules.builtin.modinfo", "modules.order"] {
        fs::copy(from.join(list), to.join(list)).with_context(|| format!("copying {list}"))?;
    }
    depmod(root, &root.join("usr"), release)?;
    let boot = with_dependencies(&dep, &modules.boot)?;
    Ok(boot.into_iter().map(|file| file.trim_end_matches(".xz").to_owned()).collect())
}

/// Runs the guest's depmod, which the host need not have, by the guest's dynamic loader.
fn depmod(root: &Path, base: &Path, release: &str) -> Result<()> {
    // kmod is what it is called as.
    let mut command = tools::of_tree(root, Path::new("usr/bin/kmod"), "depmod");
    tools::run(command.arg("-b").arg(base).arg(release)).map(drop)
}

fn initial_ram_disk(root: &Path, recipe: &Path, release: &str, boot_files: &[String]) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    for directory in ["bin", "dev", "root"] {
        archive.directory(directory);
    }
    // Without it the kernel cannot give the first process its streams.
    archive.character_device("dev/console", (5, 1));
    archive.file("bin/busybox", &fs::read(root.join("usr/bin/busybox"))?);
    archive.file("init", &fs::read(recipe.join("initrd.sh"))?);
    let modules = root.join("usr/lib/modules").join(release);
    let mut list = String::new();
    for file in boot_files {
        let name = file.rsplit('/').next().unwrap_or(file);
        archive.file(name, &fs::read(modules.join(file))?);
        list.push_str(name);
        list.push('\n');
    }
    archive.file("modules", list.as_bytes());
    Ok(archive.finish())
}

/// What the packages' scripts, which are not run, would have done, as far as the guest needs it.
fn finish_root(root: &Path) -> Result<()> {
    for path in DROPPED {
        let path = root.join(path);
        let removed = if path.is_file() { fs::remove_file(&path) } else { fs::remove_dir_all(&path) };
        if removed.as_ref().is_err_and(|error| error.kind() != ErrorKind::NotFound) {
            removed.with_context(|| format!("removing {}", path.display()))?;
        }
    }
    // Made without root, the files belong to somebody else, and that is who such a program would run as.
    tools::run(tools::command("chmod").args(["--recursive", "ug-s"]).arg(root))?;
    for directory in ["host", "shared", "mnt/fsdax", "mnt/file"] {
        fs::create_dir_all(root.join(directory))?;
    }
    fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/:/bin/false\n")?;
    fs::write(root.join("etc/group"), "root:x:0:\nnogroup:x:65534:\n")?;
    fs::write(root.join("etc/hosts"), "127.0.0.1 localhost guest\n::1 localhost\n")?;
    fs::write(root.join("etc/hostname"), "guest\n")?;
    // Every applet of busybox for which no package brings the program: sh, awk, ping and vi among them.
    let applets = tools::run(Command::new(root.join("usr/bin/busybox")).arg("--list"))?;
    for applet in applets.lines() {
        let taken = ["bin", "sbin"].iter().any(|place| {
            root.join("usr").join(place).join(applet).is_symlink() || root.join("usr").join(place).join(applet).exists()
        });
        if !taken && !applet.contains('/') {
            symlink("busybox", root.join("usr/bin").join(applet))?;
        }
    }
    Ok(())
}

fn make_image(root: &Path, image: &Path) -> Result<()> {
    File::create(image)?.set_len(ROOT_IMAGE_BYTES)?;
    let mut command = tools::command("mke2fs");
    command.args(["-q", "-t", "ext4", "-O", "^has_journal", "-E", "root_owner=0:0", "-d"]).args([root, image]);
    tools::run(&mut command).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_found_in_its_image() {
        let mut image = vec![0; 3 * 512 + 64];
        image[0x1f1] = 2;
        image[0x248..0x24c].copy_from_slice(&16_u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&12_u32.to_le_bytes());
        image[3 * 512 + 16..][..12].copy_from_slice(b"\x28\xb5\x2f\xfdkernsize");
        assert_eq!(kernel_payload(&image), Some(&b"\x28\xb5\x2f\xfdkern"[..]));
        assert_eq!(kernel_payload(&image[..3 * 512 + 20]), None, "cut off");
        image[3 * 512 + 16] = 0;
        assert_eq!(kernel_payload(&image), None, "packed otherwise");
        assert_eq!(kernel_payload(b"no kernel"), None);
    }

    #[test]
    fn a_signature_is_cut_off() {
        let signed = |length: u8| {
            [b"module, signature12345678", &[0, 0, 0, length][..], b"~Module signature appended~\n"].concat()
        };
        assert_eq!(without_signature(&signed(9)), b"module, ");
        // One that says that it is longer than the file is none.
        assert_eq!(without_signature(&signed(90)), signed(90));
        assert_eq!(without_signature(b"module"), b"module");
    }
}
