//! Writes the status of an object, and claims that are stored in a status.

use serde::Serialize;
use serde_json::Value;

use crate::model::refusals::RefusalReason;
use crate::write::answer::Answer;
use crate::write::executor::{Error, Executor, Planned};
use crate::write::request;

impl Executor {
    /// Applies the whole status if the object still has this resourceVersion. The UID is not a guard: the API server
    /// ignores it when it writes the status of a custom resource.
    pub async fn write_status<S: Serialize>(&self, of: Planned<'_>, status: &S) -> Result<(), Error> {
        let _slot = self.slots.slot(false).await;
        self.apply_status(of, status).await
    }

    /// As [`Self::write_status`], for a caller that has a slot in the window: a second one could be a deadlock.
    async fn apply_status<S: Serialize>(&self, of: Planned<'_>, status: &S) -> Result<(), Error> {
        let Planned { key: owner, resource, version, .. } = of;
        let object = format!("the status of {} {owner}", resource.kind);
        let mut answer = self.write(of, request::status(owner, resource, status, version)).await?;
        if matches!(&answer, Answer::Refused { reason: RefusalReason::Untyped, .. }) {
            answer = self.write(of, request::untyped_status(owner, resource, status, version)).await?;
        }
        match answer {
            Answer::Done(_) => {
                self.memory.wrote_status(owner);
                Ok(())
            }
            Answer::Stale | Answer::NamespaceTerminating => {
                // The cache may be behind for long, and the owner gone. The next plan waits until the cache shows the
                // owner as the API server has it, or its deletion.
                let place = (resource, owner.namespace.clone(), owner.name.to_string());
                self.memory.ambiguous(owner, |ambiguous| ambiguous.insert(place, Some(owner.uid.clone())));
                Err(Error::Stale(object))
            }
            Answer::Refused { message, .. } => Err(Error::Refused { object, message }),
        }
    }

    /// Writes a status that contains a claim; of several claimants only one succeeds.
    pub(super) async fn claim<S: Serialize>(
        &self,
        of: Planned<'_>,
        status: &S,
        token: &str,
    ) -> Result<Answer, Error> {
        match self.apply_status(of, status).await {
            Ok(()) => Ok(Answer::Done(None)),
            Err(Error::Stale(_)) => Ok(Answer::Stale),
            Err(error @ Error::Unanswered { .. }) => {
                // The claim may have been committed, so read the object.
                let found = self.reads.read::<Value>(&of.resource, &of.key.namespace, &of.key.name).await?;
                if found.is_some_and(|found| found["status"]["claim"]["token"] == token) {
                    Ok(Answer::Done(None))
                } else {
                    Err(error)
                }
            }
            Err(error) => Err(error),
        }
    }
}
