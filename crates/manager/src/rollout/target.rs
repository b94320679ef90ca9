//! The object of `quintet rollout`, and its requests.

use std::fmt;

use anyhow::{Result, anyhow, bail};
use quintet_daemonjob::api::DaemonJob;
use quintet_podset::api::PodSet;
use quintet_runtime::model::object::{Key, Meta, Object};
use quintet_runtime::model::resource::Resource;
use quintet_runtime::model::rollout::Change;
use serde_json::Value;

use crate::api_client::{Cluster, ClusterArgs, Supported, answered, named, parse_name};

/// How often a command reads an object that changes meanwhile. The manager writes the status twice a second at most.
const ATTEMPTS: usize = 5;

/// A kind with rollouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Has waves, approvals and retries.
    DaemonJob,
    /// Has a history of its templates.
    PodSet,
}

impl Kind {
    const ALL: [Self; 2] = [Self::DaemonJob, Self::PodSet];

    fn resource(self) -> Resource {
        match self {
            Self::DaemonJob => Resource::of::<DaemonJob>(),
            Self::PodSet => Resource::of::<PodSet>(),
        }
    }

    fn short(self) -> &'static str {
        match self {
            Self::DaemonJob => "dj",
            Self::PodSet => "pset",
        }
    }
}

/// The object, and its cluster.
#[derive(Debug, clap::Args)]
pub struct Target {
    /// The object: daemonjob/NAME or podset/NAME.
    #[arg(value_name = "TYPE/NAME", num_args = 1..=2, required = true)]
    object: Vec<String>,

    /// The object's namespace (default: the namespace of the kubeconfig's context).
    #[arg(short, long, value_name = "NAMESPACE", value_parser = parse_name)]
    namespace: Option<String>,

    #[command(flatten)]
    cluster: ClusterArgs,
}

impl Target {
    /// The kind and the name of the object.
    pub fn parse(&self) -> Result<(Kind, String)> {
        let types = Kind::ALL.map(|kind| Supported { resource: kind.resource(), short: kind.short() });
        let (index, name) = named(&self.object, "rollout", &types)?;
        Ok((Kind::ALL[index], name))
    }

    /// The rollout of the object. Sends no request.
    pub async fn rollout(&self) -> Result<Rollout> {
        let (kind, name) = self.parse()?;
        let cluster = Cluster::of(&self.cluster).await?;
        let namespace = self.namespace.clone().unwrap_or_else(|| cluster.namespace.to_string());
        Ok(Rollout { cluster, namespace, kind, name })
    }

    /// As [`Self::rollout`], for a command of one kind. `otherwise` is the error for another kind.
    pub async fn rollout_of(&self, kind: Kind, otherwise: &str) -> Result<Rollout> {
        if self.parse()?.0 != kind {
            bail!("{otherwise}");
        }
        self.rollout().await
    }
}

/// An object with rollouts, in a cluster.
pub struct Rollout {
    /// The cluster.
    pub cluster: Cluster,
    /// The namespace.
    pub namespace: String,
    /// The kind.
    pub kind: Kind,
    name: String,
}

impl fmt::Display for Rollout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind.resource().kind.to_ascii_lowercase(), self.name)
    }
}

impl Rollout {
    /// The object, or the reason of a failure that a retry may fix.
    pub async fn poll<T: Object>(&self) -> Result<Result<T, String>> {
        let resource = self.kind.resource();
        let found = self.cluster.reads.read::<T>(&resource, &self.namespace, &self.name).await;
        match answered(&self.cluster, &format!("cannot read {self}"), found)? {
            Ok(Some(object)) if object.terminating() => bail!("{self} is being deleted"),
            Ok(Some(object)) => Ok(Ok(object)),
            Ok(None) => bail!(
                "{self} does not exist in namespace {}: check the name, or pass --namespace",
                self.namespace
            ),
            Err(why) => Ok(Err(why)),
        }
    }

    /// The object.
    pub async fn read<T: Object>(&self) -> Result<T> {
        self.poll().await?.map_err(|why| anyhow!(why))
    }

    /// Changes the object. Returns the message for the user. `change` is called again if the object changes meanwhile.
    pub async fn change<T: Object>(&self, change: impl Fn(&T) -> Result<Change, String>) -> Result<String> {
        for _ in 0..ATTEMPTS {
            let object = self.read::<T>().await?;
            let change = change(&object).map_err(|why| anyhow!(why))?;
            if self.patch(&object.key(), &change.operations).await? {
                return Ok(change.message);
            }
        }
        Err(self.changed())
    }

    /// Sends a JSON patch. Returns whether its tests passed.
    pub async fn patch(&self, key: &Key, operations: &Value) -> Result<bool> {
        let Key { namespace, name, uid } = key.clone();
        let meta = Meta { namespace, name, uid, ..Meta::default() };
        match self.cluster.patch(&self.kind.resource(), &meta, operations).await {
            Ok(()) => Ok(true),
            Err(kube::Error::Api(status)) if is_failed_test(&status) => Ok(false),
            Err(error) => Err(self.cluster.sorry(&format!("cannot change {self}"), &error)),
        }
    }

    /// The error of a patch whose tests failed.
    pub fn changed(&self) -> anyhow::Error {
        anyhow!("{self} has changed meanwhile: run the command again")
    }
}

/// Whether a test of a JSON patch failed. An invalid object has causes instead.
fn is_failed_test(status: &kube::core::Status) -> bool {
    status.code == 422 && status.details.as_ref().is_none_or(|details| details.causes.is_empty())
}
