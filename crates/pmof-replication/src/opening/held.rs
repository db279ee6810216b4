//! Whether the replicas are still this opening's when the last of them has answered.

use alloc::{boxed::Box, rc::Rc, vec::Vec};

use pmof_control::{Reply, Request};

use super::{
    ask::{Failed, Run},
    outcome::OpenedReplica,
    rules::Rules,
};
use crate::{
    asking::{Action, Cause, Failure, Reason, Task, reply},
    place::Place,
};

impl<P: Place, F: Failure, R: Rules> Run<P, F, R> {
    /// Where an epoch was found that was only announced: has those fail that another writer has taken since they answered. It may have confirmed the epoch there, and this opening
    /// would tell the others that it was given up.
    ///
    /// All that answer were as they said at one moment, behind the last answer and before this was asked: what none of them had confirmed then can no longer be.
    pub(super) async fn check_held(&mut self, opened: &mut Vec<OpenedReplica>, failed: &mut Vec<Failed<F>>) {
        if opened.iter().all(|opened| opened.state.is_confirmed) {
            return;
        }
        let exchange = Rc::clone(&self.exchange);
        let patience = self.patience(opened.len(), &[]);
        // Each has this mark: nothing changes, and only its holder is answered.
        let tasks = opened
            .iter()
            .map(|opened| -> Task<'_, _> { Box::pin(reply(&exchange, opened.site, Request::Mark { mark: 0 })) });
        let answers = exchange.answers(tasks.collect(), patience, Result::is_ok).await;
        for (replica, answer) in core::mem::take(opened).into_iter().zip(answers) {
            self.note_silence(&answer);
            let cause = match answer {
                Ok(Reply::Marked) => {
                    opened.push(replica);
                    continue;
                }
                Ok(_) => Cause::Reason(Reason::Unexpected),
                Err(cause) => cause,
            };
            let OpenedReplica { position, site, .. } = replica;
            self.exchange.tell(Action::Drop { site });
            failed.push(Failed { position, site, open: None, cause });
        }
        failed.sort_by_key(|failed| failed.position);
    }
}
