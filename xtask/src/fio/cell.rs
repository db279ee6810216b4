//! What is run: one pair of engines, one access pattern, one shape of load.

use std::fmt;

/// The persistency method, which names the pair of engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    /// `librpma_apm_client` and `_server`: writes and flushes.
    Apm,
    /// `librpma_gpspm_client` and `_server`: writes and messages to the server, which persists.
    Gpspm,
}

/// fio's `rw`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Write,
    RandWrite,
    Read,
    RandRead,
    ReadWrite,
    RandReadWrite,
}

/// Where the server's memory comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    /// `filename=malloc`.
    Dram,
    /// Files, one a thread, or parts of one device-DAX.
    Medium,
}

/// One run of a server and a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) engine: Engine,
    pub(crate) access: Access,
    pub(crate) block_bytes: u64,
    pub(crate) depth: u32,
    /// fio's `sync=1`: a request is waited for before the next one.
    pub(crate) sync: bool,
    pub(crate) threads: u32,
    pub(crate) memory: Memory,
}

const WORK: [(Engine, Access); 8] = [
    (Engine::Apm, Access::Write),
    (Engine::Apm, Access::RandWrite),
    (Engine::Apm, Access::Read),
    (Engine::Apm, Access::RandRead),
    (Engine::Apm, Access::ReadWrite),
    (Engine::Apm, Access::RandReadWrite),
    (Engine::Gpspm, Access::Write),
    (Engine::Gpspm, Access::RandWrite),
];
const BLOCK_BYTES: [u64; 6] = [256, 1024, 4096, 16_384, 65_536, 262_144];
/// Depth and `sync`.
const SHAPES: [(u32, bool); 6] = [(1, true), (1, false), (2, false), (8, false), (32, false), (64, false)];
const THREADS: [u32; 4] = [1, 2, 4, 8];
const MEMORIES: [Memory; 2] = [Memory::Dram, Memory::Medium];

/// How many cells of each engine and access make the sample.
const SAMPLE_ROWS: usize = 6;

/// Every cell.
pub(crate) fn matrix() -> Vec<Cell> {
    let mut cells = Vec::new();
    for (engine, access) in WORK {
        for block_bytes in BLOCK_BYTES {
            for (depth, sync) in SHAPES {
                for threads in THREADS {
                    for memory in MEMORIES {
                        cells.push(Cell { engine, access, block_bytes, depth, sync, threads, memory });
                    }
                }
            }
        }
    }
    cells
}

/// Some of the cells, the same each time: each engine and access with each value of all else.
pub(crate) fn sample() -> Vec<Cell> {
    let mut cells = Vec::new();
    for (number, (engine, access)) in WORK.into_iter().enumerate() {
        for row in 0..SAMPLE_ROWS {
            // The sums take other combinations for each engine and access.
            let block_bytes = BLOCK_BYTES[row % BLOCK_BYTES.len()];
            let (depth, sync) = SHAPES[(row * 5 + number) % SHAPES.len()];
            let threads = THREADS[(row + row / THREADS.len() + number) % THREADS.len()];
            let memory = MEMORIES[(row + row / BLOCK_BYTES.len() + number) % MEMORIES.len()];
            cells.push(Cell { engine, access, block_bytes, depth, sync, threads, memory });
        }
    }
    cells
}

impl Cell {
    /// How much each thread's memory holds: each block of it is used once.
    pub(crate) fn bytes_of_thread(&self) -> u64 {
        // Eight threads of the largest fit onto the device-DAX of the test bed.
        let blocks = u64::from(self.depth) * 3 / 2;
        (self.block_bytes * blocks.max(8)).max(1 << 20)
    }

    /// What goes through the queue at once.
    pub(crate) fn batch(&self) -> u32 {
        (self.depth / 4).max(1)
    }

    /// How many flush requests a gpspm client has under way at most.
    pub(crate) fn messages(&self) -> u32 {
        let sequential = self.access == Access::Write;
        if sequential { self.depth.div_ceil(self.batch()) } else { self.depth }
    }
}

impl Engine {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Apm => "apm",
            Self::Gpspm => "gpspm",
        }
    }
}

impl Access {
    /// As fio calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::RandWrite => "randwrite",
            Self::Read => "read",
            Self::RandRead => "randread",
            Self::ReadWrite => "rw",
            Self::RandReadWrite => "randrw",
        }
    }

    pub(crate) fn writes(self) -> bool {
        !matches!(self, Self::Read | Self::RandRead)
    }

    pub(crate) fn only_writes(self) -> bool {
        matches!(self, Self::Write | Self::RandWrite)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape = if self.sync { "sync".to_owned() } else { format!("depth {}", self.depth) };
        let memory = match self.memory {
            Memory::Dram => "dram",
            Memory::Medium => "medium",
        };
        let (engine, access) = (self.engine.name(), self.access.name());
        write!(to, "{engine} {access} {} B, {shape}, {} threads, {memory}", self.block_bytes, self.threads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix_has_every_cell_once() {
        let cells = matrix();
        assert_eq!(cells.len(), 8 * 6 * 6 * 4 * 2);
        let names: std::collections::BTreeSet<_> = cells.iter().map(Cell::to_string).collect();
        assert_eq!(names.len(), cells.len());
    }

    #[test]
    fn the_sample_meets_all_work_with_every_value_and_nothing_twice() {
        let sample = sample();
        let names: std::collections::BTreeSet<_> = sample.iter().map(Cell::to_string).collect();
        assert_eq!(names.len(), sample.len());
        for (engine, access) in WORK {
            let of_work = || sample.iter().filter(move |cell| cell.engine == engine && cell.access == access);
            for block_bytes in BLOCK_BYTES {
                assert!(of_work().any(|cell| cell.block_bytes == block_bytes), "{engine:?} {access:?} {block_bytes}");
            }
            for memory in MEMORIES {
                assert!(of_work().any(|cell| cell.memory == memory), "{engine:?} {access:?} {memory:?}");
            }
            for (depth, sync) in SHAPES {
                let meets = |cell: &Cell| cell.depth == depth && cell.sync == sync;
                assert!(of_work().any(meets), "{engine:?} {access:?} {depth} {sync}");
            }
            for threads in THREADS {
                assert!(of_work().any(|cell| cell.threads == threads), "{engine:?} {access:?} {threads}");
            }
        }
    }

    #[test]
    fn memory_holds_whole_pages_and_more_than_the_queue() {
        for cell in matrix() {
            let bytes = cell.bytes_of_thread();
            assert_eq!(bytes % 4096, 0, "{cell}");
            assert_eq!(bytes % cell.block_bytes, 0, "{cell}");
            assert!(bytes / cell.block_bytes > u64::from(cell.depth), "{cell}");
            assert!(bytes * u64::from(cell.threads) < 254 << 20, "{cell}");
        }
    }
}
