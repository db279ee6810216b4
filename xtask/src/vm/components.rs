//! Making the test bed's components from Debian packages, without root.

use std::{
    fmt::Write as _,
    fs::{self, File},
    os::unix::fs::{PermissionsExt as _, symlink},
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
pub(crate) const GUEST_FILES: &[&str] = &["modules", "initrd.sh", "init.sh"];

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

/// `vmlinuz`, `initrd.cpio`, `root.img`, `libc-version` and `packages` in a directory.
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
    fs::rename(kernel.join("boot").join(format!("vmlinuz-{release}")), into.join("vmlinuz"))?;

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
    finish_root(&root, recipe)?;
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

/// Copies the modules and what they need, uncompressed; the files that the initial RAM disk loads, in order.
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
            fs::write(target, content.stdout)?;
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
fn finish_root(root: &Path, recipe: &Path) -> Result<()> {
    for path in DROPPED {
        let path = root.join(path);
        if path.exists() {
            fs::remove_dir_all(&path).with_context(|| format!("removing {}", path.display()))?;
        }
    }
    // Made without root, the files belong to somebody else, and that is who such a program would run as.
    tools::run(tools::command("chmod").args(["--recursive", "ug-s"]).arg(root))?;
    let init = root.join("init");
    fs::copy(recipe.join("init.sh"), &init)?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755))?;
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
