use super::*;
use crate::backlog::{BacklogSample, Figures, Partitions, Unknown};
use crate::deployment::{Image, NAME_LABEL};
use crate::managed_object::Attempt;
use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use quintet_pulsar_topic::Topic;
use quintet_runtime::model::refusals::{Refusal, RefusalReason, Verb};
use rstest::rstest;
use scene::{
    CONTAINER, IMAGE, START, Scene, after, applied, applies, condition, consumer, container, figures,
    other_image, partitions, refusal, stored, unknown, wanted, with,
};
use std::sync::Arc;

mod cleanup;
mod contents;
mod drift;
mod keda;
mod ownership;
mod scene;
mod statuses;
mod strategy;
