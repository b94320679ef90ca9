//! The flags. `quintet --help` is their reference; those of the manager can mostly also be given by environment.
//!
//! One program under two names: as `quintet` it is the manager unless a command is given; as `kubectl-quintet`, the name
//! under which kubectl looks for a plugin, it has the commands alone and starts nothing by accident.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{
    ArgAction, Command as ClapCommand, CommandFactory as _, FromArgMatches as _, Parser, Subcommand,
    ValueEnum,
};
use jiff::SignedDuration;
use quintet_runtime::LEASE_NAME;

use crate::cluster::{ClusterArgs, is_name, parse_name};
use crate::logs::Log;
use crate::{check, explain, uninstall};

/// The file name under which kubectl finds the program as its plugin.
const PLUGIN: &str = "kubectl-quintet";

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
///
/// Without a command it runs the manager.
#[derive(Debug, Parser)]
#[command(
    name = "quintet",
    version,
    max_term_width = 100,
    args_conflicts_with_subcommands = true,
    args_override_self = true
)]
pub struct Args {
    /// What to do instead of running the manager.
    #[command(subcommand)]
    pub command: Option<Command>,

    /// The kinds to run, separated by commas; or, each with a dash before it, those to leave out of all.
    #[arg(
        long,
        env = "QUINTET_CONTROLLERS",
        help_heading = "What it serves",
        value_delimiter = ',',
        value_name = "KIND,...",
        allow_hyphen_values = true,
        value_parser = parse_pick,
        default_value = "daemonjob,podset,pulsarconsumer,greeting,book"
    )]
    controllers: Vec<Pick>,

    /// Watch these namespaces only, separated by commas or each by a flag of its own; all where none is given.
    #[arg(
        long,
        env = "QUINTET_WATCH_NAMESPACE",
        help_heading = "What it serves",
        value_name = "NAMESPACE,...",
        value_delimiter = ',',
        value_parser = parse_namespace
    )]
    watch_namespace: Vec<String>,

    /// Write only while holding a Lease, so that several processes may run.
    #[arg(
        long,
        alias = "enable-leader-election",
        env = "QUINTET_LEADER_ELECT",
        help_heading = "Leader election",
        action = ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_value_t = false,
        default_missing_value = "true"
    )]
    pub leader_elect: bool,

    /// Namespace of the Lease. Default: the namespace that the process runs in, else of the kubeconfig's context.
    #[arg(
        long,
        env = "QUINTET_LEADER_ELECTION_NAMESPACE",
        help_heading = "Leader election",
        value_name = "NAMESPACE",
        value_parser = parse_namespace
    )]
    pub leader_election_namespace: Option<String>,

    /// Name of the Lease: those that compete for one give the same.
    #[arg(
        long,
        env = "QUINTET_LEADER_ELECTION_ID",
        help_heading = "Leader election",
        value_name = "NAME",
        default_value = LEASE_NAME,
        value_parser = parse_name
    )]
    pub leader_election_id: String,

    /// How long the others wait for a holder of the Lease that is silent.
    #[arg(
        long,
        env = "QUINTET_LEADER_ELECT_LEASE_DURATION",
        help_heading = "Leader election",
        value_name = "DURATION",
        default_value = "15s",
        value_parser = parse_duration
    )]
    pub leader_elect_lease_duration: Duration,

    /// How long the holder goes on writing without a renewal that went through.
    #[arg(
        long,
        env = "QUINTET_LEADER_ELECT_RENEW_DEADLINE",
        help_heading = "Leader election",
        value_name = "DURATION",
        default_value = "10s",
        value_parser = parse_duration
    )]
    pub leader_elect_renew_deadline: Duration,

    /// The pause between tries to renew that fail, and between looks at a Lease that cannot be watched.
    #[arg(
        long,
        env = "QUINTET_LEADER_ELECT_RETRY_PERIOD",
        help_heading = "Leader election",
        value_name = "DURATION",
        default_value = "2s",
        value_parser = parse_duration
    )]
    pub leader_elect_retry_period: Duration,

    /// The pause between renewals while they go through.
    #[arg(
        long,
        env = "QUINTET_LEADER_ELECT_RENEW_PERIOD",
        help_heading = "Leader election",
        value_name = "DURATION",
        default_value = "5s",
        value_parser = parse_duration
    )]
    pub leader_elect_renew_period: Duration,

    /// Address of /metrics; 0 switches it off.
    #[arg(
        long,
        alias = "metrics-addr",
        env = "QUINTET_METRICS_BIND_ADDRESS",
        help_heading = "Metrics and probes",
        value_name = "[HOST]:PORT",
        default_value = ":8080"
    )]
    pub metrics_bind_address: String,

    /// Serve /metrics over TLS, to whom the cluster allows it: a bearer token, and the right to get /metrics.
    #[arg(
        long,
        env = "QUINTET_METRICS_SECURE",
        help_heading = "Metrics and probes",
        action = ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_value_t = false,
        default_missing_value = "true"
    )]
    pub metrics_secure: bool,

    /// Directory with tls.crt and tls.key for --metrics-secure, read anew when they change. Without it the certificate is
    /// self-signed, and another one with every start.
    #[arg(
        long,
        env = "QUINTET_METRICS_CERT_DIR",
        help_heading = "Metrics and probes",
        value_name = "DIRECTORY"
    )]
    pub metrics_cert_dir: Option<PathBuf>,

    /// Address of the debug pages, which must be of this machine alone; 0 switches them off. With --metrics-secure they are
    /// beside the metrics as well, for whom the cluster allows them.
    #[arg(
        long,
        env = "QUINTET_DEBUG_BIND_ADDRESS",
        help_heading = "Metrics and probes",
        value_name = "IP:PORT",
        default_value = "0",
        value_parser = parse_own_address
    )]
    pub debug_bind_address: String,

    /// Address of /healthz and /readyz; 0 switches them off.
    #[arg(
        long,
        env = "QUINTET_HEALTH_PROBE_BIND_ADDRESS",
        help_heading = "Metrics and probes",
        value_name = "[HOST]:PORT",
        default_value = ":8081"
    )]
    pub health_probe_bind_address: String,

    /// Image of the consumers that PulsarConsumers run unless they name one.
    #[arg(
        long,
        env = "QUINTET_PULSAR_CONSUMER_IMAGE",
        help_heading = "What it serves",
        value_name = "IMAGE",
        default_value = concat!("ghcr.io/quintet-operator/pulsar-consumer:", env!("CARGO_PKG_VERSION"))
    )]
    pub pulsar_consumer_image: String,

    /// Port on which that image answers /healthz and /readyz; 0 where it does not, and then its pods have no probes.
    #[arg(
        long,
        env = "QUINTET_PULSAR_CONSUMER_HEALTH_PORT",
        help_heading = "What it serves",
        value_name = "PORT",
        default_value_t = 8080
    )]
    pub pulsar_consumer_health_port: u16,

    /// Keys of taints that announce the deletion of a node, beside those of cluster-autoscaler and Karpenter. If a Ready
    /// node has one, DaemonJobs do not count its loss or its deletion as a failure.
    #[arg(
        long,
        env = "QUINTET_DAEMON_JOB_DELETION_TAINTS",
        help_heading = "What it serves",
        value_name = "KEY,...",
        value_delimiter = ',',
        value_parser = parse_taint_key
    )]
    pub daemon_job_deletion_taints: Vec<String>,

    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,

    /// Logging.
    #[command(flatten)]
    pub log: Log,
}

impl Args {
    /// The kinds to run.
    pub fn kinds(&self) -> Result<Vec<Kind>, String> {
        let (with, without): (Vec<&Pick>, Vec<&Pick>) =
            self.controllers.iter().partition(|pick| matches!(pick, Pick::With(_)));
        let all = Kind::value_variants();
        let kinds: Vec<Kind> = match (with.is_empty(), without.is_empty()) {
            (false, false) => {
                return Err(
                    "--controllers names kinds to run and kinds to leave out: name one sort".to_owned()
                );
            }
            (true, _) => {
                all.iter().copied().filter(|kind| !without.contains(&&Pick::Without(*kind))).collect()
            }
            (false, true) => all.iter().copied().filter(|kind| with.contains(&&Pick::With(*kind))).collect(),
        };
        if kinds.is_empty() {
            return Err("--controllers leaves no kind to run".to_owned());
        }
        if with.len() > kinds.len() {
            return Err("--controllers names a kind twice".to_owned());
        }
        Ok(kinds)
    }

    /// The namespaces to watch, each once; none means all.
    pub fn namespaces(&self) -> Vec<String> {
        let named: BTreeSet<&String> = self.watch_namespace.iter().filter(|name| !name.is_empty()).collect();
        named.into_iter().cloned().collect()
    }

    /// What the flags of the metrics say, as far as they fit together.
    fn check_metrics(&self) -> Result<(), String> {
        if self.metrics_cert_dir.is_some() && !self.metrics_secure {
            return Err("--metrics-cert-dir is of use with --metrics-secure only".to_owned());
        }
        Ok(())
    }

    /// What the flags of the election say, as far as they fit together (client-go's rules).
    fn check_election(&self) -> Result<(), String> {
        let (lease, deadline) = (self.leader_elect_lease_duration, self.leader_elect_renew_deadline);
        let (retry, renew) = (self.leader_elect_retry_period, self.leader_elect_renew_period);
        if lease < Duration::from_secs(1) || lease.subsec_nanos() != 0 {
            return Err("--leader-elect-lease-duration must be whole seconds, at least 1s".to_owned());
        }
        if lease > quintet_runtime::election::lease::LONGEST_LEASE {
            return Err("--leader-elect-lease-duration must be at most 24h".to_owned());
        }
        if lease <= deadline {
            return Err(
                "--leader-elect-lease-duration must be longer than --leader-elect-renew-deadline".to_owned()
            );
        }
        if deadline <= retry.saturating_mul(6) / 5 || deadline <= renew {
            return Err("--leader-elect-renew-deadline must be longer than 1.2 times --leader-elect-retry-period, and \
                        than --leader-elect-renew-period"
                .to_owned());
        }
        Ok(())
    }
}

/// A kind to run, or one to leave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pick {
    With(Kind),
    Without(Kind),
}

fn parse_pick(text: &str) -> Result<Pick, String> {
    let (name, pick): (&str, fn(Kind) -> Pick) = match text.strip_prefix('-') {
        Some(name) => (name, Pick::Without),
        None => (text, Pick::With),
    };
    Kind::from_str(name, false).map(pick).map_err(|_| {
        let known = Kind::value_variants().iter().filter_map(Kind::to_possible_value);
        let known: Vec<String> = known.map(|value| value.get_name().to_owned()).collect();
        format!("the kinds are {}", known.join(", "))
    })
}

/// An address that only this machine can reach.
fn parse_own_address(text: &str) -> Result<String, String> {
    let is_own = text.parse::<SocketAddr>().is_ok_and(|address| address.ip().to_canonical().is_loopback());
    if text == "0" || is_own {
        Ok(text.to_owned())
    } else {
        Err("it must be an address of this machine alone, such as 127.0.0.1:8082; to see the pages from elsewhere use \
             `kubectl port-forward`, or --metrics-secure"
            .to_owned())
    }
}

/// An empty value is as good as none: a chart may give it.
fn parse_namespace(text: &str) -> Result<String, String> {
    if text.is_empty() { Ok(String::new()) } else { parse_name(text) }
}

fn parse_taint_key(key: &str) -> Result<String, String> {
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_key =
        prefix.is_none_or(is_name) && !name.is_empty() && name.len() <= 63 && name.bytes().all(is_inner);
    (is_key || key.is_empty()).then(|| key.to_owned()).ok_or_else(|| {
        format!("{key:?} is not the key of a taint: give a key such as example.com/going-away, without value and effect")
    })
}

/// A length of time, more than none.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let duration = text.parse::<SignedDuration>().ok().and_then(|duration| Duration::try_from(duration).ok());
    duration
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| "write it as 15s, 1m30s or 500ms".to_owned())
}

/// Quintet's commands for people who use its DaemonJobs, and for taking Quintet off a cluster.
#[derive(Debug, Parser)]
#[command(name = "quintet", bin_name = "kubectl quintet", version, max_term_width = 100)]
struct Plugin {
    #[command(subcommand)]
    command: Option<Command>,
}

/// A command that ends by itself.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show every node of a DaemonJob, what would happen there now, and why. Nothing is written.
    Explain(explain::Args),
    /// Say whether a manager works: its pods are ready, and its Lease is renewed. Nothing is written.
    Check(check::Args),
    /// Take Quintet's finalizers off pods and Greetings, so that they can be deleted without it.
    Uninstall(uninstall::Args),
    /// Print the version.
    Version,
}

/// What the command line asks for.
#[derive(Debug)]
pub enum Asked {
    /// Run the manager.
    Manager(Box<Args>),
    /// Do this and end.
    Command(Command),
    /// Print this and end.
    Help(String),
}

/// Reads a command line, its first word being the name that the program was called by.
pub fn read(line: impl IntoIterator<Item = OsString>) -> Result<Asked, clap::Error> {
    let line: Vec<OsString> = line.into_iter().collect();
    let called = line.first().and_then(|word| Path::new(word).file_name());
    if called.is_some_and(|name| name == PLUGIN) {
        let mut command = with_examples(Plugin::command(), "kubectl quintet");
        let matches = command.try_get_matches_from_mut(line)?;
        return Ok(match Plugin::from_arg_matches(&matches)?.command {
            Some(command) => Asked::Command(command),
            None => Asked::Help(command.render_help().to_string()),
        });
    }
    let matches = with_examples(Args::command(), "quintet").try_get_matches_from(line)?;
    let mut args = Args::from_arg_matches(&matches)?;
    let sound = args.kinds().and_then(|_| args.check_election()).and_then(|()| args.check_metrics());
    sound.map_err(|why| Args::command().error(ErrorKind::ValueValidation, why))?;
    Ok(match args.command.take() {
        Some(command) => Asked::Command(command),
        None => Asked::Manager(Box::new(args)),
    })
}

/// Adds the examples, as a person types them.
fn with_examples(command: ClapCommand, program: &str) -> ClapCommand {
    let explain = explain::examples(program);
    let check = check::examples(program);
    let uninstall = uninstall::examples(program);
    command
        .mut_subcommand("explain", |command| command.after_help(explain))
        .mut_subcommand("check", |command| command.after_help(check))
        .mut_subcommand("uninstall", |command| command.after_help(uninstall))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn asked(line: &str) -> Result<Asked, clap::Error> {
        read(line.split(' ').map(OsString::from))
    }

    fn manager(line: &str) -> Args {
        match asked(line) {
            Ok(Asked::Manager(args)) => *args,
            other => panic!("{line}: {other:?}"),
        }
    }

    fn refusal(line: &str) -> String {
        let error = asked(line).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{line}");
        error.to_string()
    }

    /// The chart's `extraArgs` come after its own.
    #[test]
    fn of_a_flag_that_is_given_twice_the_last_one_counts() {
        let args = manager(
            "quintet --leader-elect --metrics-bind-address=:8080 --metrics-bind-address=0 --leader-elect=false",
        );
        assert_eq!((args.leader_elect, args.metrics_bind_address.as_str()), (false, "0"));
        let args = manager("quintet --watch-namespace=a,b --watch-namespace=c");
        assert_eq!(args.watch_namespace, ["a", "b", "c"], "of these there may be many");
    }

    #[test]
    fn a_namespace_is_checked_before_anything_is_asked() {
        assert!(refusal("quintet --leader-election-id=").contains("a name has lower case letters"));
        assert!(refusal("quintet --leader-election-namespace=A_b").contains("a name has lower case letters"));
        let args = manager("quintet --leader-election-namespace=");
        assert_eq!(args.leader_election_namespace.as_deref(), Some(""), "it is as if none were given");
    }

    #[test]
    fn deletion_taints_are_keys() {
        let args = manager("quintet --daemon-job-deletion-taints=a,example.com/b");
        assert_eq!(args.daemon_job_deletion_taints, ["a", "example.com/b"]);
        let refusal = refusal("quintet --daemon-job-deletion-taints=a=b:NoSchedule");
        assert!(refusal.contains("is not the key of a taint"), "{refusal}");
    }

    /// Words of a command line: flags that there are, and values for them that nobody means.
    fn word() -> impl Strategy<Value = String> {
        let flags: Vec<String> = Args::command()
            .get_arguments()
            .filter_map(|flag| flag.get_long().map(|long| format!("--{long}")))
            .chain(["explain", "uninstall", "--", "-n", "-h"].map(str::to_owned))
            .collect();
        let odd = [
            "",
            "-",
            "=",
            "9223372036854775807s",
            "-1s",
            "1e9h",
            "99999999999999999999",
            ",,",
            "[::]:99999",
            "\0",
            "a/b",
        ];
        let odd: Vec<String> = odd.map(str::to_owned).into();
        let flag = proptest::sample::select(flags);
        let value = prop_oneof![proptest::sample::select(odd), ".{0,20}"];
        prop_oneof![
            flag.clone(),
            value.clone(),
            (flag, value).prop_map(|(flag, value)| format!("{flag}={value}"))
        ]
    }

    proptest! {
        // More with PROPTEST_CASES.
        #[test]
        fn whatever_is_asked_is_understood_or_refused_with_a_word(words in proptest::collection::vec(word(), 0..6)) {
            let line = std::iter::once("quintet".to_owned()).chain(words).map(OsString::from);
            match read(line) {
                Ok(Asked::Manager(args)) => drop(args.kinds()),
                Ok(_) => {}
                Err(error) => prop_assert!(!error.to_string().trim().is_empty()),
            }
        }
    }

    #[test]
    fn the_flags_are_sound() {
        with_examples(Args::command(), "quintet").debug_assert();
        with_examples(Plugin::command(), "kubectl quintet").debug_assert();
    }

    #[test]
    fn the_posts_flags_are_aliases() {
        let args = manager("quintet --enable-leader-election --metrics-addr=:9");
        assert!(args.leader_elect);
        assert_eq!(args.metrics_bind_address, ":9");
        assert!(!manager("quintet --leader-elect=false").leader_elect);
    }

    #[test]
    fn kinds_are_picked_and_unknown_ones_refused() {
        let kinds = |line: &str| manager(line).kinds().unwrap();
        assert_eq!(kinds("quintet --controllers=book,podset"), [Kind::PodSet, Kind::Book]);
        assert_eq!(
            kinds("quintet --controllers=-pulsarconsumer,-book"),
            [Kind::DaemonJob, Kind::PodSet, Kind::Greeting]
        );
        assert_eq!(kinds("quintet --controllers -greeting").len(), 4);
        let error = refusal("quintet --controllers=cronjob");
        assert!(error.contains("cronjob") && error.contains("daemonjob"), "{error}");
        assert!(refusal("quintet --controllers=book,-podset").contains("name one sort"));
        assert!(refusal("quintet --controllers=book,book").contains("twice"));
        let none = "quintet --controllers=-daemonjob,-podset,-pulsarconsumer,-greeting,-book";
        assert!(refusal(none).contains("no kind"));
        refusal("quintet --nonsense");
    }

    #[test]
    fn namespaces_are_given_by_commas_or_by_flags() {
        let namespaces = |line: &str| manager(line).namespaces();
        assert!(namespaces("quintet").is_empty());
        assert!(namespaces("quintet --watch-namespace=").is_empty());
        assert_eq!(namespaces("quintet --watch-namespace=b,a --watch-namespace=b"), ["a", "b"]);
        assert!(refusal("quintet --watch-namespace=Team").contains("lower case"));
    }

    #[test]
    fn debug_pages_are_for_this_machine_alone() {
        for own in ["0", "127.0.0.1:8082", "[::1]:8082", "[::ffff:127.0.0.1]:1"] {
            assert_eq!(manager(&format!("quintet --debug-bind-address={own}")).debug_bind_address, own);
        }
        for open in [":8082", "0.0.0.0:8082", "10.0.0.1:8082", "localhost", "[::]:1"] {
            assert!(refusal(&format!("quintet --debug-bind-address={open}")).contains("this machine alone"));
        }
    }

    #[test]
    fn a_certificate_without_tls_is_a_mistake() {
        assert!(refusal("quintet --metrics-cert-dir=/certs").contains("--metrics-secure"));
        assert!(manager("quintet --metrics-secure --metrics-cert-dir=/certs").metrics_secure);
    }

    #[test]
    fn the_times_of_an_election_fit_together() {
        let args = manager("quintet --leader-elect-lease-duration=1m --leader-elect-renew-deadline=30s");
        assert_eq!(args.leader_elect_lease_duration, Duration::from_mins(1));
        assert!(refusal("quintet --leader-elect-renew-deadline=15s").contains("longer than"));
        assert!(refusal("quintet --leader-elect-renew-deadline=5s").contains("renew-period"));
        assert!(refusal("quintet --leader-elect-retry-period=9s").contains("1.2 times"));
        assert!(refusal("quintet --leader-elect-lease-duration=soon").contains("write it as 15s"));
        assert!(refusal("quintet --leader-elect-lease-duration=15500ms").contains("whole seconds"));
    }

    #[test]
    fn without_a_command_it_is_the_manager() {
        assert_eq!(manager("/usr/bin/quintet").kinds().unwrap().len(), 5);
        assert!(matches!(asked("quintet version"), Ok(Asked::Command(Command::Version))));
        assert_eq!(manager("/manager --context=c").cluster.context.as_deref(), Some("c"));
        // Flags of the manager do not stray into commands.
        refusal("quintet --leader-elect explain dj/a");
        refusal("quintet explain dj/a --leader-elect");
    }

    #[test]
    fn as_a_plugin_it_has_the_commands_alone() {
        let Ok(Asked::Help(help)) = asked("/home/me/bin/kubectl-quintet") else { panic!() };
        assert!(help.contains("Usage: kubectl quintet [COMMAND]") && help.contains("explain"), "{help}");
        assert!(!help.contains("--controllers"), "{help}");
        assert!(matches!(
            asked("kubectl-quintet explain dj/a -n b"),
            Ok(Asked::Command(Command::Explain(_)))
        ));
        refusal("kubectl-quintet --leader-elect");
        for command in ["explain", "check", "uninstall"] {
            for (name, program) in [("kubectl-quintet", "kubectl quintet"), ("quintet", "quintet")] {
                let help = asked(&format!("{name} {command} --help")).unwrap_err();
                assert_eq!(help.exit_code(), 0);
                let help = help.to_string();
                assert!(help.contains(&format!("Usage: {program} {command}")), "{help}");
                assert!(help.contains(&format!("  {program} {command}")), "{help}");
            }
        }
    }

    #[test]
    fn check_wants_a_manager() {
        refusal("quintet check");
        assert!(refusal("quintet check --manager=quintet").contains("NAMESPACE/DEPLOYMENT"));
        assert!(refusal("quintet check --manager=a/b --within=soon").contains("write it as 15s"));
        assert!(asked("quintet check --manager=a/b --leader-elect=false --within=5s").is_ok());
    }

    #[test]
    fn uninstall_takes_several_namespaces() {
        for line in ["uninstall --yes", "uninstall --namespace=a,b", "uninstall -n a -n b"] {
            assert!(asked(&format!("quintet {line}")).is_ok(), "{line}");
        }
        assert!(refusal("quintet uninstall -n a,B").contains("lower case"));
    }

    #[test]
    fn explain_takes_a_name_or_a_file() {
        refusal("quintet explain");
        refusal("quintet explain dj/a -f b.yaml");
        refusal("quintet explain dj/a -o yaml");
        refusal("quintet explain dj/a -n A_B");
        for line in [
            "daemonjob/a",
            "dj/a",
            "daemonjobs.dj.dysproz.io/a",
            "daemonjob a",
            "-f -",
            "--filename=x -o wide",
        ] {
            assert!(asked(&format!("kubectl-quintet explain {line}")).is_ok(), "{line}");
        }
    }
}
