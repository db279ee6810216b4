//! Which instructions move data from the caches to memory.
//!
//! Encodings: Intel SDM volume 2 (`CLWB`, `CLFLUSHOPT`, `CLFLUSH`, `SFENCE`, `MFENCE`, `WBINVD`, `WBNOINVD`, `MOVNTI`,
//! `MOVNTQ`, `MOVNTDQ`, `MOVNTPS`, `MOVNTPD`, `MASKMOVQ`, `MASKMOVDQU`, `MOVDIRI`, `MOVDIR64B`) and AMD's manual volume 4
//! (`MOVNTSS`, `MOVNTSD`). 64-bit mode only: in 16- and 32-bit code the same bytes are other instructions or are not
//! found, which matters to no program under test.

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
    /// in 42 and 43, the segment in 44 and 45, `short` in 46. Register 16 stands for none.
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
    let (prefixes, rest) = Prefixes::read(instruction);
    if prefixes.lock {
        return Some(Effect::Locked);
    }
    match *rest {
        [0x86 | 0x87, modrm, ..] if !is_register(modrm) => Some(Effect::Locked),
        [0xc5, _, opcode, modrm, ..] => vector_store(opcode, modrm),
        [0xc4, map, _, opcode, modrm, ..] if map & 0x1f == 1 => vector_store(opcode, modrm),
        [0x62, map, _, _, opcode, modrm, ..] if map & 0x07 == 1 => vector_store(opcode, modrm),
        [0x0f, 0x38, 0xf9, modrm, ..] if prefixes.mandatory == Mandatory::None && !is_register(modrm) => {
            Some(Effect::StorePastCache)
        }
        [0x0f, 0x38, 0xf8, modrm, ..] if prefixes.mandatory == Mandatory::Operand && !is_register(modrm) => {
            Some(Effect::StorePastCache)
        }
        [0x0f, 0xae, modrm, ..] => group_15(prefixes, modrm, &rest[2..]),
        // invd would drop what is dirty: no program under test may do so.
        [0x0f, 0x08, ..] => Some(Effect::Unsupported),
        [0x0f, 0x09, ..] => Some(Effect::WriteBackAll),
        [0x0f, 0xc3, modrm, ..] if prefixes.mandatory == Mandatory::None && !is_register(modrm) => {
            Some(Effect::StorePastCache)
        }
        [0x0f, opcode @ (0xe7 | 0x2b | 0xf7), modrm, ..] => legacy_store(prefixes, opcode, modrm),
        _ => None,
    }
}

/// The prefix that chooses between instructions of one opcode; `f2` and `f3` win over `66`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mandatory {
    None,
    Operand,
    Repeat,
    RepeatNot,
}

#[derive(Clone, Copy, Debug)]
struct Prefixes {
    mandatory: Mandatory,
    lock: bool,
    short: bool,
    segment: Option<Segment>,
    /// The low four bits of a REX prefix: W, R, X, B.
    rex: u8,
}

impl Prefixes {
    /// The prefixes and what follows them.
    fn read(instruction: &[u8]) -> (Prefixes, &[u8]) {
        let mut prefixes = Prefixes { mandatory: Mandatory::None, lock: false, short: false, segment: None, rex: 0 };
        let mut rest = instruction;
        while let [byte, after @ ..] = rest {
            match byte {
                0x66 if prefixes.mandatory == Mandatory::None => prefixes.mandatory = Mandatory::Operand,
                0xf2 => prefixes.mandatory = Mandatory::RepeatNot,
                0xf3 => prefixes.mandatory = Mandatory::Repeat,
                0x67 => prefixes.short = true,
                0xf0 => prefixes.lock = true,
                0x64 => prefixes.segment = Some(Segment::Fs),
                0x65 => prefixes.segment = Some(Segment::Gs),
                0x66 | 0x2e | 0x36 | 0x3e | 0x26 => {}
                _ => break,
            }
            rest = after;
        }
        if let [rex @ 0x40..=0x4f, after @ ..] = rest {
            prefixes.rex = rex & 0x0f;
            rest = after;
        }
        (prefixes, rest)
    }
}

fn is_register(modrm: u8) -> bool {
    modrm >> 6 == 3
}

/// `0f ae`: fences in the register form, flushes in the memory form.
fn group_15(prefixes: Prefixes, modrm: u8, operand: &[u8]) -> Option<Effect> {
    let register = is_register(modrm);
    match (modrm >> 3 & 7, prefixes.mandatory, register) {
        (6 | 7, Mandatory::None, true) => Some(Effect::Fence),
        (6 | 7, Mandatory::Operand, false) => {
            Some(memory_operand(prefixes, operand).map_or(Effect::Unsupported, Effect::WriteBack))
        }
        (7, Mandatory::None, false) => {
            Some(memory_operand(prefixes, operand).map_or(Effect::Unsupported, Effect::WriteBackNow))
        }
        _ => None,
    }
}

/// `movntq`, `movntdq`, `movntps`, `movntpd`, `movntss`, `movntsd` to memory; `maskmovq` and `maskmovdqu`, whose memory
/// operand is implied and whose encoded one is a register.
fn legacy_store(prefixes: Prefixes, opcode: u8, modrm: u8) -> Option<Effect> {
    let past = match (opcode, prefixes.mandatory) {
        (0xe7, Mandatory::None | Mandatory::Operand) | (0x2b, _) => !is_register(modrm),
        (0xf7, Mandatory::None | Mandatory::Operand) => is_register(modrm),
        _ => false,
    };
    past.then_some(Effect::StorePastCache)
}

/// The same with a VEX or EVEX prefix.
fn vector_store(opcode: u8, modrm: u8) -> Option<Effect> {
    let past = match opcode {
        0xe7 | 0x2b => !is_register(modrm),
        0xf7 => is_register(modrm),
        _ => false,
    };
    past.then_some(Effect::StorePastCache)
}

/// The memory operand that starts with a modrm byte; `None` for one that is relative to the instruction (QEMU shares the
/// translation of a page between the addresses at which it is mapped, so that the plugin does not know where the
/// instruction is) or is cut short.
fn memory_operand(prefixes: Prefixes, operand: &[u8]) -> Option<Address> {
    let (&modrm, mut rest) = operand.split_first()?;
    let mode = modrm >> 6;
    let extend = |bit: u8, low: u8| low | if prefixes.rex & bit == 0 { 0 } else { 8 };
    let mut address = Address { segment: prefixes.segment, short: prefixes.short, ..Address::default() };
    let mut wide = mode == 2;
    if modrm & 7 == 4 {
        let (&sib, after) = rest.split_first()?;
        rest = after;
        let index = extend(2, sib >> 3 & 7);
        address.index = (index != 4).then_some((index, sib >> 6));
        if sib & 7 == 5 && mode == 0 {
            wide = true;
        } else {
            address.base = Some(extend(1, sib & 7));
        }
    } else if modrm & 7 == 5 && mode == 0 {
        return None;
    } else {
        address.base = Some(extend(1, modrm & 7));
    }
    address.displacement = if wide {
        let bytes: [u8; 4] = rest.get(..4)?.try_into().ok()?;
        i32::from_le_bytes(bytes)
    } else if mode == 1 {
        i32::from(i8::from_le_bytes([*rest.first()?]))
    } else {
        0
    };
    Some(address)
}

#[cfg(test)]
#[path = "decode_tests.rs"]
mod tests;
