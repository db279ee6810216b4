//! The walk of x86-64 page tables, for instructions that QEMU translates without a memory access.
//!
//! Source: Intel SDM volume 3, chapter "Paging", 4-level and 5-level paging.

/// Where a processor's page tables are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageTables {
    /// The register `cr3`.
    pub root: u64,
    /// The register `cr4`.
    pub control: u64,
}

const ADDRESS_BITS: u64 = 0x000f_ffff_ffff_f000;
const PRESENT: u64 = 1;
const LARGE: u64 = 1 << 7;
const FIVE_LEVELS: u64 = 1 << 12;

/// The physical address of a virtual one; `None` where no page is present or an entry cannot be read. `read` reads the
/// eight bytes at a physical address.
pub fn translate(tables: PageTables, address: u64, mut read: impl FnMut(u64) -> Option<u64>) -> Option<u64> {
    let levels = if tables.control & FIVE_LEVELS == 0 { 4 } else { 5 };
    let mut table = tables.root & ADDRESS_BITS;
    for level in (0..levels).rev() {
        let shift = 12 + 9 * level;
        let index = address >> shift & 0x1ff;
        let entry = read(table + index * 8)?;
        if entry & PRESENT == 0 {
            return None;
        }
        let last = level == 0 || (level <= 2 && entry & LARGE != 0);
        if last {
            let offset = (1 << shift) - 1;
            return Some(entry & ADDRESS_BITS & !offset | address & offset);
        }
        table = entry & ADDRESS_BITS;
    }
    None
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// Maps each address at its level (0 a 4-KiB page, 1 of 2 MiB, 2 of 1 GiB) to a frame.
    fn tables(levels: u32, pages: &[(u64, u32, u64)]) -> HashMap<u64, u64> {
        let mut memory = HashMap::new();
        let mut next = 0x2000;
        for &(address, size, frame) in pages {
            let mut table = 0x1000;
            for level in (size..levels).rev() {
                let slot = table + (address >> (12 + 9 * level) & 0x1ff) * 8;
                if level == size {
                    memory.insert(slot, frame | PRESENT | if size > 0 { LARGE } else { 0 } | 1 << 63);
                } else {
                    let entry = *memory.entry(slot).or_insert_with(|| {
                        next += 0x1000;
                        (next - 0x1000) | PRESENT | 0x66
                    });
                    table = entry & ADDRESS_BITS;
                }
            }
        }
        memory
    }

    #[test]
    fn pages_of_all_sizes_at_both_depths() {
        let pages = [
            (0x7f12_3456_7000, 0, 0x1_0000_5000),
            (0xffff_8880_4000_0000, 2, 0x1_4000_0000),
            (0x7f00_0020_0000, 1, 0x20_0000),
        ];
        for (levels, control) in [(4, 0), (5, FIVE_LEVELS)] {
            let memory = tables(levels, &pages);
            let walk = |address| {
                translate(PageTables { root: 0x1000 | 0x18, control }, address, |at| {
                    Some(*memory.get(&at).unwrap_or(&0))
                })
            };
            assert_eq!(walk(0x7f12_3456_7abc), Some(0x1_0000_5abc));
            assert_eq!(walk(0xffff_8880_7654_3210), Some(0x1_7654_3210));
            assert_eq!(walk(0x7f00_0021_2345), Some(0x21_2345));
            assert_eq!(walk(0x7f12_3456_8000), None);
        }
    }

    #[test]
    fn an_unreadable_table_is_no_translation() {
        assert_eq!(translate(PageTables { root: 0x1000, control: 0 }, 0x1000, |_| None), None);
    }
}
