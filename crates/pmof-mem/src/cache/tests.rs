use super::{CacheWriteBack, line_bytes, persist_fence, write_back_lines};

#[test]
fn every_instruction_of_this_cpu_runs_and_changes_nothing() {
    let bytes: Vec<u8> = (0..=255).cycle().take(4096 + 17).collect();
    let copy = bytes.clone();
    let mut ran = 0;
    for instruction in CacheWriteBack::ALL.into_iter().filter(|instruction| instruction.is_supported()) {
        for (start, len_bytes) in [(0, 0), (0, 1), (63, 2), (1, 64), (5, 4096), (0, bytes.len())] {
            // SAFETY: the range lies inside `bytes`, and the instruction is supported.
            unsafe { write_back_lines(instruction, bytes[start..].as_ptr(), len_bytes) };
            persist_fence();
        }
        ran += 1;
    }
    assert_eq!(bytes, copy);
    assert_eq!(ran > 0, CacheWriteBack::detect().is_some());
}

#[test]
fn detection_agrees_with_the_kernel() {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    let flags: Vec<&str> = text
        .lines()
        .find(|line| line.starts_with("flags"))
        .map_or_else(Vec::new, |line| line.split_whitespace().collect());
    if cfg!(target_arch = "x86_64") {
        assert_eq!(CacheWriteBack::Clwb.is_supported(), flags.contains(&"clwb"));
        assert_eq!(CacheWriteBack::Clflushopt.is_supported(), flags.contains(&"clflushopt"));
        assert_eq!(CacheWriteBack::Clflush.is_supported(), flags.contains(&"clflush"));
        assert!(CacheWriteBack::detect().is_some());
    }
}

#[test]
fn a_line_is_a_power_of_two() {
    assert!(line_bytes().is_power_of_two() && line_bytes() >= 16, "{}", line_bytes());
}
