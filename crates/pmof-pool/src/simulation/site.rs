//! A connection of a writer to a target, of a replica that is no member yet.

use std::{future::poll_fn, rc::Rc};

use pmof_control::{ControlVersion, MessageHead, Reply, Request};

use super::{
    asking::{judged, replied},
    target::Message,
    tasks::Shared,
    versions::REQUEST_ID,
};
use crate::ReplicaError;

/// It ends when this is dropped, unless a member has it.
pub(super) struct Site {
    world: Shared,
    pub(super) target: usize,
    version: ControlVersion,
    connection: usize,
    /// A member has the connection, and ends it.
    has_member: bool,
}

impl Drop for Site {
    fn drop(&mut self) {
        if !self.has_member {
            self.world.borrow_mut().close_here(self.connection);
        }
    }
}

impl Site {
    /// `None`: the target is not reached, or speaks no version that this program knows.
    pub(super) fn connect(shared: &Shared, writer: usize, target: usize) -> Option<Self> {
        let world = &mut *shared.borrow_mut();
        let connection = world.connect(writer, target)?;
        let other = world.targets[target].version;
        match other.agreed() {
            Ok(version) => Some(Self { world: Rc::clone(shared), target, version, connection, has_member: false }),
            Err(error) => {
                world.close_here(connection);
                judged(world, other, error.into());
                None
            }
        }
    }

    /// Sends a request and waits for the reply.
    pub(super) async fn ask(&self, request: &Request) -> Result<Reply, ReplicaError> {
        let connection = self.connection;
        let head = MessageHead { version: self.version, request_id: REQUEST_ID };
        let question = self.world.borrow_mut().send(connection, Message::Encoded(request.encode(head)?));
        let answer = poll_fn(|_| self.world.borrow_mut().answer(connection, question)).await;
        replied(&mut self.world.borrow_mut(), answer, self.version)
    }

    /// The connection, which a member has from now on.
    pub(super) fn for_member(&mut self) -> usize {
        self.has_member = true;
        self.connection
    }
}
