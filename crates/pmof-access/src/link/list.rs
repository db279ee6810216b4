//! The connections of one peer.

use std::sync::{Arc, Weak};

use pmof_locks::Mutex;

use super::Link;
use crate::region::RegionUsers;

/// Every connection that was made for a peer and is still there.
#[derive(Debug, Default)]
pub(crate) struct LinkList(Mutex<Vec<Weak<Link>>>);

impl LinkList {
    pub(crate) fn add(&self, link: &Arc<Link>) {
        let mut links = self.0.lock();
        if links.len() == links.capacity() {
            links.retain(|link| link.strong_count() > 0);
            // Room for as many again, so that those that are gone are seldom looked for.
            let more = links.len().max(8);
            links.reserve(more);
        }
        links.push(Arc::downgrade(link));
    }
}

impl RegionUsers for LinkList {
    fn wait_for_each(&self) {
        // Not with the list locked: that would keep connections from being made.
        let links: Vec<_> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        for link in links {
            drop(link.lock());
        }
    }
}
