//! Variables of the environment.

use std::env;

/// What the variable holds; `None` where it is empty too.
pub(crate) fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}
