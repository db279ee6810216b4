use super::*;

#[test]
fn times_are_printed_as_people_write_them() {
    for (unix_s, text) in [
        (0, "1970-01-01 00:00:00 UTC"),
        (951_782_399, "2000-02-28 23:59:59 UTC"),
        (951_782_400, "2000-02-29 00:00:00 UTC"),
        (951_868_800, "2000-03-01 00:00:00 UTC"),
        (1_700_000_000, "2023-11-14 22:13:20 UTC"),
        (4_107_542_400, "2100-03-01 00:00:00 UTC"),
    ] {
        assert_eq!(utc(unix_s), text);
    }
    // Any number has a text.
    assert!(utc(u64::MAX).ends_with(" UTC"));
}
