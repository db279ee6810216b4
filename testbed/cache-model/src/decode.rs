//! Which instructions move data from the caches to memory.
//!
//! 64-bit mode only: in 16- and 32-bit code the same bytes are other instructions or are not found, which matters to no program under test.

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

/// The non-temporal and direct stores of Intel's manual, volume 2, and of AMD's, volume 4 (`movntss`, `movntsd`).
const STORES_PAST_CACHE: [Mnemonic; 15] = [
    Mnemonic::Movnti,
    Mnemonic::Movntq,
    Mnemonic::Movntdq,
    Mnemonic::Movntps,
    Mnemonic::Movntpd,
    Mnemonic::Movntss,
    Mnemonic::Movntsd,
    Mnemonic::Maskmovq,
    Mnemonic::Maskmovdqu,
    Mnemonic::Vmovntdq,
    Mnemonic::Vmovntps,
    Mnemonic::Vmovntpd,
    Mnemonic::Vmaskmovdqu,
    Mnemonic::Movdiri,
    Mnemonic::Movdir64b,
];

/// What an instruction means to the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// `clwb` and `clflushopt`: the line is written back, ordered by the next fence of the same processor.
    WriteBack(Address),
    /// `clflush`: the line is written back before any later store.
    WriteBackNow(Address),
    /// A non-temporal or direct store: it goes past the caches, ordered by the next fence of the same processor.
    StorePastCache,
    /// `sfence` and `mfence`.
    Fence,
    /// An instruction with a `lock` prefix, or `xchg` with memory, which locks without one.
    Locked,
    /// `wbinvd` and `wbnoinvd`: all of the cache is written back.
    WriteBackAll,
    /// A mark with an id: see the crate `instruction-counter`.
    Mark(u8),
    /// It would matter, but the model cannot follow it.
    Unsupported,
}

/// Segments whose base is not zero in 64-bit mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment {
    /// `fs`.
    Fs,
    /// `gs`.
    Gs,
}

/// A memory operand. Registers are numbered as in encodings: 0 `rax`, 1 `rcx`, 2 `rdx`, 3 `rbx`, 4 `rsp`, 5 `rbp`, 6 `rsi`,
/// 7 `rdi`, 8 to 15 `r8` to `r15`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Address {
    /// A segment whose base is added.
    pub segment: Option<Segment>,
    /// A register that is added.
    pub base: Option<u8>,
    /// A register and the power of two by which it is shifted left.
    pub index: Option<(u8, u8)>,
    /// A constant.
    pub displacement: i32,
    /// The sum without the segment is cut to 32 bits.
    pub short: bool,
}

impl Address {
    /// All of it in one number: the displacement in bits 0 to 31, the base in 32 to 36, the index in 37 to 41, its shift
    /// in 42 and 43, the segment in 44 and 45, `short` in 46. Register 16 means none.
    pub fn pack(&self) -> u64 {
        let (index, shift) = self.index.unwrap_or((NO_REGISTER, 0));
        let segment = match self.segment {
            None => 0,
            Some(Segment::Fs) => 1,
            Some(Segment::Gs) => 2,
        };
        u64::from(u32::from_le_bytes(self.displacement.to_le_bytes()))
            | u64::from(self.base.unwrap_or(NO_REGISTER)) << 32
            | u64::from(index) << 37
            | u64::from(shift) << 42
            | segment << 44
            | u64::from(self.short) << 46
    }

    /// The operand that [`Address::pack`] made the number of.
    pub fn unpack(packed: u64) -> Address {
        let register = |at: u32| Some((packed >> at & 0x1f) as u8).filter(|number| *number != NO_REGISTER);
        Address {
            segment: match packed >> 44 & 3 {
                1 => Some(Segment::Fs),
                2 => Some(Segment::Gs),
                _ => None,
            },
            base: register(32),
            index: register(37).map(|number| (number, (packed >> 42 & 3) as u8)),
            displacement: i32::from_le_bytes((packed as u32).to_le_bytes()),
            short: packed >> 46 & 1 == 1,
        }
    }

    /// The linear address, given what a register and a segment's base hold.
    pub fn resolve(&self, register: impl Fn(u8) -> u64, segment: impl Fn(Segment) -> u64) -> u64 {
        let base = self.base.map_or(0, &register);
        let index = self.index.map_or(0, |(number, shift)| register(number) << shift);
        let mut sum = base.wrapping_add(index).wrapping_add_signed(i64::from(self.displacement));
        if self.short {
            sum &= u64::from(u32::MAX);
        }
        sum.wrapping_add(self.segment.map_or(0, segment))
    }
}

const NO_REGISTER: u8 = 16;

/// What one whole instruction means; `None` where it means nothing to the model.
pub fn decode(instruction: &[u8]) -> Option<Effect> {
    if let Some(id) = instruction_counter::mark_id(instruction) {
        return Some(Effect::Mark(id));
    }
    let instruction = Decoder::new(64, instruction, DecoderOptions::NONE).decode();
    let operand = || memory_operand(&instruction);
    Some(match instruction.mnemonic() {
        _ if instruction.has_lock_prefix() => Effect::Locked,
        Mnemonic::Xchg if instruction.op_kinds().any(|kind| kind == OpKind::Memory) => Effect::Locked,
        Mnemonic::Clwb | Mnemonic::Clflushopt => operand().map_or(Effect::Unsupported, Effect::WriteBack),
        Mnemonic::Clflush => operand().map_or(Effect::Unsupported, Effect::WriteBackNow),
        Mnemonic::Sfence | Mnemonic::Mfence => Effect::Fence,
        Mnemonic::Wbinvd | Mnemonic::Wbnoinvd => Effect::WriteBackAll,
        // It would drop what is dirty: no program under test may do so.
        Mnemonic::Invd => Effect::Unsupported,
        mnemonic if STORES_PAST_CACHE.contains(&mnemonic) => Effect::StorePastCache,
        _ => return None,
    })
}

/// The memory operand; `None` for one that is relative to the instruction: QEMU shares the translation of a page between the addresses at
/// which it is mapped, so that the plugin does not know where the instruction is.
fn memory_operand(instruction: &Instruction) -> Option<Address> {
    if instruction.is_ip_rel_memory_operand() {
        return None;
    }
    let registers = [instruction.memory_base(), instruction.memory_index()];
    let number = |register: Register| (register != Register::None).then(|| register.full_register().number() as u8);
    let [base, index] = registers.map(number);
    Some(Address {
        segment: match instruction.segment_prefix() {
            Register::FS => Some(Segment::Fs),
            Register::GS => Some(Segment::Gs),
            _ => None,
        },
        base,
        index: index.map(|index| (index, instruction.memory_index_scale().trailing_zeros() as u8)),
        displacement: i32::from_le_bytes(instruction.memory_displacement32().to_le_bytes()),
        // Without a register the size of the displacement is that of the address.
        short: registers.iter().any(|register| register.is_gpr32())
            || (registers == [Register::None; 2] && instruction.memory_displ_size() == 4),
    })
}

#[cfg(test)]
#[path = "decode_tests.rs"]
mod tests;
