//! What happened to a connection and was not told yet.

use std::{collections::VecDeque, sync::Arc};

use pmof_mem::order;
use pmof_proto::Event;

use crate::progress::ReadyFlag;

#[derive(Debug, Default)]
pub(crate) struct Events {
    untold: VecDeque<Event>,
    /// One of them says more than that the connection is established.
    has_news: bool,
    /// Set while there are any, where someone waits for its descriptor.
    signal: Option<Arc<dyn ReadyFlag>>,
}

impl Events {
    pub(super) fn push(&mut self, event: Event) {
        order::publish(&self.untold);
        self.untold.push_back(event);
        self.note_news();
        self.signal.as_ref().inspect(|signal| signal.set());
    }

    /// The next one that is known.
    pub(crate) fn take(&mut self) -> Option<Event> {
        let event = self.untold.pop_front();
        self.note_news();
        order::observe(&self.untold);
        if let Some(signal) = self.signal.as_ref().filter(|_| self.untold.is_empty()) {
            signal.clear();
        }
        event
    }

    /// The next one, which stays.
    pub(crate) fn next(&mut self) -> Option<&mut Event> {
        self.untold.front_mut()
    }

    /// True where an event waits, other than that the connection is established: that one stays until the application asks.
    #[inline]
    pub(super) fn has_news(&self) -> bool {
        self.has_news
    }

    fn note_news(&mut self) {
        self.has_news = self.untold.iter().any(|event| !matches!(event, Event::Established { .. }));
    }

    /// The private data of a connection request that came and was not taken yet.
    pub(super) fn take_request(&mut self) -> Option<Vec<u8>> {
        if !matches!(self.untold.front(), Some(Event::Requested { .. })) {
            return None;
        }
        match self.take() {
            Some(Event::Requested { private_data }) => Some(private_data),
            _ => None,
        }
    }

    /// No descriptor shows it any more.
    pub(crate) fn hide(&mut self) {
        self.signal = None;
    }

    /// Has a descriptor show from now on whether there are any.
    pub(crate) fn show(&mut self, signal: Arc<dyn ReadyFlag>) {
        if !self.untold.is_empty() {
            signal.set();
        }
        self.signal = Some(signal);
    }
}
