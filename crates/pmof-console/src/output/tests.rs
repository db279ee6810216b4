use super::*;

#[test]
fn the_version_is_the_first_member_of_each_object() {
    let level = LevelReport::new(Durability::Visible, true, None);
    let text = json_object(&level).unwrap();
    assert!(text.starts_with(r#"{"schema_version":1,"durability":"#), "{text}");
    assert_eq!(json_object(&serde_json::json!({ "a": 1 })).unwrap(), r#"{"schema_version":1,"a":1}"#);
    assert!(json_object(&[1, 2]).is_err());
}

#[test]
fn sizes_are_for_people_and_exact() {
    assert_eq!(size(0), "0 bytes");
    assert_eq!(size(1), "1 byte");
    assert_eq!(size(1023), "1023 bytes");
    assert_eq!(size(1536), "1.5 KiB (1536 bytes)");
    assert_eq!(size(3 << 30), "3.0 GiB (3221225472 bytes)");
    assert_eq!(size(u64::MAX), "16777216.0 TiB (18446744073709551615 bytes)");
}
