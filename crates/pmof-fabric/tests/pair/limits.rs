//! Libraries that are too old, and providers without RMA. Each test starts itself anew, with a library of its own.

use std::{env, process::Command};

use limited_fabric::{Limit, LimitedFabric};
use pmof_fabric::{FabricError, LoadError, Query, list, survey};

/// Set in the process that a test starts.
const CHILD: &str = "PMOF_LIMITED_CHILD";

fn is_child() -> bool {
    env::var_os(CHILD).is_some()
}

/// Runs this test alone in the process that the command becomes.
fn start(command: &mut Command, test: &str) {
    let test = format!("limits::{test}");
    command.args(["--exact", &test, "--nocapture"]).env(CHILD, "1");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

/// Runs this test alone with a limit.
fn limited(limit: Limit, test: &str) {
    match LimitedFabric::build() {
        Ok(library) => start(library.limit(&mut Command::new(env::current_exe().unwrap()), limit), test),
        Err(why) => skip_report::skipped!("{why}"),
    }
}

fn tcp() -> Query {
    Query { provider: Some("tcp".to_owned()), ..Query::default() }
}

#[test]
fn a_provider_without_rma_is_refused() {
    if !is_child() {
        return limited(Limit::NoRma, "a_provider_without_rma_is_refused");
    }
    let error = list(&tcp()).unwrap_err();
    assert!(
        matches!(&error, FabricError::Lacking { provider, lacks, .. } if provider == "tcp" && lacks == "RMA (FI_RMA)"),
        "{error:?}"
    );
    assert!(error.to_string().contains("tcp lacks RMA (FI_RMA): pmof needs"), "{error}");
    assert!(matches!(list(&Query::default()), Err(FabricError::NoProvider { .. })));
    let offers = survey().unwrap().offers;
    let is_told = |why: &Option<String>| why.as_ref().is_some_and(|why| !why.is_empty());
    assert!(!offers.is_empty() && offers.iter().all(|offer| is_told(&offer.why_not)), "{offers:?}");
}

#[test]
fn a_library_that_is_too_old_is_refused() {
    if !is_child() {
        return limited(Limit::Minor(10), "a_library_that_is_too_old_is_refused");
    }
    let error = list(&tcp()).unwrap_err();
    assert!(matches!(error, FabricError::Library(LoadError::TooOld { major: 1, minor: 10, .. })), "{error:?}");
    assert!(error.to_string().contains("1.10: pmof needs libfabric 1.11"), "{error}");
}
