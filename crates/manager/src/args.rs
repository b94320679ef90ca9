//! The flags. `quintet --help` is their reference; most can also be given by environment.

use clap::{ArgAction, Args as ClapArgs, Parser, ValueEnum};

/// The five kinds, by the names that `--controllers` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
#[value(rename_all = "lower")]
pub enum Kind {
    /// Run a pod to completion once on every node.
    DaemonJob,
    /// Keep N pods.
    PodSet,
    /// Run a Pulsar consumer Deployment.
    PulsarConsumer,
    /// Say a message on create, update, delete and every minute.
    Greeting,
    /// A validated record.
    Book,
}

/// The Quintet operator: DaemonJob, PodSet, PulsarConsumer, Greeting and Book in one process.
#[derive(Debug, Parser)]
#[command(name = "quintet", version, max_term_width = 100)]
pub struct Args {
    /// The kinds to run, separated by commas.
    #[arg(
        long,
        env = "QUINTET_CONTROLLERS",
        value_delimiter = ',',
        value_name = "KIND,...",
        default_value = "daemonjob,podset,pulsarconsumer,greeting,book"
    )]
    pub controllers: Vec<Kind>,

    /// Watch this namespace only; all where it is not given.
    #[arg(
        long,
        env = "QUINTET_WATCH_NAMESPACE",
        value_name = "NAMESPACE",
        default_value = "",
        hide_default_value = true
    )]
    pub watch_namespace: String,

    /// Write only while holding the Lease `quintet-manager`, so that several processes may run.
    #[arg(
        long,
        alias = "enable-leader-election",
        env = "QUINTET_LEADER_ELECT",
        action = ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_value_t = false,
        default_missing_value = "true"
    )]
    pub leader_elect: bool,

    /// Namespace of the Lease. Default: the namespace that the process runs in, else of the kubeconfig's context.
    #[arg(long, env = "QUINTET_LEADER_ELECTION_NAMESPACE", value_name = "NAMESPACE")]
    pub leader_election_namespace: Option<String>,

    /// Address of /metrics; 0 switches it off.
    #[arg(
        long,
        alias = "metrics-addr",
        env = "QUINTET_METRICS_BIND_ADDRESS",
        value_name = "[HOST]:PORT",
        default_value = ":8080"
    )]
    pub metrics_bind_address: String,

    /// Address of /healthz and /readyz; 0 switches them off.
    #[arg(
        long,
        env = "QUINTET_HEALTH_PROBE_BIND_ADDRESS",
        value_name = "[HOST]:PORT",
        default_value = ":8081"
    )]
    pub health_probe_bind_address: String,

    /// Image of the consumers that PulsarConsumers run unless they name one.
    #[arg(
        long,
        env = "QUINTET_PULSAR_CONSUMER_IMAGE",
        value_name = "IMAGE",
        default_value = "krvarma/pulsarconsumer:latest"
    )]
    pub pulsar_consumer_image: String,

    /// The kubeconfig. Default: $KUBECONFIG, ~/.kube/config, or the pod's ServiceAccount.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<std::path::PathBuf>,

    /// The kubeconfig's context.
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,

    /// Logging.
    #[command(flatten)]
    pub log: Log,
}

/// How to log. Logs go to standard error: standard output is for the greetings.
#[derive(Debug, ClapArgs)]
pub struct Log {
    /// Form of the log lines.
    #[arg(long = "log-format", env = "QUINTET_LOG_FORMAT", value_enum, default_value_t = Format::Text)]
    pub format: Format,

    /// Least important lines that are logged: error, warn, info, debug or trace, or a filter such as
    /// `info,quintet_kit=debug`.
    #[arg(
        long = "log-level",
        env = "QUINTET_LOG_LEVEL",
        value_name = "LEVEL",
        default_value = "info",
        value_parser = parse_level
    )]
    pub level: String,
}

/// Form of the log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

fn parse_level(level: &str) -> Result<String, String> {
    match tracing_subscriber::EnvFilter::builder().parse(level) {
        Ok(_) => Ok(level.to_owned()),
        Err(error) => Err(format!("no log level or filter: {error}")),
    }
}

impl Log {
    /// Starts logging.
    pub fn start(&self) {
        let filter = tracing_subscriber::EnvFilter::new(&self.level);
        let lines = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            // A closed standard error must not end the process: the default says so there, and panics.
            .log_internal_errors(false);
        match self.format {
            Format::Text => lines.with_target(false).with_ansi(false).init(),
            Format::Json => lines.json().flatten_event(true).init(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_flags_are_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn the_posts_flags_are_aliases() {
        let args = Args::parse_from(["quintet", "--enable-leader-election", "--metrics-addr=:9"]);
        assert!(args.leader_elect);
        assert_eq!(args.metrics_bind_address, ":9");
        assert!(!Args::parse_from(["quintet", "--leader-elect=false"]).leader_elect);
    }

    #[test]
    fn kinds_are_picked_and_unknown_ones_refused() {
        let args = Args::parse_from(["quintet", "--controllers=book,podset"]);
        assert_eq!(args.controllers, [Kind::Book, Kind::PodSet]);
        let error = Args::try_parse_from(["quintet", "--controllers=cronjob"]).unwrap_err().to_string();
        assert!(error.contains("cronjob") && error.contains("daemonjob"), "{error}");
        assert!(Args::try_parse_from(["quintet", "--nonsense"]).is_err());
    }
}
