//! Gathers what a PulsarConsumer's plan looks at: its Deployment, from the cache or from the server itself.

use std::sync::Arc;

use jiff::Timestamp;
use quintet_kit::executor::{Error, Executor};
use quintet_kit::informer::Informer;
use quintet_kit::object::Object as _;
use quintet_kit::plan::Refusals;
use quintet_kit::resource::DEPLOYMENTS;
use quintet_kit::types::Deployment;

use crate::api::PulsarConsumer;
use crate::plan::deployment_name;

/// What a plan looks at besides the PulsarConsumer itself.
#[derive(Debug, Default)]
pub struct World {
    /// The Deployment of its name, whoever it belongs to.
    pub deployment: Option<Arc<Deployment>>,
    /// The image where the object names none.
    pub image: Arc<str>,
    /// What the API server refused lately, by the Deployment's name.
    pub refusals: Refusals,
    /// The last apply that went through, until the Deployment was seen as it should be.
    pub tried: Option<Tried>,
}

/// An apply that went through: where the Deployment is afterwards what it was before, repeating it is of no use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// Identifies what was applied and what it was applied to.
    pub over: String,
    /// When.
    pub at: Timestamp,
}

/// The world of this PulsarConsumer.
///
/// The cache holds only Deployments with the label `pulsarcrd`. One that it does not hold may be a stranger's, which
/// must not be touched, or ours without its label: the server is asked once, before anything is made.
pub async fn observe(
    consumer: &PulsarConsumer,
    deployments: &Informer<Deployment>,
    executor: &Executor,
    image: Arc<str>,
    refusals: Refusals,
    tried: Option<Tried>,
) -> Result<World, Error> {
    let (namespace, name) = (consumer.key().namespace, deployment_name(consumer));
    let deployment = match deployments.find(&namespace, &name) {
        None if !consumer.terminating() => {
            executor.read::<Deployment>(&DEPLOYMENTS, &namespace, &name).await?.map(Arc::new)
        }
        cached => cached,
    };
    Ok(World { deployment, image, refusals, tried })
}
