//! The command line of `cargo xtask`.

use clap::{Parser, Subcommand};

use crate::{
    bench, build, chart, cluster, consumers, demo, faults, generate, image, protoc, pulsar, release, test,
};

/// Everything a developer of Quintet runs besides cargo itself
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", disable_help_subcommand = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What `cargo xtask` does.
#[derive(Debug, Subcommand)]
#[expect(missing_docs, reason = "the arguments of each say what it does, and are what is shown")]
pub enum Command {
    /// A real Kubernetes control plane on this machine, with simulated nodes: no container engine, no root
    Cluster(cluster::cli::Args),
    /// A real Apache Pulsar broker on this machine: no container engine, no root
    Pulsar(pulsar::cli::Args),
    /// Write the files that follow from the kinds' types and rules: definitions and RBAC
    Generate(generate::GenerateArgs),
    /// The Helm chart: its tests
    Chart(chart::Args),
    Consumers(consumers::Args),
    Demo(demo::Args),
    Build(build::Args),
    Image(image::Args),
    Release(release::Args),
    Protoc(protoc::Args),
    Test(test::Args),
    E2e(test::EndToEndArgs),
    Faults(faults::Args),
    Bench(bench::Args),
}

impl Cli {
    /// Whether the words after `cargo xtask` are a command of it; an error says what is wrong with them.
    pub fn check(words: &str) -> Result<(), clap::Error> {
        match Self::try_parse_from(["cargo xtask"].into_iter().chain(words.split_whitespace())) {
            Err(error) if error.use_stderr() => Err(error),
            _ => Ok(()),
        }
    }
}
