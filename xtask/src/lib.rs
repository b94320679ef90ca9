//! Development tools of Quintet: a local Kubernetes control plane, a demo on it, and the test and build commands.
//!
//! `cargo xtask --help` is the way in for people. The end-to-end tests use the same code as a library: they open the
//! cluster that the test command started ([`cluster::Cluster::open`]), run managers against it
//! ([`manager::Manager::start`]) and talk to it by `kubectl` ([`kube::Kube`]).

pub mod bench;
pub mod build;
mod chance;
pub mod chart;
pub mod cli;
pub mod cluster;
pub mod consumers;
pub mod demo;
mod dependencies;
pub mod faults;
pub mod generate;
pub mod go;
pub mod health;
pub mod http;
pub mod image;
pub mod interrupt;
pub mod kube;
pub mod manager;
pub mod mutants;
pub mod paths;
pub mod progress;
pub mod protoc;
pub mod proxy;
pub mod pulsar;
pub mod release;
pub mod run;
pub mod temporary;
pub mod test;
