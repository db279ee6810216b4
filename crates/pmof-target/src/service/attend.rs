//! Carries out what connections ask for, in the background.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use pmof_access::Completion;
use pmof_control::ServiceCode;

use super::{REQUESTS_SHARE, Shared, digests::PART_BYTES, mailbox::Mailbox, session::Digested};
use crate::{
    refused::Refused,
    requests::{Digesting, Progress},
};

impl Shared {
    /// Serves a session until it has nothing more to do.
    pub(super) fn attend(self: &Arc<Self>, index: usize, mailbox: &Arc<Mailbox>) {
        while let Some(done) = mailbox.next() {
            let digest = mailbox.session().digest(&**self, &done);
            if let Some(digest) = digest {
                // Goes on when that is done.
                return self.digest(index, mailbox, done, digest);
            }
            self.take_in(index, mailbox, &done);
        }
    }

    fn take_in(&self, index: usize, mailbox: &Mailbox, done: &Completion) {
        let mut session = mailbox.session();
        if session.handle(self, done).is_continue() {
            return;
        }
        if session.leaves_open() && !session.has_lost_file(self) {
            self.was_left_open.store(true, Ordering::Release);
            self.counters.left_open();
        }
        drop(session);
        // Closing its pool takes a while, which is not for the lock.
        let ended = self.workers[index].sessions().remove(&done.connection);
        drop(ended);
    }

    /// Has a digest computed in turn with those of other connections, and then goes on with its own.
    fn digest(self: &Arc<Self>, index: usize, mailbox: &Arc<Mailbox>, done: Completion, digest: Digesting) {
        let (start, connection) = (Instant::now(), mailbox.session().connection());
        let (shared, mailbox, medium) = (Arc::clone(self), Arc::clone(mailbox), digest.medium());
        let (mut digest, mut done) = (Some(digest), Some(done));
        self.digests.add(&self.background, medium, move || {
            let reply = match digest.take() {
                // The client is gone.
                Some(_) if !connection.is_established() || shared.stopped() => {
                    Err(Refused::new(ServiceCode::NotOpen, "the connection has ended"))
                }
                Some(part) => match part.advance(PART_BYTES) {
                    Ok(Progress::Unfinished(more)) => {
                        digest = Some(more);
                        return true;
                    }
                    Ok(Progress::Done(reply)) => Ok(reply),
                    Err(refused) => Err(refused),
                },
                None => return false,
            };
            let Some(done) = done.take() else { return false };
            mailbox.session().note_digested(Digested { reply, took: start.elapsed() });
            let (after, shared, mailbox) = (shared.background.clone(), Arc::clone(&shared), Arc::clone(&mailbox));
            after.run(REQUESTS_SHARE, move || {
                shared.take_in(index, &mailbox, &done);
                shared.attend(index, &mailbox);
            });
            false
        });
    }
}
