//! Writes the status of an object: whole, by server-side apply, and as a claim.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::object::Key;
use crate::model::refusals::RefusalReason;
use crate::model::resource::Resource;
use crate::write::answer::Answer;
use crate::write::executor::{Error, Executor};
use crate::write::request;

impl Executor {
    /// The shortest time between two status writes of one object while it progresses.
    pub const STATUS_PACE: Duration = Duration::from_secs(1);

    /// Applies the whole status, if the object still has this resourceVersion. The UID guards nothing: the API server
    /// does not read it where the status of a custom resource is written.
    pub async fn write_status<S: Serialize>(
        &self,
        owner: &Key,
        resource: &Resource,
        status: &S,
        version: &str,
    ) -> Result<(), Error> {
        let object = format!("the status of {} {owner}", resource.kind);
        let mut answer = self.write(owner, request::status(owner, *resource, status, version)).await?;
        if matches!(&answer, Answer::Refused { reason: RefusalReason::Untyped, .. }) {
            answer = self.write(owner, request::untyped_status(owner, *resource, status, version)).await?;
        }
        match answer {
            Answer::Done(_) => {
                self.memory.wrote_status(owner);
                Ok(())
            }
            Answer::Stale | Answer::NamespaceTerminating => {
                // The cache is behind, perhaps for long: the next plan waits for what the server has, or for the end of the
                // owner. Until then it would make the same again for somebody who may be gone.
                let place = (*resource, owner.namespace.clone(), owner.name.to_string());
                self.memory.ambiguous(owner, |ambiguous| ambiguous.insert(place, Some(owner.uid.clone())));
                Err(Error::Stale(object))
            }
            Answer::Refused { message, .. } => Err(Error::Refused { object, message }),
        }
    }

    /// Writes a status that claims something: of several claimants one wins.
    pub(super) async fn claim<S: Serialize>(
        &self,
        owner: &Key,
        resource: &Resource,
        version: &str,
        status: &S,
        token: &str,
    ) -> Result<Answer, Error> {
        match self.write_status(owner, resource, status, version).await {
            Ok(()) => Ok(Answer::Done(None)),
            Err(Error::Stale(_)) => Ok(Answer::Stale),
            Err(error @ Error::Unanswered { .. }) => {
                // Did it commit? The object itself knows.
                let found = self.reads.read::<Claimed>(resource, &owner.namespace, &owner.name).await?;
                let claim = found.and_then(|found| found.status.claim);
                if claim.is_some_and(|claim| claim.token == token) {
                    Ok(Answer::Done(None))
                } else {
                    Err(error)
                }
            }
            Err(error) => Err(error),
        }
    }
}

#[derive(Deserialize)]
struct Claimed {
    #[serde(default)]
    status: ClaimedStatus,
}

#[derive(Deserialize, Default)]
struct ClaimedStatus {
    claim: Option<ClaimedToken>,
}

#[derive(Deserialize)]
struct ClaimedToken {
    #[serde(default)]
    token: String,
}
