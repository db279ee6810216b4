use proptest::prelude::*;

use super::*;

#[test]
fn plain_names_are_taken() {
    for name in ["a", "orders", "orders.2024", "x..y", "-", "tab le", "größe", "a.new", &"n".repeat(MAX_NAME_BYTES)] {
        assert_eq!(PoolName::new(name).expect(name).as_str(), name);
    }
}

#[test]
fn each_rule_has_its_error() {
    let forbidden = |character, at| NameError::ForbiddenCharacter { character, at };
    let dot = |name: &str| NameError::LeadingDot { name: name.to_owned() };
    for (name, error) in [
        ("", NameError::Empty),
        (&*"n".repeat(MAX_NAME_BYTES + 1), NameError::TooLong { len_bytes: MAX_NAME_BYTES + 1 }),
        ("/etc/passwd", forbidden('/', 0)),
        ("a/../../b", forbidden('/', 1)),
        ("../b", forbidden('/', 2)),
        ("a\0b", forbidden('\0', 1)),
        ("ab\n", forbidden('\n', 2)),
        ("\u{7f}", forbidden('\u{7f}', 0)),
        ("a\u{85}", forbidden('\u{85}', 1)),
        (".", dot(".")),
        ("..", dot("..")),
        (".hidden", dot(".hidden")),
    ] {
        assert_eq!(PoolName::new(name), Err(error), "{name:?}");
    }
    assert_eq!(PoolName::try_from(&b"ab\xff"[..]), Err(NameError::NotUtf8 { at: 2 }));
}

proptest! {
    #[test]
    fn a_name_is_one_plain_path_component(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(name) = PoolName::try_from(&bytes[..]) {
            let components: Vec<_> = std::path::Path::new(name.as_str()).components().collect();
            prop_assert!(matches!(components[..], [std::path::Component::Normal(_)]));
        }
    }
}

#[test]
fn a_set_lies_below_the_root() {
    for name in ["a", "orders.set", "a/b/c.set", "tab le/x"] {
        assert_eq!(SetName::new(name).expect(name).to_string(), name);
    }
    let long = ["n"; 600].join("/");
    for (name, error) in [
        ("", NameError::Empty),
        ("a//b", NameError::Empty),
        ("a/", NameError::Empty),
        ("/etc/passwd", NameError::Absolute { name: "/etc/passwd".to_owned() }),
        ("..", NameError::ParentDirectory { name: "..".to_owned() }),
        ("../x.set", NameError::ParentDirectory { name: "../x.set".to_owned() }),
        ("a/../b", NameError::ParentDirectory { name: "a/../b".to_owned() }),
        ("a/./b", NameError::LeadingDot { name: ".".to_owned() }),
        ("a\0", NameError::ForbiddenCharacter { character: '\0', at: 1 }),
        (&long, NameError::SetTooLong { len_bytes: 1199 }),
    ] {
        assert_eq!(SetName::new(name), Err(error), "{name:?}");
    }
}
