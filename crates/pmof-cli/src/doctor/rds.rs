//! What the kernel has of RDS.

use pmof::causes;
use pmof_access::{RdsCarrier, rds_survey};
use pmof_doctor::{Rds, RdsAddress};

pub(super) fn ask() -> Rds {
    let survey = match rds_survey() {
        Ok(survey) => survey,
        Err(error) => return Rds::Unusable { why: causes(&error).to_string() },
    };
    let addresses = survey.addresses.into_iter();
    Rds::Found {
        modules: survey.modules.into_iter().map(ToOwned::to_owned).collect(),
        addresses: addresses
            .map(|(address, carrier)| RdsAddress { address, is_rdma: carrier == RdsCarrier::Rdma })
            .collect(),
    }
}
