use super::*;

#[test]
fn every_cell_is_a_line_with_all_columns() {
    let mut document = Document::parse(include_bytes!("../../tests/golden/report-1.json")).unwrap();
    document.cells[0].outcome = Outcome::Skipped("a reason, with \"words\" in it\nand two lines".into());
    let text = csv(&document).unwrap();
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    assert_eq!(reader.headers().unwrap(), HEAD.as_slice());
    let rows: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
    assert_eq!(rows.len(), document.cells.len());
    assert_eq!(&rows[0][4], "skipped");
    assert_eq!(&rows[0][5], "a reason, with \"words\" in it\nand two lines");
    let at = |name: &str| HEAD.iter().position(|column| *column == name).unwrap();
    for (row, cell) in rows.iter().zip(&document.cells) {
        assert_eq!(&row[at("x")], cell.place.x.to_string());
        assert_eq!(&row[at("command")], cell.command);
        let Outcome::Result(value) = &cell.outcome else { continue };
        for column in HEAD.iter().filter(|column| value.get(**column).is_some_and(serde_json::Value::is_number)) {
            let number: f64 = row[at(column)].parse().unwrap();
            assert!((number - value[column].as_f64().unwrap()).abs() < 1e-9, "{column} of {}", cell.place);
        }
    }
}
