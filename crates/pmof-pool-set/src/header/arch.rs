//! The machine that made a pool: what C programs built for it take for granted.

/// `ELFCLASS64`, `ELFDATA2LSB` and `e_machine` of the ELF specification.
const CLASS_64: u8 = 2;
const LITTLE_ENDIAN: u8 = 1;
const X86_64: u16 = 62;
const AARCH64: u16 = 183;
const PPC64: u16 = 21;
const RISCV: u16 = 243;
const LOONGARCH: u16 = 258;

/// Alignments, less one, of char, short, int, long, long long, `size_t`, `off_t`, float, double, long double (16 bytes)
/// and pointers, 4 bits each: the same in every ABI of 64-bit Linux that PMDK ran on.
const ALIGNMENTS: u64 = 0x7f7_3777_7310;

/// The architecture of a pool, 16 bytes of its header.
///
/// | offset | length | field |
/// |---|---|---|
/// | 0 | 8 | alignments of the types of C, 4 bits each |
/// | 8 | 1 | class: 2, of 64 bits |
/// | 9 | 1 | data: 1, little-endian |
/// | 10 | 4 | zero |
/// | 14 | 2 | machine: ELF's `e_machine` |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Arch {
    /// Alignments of the types of C.
    pub alignments: u64,
    /// ELF's class.
    pub class: u8,
    /// ELF's data encoding.
    pub data: u8,
    /// Zero in pools of PMDK; what a user of librpmem put there otherwise.
    pub reserved: [u8; 4],
    /// ELF's number of the machine.
    pub machine: u16,
}

impl Arch {
    /// This machine.
    pub const fn of_this_machine() -> Self {
        let machine = if cfg!(target_arch = "x86_64") {
            X86_64
        } else if cfg!(target_arch = "aarch64") {
            AARCH64
        } else if cfg!(target_arch = "powerpc64") {
            PPC64
        } else if cfg!(target_arch = "riscv64") {
            RISCV
        } else if cfg!(target_arch = "loongarch64") {
            LOONGARCH
        } else {
            0
        };
        let data = if cfg!(target_endian = "little") { LITTLE_ENDIAN } else { 2 };
        Self { alignments: ALIGNMENTS, class: CLASS_64, data, reserved: [0; 4], machine }
    }

    /// As it is stored.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.alignments.to_le_bytes());
        bytes[8] = self.class;
        bytes[9] = self.data;
        bytes[10..14].copy_from_slice(&self.reserved);
        bytes[14..].copy_from_slice(&self.machine.to_le_bytes());
        bytes
    }

    /// From the stored bytes, whatever they are.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self {
            alignments: u64::from_le_bytes(super::array(&bytes, 0)),
            class: bytes[8],
            data: bytes[9],
            reserved: super::array(&bytes, 10),
            machine: u16::from_le_bytes(super::array(&bytes, 14)),
        }
    }
}
