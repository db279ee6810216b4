//! Asynchronous members come and go: they are noted in the roster, and no epoch comes of it.

use std::sync::Arc;

use pmof_control::{MeantReplica, PoolRefusal, Request, Role, RosterMember};
use pmof_replication::following::tell_epoch;

use super::{ChangeError, Changer, Made, is_known, outcome, place};
use crate::{
    PoolError, PoolUrl, ReplicaError,
    follower::staging_bytes,
    membership::Changed,
    pool::{
        Pool,
        epochs::done,
        events::Event,
        followers::{Followers, check_staging_name, staging_options},
        opening::undo_creation,
    },
    roster::named,
};

impl Pool {
    /// Makes an asynchronous member at `url`: it follows the pool from afar, and is at a [consistency point](Pool::consistency_point) whenever it is met. No
    /// persist waits for it, no receipt names it, and it counts for no quorum; what it lacks is lost where only it is left. The pool must not exist there. Its target needs room for the
    /// pool twice: beside the data, under the name of the pool and `.changes`, lies what is about to be applied.
    ///
    /// It is copied to in the background. [`status`](Self::status) tells where it is; [`PoolOptions::lag_bound`](crate::PoolOptions::lag_bound) bounds how far it lags.
    ///
    /// # Errors
    /// [`ChangeError`]. After a crash in the middle the same call takes away what was made.
    pub fn add_asynchronous(&self, url: &str) -> Result<(), ChangeError> {
        self.changer()?.add_asynchronous(&Arc::new(url.parse()?))
    }
}

impl Changer<'_> {
    fn followers(&self) -> Result<&Arc<Followers>, ChangeError> {
        self.shared.followers.as_ref().ok_or(ChangeError::Unpublished)
    }

    pub(super) fn add_asynchronous(&self, url: &Arc<PoolUrl>) -> Result<(), ChangeError> {
        let (roster, followers) = (self.roster()?, self.followers()?);
        if let Some(known) = named(&roster, &url.to_string()) {
            return Err(is_known(url, known.role, Role::Asynchronous));
        }
        let too_long = |limit_bytes| ChangeError::NameTooLong { replica: place(url), limit_bytes };
        check_staging_name(url).map_err(too_long)?;
        let Made { site, of_roster, member, .. } = self.make(&roster, url, Role::Asynchronous)?;
        let staged = self.make_staging(followers, url);
        let not_made = |source| ChangeError::NotMade { replica: place(url), source };
        let is_staged = staged.is_ok();
        let told = staged.and_then(|()| {
            // It knows that it is behind before anybody knows of it: what it was made with would pass for another line of the pool.
            let lost = || member.standing().failure().map_or_else(|| Arc::new(ReplicaError::Behind), Arc::clone);
            let told = tell_epoch(&*self.epochs, &member, of_roster.index);
            done(told).map(drop).ok_or_else(|| not_made(lost()))
        });
        let noted = told.and_then(|()| outcome(self.epochs.set_uncounted(of_roster.index, Some(of_roster.clone()))));
        if noted.is_err() && !matches!(noted, Err(ChangeError::Undecided)) {
            drop(member);
            undo_creation(url, MeantReplica::at_any_epoch(of_roster.replica_uuid), &site);
            if is_staged {
                self.remove_staging(followers, url);
            }
            return noted;
        }
        // Whoever follows it up opens it anew.
        let _ = site.ask(&Request::Close { in_order: false });
        drop((member, site));
        if noted.is_ok() {
            followers.start(&self.pool.0, &of_roster);
        }
        noted
    }

    /// Makes the staging area of a member, after one that an addition in vain has left.
    fn make_staging(&self, followers: &Followers, url: &Arc<PoolUrl>) -> Result<(), ChangeError> {
        let (facts, own) = (&self.shared.facts, *self.shared.facts.uuid.as_bytes());
        let options = staging_options(followers.reach(), url, facts.durability).map(|options| options.user_flags(own));
        let bytes = staging_bytes(facts.size_bytes, followers.bound().bytes);
        let not_made = |error: PoolError| match error {
            PoolError::Replica { replica, source } => ChangeError::NotMade { replica, source },
            error => error.into(),
        };
        let options = options.ok_or(ChangeError::Unpublished)?;
        let made = match options.create(bytes) {
            Err(error) if is_there(&error) => {
                let info = options.info().map_err(not_made)?;
                if info.iter().any(|info| info.header.user_flags != own) {
                    return Err(not_made(error));
                }
                options.remove().map_err(not_made)?;
                options.create(bytes)
            }
            made => made,
        };
        made.and_then(|staging| staging.close()).map_err(not_made)
    }

    fn remove_staging(&self, followers: &Followers, url: &PoolUrl) {
        let options = staging_options(followers.reach(), url, self.shared.facts.durability);
        // The next addition there takes away what cannot be removed now.
        options.map(|options| options.remove().ok());
    }

    pub(super) fn remove_asynchronous(&self, of_roster: &RosterMember) -> Result<(), ChangeError> {
        let changed = self.epochs.set_uncounted(of_roster.index, None);
        if matches!(changed, Changed::Done | Changed::Undecided) {
            self.followers()?.remove(of_roster.index);
            let replica = of_roster.url.parse().ok().map(|url| place(&Arc::new(url)));
            self.shared.events.add(Event::Removed { replica, index: of_roster.index });
        }
        outcome(changed)
    }
}

fn is_there(error: &PoolError) -> bool {
    matches!(error.replica_error(), Some(ReplicaError::Refused { refusal: PoolRefusal::AlreadyExists, .. }))
}
