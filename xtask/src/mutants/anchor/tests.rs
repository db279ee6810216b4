use super::*;

const SOURCE: &str = r#"
/// Adds: one + two.
fn add(one: u32, two: u32) -> u32 {
    one + two // } "not the end
}

struct Sum(u32);

impl Sum {
    fn take(&mut self, more: u32) {
        self.0 += more;
        self.0 += more;
    }
}

impl Drop for Sum {
    fn drop(&mut self) { println!("é {}", self.0); }
}

trait Twice {
    fn twice(&self) -> u32 { 4 }
    fn never(&self);
}

mod tests {
    fn add() { fn inner() -> u8 { 7 } }
}
"#;

fn replaced(source: &str, name: &str, search: &str, replace: &str) -> Result<String> {
    Source::parse(source.to_owned())?.replaced(name, search, replace)
}

fn error(name: &str, search: &str) -> String {
    format!("{:#}", replaced(SOURCE, name, search, "").unwrap_err())
}

#[test]
fn a_place_is_replaced_and_nothing_else() {
    // Its documentation has the text too.
    let mutated = replaced(SOURCE, "tests::add", "7", "8").unwrap();
    assert_eq!(mutated, SOURCE.replace("{ 7 }", "{ 8 }"));
    let mutated = replaced(SOURCE, "inner", "7", "8").unwrap();
    assert_eq!(mutated, SOURCE.replace("{ 7 }", "{ 8 }"));
    let mutated = replaced(SOURCE, "Sum::drop", "self.0", "0").unwrap();
    assert_eq!(mutated, SOURCE.replace("{}\", self.0", "{}\", 0"));
    let mutated = replaced(SOURCE, "Twice::twice", "4", "3").unwrap();
    assert_eq!(mutated, SOURCE.replace("{ 4 }", "{ 3 }"));
}

#[test]
fn an_anchor_that_is_gone_is_an_error() {
    assert!(error("subtract", "one").contains("no function subtract"));
    assert!(error("never", "x").contains("no function never"));
    assert!(error("Sum::take", "self.1").contains("does not hold"));
    // It is elsewhere in the file.
    assert!(error("Sum::take", "one + two").contains("does not hold"));
    assert!(error("Sum::take", "").contains("nothing to search"));
    assert!(error("tests::add", "").contains("nothing to search"));
}

#[test]
fn an_anchor_that_is_not_the_only_one_is_an_error() {
    assert!(error("add", "one").contains("more than one function add"), "{}", error("add", "one"));
    assert!(error("take", "self.0 += more;").contains("more than once"));
    assert!(format!("{:#}", replaced(SOURCE, "take", "&mut", "&mut").unwrap_err()).contains("changes nothing"));
}

#[test]
fn what_is_no_rust_is_an_error() {
    assert!(format!("{:#}", replaced("int main(void)", "main", "int", "void").unwrap_err()).contains("as Rust"));
}
