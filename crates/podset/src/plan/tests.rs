use std::collections::BTreeMap;

use super::*;
use crate::template::BUILT_IN_HASH;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use quintet_runtime::model::core_types::{Exit, Phase};
use rstest::rstest;
use scene::{
    Scene, after, body, condition, exit, name, of, of_image, patches, plan, pod, podset, refusal_until,
    steps, updating, world,
};
use serde_json::Value;

mod adoption;
mod labels;
mod pods;
mod refusals;
mod revisions;
mod rollouts;
mod scene;
mod simulation;
mod statuses;
