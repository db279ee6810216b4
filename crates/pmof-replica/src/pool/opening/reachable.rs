//! Whether enough members are reached, asked before anybody is harmed.

use pmof_control::{Reply, Request};

use super::Opening;
use crate::lineage::votes_needed;

impl Opening {
    /// Whether fewer of those that were named are reached than an opening needs of as many as the pool was made with. Others may be enough all the same.
    pub(in crate::pool) fn may_be_too_few(&self) -> bool {
        let info = |(position, _): &(usize, _)| Request::Info { name: self.urls[*position].name.clone() };
        let asked: Vec<_> = self.sites.iter().map(|at| (&at.1, at.1.send(&info(at)))).collect();
        let made = asked.into_iter().filter_map(|(site, asked)| match asked.and_then(|asked| site.answer(asked)) {
            Ok(Reply::Info(info)) => Some(usize::from(info.header.replica_count)),
            _ => None,
        });
        let made: Vec<_> = made.collect();
        made.iter().any(|count| made.len() < votes_needed(*count))
    }
}
