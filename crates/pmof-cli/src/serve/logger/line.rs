//! One event of the log.

use std::{collections::BTreeMap, time::SystemTime};

use log::{
    Level, Record,
    kv::{Error, Key, Value, VisitSource},
};
use pmof_console::output::json_object;
use serde::Serialize;

/// The event of what names none: internals of the transports.
const UNNAMED: &str = "message";

/// When, how grave, what, and on what.
#[derive(Debug, PartialEq)]
pub(super) struct Line {
    pub(super) time: SystemTime,
    pub(super) level: Level,
    pub(super) event: String,
    pub(super) message: String,
    pub(super) fields: BTreeMap<String, serde_json::Value>,
}

#[derive(Serialize)]
struct Json<'a> {
    time: String,
    level: &'a str,
    event: &'a str,
    message: &'a str,
    #[serde(flatten)]
    fields: &'a BTreeMap<String, serde_json::Value>,
}

impl Line {
    pub(super) fn new(time: SystemTime, record: &Record<'_>) -> Self {
        let mut fields = Fields::default();
        // It fails only if the callback does.
        let _ = record.key_values().visit(&mut fields);
        let mut fields = fields.0;
        let event = match fields.remove("event") {
            Some(serde_json::Value::String(event)) => event,
            _ => UNNAMED.to_owned(),
        };
        Self { time, level: record.level(), event, message: record.args().to_string(), fields }
    }

    /// `count` lines before this one could not be written.
    pub(super) fn lost(time: SystemTime, count: u64) -> Self {
        let message = format!("{count} lines before this one could not be written");
        let fields = BTreeMap::from([("count".to_owned(), count.into())]);
        Self { time, level: Level::Error, event: "log_lines_lost".to_owned(), message, fields }
    }

    /// `TIME LEVEL EVENT: TEXT (KEY=VALUE ...)`.
    pub(super) fn text(&self) -> String {
        format!("{} {}", self.rfc_3339(), self.without_time())
    }

    pub(super) fn without_time(&self) -> String {
        // The reason is in the text already.
        let shown = self.fields.iter().filter(|(key, _)| *key != "reason");
        let fields: Vec<_> = shown.map(|(key, value)| format!("{key}={}", plain(value))).collect();
        let fields = if fields.is_empty() { String::new() } else { format!(" ({})", fields.join(" ")) };
        on_one_line(&format!("{} {}: {}{fields}", self.level_word(), self.event, self.message))
    }

    /// One object.
    pub(super) fn json(&self) -> String {
        let Self { event, message, fields, .. } = self;
        let json = Json { time: self.rfc_3339(), level: self.level_word(), event, message, fields };
        // Strings and numbers always have a form in JSON.
        json_object(&json).unwrap_or_default()
    }

    fn rfc_3339(&self) -> String {
        humantime::format_rfc3339_millis(self.time).to_string()
    }

    fn level_word(&self) -> &'static str {
        match self.level {
            Level::Error => "error",
            Level::Warn => "warn",
            Level::Info => "info",
            Level::Debug => "debug",
            Level::Trace => "trace",
        }
    }
}

/// A value as it is if it is one word, else in quotation marks.
fn plain(value: &serde_json::Value) -> String {
    let is_word = |text: &&String| !text.is_empty() && !text.contains([' ', '"', '=', '(', ')']);
    match value.as_str().map(str::to_owned).as_ref().filter(is_word) {
        Some(word) => word.clone(),
        None => value.to_string(),
    }
}

/// Control characters, which paths and names of processes may hold, end no line and move no cursor.
fn on_one_line(text: &str) -> String {
    let escape = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(escape).collect()
}

#[derive(Default)]
struct Fields(BTreeMap<String, serde_json::Value>);

impl<'kvs> VisitSource<'kvs> for Fields {
    fn visit_pair(&mut self, key: Key<'kvs>, value: Value<'kvs>) -> Result<(), Error> {
        let value = match (value.to_u64(), value.to_bool()) {
            (Some(number), _) => number.into(),
            (None, Some(flag)) => flag.into(),
            (None, None) => value.to_string().into(),
        };
        // What is not known is left out.
        if value != "" {
            self.0.insert(key.to_string(), value);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use log::Record;

    use super::*;

    /// A pool was refused, with a name that would tear the line.
    fn refused() -> Line {
        let fields: &[(&str, Value<'_>)] = &[
            ("event", "pool_refused".into()),
            ("connection", 7_u64.into()),
            ("peer", "192.0.2.1:5".into()),
            ("pool", "".into()),
            ("request", "take over".into()),
            ("reason", "no \"room\"\n".into()),
        ];
        let args = format_args!("refused: no \"room\"\nsecond line");
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1_764_082_800_123);
        Line::new(time, &Record::builder().level(Level::Error).args(args).key_values(&fields).build())
    }

    #[test]
    fn a_line_of_text_has_time_level_event_and_keys() {
        assert_eq!(
            refused().text(),
            "2025-11-25T15:00:00.123Z error pool_refused: refused: no \"room\"\\nsecond line (connection=7 peer=192.0.2.1:5 request=\"take over\")"
        );
    }

    #[test]
    fn a_line_of_json_has_all_of_it() {
        let json: serde_json::Value = serde_json::from_str(&refused().json()).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "schema_version": 1, "time": "2025-11-25T15:00:00.123Z", "level": "error", "event": "pool_refused", "connection": 7,
                "peer": "192.0.2.1:5", "request": "take over", "reason": "no \"room\"\n",
                "message": "refused: no \"room\"\nsecond line",
            })
        );
        assert!(!refused().json().contains('\n'));
    }

    #[test]
    fn what_names_no_event_is_a_message() {
        let record = Record::builder().level(Level::Info).args(format_args!("hello")).build();
        assert_eq!(Line::new(SystemTime::UNIX_EPOCH, &record).text(), "1970-01-01T00:00:00.000Z info message: hello");
    }
}
