//! The command line of `cargo xtask`.

use clap::{Parser, Subcommand};
use quintet_localcluster::{cluster, consumers, pulsar};

use crate::{bench, build, chart, demo, faults, generate, image, protoc, release, test};

/// Developer commands of Quintet
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", disable_help_subcommand = true)]
pub struct Cli {
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands of `cargo xtask`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a local Kubernetes cluster without a container engine and, with simulated nodes, without root
    Cluster(cluster::cli::Args),
    /// Run a local Apache Pulsar broker without a container engine and without root
    Pulsar(pulsar::cli::Args),
    /// Generate the files that follow from the kinds' Rust types and RBAC rules, such as CustomResourceDefinitions and
    /// roles
    Generate(generate::GenerateArgs),
    /// Test the Helm chart
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
    use quintet_localcluster::{documents, long_tier};

    #[test]
    fn parses_every_command_of_the_long_tier() {
        for long in long_tier::COMMANDS {
            let words = long.command.split(' ').skip(1);
            assert!(Cli::try_parse_from(words).is_ok(), "{}", long.command);
        }
    }

    #[test]
    fn parses_every_command_in_the_documents() {
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
