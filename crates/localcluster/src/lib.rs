//! A control plane, real nodes and a Pulsar broker on this machine, built from package registries. It needs
//! no container engine, and root only for real nodes.
//!
//! The end-to-end tests open the cluster that the test command started ([`cluster::Cluster::open`]), run
//! managers against it ([`manager::Manager::start`]) and use `kubectl` ([`kube::Kube`]). The demo and the
//! benches use clusters that they create. The arguments of `cargo xtask cluster`, `pulsar` and `consumers`
//! are here too, because the processes of a real node run `cargo xtask cluster`.
//!
//! This crate imports no other crate of the workspace.

pub mod audit;
pub mod build;
pub mod chance;
pub mod chart;
pub mod cluster;
pub mod consumers;
pub mod distribution;
pub mod documents;
pub mod gitops;
pub mod go;
pub mod health;
pub mod http;
pub mod image;
pub mod interrupt;
pub mod keda;
pub mod kube;
pub mod long_tier;
pub mod manager;
pub mod paths;
pub mod previous;
pub mod progress;
pub mod protoc;
pub mod proxy;
pub mod pulsar;
pub mod run;
pub mod temporary;
pub mod terminal;
pub mod variables;
