//! The command line of `cargo xtask`.

use clap::{Parser, Subcommand};
use quintet_localcluster::{cluster, consumers, pulsar};

use crate::{bench, build, chart, demo, faults, generate, image, protoc, release, test};

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
    Prose(quintet_prose::Args),
}

#[cfg(test)]
mod tests {
    use super::*;
    use quintet_localcluster::documents;

    #[test]
    fn commands_in_the_documents_are_commands() {
        let mut failures = Vec::new();
        for document in documents::all() {
            for command in documents::commands(&document) {
                let bare = documents::without_variables(&command);
                if !bare.starts_with("cargo xtask ") {
                    continue;
                }
                let words = bare.split_whitespace().skip(1);
                match Cli::try_parse_from(words) {
                    Err(error) if error.use_stderr() => {
                        failures.push(format!("{}: {command}\n{error}", document.display()));
                    }
                    _ => {}
                }
            }
        }
        assert!(failures.is_empty(), "{}", failures.join("\n"));
    }
}
