use super::*;

const PAGE: &str = r#"# Project

```sh
not here
```

## Try it

Words.

```sh
run --fast       # some 10 s: no promise
say "a # b"      # prints: a # b

cat > file <<END
one # two
END
wrong            # prints: no such thing (exit status 3)
two \
  lines
```

```rust
fn not_a_command() {}
```

```sh
last
```

### By another way

```sh
elsewhere
```
"#;

fn plain(text: &str) -> PageCommand {
    PageCommand { text: text.to_owned(), prints: None, exit_status: 0 }
}

#[test]
fn a_sections_commands_are_found() {
    let says = PageCommand { prints: Some("a # b".to_owned()), ..plain("say \"a # b\"") };
    let fails = PageCommand { prints: Some("no such thing".to_owned()), exit_status: 3, ..plain("wrong") };
    let here = plain("cat > file <<END\none # two\nEND");
    let expected = vec![plain("run --fast"), says, here, fails, plain("two \\\n  lines"), plain("last")];
    assert_eq!(of_section(PAGE, "Try it").unwrap(), expected);
    assert_eq!(of_section(PAGE, "By another").unwrap(), [plain("elsewhere")]);
}

#[test]
fn what_is_not_there_is_an_error() {
    assert!(of_section(PAGE, "Gone").is_err());
    assert!(of_section("## Empty\n```rust\n```\n", "Empty").is_err());
    assert!(of_section("## Open\n```sh\ncat <<END\n```\n", "Open").is_err());
    assert!(of_section("## Odd\n```sh\na # prints: b (exit status x)\n```\n", "Odd").is_err());
}
