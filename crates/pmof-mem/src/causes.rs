//! An error with its causes, in one line.

use std::{error::Error, fmt};

#[cfg(test)]
mod tests;

/// An error and its [sources](Error::source) in one line, outermost first, separated by `: `; see [`causes`].
#[derive(Clone, Copy)]
pub struct Causes<'e>(&'e dyn Error);

/// Shows an error with all that led to it. Each error of pmof prints its own words only and leaves the rest to its
/// [source](Error::source), so `{error}` by itself may not say why.
pub fn causes(error: &dyn Error) -> Causes<'_> {
    Causes(error)
}

impl fmt::Display for Causes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut next = self.0.source();
        while let Some(cause) = next {
            write!(f, ": {cause}")?;
            next = cause.source();
        }
        Ok(())
    }
}

/// As it is displayed: what `main` prints of an error that it returns.
impl fmt::Debug for Causes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
