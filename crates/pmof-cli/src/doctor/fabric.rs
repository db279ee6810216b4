//! What libfabric says of its providers.

use pmof::causes;
use pmof_access::{FabricProvider, fabric_survey};
use pmof_doctor::{FabricProvider as Provider, Libfabric};

pub(super) fn ask() -> Libfabric {
    let survey = match fabric_survey() {
        Ok(survey) => survey,
        Err(error) => return Libfabric::Unusable { why: causes(&error).to_string() },
    };
    let providers = survey.offers.into_iter().filter_map(|offer| {
        let scheme = FabricProvider::of_library_name(&offer.provider, offer.is_connected);
        // Addresses ask for connected endpoints of some providers only.
        (scheme.is_some() || !offer.is_connected).then(|| Provider {
            scheme: scheme.map(|provider| provider.scheme().to_owned()),
            name: offer.provider,
            why_not: offer.why_not,
            claims_persistence: offer.claims_persistence,
        })
    });
    let (major, minor) = survey.version;
    Libfabric::Found { version: format!("{major}.{minor}"), providers: providers.collect() }
}
