//! QEMU's command line.

use std::{
    ffi::{OsStr, OsString},
    path::Path,
    process::Command,
};

use super::{
    core_dump,
    machine::{Accelerator, DiskSource, Files, Link, Machine, Mode, Persistence, PortTarget},
    tools,
};

/// The guest's physical addresses of the NVDIMMs; the guest's self-test checks them.
///
/// Byte `n` of an image is at its address plus `n`. The labels, the last 2 MiB of an image, are at no address.
pub(crate) const NVDIMM_ADDRESSES: [u64; 2] = [0x1_0000_0000, 0x1_1000_0000];

/// Files of the CXL memory in the run's directory, which is QEMU's working directory.
pub(crate) const CXL_MEMORY: &str = "cxl.img";
pub(crate) const CXL_LABELS: &str = "cxl-labels.img";
pub(crate) const SERIAL_LOG: &str = "serial.log";

/// The guest starts the other processors when its devices are set up: see "Processors" in testbed/README.md. It does not test its ciphers, measure jitter
/// as a source of random bytes, nor load certificates: under emulation that takes a second of each start.
const KERNEL_ARGUMENTS: &str = "console=ttyS0 quiet rw mitigations=off random.trust_cpu=on tsc=reliable panic=-1 oops=panic nokaslr maxcpus=1 \
     no_timer_check cryptomgr.notests initcall_blacklist=jent_mod_init,load_system_certificate_list";

/// The whole command; QEMU dies with the thread that starts it (`setpriv --pdeathsig`), and may leave a core.
pub(super) fn command(machine: &Machine<'_>, files: &Files) -> Command {
    let [shell, words @ ..] = core_dump::UNLIMITED;
    let mut command = tools::command(shell);
    command.args(words).arg(tools::find("setpriv").unwrap_or_else(|| "setpriv".into()));
    command.args(["--pdeathsig", "KILL", "--"]).args(qemu(files));
    command.args(arguments(machine, files)).current_dir(files.directory.path());
    // `snapshot=on` puts the changed blocks there.
    command.env("TMPDIR", files.directory.path());
    command
}

/// QEMU: the program that is executed, and its first arguments.
pub(super) fn qemu(files: &Files) -> Vec<OsString> {
    match &files.qemu10 {
        None => vec![tools::find("qemu-system-x86_64").unwrap_or_else(|| "qemu-system-x86_64".into()).into()],
        Some(tree) => qemu10(tree),
    }
}

/// The newer QEMU runs by the loader and the libraries that it was built for.
fn qemu10(tree: &Path) -> Vec<OsString> {
    let libraries = tree.join("usr/lib/x86_64-linux-gnu");
    let mut words: Vec<OsString> = vec![
        libraries.join("ld-linux-x86-64.so.2").into(),
        "--library-path".into(),
        libraries.into(),
        tree.join("usr/bin/qemu-system-x86_64").into(),
    ];
    for data in ["usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"] {
        words.extend(["-L".into(), tree.join(data).into()]);
    }
    words
}

fn arguments(machine: &Machine<'_>, files: &Files) -> Vec<OsString> {
    let mut list = List::default();
    accelerator(machine, &mut list);
    list.pair("-smp", machine.processors.to_string());
    list.pair("-m", format!("{}M,slots=4,maxmem=8G", machine.memory_mib));
    list.words("-display none -monitor none -no-reboot -nodefaults");
    list.pair("-serial", format!("file:{SERIAL_LOG}"));
    list.pair("-kernel", &files.guest.kernel);
    list.pair("-initrd", &files.guest.initial_ram_disk);
    let kernel_arguments: Vec<_> =
        [KERNEL_ARGUMENTS].into_iter().chain(machine.kernel_arguments.iter().map(String::as_str)).collect();
    list.pair("-append", kernel_arguments.join(" "));
    list.words("-device isa-debug-exit,iobase=0xf4,iosize=4");
    nvdimm(&mut list, 0, &files.media.devdax);
    nvdimm(&mut list, 1, &files.media.fsdax);
    let root = DiskSource::File(files.guest.root_image.clone());
    disk(&mut list, "root", &root, ",snapshot=on");
    let own = DiskSource::File(files.media.file.clone());
    disk(&mut list, "file", machine.file_disk.as_ref().unwrap_or(&own), "");
    for (name, source) in &machine.disks {
        disk(&mut list, name, source, "");
    }
    share(&mut list, "host", Path::new("share"));
    if let Some(directory) = &machine.shared {
        share(&mut list, "shared", directory);
    }
    ports(machine, &mut list);
    if let Some(link) = &machine.link {
        network(&mut list, link);
    }
    if machine.cxl {
        cxl(&mut list);
    }
    for plugin in &machine.plugins {
        list.pair("-plugin", plugin);
    }
    list.arguments
}

fn accelerator(machine: &Machine<'_>, list: &mut List) {
    let persistence = match machine.persistence {
        Persistence::None => "",
        Persistence::MemCtrl => ",nvdimm-persistence=mem-ctrl",
        Persistence::Cpu => ",nvdimm-persistence=cpu",
    };
    let cxl = if machine.cxl { ",cxl=on,cxl-fmw.0.targets.0=cxl.1,cxl-fmw.0.size=4G" } else { "" };
    list.pair("-M", format!("q35,nvdimm=on{persistence}{cxl},dump-guest-core=off"));
    let (accelerator, model) = match machine.accelerator {
        Accelerator::Kvm => ("kvm", "host"),
        Accelerator::Emulated if machine.icount => ("tcg,thread=single", "max"),
        Accelerator::Emulated => ("tcg,thread=multi", "max"),
    };
    list.pair("-accel", accelerator);
    if machine.icount {
        list.words("-icount shift=1,sleep=off");
    }
    // Under a hypervisor the kernel refuses to make CXL regions: it cannot invalidate the CPU's caches there.
    let hidden = if machine.cxl { ",hypervisor=off" } else { "" };
    list.pair("-cpu", format!("{}{hidden}", machine.cpu.as_deref().unwrap_or(model)));
}

fn nvdimm(list: &mut List, number: u32, image: &Path) {
    let bytes = std::fs::metadata(image).map_or(0, |metadata| metadata.len());
    let mut object: OsString = format!("memory-backend-file,id=nv{number},share=on,size={bytes},mem-path=").into();
    object.push(value(image));
    list.pair("-object", object);
    list.pair("-device", format!("nvdimm,id=n{number},memdev=nv{number},label-size=2M"));
}

fn disk(list: &mut List, name: &str, source: &DiskSource, options: &str) {
    let mut drive: OsString = format!("if=none,id=disk-{name},format=raw{options},").into();
    match source {
        DiskSource::File(path) => {
            drive.push("file=");
            drive.push(value(path));
        }
        DiskSource::Nbd(socket) => {
            drive.push("cache=none,file.driver=nbd,file.server.type=unix,file.server.path=");
            drive.push(value(socket));
        }
    }
    list.pair("-drive", drive);
    list.pair("-device", format!("virtio-blk-pci,drive=disk-{name},serial={name},bus=pcie.0"));
}

fn share(list: &mut List, tag: &str, directory: &Path) {
    let mut device: OsString = format!("local,id=fs-{tag},security_model=none,path=").into();
    device.push(value(directory));
    list.pair("-fsdev", device);
    list.pair("-device", format!("virtio-9p-pci,fsdev=fs-{tag},mount_tag={tag},bus=pcie.0"));
}

fn ports(machine: &Machine<'_>, list: &mut List) {
    // The driver does not wait until the host has taken a write. Without an ioeventfd the processor that kicks the queue
    // carries the bytes to their file itself, within that instruction.
    list.words("-device virtio-serial-pci,id=serial,bus=pcie.0,ioeventfd=off");
    if machine.mode == Mode::Shell {
        list.words("-chardev stdio,id=console,signal=off -device virtconsole,chardev=console,bus=serial.0");
    } else {
        // A pipe that xtask reads. The stdio device would take the end of standard input for a hang-up.
        list.words("-chardev file,id=port-output,path=/dev/stdout,append=on");
        list.words("-device virtserialport,chardev=port-output,name=output,bus=serial.0");
    }
    for (name, target) in &machine.ports {
        let mut device: OsString = match target {
            PortTarget::File(_) => format!("file,id=port-{name},append=on,path="),
            PortTarget::Socket(_) => format!("socket,id=port-{name},path="),
        }
        .into();
        let (PortTarget::File(path) | PortTarget::Socket(path)) = target;
        device.push(value(path));
        list.pair("-chardev", device);
        list.pair("-device", format!("virtserialport,chardev=port-{name},name={name},bus=serial.0"));
    }
}

/// A stream over a Unix socket: lossless, and without the delays of `-netdev socket`.
fn network(list: &mut List, link: &Link) {
    let (server, Link::Listen(path) | Link::Connect(path)) = match link {
        Link::Listen(_) => ("on", link),
        Link::Connect(_) => ("off", link),
    };
    let mut device: OsString = format!("stream,id=link,server={server},addr.type=unix,addr.path=").into();
    device.push(value(path));
    list.pair("-netdev", device);
    let number = link.number();
    list.pair("-device", format!("virtio-net-pci,netdev=link,host_mtu=9000,mac=52:54:00:70:6d:0{number},bus=pcie.0"));
}

fn cxl(list: &mut List) {
    list.pair("-object", format!("memory-backend-file,id=cxlmem,share=on,mem-path={CXL_MEMORY},size=256M"));
    list.pair("-object", format!("memory-backend-file,id=cxllsa,share=on,mem-path={CXL_LABELS},size=1M"));
    list.words("-device pxb-cxl,bus_nr=12,bus=pcie.0,id=cxl.1");
    list.words("-device cxl-rp,port=0,bus=cxl.1,id=rp13,chassis=0,slot=2");
    // The serial number keeps name spaces and content valid over reboots.
    list.words("-device cxl-type3,bus=rp13,memdev=cxlmem,lsa=cxllsa,sn=0xabc1,id=cxl0");
}

/// A path as the value of a QEMU option, where a comma separates options.
fn value(path: &Path) -> OsString {
    let bytes = path.as_os_str().as_encoded_bytes();
    if !bytes.contains(&b',') {
        return path.as_os_str().to_owned();
    }
    path.to_string_lossy().replace(',', ",,").into()
}

#[derive(Default)]
struct List {
    arguments: Vec<OsString>,
}

impl List {
    fn pair(&mut self, option: &str, value: impl AsRef<OsStr>) {
        self.arguments.push(option.into());
        self.arguments.push(value.as_ref().to_owned());
    }

    /// Words without blanks in them.
    fn words(&mut self, words: &str) {
        self.arguments.extend(words.split(' ').map(OsString::from));
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::testbed::{Guest, Media, Testbed},
        *,
    };

    /// QEMU's arguments in one line, for a machine made from the default one.
    fn line(change: impl FnOnce(Machine<'_>) -> Machine<'_>) -> String {
        let testbed = Testbed::new(|_| ()).unwrap();
        let files = Files {
            directory: testbed.run_directory().unwrap(),
            guest: Guest::in_directory("/g".into()),
            media: Media::in_directory(Path::new("/m")),
            qemu10: None,
        };
        let words = arguments(&change(Machine::new(&testbed)), &files);
        words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_default_machine() {
        let line = line(|machine| machine);
        let parts = [
            "-M q35,nvdimm=on,nvdimm-persistence=mem-ctrl,dump-guest-core=off -accel tcg,thread=multi -cpu max -smp 2 -m 2048M,",
            "-kernel /g/vmlinux -initrd /g/initrd.cpio",
            "share=on,size=0,mem-path=/m/nv0.img -device nvdimm,id=n0,memdev=nv0,label-size=2M",
            "id=disk-root,format=raw,snapshot=on,file=/g/root.img",
            "id=disk-file,format=raw,file=/m/file.img -device virtio-blk-pci,drive=disk-file,serial=file,",
        ];
        for part in parts {
            assert!(line.contains(part), "{part} in {line}");
        }
        for part in ["icount", "plugin", "cxl", "netdev", "stdio"] {
            assert!(!line.contains(part), "{part} in {line}");
        }
    }

    #[test]
    fn what_is_asked_for_is_there() {
        let line = line(|machine| {
            machine
                .icount()
                .persistence(Persistence::Cpu)
                .cpu("max,-clwb")
                .plugin("/p.so,a=b")
                .kernel_argument("one")
                .kernel_argument("two=2")
                .file_disk(DiskSource::Nbd("/s".into()))
                .port("ledger", PortTarget::Socket("/a,b".into()))
                .link(Link::Connect("../1/link".into()))
        });
        let parts = [
            "nvdimm-persistence=cpu,dump-guest-core=off -accel tcg,thread=single -icount shift=1,sleep=off -cpu max,-clwb -smp 1 ",
            "-plugin /p.so,a=b",
            "load_system_certificate_list one two=2 ",
            "cache=none,file.driver=nbd,file.server.type=unix,file.server.path=/s -device",
            "socket,id=port-ledger,path=/a,,b -device virtserialport,chardev=port-ledger,name=ledger",
            "stream,id=link,server=off,addr.type=unix,addr.path=../1/link",
        ];
        for part in parts {
            assert!(line.contains(part), "{part} in {line}");
        }
        assert!(!line.contains("file=/m/file.img"), "{line}");
    }

    #[test]
    fn cxl_hides_the_hypervisor() {
        let line = line(|machine| machine.cxl().processors(1));
        assert!(line.contains("cxl=on,") && line.contains("-cpu max,hypervisor=off"), "{line}");
    }
}
