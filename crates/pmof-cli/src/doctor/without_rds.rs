//! Replaces `rds.rs` if the command is built without RDS.

use pmof_doctor::Rds;

pub(super) fn ask() -> Rds {
    Rds::NotAsked
}
