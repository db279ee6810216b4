//! By which epoch a pool is asked for that another connection has open.

use uuid::Uuid;

/// Which epoch of the connection that has a pool open for writing is named by whoever takes it over. It has to be one that this connection has
/// begun there, or has named as its own: that which it found is of the writer before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Claim {
    /// None: only silence ends the other connection.
    #[default]
    None,
    /// One that its writer and targets alone know: whoever names it is that writer, come back over another connection.
    Own(Uuid),
    /// One that a later epoch has superseded, as a quorum of the members knows: whoever names it is a later writer.
    Superseded(Uuid),
}

impl Claim {
    /// The epoch that is named, whoever's it is.
    pub fn epoch(self) -> Option<Uuid> {
        match self {
            Self::None => None,
            Self::Own(epoch) | Self::Superseded(epoch) => Some(epoch),
        }
    }

    /// The epoch that is the own one of whoever names it.
    pub fn own(self) -> Option<Uuid> {
        match self {
            Self::Own(epoch) => Some(epoch),
            Self::None | Self::Superseded(_) => None,
        }
    }
}
