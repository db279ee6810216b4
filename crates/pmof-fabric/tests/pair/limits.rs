//! Libraries that are too old, providers without RMA, and limits of what can be registered. Each test starts itself anew, with a library or a
//! limit of its own.

use std::{env, process::Command, sync::Arc};

use limited_fabric::{Limit, LimitedFabric};
use pmof_fabric::{FabricError, LoadError, MrAccess, Operation, Query, RegisterError, list, survey};
use pmof_mem::{Medium, Memory};

use super::{drive, pair, post};

/// Set in the process that a test starts.
const CHILD: &str = "PMOF_LIMITED_CHILD";

/// Locks no memory, without the right of root to lock it nevertheless, where that can be shed.
const WITHOUT_MEMLOCK: &str = "ulimit -l 0; shed='setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock'; \
     if $shed true 2>&-; then exec $shed \"$@\"; fi; exec \"$@\"";

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
    assert!(error.to_string().contains("1.10: pmof needs libfabric 1.17"), "{error}");
}

/// What is registered stays so, and room that is given back is used again.
#[test]
fn a_full_table_of_regions_loses_nothing() {
    if !is_child() {
        return limited(Limit::Regions(2), "a_full_table_of_regions_loses_nothing");
    }
    let (mut a, mut b) = pair("tcp").unwrap();
    let memory: Arc<dyn Medium> = Arc::new(Memory::anonymous(4096).unwrap());
    let register =
        |domain: &pmof_fabric::Domain| domain.register(Arc::clone(&memory), (0, 4096), MrAccess::REMOTE_READ, 0xC);
    let error = register(&a.domain).unwrap_err();
    assert!(
        matches!(&error, RegisterError::NoRoom { provider, len_bytes: 4096, error, .. }
            if provider.starts_with("tcp") && error.errno == libc::ENOMEM),
        "{error:?}"
    );
    for part in ["tcp", "4096 bytes", "ulimit -l", "fewer regions"] {
        assert!(error.to_string().contains(part), "{part}: {error}");
    }

    let bytes = a.buffer(&[7; 64]);
    let to = b.at(128);
    post(&mut a, &mut b, Operation::Write(to), bytes, 1);
    let (done, _) = drive(&mut a, &mut b, (1, 0));
    let mut seen = [0; 64];
    b.memory.read(128, &mut seen).unwrap();
    assert!(done[0].result.is_ok() && seen == [7; 64], "{done:?}");
    drop(a.region);
    register(&a.domain).unwrap();
}

/// Providers of sockets register by writing it down: no limit of locked memory counts, nor has their table an end.
#[test]
fn tcp_has_no_limit_of_regions() {
    if !is_child() {
        let mut shell = Command::new("sh");
        shell.args(["-c", WITHOUT_MEMLOCK, "sh"]).arg(env::current_exe().unwrap());
        return start(&mut shell, "tcp_has_no_limit_of_regions");
    }
    let page = Arc::new(Memory::anonymous(4096).unwrap());
    let address = std::ptr::with_exposed_provenance(page.address() as usize);
    // SAFETY: the page is mapped.
    if unsafe { libc::mlock(address, 4096) } == 0 {
        return skip_report::skipped!("this process may lock memory whatever its limit is (CAP_IPC_LOCK)");
    }
    for provider in ["tcp", "net"] {
        let Some((a, _)) = pair(provider) else { return };
        let memory: Arc<dyn Medium> = Arc::new(Memory::anonymous(64 << 20).unwrap());
        let register = |key| a.domain.register(Arc::clone(&memory), (0, 64 << 20), MrAccess::REMOTE_WRITE, key);
        let regions: Vec<_> = (0..70_000).map(|key| register(0x1000 + key).unwrap()).collect();
        assert_eq!(regions.len(), 70_000);
    }
}
