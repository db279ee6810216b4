//! How the endpoints of a connection come together once their sides have greeted.

use std::io;

use pmof_fabric::PassiveEndpoint;
use rustix::io::Errno;

use super::{
    greeting::Greeting,
    wire::{FabricWire, invalid},
};

/// Bytes by which the target knows the request of the side that greeted it: who else finds its endpoint does not have them.
const TOKEN_BYTES: usize = 16;

/// What this side waits for behind the greetings.
#[derive(Debug)]
pub(super) enum Meeting {
    /// Nothing: datagram endpoints know each other by the greetings.
    Greetings,
    /// The other side's request, which comes to this.
    Request(PassiveEndpoint),
    /// Both endpoints are there; the provider connects them.
    Connection,
}

impl FabricWire {
    /// Greets with the name of this side's endpoint.
    pub(super) fn greet_by_name(&self) -> io::Result<()> {
        let Some(lane) = &self.lane else { return Ok(()) };
        let name = lane.endpoint().lock().name().map_err(io::Error::other)?;
        self.greet(name)
    }

    /// Takes up what the other side's greeting says. True if the connection stands.
    pub(super) fn meet(&mut self, theirs: Greeting) -> io::Result<bool> {
        if self.greetings.is_initiator() {
            let own = self.greetings.own_address().ok_or(Errno::NOTCONN)?.ip();
            let endpoint = if self.opened.is_connected() {
                self.opened.endpoint_to(own, &theirs.name)
            } else {
                self.opened.endpoint(own)
            };
            self.open_lane(endpoint.map_err(io::Error::other)?)?;
        }
        if let Some(lane) = &mut self.lane {
            lane.stream.set_room(theirs.receives, theirs.receive_bytes);
        }
        if self.opened.is_connected() {
            if self.greetings.is_initiator() {
                self.request()?;
            }
            self.theirs = Some(theirs);
            return Ok(false);
        }
        if let Some(lane) = &mut self.lane {
            lane.endpoint().lock().set_peer(&theirs.name).map_err(io::Error::other)?;
        }
        if self.greetings.is_initiator() {
            self.greet_by_name()?;
        }
        Ok(true)
    }

    /// Asks for the connection, and tells by what the target knows the request.
    fn request(&mut self) -> io::Result<()> {
        let mut token = [0; TOKEN_BYTES];
        getrandom::fill(&mut token).map_err(|error| io::Error::other(error.to_string()))?;
        if let Some(lane) = &self.lane {
            lane.endpoint().lock().connect(&token).map_err(io::Error::other)?;
        }
        self.meeting = Meeting::Connection;
        self.greet(token.to_vec())
    }

    /// Whether the provider has still to bring the endpoints together: it is asked from time to time.
    pub(super) fn is_meeting(&self) -> bool {
        !self.is_standing && (self.theirs.is_some() || matches!(self.meeting, Meeting::Connection))
    }

    /// Goes on where the other side has greeted. True if the connection stands.
    pub(super) fn go_on_meeting(&mut self) -> io::Result<bool> {
        self.look_at_socket()?;
        if self.is_gone {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the other side closed before its endpoint connected",
            ));
        }
        if let (Meeting::Request(passive), Some(theirs)) = (&mut self.meeting, &self.theirs) {
            if theirs.name.len() != TOKEN_BYTES {
                return Err(invalid("the other side's greeting tells no request for a connection".to_owned()));
            }
            let Some(request) = passive.next_request().map_err(io::Error::other)? else { return Ok(false) };
            if !request.data().starts_with(&theirs.name) {
                passive.reject(request);
                return Ok(false);
            }
            let (receives, receive_bytes) = (theirs.receives, theirs.receive_bytes);
            let endpoint = self.opened.endpoint_for(&request).map_err(io::Error::other)?;
            self.open_lane(endpoint)?;
            if let Some(lane) = &mut self.lane {
                lane.stream.set_room(receives, receive_bytes);
                lane.endpoint().lock().accept().map_err(io::Error::other)?;
            }
            self.meeting = Meeting::Connection;
        }
        let Some(lane) = &self.lane else { return Ok(false) };
        lane.endpoint().lock().has_connected().map_err(io::Error::other)
    }
}
