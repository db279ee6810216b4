use super::*;

#[test]
fn sizes_are_for_people_and_exact() {
    assert_eq!(size(0), "0 bytes");
    assert_eq!(size(1), "1 byte");
    assert_eq!(size(1023), "1023 bytes");
    assert_eq!(size(1536), "1.5 KiB (1536 bytes)");
    assert_eq!(size(3 << 30), "3.0 GiB (3221225472 bytes)");
    assert_eq!(size(u64::MAX), "16777216.0 TiB (18446744073709551615 bytes)");
}
