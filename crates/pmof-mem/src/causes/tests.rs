use std::{io, path::PathBuf};

use super::causes;
use crate::MemError;

#[test]
fn each_cause_is_printed_once() {
    let refused = || io::Error::from(io::ErrorKind::PermissionDenied);
    let error = MemError::Io { call: "open", path: PathBuf::from("/a"), mend: "check its rights", source: refused() };
    assert_eq!(error.to_string(), "open of /a failed; check its rights");
    assert_eq!(causes(&error).to_string(), "open of /a failed; check its rights: permission denied");
    assert_eq!(format!("{:?}", causes(&refused())), "permission denied");
}
