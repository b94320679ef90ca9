//! The input of a PulsarConsumer's plan: plain data from the caches, and from the API server where no cache
//! has it.

use std::sync::Arc;

use jiff::Timestamp;
use quintet_runtime::model::core_types::{Deployment, Pod};
use quintet_runtime::model::refusals::Refusals;

use crate::backlog::{BacklogSample, Unknown};
use crate::deployment::Image;
use crate::keda::KedaObject;
use crate::managed_object::Attempts;

/// The input of a plan besides the PulsarConsumer.
#[derive(Debug, Default)]
pub struct World {
    /// The Deployment with its name, even a foreign one.
    pub deployment: Option<Arc<Deployment>>,
    /// Its pods that are not ready, by name.
    pub unready: Vec<Arc<Pod>>,
    /// The objects of KEDA with its name.
    pub keda: Keda,
    /// The last reading of its backlog; None before the first.
    pub backlog: Option<BacklogSample>,
    /// The last attempt to delete its subscription; None before the first, and while it is not being deleted.
    pub deletion: Option<DeletionAttempt>,
    /// Of a deleted PulsarConsumer, the pods that have not ended, even terminating ones.
    pub running_pods: usize,
    /// Whether another PulsarConsumer needs the subscription of a deleted one.
    pub sharing: Sharing,
    /// The default image and its port.
    pub image: Arc<Image>,
    /// The recent refusals, by the object's name.
    pub refusals: Refusals,
    /// The last apply of each type by this process.
    pub attempts: Attempts,
}

/// Whether another PulsarConsumer needs a subscription.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Sharing {
    /// None does.
    #[default]
    Unshared,
    /// This one does.
    With(String),
    /// The manager does not know all PulsarConsumers.
    Unknown(Unknown),
}

/// An attempt to delete the subscription.
#[derive(Clone, Debug, PartialEq)]
pub struct DeletionAttempt {
    /// Its end.
    pub at: Timestamp,
    /// Ok if the subscription no longer exists.
    pub result: Result<(), Unknown>,
}

/// The knowledge about KEDA.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Keda {
    /// Unknown, because the caches are not reliable.
    #[default]
    Unknown,
    /// KEDA is not installed.
    Absent,
    /// KEDA is installed. The objects with the PulsarConsumer's name, even foreign ones.
    There {
        /// The ScaledObject.
        scaled_object: Option<Arc<KedaObject>>,
        /// The TriggerAuthentication.
        trigger_authentication: Option<Arc<KedaObject>>,
    },
}
