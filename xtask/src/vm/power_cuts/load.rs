//! What runs in the machine when its power goes: the shell's commands that start it, and those that judge what is left.

use cache_model::{CutAfter, Locked};
use lossy_disk::CutBefore;

use super::super::machine::Persistence;

/// What the scripts print when the load begins, and where it ends by itself.
pub(super) const BEGINS: &str = "the load begins";
pub(super) const ENDED: &str = "the load ended";

/// What `cut-load` prints before the first operation; the mark that arms the model comes after the pause.
pub(super) const OPERATIONS_BEGIN: &str = "operations begin";
pub(super) const ARM: u8 = 7;
const PAUSE_MS: u64 = 600;

/// Where the content of the device-DAX lies for the judge: it cannot be read as a file, so that the host copies it from the image.
pub(super) const DEVDAX_COPY: &str = "devdax.bytes";

/// Where the ledger of the cut before lies in the guest.
pub(super) const LEDGER: &str = "previous.ledger";

/// Lanes of the loads that have some, and bytes of the area of each.
const LANES: u64 = 4;
const LANE_BYTES: u64 = 256 << 10;

/// Bytes of the area of a load without lanes.
const AREA_BYTES: u64 = 1 << 20;

/// On what a replica lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Devdax,
    Fsdax,
    File,
}

/// How the replicas are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// With native flush where the place can be registered, which is device-DAX.
    VerbsNative,
    /// From targets that do not offer it.
    Verbs,
    Tcp,
    Shm,
    /// libfabric's tcp.
    FabricTcp,
    /// libfabric's verbs.
    FabricVerbs,
    /// RDS over the RDMA device.
    Rds,
}

/// Which program writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    /// `Pool`, on targets that run.
    Pool,
    /// `Pool` of three replicas, of which one after the other lags.
    Lagging,
    /// `Pool` on the pool set of a target, each `Lane` from a thread of its own; one place.
    Lanes,
    /// `Pool` of a pool set: two parts on fsdax, a replica in a file, one on device-DAX of a target.
    Set,
    /// A C program on librpma.so.0; device-DAX.
    Rpma,
    /// A C program on librpmem.so.1; one place.
    Rpmem,
    /// Pools made, filled, closed, opened and removed.
    Operations,
    /// `pmof pool sync` of a set with two local replicas and a remote one, all in files.
    Sync,
}

/// When the power goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// At random, up to a second and a half after the first acknowledgement.
    Random,
    /// Before that request to the disk, counted from the beginning of the operations.
    Disk(CutBefore),
    /// When the cache model has seen that, counted from there.
    Model(CutAfter),
}

/// What is written, how, and until when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) program: Program,
    pub(super) way: Way,
    pub(super) places: &'static [Place],
    /// Of `--durability`.
    pub(super) durability: &'static str,
    /// Further options of the program.
    pub(super) more: &'static str,
    /// What the guest's firmware says; what is true is that caches are lost.
    pub(super) firmware: Persistence,
    /// Whether a locked instruction is a fence.
    pub(super) locked: Locked,
    pub(super) moment: Moment,
}

impl Place {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Devdax => "devdax",
            Self::Fsdax => "fsdax",
            Self::File => "file",
        }
    }

    /// The directory for targets' roots, for the shell. That of device-DAX does not outlive the machine, and has no pools.
    fn directory(self) -> &'static str {
        match self {
            Self::Devdax => "$PMOF_TMPFS",
            Self::Fsdax => "$PMOF_FSDAX",
            Self::File => "$PMOF_FILE",
        }
    }

    /// A part of a pool set: its line in the set's file, and where the judge reads it.
    fn part(self, name: &str) -> (String, String) {
        if self == Self::Devdax {
            return ("AUTO $PMOF_DEVDAX".to_owned(), format!("/host/bin/{DEVDAX_COPY}"));
        }
        let path = format!("{}/{name}", self.directory());
        (format!("8M {path}"), path)
    }
}

impl Way {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::VerbsNative => "verbs, native flush",
            Self::Verbs => "verbs, send-after-write",
            Self::Tcp => "tcp",
            Self::Shm => "shm",
            Self::FabricTcp => "libfabric's tcp",
            Self::FabricVerbs => "libfabric's verbs",
            Self::Rds => "RDS",
        }
    }

    fn listen(self, replica: usize) -> String {
        match self {
            Self::VerbsNative | Self::Verbs => format!("verbs://$PMOF_WIRE_B:730{replica}"),
            Self::Tcp => format!("tcp://127.0.0.1:730{replica}"),
            Self::Shm => format!("shm:///run/target{replica}.socket"),
            Self::FabricTcp => format!("fabric+tcp://127.0.0.1:730{replica}"),
            Self::FabricVerbs => format!("fabric+verbs-msg://$PMOF_WIRE_B:730{replica}"),
            Self::Rds => format!("rds://$PMOF_WIRE_B:730{replica}"),
        }
    }

    fn url(self, replica: usize, pool: &str) -> String {
        let address = self.listen(replica);
        match self {
            Self::VerbsNative | Self::Verbs | Self::FabricVerbs | Self::Rds => {
                format!("{address}/{pool}?source=$PMOF_WIRE_A")
            }
            Self::Tcp | Self::FabricTcp => format!("{address}/{pool}"),
            Self::Shm => format!("{address}?pool={pool}"),
        }
    }

    fn target_options(self) -> &'static str {
        match self {
            Self::VerbsNative | Self::FabricVerbs | Self::Rds => "--trust-network",
            Self::Verbs => "--trust-network --no-native-flush",
            Self::Tcp | Self::Shm | Self::FabricTcp => "",
        }
    }

    /// The address that the other machine has for a command in ssh's place, and what its target is told.
    fn behind_ssh(self) -> (&'static str, &'static str) {
        match self {
            Self::VerbsNative | Self::FabricVerbs | Self::Rds => ("$PMOF_WIRE_B", ""),
            Self::Verbs => ("$PMOF_WIRE_B", "--no-native-flush"),
            Self::Tcp | Self::Shm | Self::FabricTcp => ("127.0.0.1", ""),
        }
    }
}

impl Load {
    /// A load that must survive.
    pub(super) const fn durable(program: Program, way: Way, places: &'static [Place]) -> Self {
        Self {
            program,
            way,
            places,
            durability: "power-failure",
            more: "",
            firmware: Persistence::MemCtrl,
            locked: Locked::Fence,
            moment: Moment::Random,
        }
    }

    pub(super) fn name(&self) -> String {
        let program = match self.program {
            Program::Pool => "",
            Program::Lagging => "one lags, ",
            Program::Lanes => "lanes, ",
            Program::Set => "pool set, ",
            Program::Rpma => "librpma, ",
            Program::Rpmem => "librpmem, ",
            Program::Operations => "create to remove, ",
            Program::Sync => "pool sync, ",
        };
        let places: Vec<_> = self.places.iter().map(|place| place.name()).collect();
        let fences = if self.locked == Locked::Nothing { ", only sfence is a fence" } else { "" };
        let moment = match self.moment {
            Moment::Random => "",
            Moment::Disk(CutBefore::Flush(_)) => ", at a flush of the disk",
            Moment::Disk(CutBefore::Write(_)) => ", at a write to the disk",
            Moment::Model(CutAfter::Fences(_)) => ", at a fence",
            Moment::Model(_) => ", at a write-back",
        };
        format!("{program}{}, {}{fences}{moment}", self.way.name(), places.join(" + "))
    }

    /// The same with the power going at the given turn of a sweep: in the beginning of the operations, each time elsewhere.
    pub(super) fn at_turn(self, turn: u64) -> Self {
        let moment = match self.moment {
            Moment::Random => Moment::Random,
            Moment::Disk(CutBefore::Flush(_)) => Moment::Disk(CutBefore::Flush(3 + turn * 23 % 60)),
            Moment::Disk(CutBefore::Write(_)) => Moment::Disk(CutBefore::Write(1 + turn * 77 % 200)),
            Moment::Model(CutAfter::Fences(_)) => Moment::Model(CutAfter::Fences(1 + turn * 23 % 60)),
            Moment::Model(CutAfter::WriteBacks(_)) => Moment::Model(CutAfter::WriteBacks(1 + turn * 397 % 1000)),
            other @ Moment::Model(_) => other,
        };
        Self { moment, ..self }
    }

    /// Whether the two can follow each other on the same images.
    pub(super) fn goes_with(&self, other: &Self) -> bool {
        self.program == other.program && self.places == other.places
    }

    /// Replicas that a cut is judged on, at least.
    pub(super) fn replica_count(&self) -> usize {
        match self.program {
            Program::Pool => self.places.len(),
            Program::Set => 3,
            // As the cut left them, and when all are equal again.
            Program::Lagging => 2 * self.places.len(),
            // Before the first operation began there is none.
            Program::Operations => 0,
            // Three replicas, and the words of the first one, each at three times.
            Program::Sync => 12,
            Program::Lanes | Program::Rpma | Program::Rpmem => 1,
        }
    }

    /// Whether batches are acknowledged from the beginning on; operations may not come so far.
    pub(super) fn has_batches(&self) -> bool {
        !matches!(self.program, Program::Operations | Program::Sync)
    }

    /// The shell's commands that start targets and writer. They do not end by themselves.
    pub(super) fn script(&self, is_first: bool, seed: u64) -> String {
        let create = if is_first { "--create" } else { "" };
        let common =
            format!("{create} --durability {} --ledger $PMOF_PORT_LEDGER --seed {seed} {}", self.durability, self.more);
        let start = match self.program {
            Program::Pool => self.targets() + &format!("echo '{BEGINS}'\ncut-load pool {} {common}\n", self.urls()),
            Program::Lagging => {
                self.targets() + &format!("echo '{BEGINS}'\ncut-load lagging {} $pids {common}\n", self.urls())
            }
            Program::Lanes => {
                self.remote_set()
                    + &format!("echo '{BEGINS}'\ncut-load lanes --target ssh://peer --set cut.set {common}\n")
            }
            Program::Set => self.local_set() + &format!("echo '{BEGINS}'\ncut-load set --set /run/cut.set {common}\n"),
            Program::Rpma => self.rpma(seed),
            Program::Rpmem => self.rpmem(is_first, seed),
            Program::Operations => self.operations(),
            Program::Sync => self.sync(is_first, seed),
        };
        let modules = if self.way == Way::Rds { "modprobe -a rds rds_rdma\n" } else { "" };
        // What libfabric's verbs keeps registered is within reach of peers: pmof refuses it.
        format!(
            "{modules}export FI_MR_CACHE_MAX_COUNT=0\n{WATCH} &\n{start}echo \"{ENDED} with $?\"; cat /run/target*; sleep 1000\n"
        )
    }

    fn urls(&self) -> String {
        let urls = (0..self.places.len()).map(|replica| format!("--url \"{}\"", self.way.url(replica, "cut")));
        urls.collect::<Vec<_>>().join(" ")
    }

    /// Starts a target for each place, and waits until all are there. `$pids` names their processes to `cut-load`.
    fn targets(&self) -> String {
        let target = |(replica, place): (usize, &Place)| {
            let (root, listen) = (self.root(replica), self.way.listen(replica));
            let device = if *place == Place::Devdax { "--device cut=$PMOF_DEVDAX" } else { "" };
            format!(
                "mkdir -p {root}; pmof serve --root {root} --listen \"{listen}\" {} {device} >/run/target{replica} 2>&1 &
                 pids=\"$pids --target $!\"\n",
                self.way.target_options()
            )
        };
        let targets: String = self.places.iter().enumerate().map(target).collect();
        format!(
            "pids=
             {targets}tries=0
             until [ \"$(cat /run/target? | grep -c '^ready ')\" = {} ]; do
                 tries=$((tries + 1)); [ $tries -le 1200 ] || {{ cat /run/target?; exit 1; }}; sleep 0.05
             done\n",
            self.places.len()
        )
    }

    fn root(&self, replica: usize) -> String {
        format!("{}/pools{replica}", self.places[replica].directory())
    }

    /// A command in ssh's place, to which the other machine is this one, with `program` there.
    fn ssh(&self, variable: &str, program: &str) -> String {
        let (address, options) = self.way.behind_ssh();
        format!(
            "printf '#!/bin/sh\\nfor last; do :; done\\nexec sh -c \"$last\"\\n' >/run/ssh; chmod +x /run/ssh
             export PMOF_SSH=/run/ssh {variable}=\"SSH_CONNECTION='$PMOF_WIRE_A 1 {address} 22' {program} {options}\"\n"
        )
    }

    /// The other machine, and on it a set of one part.
    fn remote_set(&self) -> String {
        let (line, _) = self.places[0].part("remote.0");
        format!(
            "mkdir -p /run/sets; printf '%s\\n' PMEMPOOLSET \"{line}\" >/run/sets/cut.set\n{}",
            self.ssh("PMOF_SSH_COMMAND", "pmof serve --stdio --root /run/sets")
        )
    }

    /// A set of this machine with a remote replica.
    fn local_set(&self) -> String {
        let ssh = self.ssh("PMOF_SSH_COMMAND", "pmof serve --stdio --root /run/sets");
        let (remote, _) = Place::Devdax.part("");
        format!(
            "mkdir -p /run/sets; printf '%s\\n' PMEMPOOLSET \"{remote}\" >/run/sets/cut.set
             printf '%s\\n' PMEMPOOLSET \"4M $PMOF_FSDAX/part.0\" \"5M $PMOF_FSDAX/part.1\" REPLICA \"9M $PMOF_FILE/part.2\" \
                 \"REPLICA peer cut.set\" >/run/cut.set\n{ssh}"
        )
    }

    fn rpma(&self, seed: u64) -> String {
        let (transport, address) = match self.way {
            Way::VerbsNative | Way::Verbs => ("verbs", "$PMOF_WIRE_B"),
            Way::Tcp => ("tcp", "127.0.0.1"),
            Way::Shm => ("shm", "127.0.0.1"),
            Way::FabricTcp => ("fabric+tcp", "127.0.0.1"),
            Way::FabricVerbs => ("fabric+verbs-msg", "$PMOF_WIRE_B"),
            Way::Rds => ("rds", "$PMOF_WIRE_B"),
        };
        format!(
            "export LD_LIBRARY_PATH=/host/bin PMOF_TRANSPORT={transport}
             cut-rpma server {address} 7400 $PMOF_DEVDAX {} >/run/target0 2>&1 &
             until grep -q ready /run/target0; do sleep 0.05; done
             echo '{BEGINS}'\ncut-rpma client {address} 7400 {seed} $PMOF_PORT_LEDGER {AREA_BYTES} {}\n",
            2 << 20,
            self.more
        )
    }

    fn rpmem(&self, is_first: bool, seed: u64) -> String {
        let verb = if is_first { "create" } else { "open" };
        self.remote_set()
            + &self.ssh("RPMEM_CMD", "rpmemd --poolset-dir /run/sets")
            + &format!(
                "export RPMEM_SSH=/run/ssh LD_LIBRARY_PATH=/host/bin
                 echo '{BEGINS}'\ncut-rpmem {verb} peer cut.set {seed} $PMOF_PORT_LEDGER {LANE_BYTES} {LANES} {}\n",
                self.more
            )
    }

    fn operations(&self) -> String {
        // Where write-backs and fences are counted, pools are as small as can be, so that a sweep gets beyond their making.
        let size = if matches!(self.moment, Moment::Model(_)) { "--bytes 8192" } else { "" };
        let (pool, one) = if self.places.contains(&Place::Devdax) { ("cut", "--one") } else { ("p", "") };
        let urls: Vec<_> =
            (0..self.places.len()).map(|replica| format!("--url \"{}\"", self.way.url(replica, pool))).collect();
        self.targets()
            + &format!(
                "echo '{BEGINS}'\ncut-load operations {} {one} {size} --rounds 40 --pause-ms {PAUSE_MS} --ledger $PMOF_PORT_LEDGER {}\n",
                urls.join(" "),
                self.more
            )
    }

    /// A set of two local replicas and a remote one, in files, and the other machine.
    fn synced_set(&self) -> String {
        let ssh = self.ssh("PMOF_SSH_COMMAND", "pmof serve --stdio --root /run/sets");
        format!(
            "mkdir -p /run/sets; printf '%s\\n' PMEMPOOLSET \"8M $PMOF_FILE/sync.2\" >/run/sets/sync.set
             printf '%s\\n' PMEMPOOLSET \"8M $PMOF_FILE/sync.0\" REPLICA \"8M $PMOF_FILE/sync.1\" \"REPLICA peer sync.set\" \
                 >/run/sync.set\n{ssh}"
        )
    }

    /// Fills the set, which is whole when this begins, and then loses two replicas again and again.
    fn sync(&self, is_first: bool, seed: u64) -> String {
        let (set, create) = (self.synced_set(), if is_first { "--create" } else { "" });
        format!(
            "{set}echo '{BEGINS}'
             cut-load set --set /run/sync.set {create} --seconds 1 --seed {seed} --ledger $PMOF_PORT_LEDGER &&
             cut-load sync --set /run/sync.set --lose $PMOF_FILE/sync.1 --lose $PMOF_FILE/sync.2 --rounds 40 \
                 --pause-ms {PAUSE_MS} --ledger $PMOF_PORT_LEDGER\n"
        )
    }

    /// The shell's commands that judge a cut in this load: a line `judged CODE ...` for each replica, and one for each complaint of
    /// a file system.
    pub(super) fn judge_script(&self, seed: u64) -> String {
        let lanes = format!("words --seed {seed} --streams {LANES} --area {LANE_BYTES}");
        let devdax = format!("/host/bin/{DEVDAX_COPY}");
        let question = match self.program {
            Program::Pool | Program::Lagging => {
                let pool = |replica: usize| match self.places[replica] {
                    Place::Devdax => format!(" --pool {devdax}"),
                    Place::Fsdax | Place::File => format!(" --pool {}/cut", self.root(replica)),
                };
                let pools: String = (0..self.places.len()).map(pool).collect();
                let words = format!("words --seed {seed} --area {AREA_BYTES}");
                if self.program == Program::Lagging {
                    return self.judge_lagging(&words, &pools);
                }
                words + &pools
            }
            Program::Lanes | Program::Rpmem => {
                let (_, part) = self.places[0].part("remote.0");
                format!("{lanes} --base {} --parts {part}", 1 << 20)
            }
            Program::Set => format!(
                "{lanes} --base {SET_BASE} --parts $PMOF_FSDAX/part.0,$PMOF_FSDAX/part.1 --parts $PMOF_FILE/part.2 --parts {devdax}"
            ),
            Program::Rpma => format!("words --seed {seed} --area {AREA_BYTES} --raw {devdax}"),
            Program::Operations => {
                let place = |replica: usize| match self.places[replica] {
                    Place::Devdax => format!(" --device cut={devdax}"),
                    Place::Fsdax | Place::File => format!(" --root {}", self.root(replica)),
                };
                "states".to_owned() + &(0..self.places.len()).map(place).collect::<String>()
            }
            Program::Sync => return self.judge_sync(&lanes),
        };
        format!("cut-judge {question} --ledger /host/bin/{LEDGER} >/run/said 2>&1; code=$?\n{SAY}")
    }

    /// Judges those in sync of what a cut left; then has the pool opened until all are, and judges all.
    fn judge_lagging(&self, words: &str, pools: &str) -> String {
        let (judge, settled) = (format!("cut-judge {words} --ledger /host/bin/{LEDGER}"), "/run/settled");
        let files: Vec<_> = (0..self.places.len()).map(|replica| format!("--raw {settled}.{replica}")).collect();
        let files = files.join(" ");
        format!(
            "{judge} --lagging may-lack{pools} >/run/said 2>&1; code=$?
             {}cut-load settle {} --to {settled} >/run/settling 2>&1 || {{ cat /run/settling /run/target?; code=2; }}
             {judge} {files} >>/run/said 2>&1; last=$?
             [ $last -le $code ] || code=$last
             kill $(echo $pids | sed 's/--target//g'); wait\n{SAY}",
            self.targets(),
            self.urls()
        )
    }

    /// Judges what a cut in `pool sync` left, before and after `pool check` has seen it; then has the sync done again, and judges that.
    fn judge_sync(&self, words: &str) -> String {
        let files = ["$PMOF_FILE/sync.0", "$PMOF_FILE/sync.1", "$PMOF_FILE/sync.2"];
        let sets = format!(
            "sets {} --base {SET_BASE} --parts {} --set sync.set={}",
            words.trim_start_matches("words "),
            files[0],
            files.join(":")
        );
        format!(
            "{}code=0
             judge_sets() {{
                 cut-judge {sets} --ledger /host/bin/{LEDGER} \"$@\" >>/run/said 2>&1; last=$?
                 [ $last -le $code ] || code=$last
             }}
             judge_sets
             pmof pool check /run/sync.set >/run/tools 2>&1; judge_sets --checked $?
             pmof pool sync /run/sync.set >>/run/tools 2>&1; synced=$?
             pmof pool check /run/sync.set >>/run/tools 2>&1; judge_sets --synced $synced --checked $?
             [ $code = 0 ] || cat /run/tools\n{SAY}",
            self.synced_set()
        )
    }
}

/// Tells what `cut-judge` said, and what a file system complains of.
const SAY: &str = "sed \"s|^|judged $code |\" /run/said; echo \"judged all $code\"
    dmesg | grep -E 'EXT4-fs (error|warning)|JBD2: .*(error|corrupt|abort)' | sed 's/^/complaint /'\n";

/// Where the areas of a pool set begin: they lie across the end of the first part.
const SET_BASE: u64 = (4 << 20) - (512 << 10);

/// Removes what loads have left.
pub(super) const WIPE: &str = "find $PMOF_FSDAX $PMOF_FILE -mindepth 1 -maxdepth 1 ! -name lost+found -exec rm -rf {} +
    sync; cut-load wipe --device $PMOF_DEVDAX || exit 1\n";

/// Tells what every thread of pmof does, where the machine has not been cut long after a load began.
const WATCH: &str = "{ sleep 50; tail -n 2 /run/target?; for thread in /proc/[0-9]*/task/*; do
    case $(cat $thread/comm) in pmof*|cut*)
        echo \"$thread $(cat $thread/comm) $(cat $thread/wchan) $(cut -d ' ' -f 1-4 $thread/syscall)\"; esac; done; }";
