//! What a PulsarConsumer's plan looks at: plain data, gathered from the caches, and from the server where the caches cannot
//! know.

use std::sync::Arc;

use quintet_runtime::model::core_types::{Deployment, Pod};
use quintet_runtime::model::refusals::Refusals;

use crate::backlog::Reading;
use crate::deployment::Image;
use crate::keda::KedaObject;
use crate::kept::Attempts;

/// What a plan looks at besides the PulsarConsumer itself.
#[derive(Debug, Default)]
pub struct World {
    /// The Deployment of its name, whoever it belongs to.
    pub deployment: Option<Arc<Deployment>>,
    /// Its pods that are not ready, by name.
    pub unready: Vec<Arc<Pod>>,
    /// KEDA's objects of its name.
    pub keda: Keda,
    /// The last answer about its backlog; None before the first.
    pub backlog: Option<Reading>,
    /// The image where the object names none, and its port.
    pub image: Arc<Image>,
    /// What the API server refused lately, by the object's name.
    pub refusals: Refusals,
    /// The last apply of each type by this process.
    pub attempts: Attempts,
}

/// What is known of KEDA.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Keda {
    /// Nothing yet, or nothing now.
    #[default]
    Unknown,
    /// The cluster does not have its types.
    Absent,
    /// These are its objects of one name, whoever they belong to.
    There {
        /// The ScaledObject.
        scaled_object: Option<Arc<KedaObject>>,
        /// The TriggerAuthentication.
        trigger_authentication: Option<Arc<KedaObject>>,
    },
}
