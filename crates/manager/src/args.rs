//! The flags. `quintet --help` is their reference.
//!
//! Called as `quintet`, the program runs the manager unless the user names a command. Called as `kubectl-quintet`, kubectl's
//! name for the plugin, it offers only the commands, so that a plugin never starts a manager by accident.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{ArgAction, Command as ClapCommand, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use quintet_kinds::{KINDS, MarkPrefix};
use quintet_runtime::LEASE_NAME;

use crate::api_client::{ClusterArgs, is_name, parse_name};
use crate::logs::Log;
use crate::parse::parse_duration;
use crate::{check, doctor, explain, rollout, uninstall};

/// kubectl runs a program with this file name as the plugin `kubectl quintet`.
const PLUGIN: &str = "kubectl-quintet";

/// Quintet, a Kubernetes operator for DaemonJobs, PodSets, PulsarConsumers, Greetings and Books.
///
/// Without a command, quintet runs the manager.
#[derive(Debug, Parser)]
#[command(
    name = "quintet",
    version,
    max_term_width = 100,
    args_conflicts_with_subcommands = true,
    args_override_self = true,
    next_help_heading = "Controllers"
)]
#[expect(clippy::struct_excessive_bools, reason = "the flags do not depend on each other")]
pub struct Args {
    /// A command such as `check`. Without a command, the program runs the manager.
    #[command(subcommand)]
    pub command: Option<Command>,

    /// Names of the controllers to run, separated by commas. If every name begins with a dash, as in -book,-podset, the
    /// manager runs all controllers except the named ones.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "KIND,...",
        allow_hyphen_values = true,
        value_parser = parse_pick,
        default_values = KINDS.map(|kind| kind.controller)
    )]
    controllers: Vec<Pick>,

    /// Watch only these namespaces, separated by commas (default: all namespaces). Repeat the flag to add more
    /// namespaces.
    #[arg(long, value_name = "NAMESPACE,...", value_delimiter = ',', value_parser = parse_namespace)]
    watch_namespace: Vec<String>,

    /// Image for PulsarConsumers whose spec names no image.
    #[arg(
        long,
        value_name = "IMAGE",
        default_value = concat!("ghcr.io/quintet-operator/pulsar-consumer:", env!("CARGO_PKG_VERSION"))
    )]
    pub pulsar_consumer_image: String,

    /// Port on which the image of --pulsar-consumer-image serves /healthz and /readyz. If the image does not serve
    /// /healthz and /readyz, set the port to 0: the manager then adds no probes to the pods of this image.
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    pub pulsar_consumer_health_port: u16,

    /// Run the pods of PulsarConsumers as user and group 65532, unless their template has a security context. Set the flag
    /// to false if the cluster chooses the user, as OpenShift does: the pods then name no user.
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, default_value_t = true)]
    pub pulsar_consumer_set_user: bool,
    /// Create objects of KEDA for PulsarConsumers with autoscaling. If false, the manager does not access objects of
    /// KEDA.
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, default_value_t = true)]
    pub pulsar_consumer_autoscaling: bool,

    /// Let adminURL and tokenURL of PulsarConsumers lead to loopback and link-local addresses. Set this flag only for
    /// a manager outside the cluster whose broker runs on the same machine.
    #[arg(long)]
    pub pulsar_consumer_local_urls: bool,

    /// Remove Quintet's finalizers of kinds that --controllers excludes: from pods of DaemonJobs, and from deleted
    /// PulsarConsumers and Greetings. The manager needs the permission to watch and patch these objects. Set the flag
    /// to false only if no manager has ever served these kinds.
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, default_value_t = true)]
    pub sweep: bool,

    /// Keys of taints that announce the deletion of a node, separated by commas. The manager recognizes the taints
    /// of cluster-autoscaler and Karpenter even without this flag. If a node had such a
    /// taint when it was last Ready, DaemonJobs do not count its deletion as a failure.
    #[arg(long, value_name = "KEY,...", value_delimiter = ',', value_parser = parse_taint_key)]
    pub daemon_job_deletion_taints: Vec<String>,

    /// Beginnings of the keys of labels and taints that DaemonJobs of a namespace may change with spec.onSuccess, such as
    /// team-a=example.com/. Repeat the flag to allow more keys. The manager needs the permission to get and patch nodes.
    #[arg(long, value_name = "NAMESPACE=PREFIX,...", value_delimiter = ',', value_parser = str::parse::<MarkPrefix>)]
    pub daemon_job_node_marks: Vec<MarkPrefix>,

    /// Leader election.
    #[command(flatten)]
    pub election: ElectionArgs,

    /// The HTTP servers.
    #[command(flatten)]
    pub servers: ServerArgs,

    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,

    /// Logging.
    #[command(flatten)]
    pub log: Log,
}

/// The flags for leader election.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Leader election")]
#[allow(clippy::struct_field_names, reason = "the fields have the names of the flags")]
pub struct ElectionArgs {
    /// Elect a leader, so that several managers can run: a manager writes only while it holds the Lease.
    #[arg(
        long,
        alias = "enable-leader-election",
        action = ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_value_t = false,
        default_missing_value = "true"
    )]
    pub leader_elect: bool,

    /// Namespace of the Lease (default: the pod's namespace in $POD_NAMESPACE, or else the namespace of the
    /// kubeconfig's context).
    #[arg(long, value_name = "NAMESPACE", value_parser = parse_namespace)]
    pub leader_election_namespace: Option<String>,

    /// Name of the Lease. All managers that use the same Lease elect one leader.
    #[arg(long, value_name = "NAME", default_value = LEASE_NAME, value_parser = parse_name)]
    pub leader_election_id: String,

    /// A standby manager waits this long for the leader to renew the Lease before the standby acquires the Lease.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = parse_duration)]
    pub leader_elect_lease_duration: Duration,

    /// If the leader cannot renew the Lease for this long, the leader stops writing.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    pub leader_elect_renew_deadline: Duration,

    /// Wait this long between failed attempts to renew or read the Lease.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = parse_duration)]
    pub leader_elect_retry_period: Duration,

    /// Wait this long between successful renewals of the Lease.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_duration)]
    pub leader_elect_renew_period: Duration,
}

/// The flags for the HTTP servers.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Metrics and probes")]
pub struct ServerArgs {
    /// Address of /metrics, or 0 to serve no metrics.
    #[arg(long, alias = "metrics-addr", value_name = "[HOST]:PORT", default_value = ":8080")]
    pub metrics_bind_address: String,

    /// Serve /metrics over TLS and require a bearer token that is authorized to GET /metrics.
    #[arg(
        long,
        action = ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_value_t = false,
        default_missing_value = "true"
    )]
    pub metrics_secure: bool,

    /// Directory with tls.crt and tls.key for --metrics-secure. The manager reloads tls.crt and tls.key when they
    /// change. Without --metrics-cert-dir, the manager creates a self-signed certificate at each start.
    #[arg(long, value_name = "DIRECTORY")]
    pub metrics_cert_dir: Option<PathBuf>,

    /// Loopback address of the debug pages, or 0 to serve no debug pages. With --metrics-secure, the manager also
    /// serves the debug pages at --metrics-bind-address, to clients with permission for the page's path, such as
    /// /debug/controllers.
    #[arg(long, value_name = "IP:PORT", default_value = "0", value_parser = parse_own_address)]
    pub debug_bind_address: String,

    /// Address of /healthz and /readyz, or 0 to serve neither of them.
    #[arg(long, value_name = "[HOST]:PORT", default_value = ":8081")]
    pub health_probe_bind_address: String,
}

impl Args {
    /// Returns the names of the controllers that --controllers selects.
    pub fn kinds(&self) -> Result<Vec<&'static str>, &'static str> {
        let (with, without): (Vec<&Pick>, Vec<&Pick>) =
            self.controllers.iter().partition(|pick| matches!(pick, Pick::With(_)));
        if !with.is_empty() && !without.is_empty() {
            return Err("--controllers mixes names with and without a dash: use one form for all of them");
        }
        let is_picked = |kind: &&'static str| {
            if with.is_empty() {
                !without.contains(&&Pick::Without(kind))
            } else {
                with.contains(&&Pick::With(kind))
            }
        };
        let kinds: Vec<&'static str> = KINDS.iter().map(|kind| kind.controller).filter(is_picked).collect();
        if kinds.is_empty() {
            return Err("--controllers excludes every kind: keep at least one");
        }
        if with.len() > kinds.len() {
            return Err("--controllers names a kind twice: name each kind once");
        }
        Ok(kinds)
    }

    /// Returns the values of --watch-namespace without duplicates. An empty list means all namespaces.
    pub fn namespaces(&self) -> Vec<String> {
        let named: BTreeSet<&String> = self.watch_namespace.iter().filter(|name| !name.is_empty()).collect();
        named.into_iter().cloned().collect()
    }
}

impl ElectionArgs {
    /// Rejects contradictory durations of leader election, such as a Lease that ends before the renew deadline.
    fn check(&self) -> Result<(), &'static str> {
        let (lease, deadline) = (self.leader_elect_lease_duration, self.leader_elect_renew_deadline);
        let (retry, renew) = (self.leader_elect_retry_period, self.leader_elect_renew_period);
        if lease < Duration::from_secs(1) || lease.subsec_nanos() != 0 {
            return Err("--leader-elect-lease-duration must be a number of whole seconds, at least 1s");
        }
        if lease > quintet_runtime::election::lease::LONGEST_LEASE {
            return Err("--leader-elect-lease-duration must be at most 24h");
        }
        if lease <= deadline {
            return Err("--leader-elect-lease-duration must be longer than --leader-elect-renew-deadline");
        }
        if deadline <= retry.saturating_mul(6) / 5 || deadline <= renew {
            return Err(
                "--leader-elect-renew-deadline must be longer than 1.2 times --leader-elect-retry-period and \
                 longer than --leader-elect-renew-period",
            );
        }
        Ok(())
    }
}

impl ServerArgs {
    /// Rejects --metrics-cert-dir without --metrics-secure.
    fn check(&self) -> Result<(), &'static str> {
        if self.metrics_cert_dir.is_some() && !self.metrics_secure {
            return Err("--metrics-cert-dir needs --metrics-secure: set both, or neither");
        }
        Ok(())
    }
}

/// A value of --controllers: a controller to run, or a controller to exclude.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pick {
    With(&'static str),
    Without(&'static str),
}

fn parse_pick(text: &str) -> Result<Pick, String> {
    let (name, pick): (&str, fn(&'static str) -> Pick) = match text.strip_prefix('-') {
        Some(name) => (name, Pick::Without),
        None => (text, Pick::With),
    };
    let known = KINDS.map(|kind| kind.controller);
    let named = known.into_iter().find(|known| *known == name);
    named.map(pick).ok_or_else(|| format!("the controllers are {}", known.join(", ")))
}

/// Parses the value of --debug-bind-address: a loopback address, or 0.
fn parse_own_address(text: &str) -> Result<String, String> {
    let is_own = text.parse::<SocketAddr>().is_ok_and(|address| address.ip().to_canonical().is_loopback());
    if text == "0" || is_own {
        Ok(text.to_owned())
    } else {
        Err("must be a loopback address, such as 127.0.0.1:8082; to reach the pages from another machine, use \
             `kubectl port-forward` or --metrics-secure"
            .to_owned())
    }
}

/// Parses the value of a flag for a namespace. An empty value has the same effect as no flag.
fn parse_namespace(text: &str) -> Result<String, String> {
    if text.is_empty() { Ok(String::new()) } else { parse_name(text) }
}

fn parse_taint_key(key: &str) -> Result<String, String> {
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_key =
        prefix.is_none_or(is_name) && !name.is_empty() && name.len() <= 63 && name.bytes().all(is_inner);
    (is_key || key.is_empty()).then(|| key.to_owned()).ok_or_else(|| {
        format!(
            "{key:?} is not a taint key: use a key such as example.com/going-away, without value and effect"
        )
    })
}

/// Commands for users of DaemonJobs and PodSets, and for removing Quintet from a cluster.
#[derive(Debug, Parser)]
#[command(name = "quintet", display_name = PLUGIN, bin_name = "kubectl quintet", version, max_term_width = 100)]
struct Plugin {
    #[command(subcommand)]
    command: Option<Command>,
}

/// The commands that do not start the manager.
#[derive(Debug, Subcommand)]
pub enum Command {
    Explain(explain::Args),
    Rollout(rollout::Args),
    Check(check::Args),
    Doctor(doctor::Args),
    Uninstall(uninstall::Args),
    /// Print the version of the program.
    Version,
}

/// The parsed command line.
#[derive(Debug)]
pub enum Asked {
    /// Run the manager.
    Manager(Box<Args>),
    /// Run a command such as `check`, then exit.
    Command(Command),
    /// Print this help text, then exit.
    Help(String),
}

/// Parses a command line, which begins with the name under which the user called the program.
pub fn read(line: impl IntoIterator<Item = OsString>) -> Result<Asked, clap::Error> {
    let line: Vec<OsString> = line.into_iter().collect();
    let called = line.first().and_then(|word| Path::new(word).file_name());
    if called.is_some_and(|name| name == PLUGIN) {
        let mut command = with_plugin_name(Plugin::command());
        let matches = command.try_get_matches_from_mut(line)?;
        return Ok(match Plugin::from_arg_matches(&matches)?.command {
            Some(command) => Asked::Command(command),
            None => Asked::Help(command.render_help().to_string()),
        });
    }
    let matches = with_variables(Args::command()).try_get_matches_from(line)?;
    let mut args = Args::from_arg_matches(&matches)?;
    let sound = args.kinds().and_then(|_| args.election.check()).and_then(|()| args.servers.check());
    sound.map_err(|why| Args::command().error(ErrorKind::ValueValidation, why))?;
    Ok(match args.command.take() {
        Some(command) => Asked::Command(command),
        None => Asked::Manager(Box::new(args)),
    })
}

/// The flags of a manager with this command line, for `quintet doctor`. An error is one line.
pub fn flags_of(line: &[String]) -> Result<doctor::Flags, String> {
    let first_line = |error: clap::Error| error.to_string().lines().next().unwrap_or_default().to_owned();
    let matches = Args::command().try_get_matches_from(line).map_err(first_line)?;
    let args = Args::from_arg_matches(&matches).map_err(first_line)?;
    let Args { election, servers, .. } = &args;
    let namespace = election.leader_election_namespace.clone();
    let metrics_port =
        servers.metrics_bind_address.rsplit(':').next().and_then(|port| port.parse::<u16>().ok());
    Ok(doctor::Flags {
        kinds: args.kinds()?,
        namespaces: args.namespaces(),
        has_node_marks: !args.daemon_job_node_marks.is_empty(),
        has_keda: args.pulsar_consumer_autoscaling,
        sweeps: args.sweep,
        elects: election.leader_elect,
        lease_namespace: namespace.filter(|namespace| !namespace.is_empty()),
        lease_name: election.leader_election_id.clone(),
        debug: servers.debug_bind_address.parse().ok(),
        metrics_port: metrics_port.filter(|port| *port != 0),
    })
}

/// Names the plugin in the examples of the commands.
fn with_plugin_name(command: ClapCommand) -> ClapCommand {
    command.mut_subcommands(|command| match command.get_after_help() {
        Some(examples) => {
            let examples = examples.to_string().replace("  quintet", "  kubectl quintet");
            command.after_help(examples)
        }
        None => command,
    })
}

/// Lets an environment variable set each flag of the manager: QUINTET_LOG_LEVEL sets --log-level.
fn with_variables(command: ClapCommand) -> ClapCommand {
    command.mut_args(|flag| {
        let name = flag.get_long().unwrap_or_default().to_uppercase().replace('-', "_");
        // clap needs a name that lives as long as the program. The program parses one command line.
        let variable: &'static str = format!("QUINTET_{name}").leak();
        flag.env(variable)
    })
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

    /// The chart passes `extraArgs` last, so that the values in `extraArgs` win.
    #[test]
    fn the_last_value_of_a_repeated_flag_wins() {
        let args = manager(
            "quintet --leader-elect --metrics-bind-address=:8080 --metrics-bind-address=0 --leader-elect=false",
        );
        assert_eq!((args.election.leader_elect, args.servers.metrics_bind_address.as_str()), (false, "0"));
        let args = manager("quintet --watch-namespace=a,b --watch-namespace=c");
        assert_eq!(args.watch_namespace, ["a", "b", "c"], "lists accumulate");
    }

    #[test]
    fn rejects_invalid_names_of_lease_and_namespace() {
        assert!(refusal("quintet --leader-election-id=").contains("a name consists of lower case letters"));
        assert!(
            refusal("quintet --leader-election-namespace=A_b")
                .contains("a name consists of lower case letters")
        );
        let args = manager("quintet --leader-election-namespace=");
        assert_eq!(args.election.leader_election_namespace.as_deref(), Some(""), "same as no flag");
    }

    #[test]
    fn restricts_the_manager_by_flags() {
        let of =
            |args: &Args| (args.sweep, args.pulsar_consumer_autoscaling, args.pulsar_consumer_local_urls);
        assert_eq!(of(&manager("quintet")), (true, true, false));
        let line = "quintet --sweep=false --pulsar-consumer-autoscaling=false --pulsar-consumer-local-urls";
        assert_eq!(of(&manager(line)), (false, false, true));
        let flags_for_doctor = |line: &str| {
            let line: Vec<String> = line.split(' ').map(str::to_owned).collect();
            flags_of(&line).map(|flags| (flags.sweeps, flags.has_keda))
        };
        assert_eq!(flags_for_doctor("quintet"), Ok((true, true)));
        assert_eq!(flags_for_doctor(line), Ok((false, false)));
    }

    #[test]
    fn deletion_taints_must_be_keys() {
        let args = manager("quintet --daemon-job-deletion-taints=a,example.com/b");
        assert_eq!(args.daemon_job_deletion_taints, ["a", "example.com/b"]);
        let refusal = refusal("quintet --daemon-job-deletion-taints=a=b:NoSchedule");
        assert!(refusal.contains("is not a taint key"), "{refusal}");
    }

    #[test]
    fn node_marks_must_have_a_namespace_and_a_domain() {
        let args =
            manager("quintet --daemon-job-node-marks=a=x.io/,a=y.io/ --daemon-job-node-marks=b=x.io/z-");
        let expected: [MarkPrefix; 3] = ["a=x.io/", "a=y.io/", "b=x.io/z-"].map(|text| text.parse().unwrap());
        assert_eq!(args.daemon_job_node_marks, expected);
        for (flag, expected) in [("x.io/", "there is no ="), ("a=k8s.io/", "belongs to Kubernetes")] {
            let refusal = refusal(&format!("quintet --daemon-job-node-marks={flag}"));
            assert!(refusal.contains(expected), "{refusal}");
        }
    }

    /// Generates a word of a command line: a flag of Quintet, an unusual value, or a flag with such a value.
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
        // PROPTEST_CASES sets the number of cases.
        #[test]
        fn accepts_or_explains_any_command_line(words in proptest::collection::vec(word(), 0..6)) {
            let line = std::iter::once("quintet".to_owned()).chain(words).map(OsString::from);
            match read(line) {
                Ok(Asked::Manager(args)) => drop(args.kinds()),
                Ok(_) => {}
                Err(error) => prop_assert!(!error.to_string().trim().is_empty()),
            }
        }
    }

    #[test]
    fn clap_accepts_the_flags() {
        with_variables(Args::command()).debug_assert();
        with_plugin_name(Plugin::command()).debug_assert();
    }

    #[test]
    fn each_flag_has_an_environment_variable() {
        let command = with_variables(Args::command());
        let variables = command.get_arguments().filter_map(|flag| flag.get_env()?.to_str());
        let expected = [
            "QUINTET_CONTROLLERS",
            "QUINTET_WATCH_NAMESPACE",
            "QUINTET_PULSAR_CONSUMER_IMAGE",
            "QUINTET_PULSAR_CONSUMER_HEALTH_PORT",
            "QUINTET_PULSAR_CONSUMER_SET_USER",
            "QUINTET_PULSAR_CONSUMER_AUTOSCALING",
            "QUINTET_PULSAR_CONSUMER_LOCAL_URLS",
            "QUINTET_SWEEP",
            "QUINTET_DAEMON_JOB_DELETION_TAINTS",
            "QUINTET_DAEMON_JOB_NODE_MARKS",
            "QUINTET_LEADER_ELECT",
            "QUINTET_LEADER_ELECTION_NAMESPACE",
            "QUINTET_LEADER_ELECTION_ID",
            "QUINTET_LEADER_ELECT_LEASE_DURATION",
            "QUINTET_LEADER_ELECT_RENEW_DEADLINE",
            "QUINTET_LEADER_ELECT_RETRY_PERIOD",
            "QUINTET_LEADER_ELECT_RENEW_PERIOD",
            "QUINTET_METRICS_BIND_ADDRESS",
            "QUINTET_METRICS_SECURE",
            "QUINTET_METRICS_CERT_DIR",
            "QUINTET_DEBUG_BIND_ADDRESS",
            "QUINTET_HEALTH_PROBE_BIND_ADDRESS",
            "QUINTET_KUBECONFIG",
            "QUINTET_CONTEXT",
            "QUINTET_LOG_FORMAT",
            "QUINTET_LOG_LEVEL",
        ];
        assert_eq!(variables.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn the_tutorials_flags_are_aliases() {
        let args = manager("quintet --enable-leader-election --metrics-addr=:9");
        assert!(args.election.leader_elect);
        assert_eq!(args.servers.metrics_bind_address, ":9");
        assert!(!manager("quintet --leader-elect=false").election.leader_elect);
    }

    #[test]
    fn picks_kinds_and_rejects_unknown_ones() {
        let kinds = |line: &str| manager(line).kinds().unwrap();
        assert_eq!(kinds("quintet --controllers=book,podset"), ["podset", "book"]);
        let others = kinds("quintet --controllers=-pulsarconsumer,-book");
        assert_eq!(others[..3], ["daemonjob", "podset", "greeting"]);
        assert_eq!(kinds("quintet --controllers -greeting").len(), KINDS.len() - 1);
        let error = refusal("quintet --controllers=cronjob");
        assert!(error.contains("cronjob") && error.contains("daemonjob"), "{error}");
        assert!(refusal("quintet --controllers=book,-podset").contains("use one form"));
        assert!(refusal("quintet --controllers=book,book").contains("twice"));
        let none = KINDS.map(|kind| format!("-{}", kind.controller)).join(",");
        assert!(refusal(&format!("quintet --controllers={none}")).contains("excludes every kind"));
        refusal("quintet --nonsense");
    }

    #[test]
    fn namespaces_are_separated_by_commas_or_flags() {
        let namespaces = |line: &str| manager(line).namespaces();
        assert!(namespaces("quintet").is_empty());
        assert!(namespaces("quintet --watch-namespace=").is_empty());
        assert_eq!(namespaces("quintet --watch-namespace=b,a --watch-namespace=b"), ["a", "b"]);
        assert!(refusal("quintet --watch-namespace=Team").contains("lower case"));
    }

    #[test]
    fn sets_the_user_of_consumers_by_default() {
        assert!(manager("quintet").pulsar_consumer_set_user);
        assert!(!manager("quintet --pulsar-consumer-set-user=false").pulsar_consumer_set_user);
    }

    #[test]
    fn debug_pages_need_a_loopback_address() {
        for own in ["0", "127.0.0.1:8082", "[::1]:8082", "[::ffff:127.0.0.1]:1"] {
            let args = manager(&format!("quintet --debug-bind-address={own}"));
            assert_eq!(args.servers.debug_bind_address, own);
        }
        for open in [":8082", "0.0.0.0:8082", "10.0.0.1:8082", "localhost", "[::]:1"] {
            assert!(refusal(&format!("quintet --debug-bind-address={open}")).contains("loopback"));
        }
    }

    #[test]
    fn rejects_a_certificate_without_tls() {
        assert!(refusal("quintet --metrics-cert-dir=/certs").contains("--metrics-secure"));
        assert!(manager("quintet --metrics-secure --metrics-cert-dir=/certs").servers.metrics_secure);
    }

    #[test]
    fn rejects_contradicting_election_durations() {
        let args = manager("quintet --leader-elect-lease-duration=1m --leader-elect-renew-deadline=30s");
        assert_eq!(args.election.leader_elect_lease_duration, Duration::from_mins(1));
        assert!(refusal("quintet --leader-elect-renew-deadline=15s").contains("longer than"));
        assert!(refusal("quintet --leader-elect-renew-deadline=5s").contains("renew-period"));
        assert!(refusal("quintet --leader-elect-retry-period=9s").contains("1.2 times"));
        assert!(refusal("quintet --leader-elect-lease-duration=soon").contains("such as 15s"));
        assert!(refusal("quintet --leader-elect-lease-duration=15500ms").contains("whole seconds"));
    }

    #[test]
    fn runs_the_manager_without_a_command() {
        assert_eq!(manager("/usr/bin/quintet").kinds().unwrap().len(), KINDS.len());
        assert!(matches!(asked("quintet version"), Ok(Asked::Command(Command::Version))));
        assert_eq!(manager("/manager --context=c").cluster.context.as_deref(), Some("c"));
        // Commands do not accept the manager's flags.
        refusal("quintet --leader-elect explain dj/a");
        refusal("quintet explain dj/a --leader-elect");
    }

    #[test]
    fn the_plugin_offers_only_commands() {
        let Ok(Asked::Help(help)) = asked("/home/me/bin/kubectl-quintet") else { panic!() };
        assert!(help.contains("Usage: kubectl quintet [COMMAND]") && help.contains("explain"), "{help}");
        assert!(!help.contains("--controllers"), "{help}");
        assert!(matches!(
            asked("kubectl-quintet explain dj/a -n b"),
            Ok(Asked::Command(Command::Explain(_)))
        ));
        refusal("kubectl-quintet --leader-elect");
        for name in ["quintet", "kubectl-quintet"] {
            let version = asked(&format!("{name} --version")).unwrap_err();
            assert_eq!(version.to_string(), format!("{name} {}\n", env!("CARGO_PKG_VERSION")));
        }
        for command in ["explain", "rollout", "check", "doctor", "uninstall"] {
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
    fn check_requires_a_manager() {
        refusal("quintet check");
        assert!(refusal("quintet check --manager=quintet").contains("NAMESPACE/DEPLOYMENT"));
        assert!(refusal("quintet check --manager=a/b --within=soon").contains("such as 15s"));
        assert!(asked("quintet check --manager=a/b --leader-elect=false --within=5s").is_ok());
    }

    #[test]
    fn doctor_reads_the_flags_of_a_manager() {
        let flags = |line: &str| flags_of(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        let usual =
            flags("quintet --leader-elect --leader-election-id=mine --debug-bind-address=127.0.0.1:8082");
        let usual = usual.unwrap();
        assert_eq!((usual.elects, &*usual.lease_name, usual.lease_namespace), (true, "mine", None));
        assert_eq!(
            (usual.kinds.len(), usual.metrics_port, usual.has_node_marks),
            (KINDS.len(), Some(8080), false)
        );
        assert_eq!(usual.debug, Some(SocketAddr::from(([127, 0, 0, 1], 8082))));
        let other = "quintet --metrics-bind-address=0 --watch-namespace=a,b --controllers=book --daemon-job-node-marks=a=x.io/";
        let other = flags(other).unwrap();
        assert_eq!((other.metrics_port, other.debug, other.has_node_marks), (None, None, true));
        assert_eq!((other.kinds, other.namespaces.len()), (vec!["book"], 2));
        let why = flags("quintet --from-a-later-version").unwrap_err();
        assert!(why.contains("--from-a-later-version") && why.lines().count() == 1, "{why}");
    }

    #[test]
    fn uninstall_takes_several_namespaces() {
        for line in ["uninstall --yes", "uninstall --namespace=a,b", "uninstall -n a -n b"] {
            assert!(asked(&format!("quintet {line}")).is_ok(), "{line}");
        }
        assert!(refusal("quintet uninstall -n a,B").contains("lower case"));
        assert!(refusal("quintet uninstall --helm-hook=quintet-uninstall").contains("--manager"));
    }

    #[test]
    fn rollout_takes_a_daemonjob_or_podset() {
        for line in [
            "status daemonjob/a",
            "approve daemonjob/a",
            "approve dj a --wave=2 --ahead -n b",
            "pause daemonjob/a --reason=incident",
            "resume daemonjob/a",
            "retry daemonjob/a",
            "retry daemonjob/a --token=2026-11-24",
            "status podset/a --timeout=5m -n b",
            "status pset a --watch=false",
            "history podsets/a --revision=3",
            "undo podset/a --to-revision=1",
            "restart podset/a --context=c",
            "pause podset/a",
            "resume podset/a",
        ] {
            assert!(asked(&format!("kubectl-quintet rollout {line}")).is_ok(), "{line}");
        }
        for line in [
            "",
            "scale podset/a",
            "approve daemonjob/a --wave=0",
            "retry daemonjob/a --token=",
            "undo",
            "undo podset/a --to-revision=one",
            "status podset/a --timeout=soon",
        ] {
            refusal(&format!("quintet rollout {line}"));
        }
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
