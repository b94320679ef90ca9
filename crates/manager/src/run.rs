//! Starts and stops the manager: client, gate, informers, controllers, election and HTTP servers.

use std::time::Duration;

use anyhow::{Context as _, Result};
use kube::{Client, Config};
use quintet_kinds::{ConsumerSettings, Image, KINDS, Options, Reach};
use quintet_runtime::control::context::{Context, ContextConfig};
use quintet_runtime::election::candidate::Candidate;
use quintet_runtime::election::{self, Settings};
use quintet_runtime::model::clock::Clock;
use quintet_runtime::probes;
use quintet_runtime::server::client::{self, LONGEST_REST};
use quintet_runtime::server::connectivity::Link;
use quintet_runtime::server::gate::{BEAT, Gate};
use quintet_runtime::server::metrics::Metrics;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use crate::args::{Args, ElectionArgs, ServerArgs};
use crate::kubeconfig::{configure, identity};
use crate::logs::LogHandle;
use crate::metrics_auth::{Guard, Identity};
use crate::pages::{self, Pages};

/// How long a shutdown may take, including the reconciles in flight and the release of the Lease.
const SHUTDOWN: Duration = Duration::from_secs(20);

/// How long the last Events may delay the release of the Lease.
const EVENTS: Duration = Duration::from_millis(200);

/// Stack of the election's thread. TLS handshakes need the most.
const ELECTION_STACK: usize = 512 * 1024;

/// Runs the manager until a signal arrives, or until a required task ends.
pub async fn run(args: Args, log: LogHandle) -> Result<()> {
    let config = configure(&args.cluster).await?;
    let mut metrics = Metrics::new().context("cannot register the metrics")?;
    metrics.lease = args.election.leader_election_id.as_str().into();
    let link = Link::default();
    let client = client::build(config.clone(), &metrics, LONGEST_REST, &link)?;
    // Bind first, so that the manager reports a port in use before it does anything.
    let listeners = Listeners::bind(&args.servers, &metrics, &client).await?;
    let (stop, stopped) = watch::channel(false);
    let identity = identity();
    let context = Context::new(ContextConfig {
        client,
        link,
        gate: if args.election.leader_elect { Gate::closed() } else { Gate::open() },
        metrics,
        clock: Clock::System,
        instance: identity.clone(),
        namespaces: args.namespaces(),
        stop: stopped,
    });
    register(&args, &context, &identity)?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        server = config.cluster_url.to_string(),
        identity,
        namespaces = if args.namespaces().is_empty() { "(all)".to_owned() } else { args.namespaces().join(",") },
        controllers = ?args.kinds().unwrap_or_default(),
        "starting"
    );

    let mut tasks = Tasks::start(&context, args.election.leader_elect);
    listeners.serve(&mut tasks.others, &context, &log);
    // Release the Lease last: it covers the writes in flight.
    let (release, released) = watch::channel(false);
    let mut election = args.election.leader_elect.then(|| {
        let settings = settings(&args.election, &config, identity);
        elect(config, settings, context.clone(), released, log)
    });
    let mut signals = [
        signal(SignalKind::terminate()).context("cannot handle SIGTERM")?,
        signal(SignalKind::interrupt()).context("cannot handle SIGINT")?,
    ];
    let failure = first_failure(&mut signals, &mut tasks, election.as_mut()).await;
    tracing::info!("shutting down");
    let _ = stop.send(true);
    let shutdown = tokio::time::timeout(SHUTDOWN, async {
        // Wait only for controllers. Watches and servers have nothing to finish.
        while tasks.controllers.join_next().await.is_some() {}
        context.recorder.flush(EVENTS).await;
        let _ = release.send(true);
        if let Some(election) = election.as_mut()
            && !election.is_terminated()
        {
            let _ = election.await;
        }
    });
    let second_signal = async {
        if failure.is_some() {
            signalled(&mut signals).await;
        }
        signalled(&mut signals).await;
    };
    tokio::select! {
        ended = shutdown => {
            if ended.is_err() {
                tracing::warn!("shutdown timed out; exiting");
            }
        }
        () = second_signal => tracing::warn!("received a signal during the shutdown; exiting"),
    }
    failure.map_or(Ok(()), Err)
}

/// The bound addresses of the HTTP servers.
struct Listeners {
    metrics: Option<TcpListener>,
    /// Set if the metrics are served over TLS.
    secured: Option<(Identity, Guard)>,
    debug: Option<TcpListener>,
    probes: Option<TcpListener>,
}

impl Listeners {
    async fn bind(args: &ServerArgs, metrics: &Metrics, client: &Client) -> Result<Self> {
        let secured = || -> Result<_> {
            Ok((Identity::new(args.metrics_cert_dir.as_deref(), metrics)?, Guard::new(client.clone())))
        };
        Ok(Self {
            secured: args.metrics_secure.then(secured).transpose()?,
            metrics: probes::listen(&args.metrics_bind_address).await?,
            debug: probes::listen(&args.debug_bind_address).await?,
            probes: probes::listen(&args.health_probe_bind_address).await?,
        })
    }

    fn serve(self, tasks: &mut JoinSet<&'static str>, context: &Context, log: &LogHandle) {
        let pages = Pages { context: context.clone(), log: log.clone() };
        if let Some(listener) = self.debug {
            tasks.spawn(named("debug", pages::serve_debugging(listener, pages.clone())));
        }
        match (self.metrics, self.secured) {
            (Some(listener), Some((identity, guard))) => {
                tasks.spawn(named("metrics", pages::serve_secured(listener, pages, identity, guard)));
            }
            (Some(listener), None) => {
                tasks.spawn(named("metrics", pages::serve(listener, pages)));
            }
            (None, _) => {}
        }
        if let Some(listener) = self.probes {
            let context = context.clone();
            tasks.spawn(named("probes", probes::probes(listener, move || context.unready())));
        }
    }
}

/// Runs a task, and returns its name.
async fn named(name: &'static str, task: impl Future<Output = ()>) -> &'static str {
    task.await;
    name
}

/// The tasks besides the election. None of them may end before the shutdown. Each returns its name.
struct Tasks {
    /// They finish their reconciles on shutdown.
    controllers: JoinSet<&'static str>,
    others: JoinSet<&'static str>,
}

impl Tasks {
    fn start(context: &Context, has_election: bool) -> Self {
        let (mut controllers, mut others) = (JoinSet::new(), JoinSet::new());
        for (name, controller) in context.take_controllers() {
            controllers.spawn(named(name, controller));
        }
        for (name, task) in context.take_tasks() {
            let gate = context.gate.clone();
            others.spawn(async move {
                // Start after the first attempt at the Lease: a manager that becomes the leader at once lists only once.
                gate.tried().await;
                task.await;
                name
            });
        }
        if has_election {
            let gate = context.gate.clone();
            others.spawn(async move {
                loop {
                    gate.heartbeat();
                    tokio::time::sleep(BEAT).await;
                }
            });
        }
        Self { controllers, others }
    }
}

/// Waits for SIGTERM or SIGINT.
async fn signalled([terminate, interrupt]: &mut [Signal; 2]) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// Waits for a signal (`None`), or for the end of something that must run.
async fn first_failure(
    signals: &mut [Signal; 2],
    tasks: &mut Tasks,
    election: Option<&mut oneshot::Receiver<Result<()>>>,
) -> Option<anyhow::Error> {
    let (what, ended) = tokio::select! {
        () = signalled(signals) => return None,
        Some(ended) = tasks.others.join_next() => ("task", ended),
        Some(ended) = tasks.controllers.join_next() => ("controller", ended),
        error = election_ended(election) => return Some(error),
    };
    Some(match ended {
        Ok(name) => anyhow::anyhow!("{what} {name} exited unexpectedly"),
        Err(error) => anyhow::anyhow!("a {what} panicked: {error}"),
    })
}

fn settings(args: &ElectionArgs, config: &Config, identity: String) -> Settings {
    let from_environment = std::env::var("POD_NAMESPACE");
    let mut namespaces = args.leader_election_namespace.clone().into_iter().chain(from_environment);
    let namespace = namespaces.find(|namespace| !namespace.is_empty());
    Settings {
        lease: args.leader_elect_lease_duration,
        renew_deadline: args.leader_elect_renew_deadline,
        retry: args.leader_elect_retry_period,
        renew: args.leader_elect_renew_period,
        name: args.leader_election_id.clone(),
        ..Settings::new(namespace.unwrap_or_else(|| config.default_namespace.clone()), identity)
    }
}

/// Runs the election on its own thread with its own client. So neither the decoding of a list nor a queue of writes
/// delays a renewal. The receiver gets the result.
fn elect(
    config: Config,
    settings: Settings,
    context: Context,
    released: watch::Receiver<bool>,
    log: LogHandle,
) -> oneshot::Receiver<Result<()>> {
    let (sender, ended) = oneshot::channel();
    let compete = move || -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async move {
            let Context { gate, link, clock, metrics, .. } = context.clone();
            // Obey Retry-After only up to the retry period, so that it does not cost the Lease.
            let client = client::build(config, &metrics, settings.retry, &link)?;
            let candidate = Candidate::new(client, settings, gate, link, clock);
            Ok(candidate.run(|| context.seen(), || context.silences(), released).await?)
        })
    };
    let thread = std::thread::Builder::new().name("election".to_owned()).stack_size(ELECTION_STACK);
    let spawned = thread.spawn(move || {
        let ended = compete();
        if let Err(error) = &ended
            && let Some(election::Error::Uncancelled { .. }) = error.downcast_ref()
        {
            // A write is stuck, so that an orderly shutdown could be stuck, too.
            tracing::error!(%error, "exiting immediately");
            log.flush();
            std::process::exit(1);
        }
        // No receiver: the manager is exiting already.
        let _ = sender.send(ended);
    });
    if let Err(error) = spawned {
        tracing::error!(%error, "cannot start the election's thread");
    }
    ended
}

async fn election_ended(election: Option<&mut oneshot::Receiver<Result<()>>>) -> anyhow::Error {
    match election {
        Some(election) => match election.await {
            Ok(Ok(())) => anyhow::anyhow!("the election exited unexpectedly"),
            Ok(Err(error)) => error,
            Err(_) => anyhow::anyhow!("the election panicked"),
        },
        None => std::future::pending().await,
    }
}

fn register(args: &Args, context: &Context, identity: &str) -> Result<()> {
    let enabled = args.kinds().map_err(anyhow::Error::msg)?;
    let port = args.pulsar_consumer_health_port;
    let image = Image {
        name: args.pulsar_consumer_image.clone(),
        health_port: (port > 0).then_some(port),
        any_user: !args.pulsar_consumer_set_user,
    };
    let reach = if args.pulsar_consumer_local_urls { Reach::Everywhere } else { Reach::Remote };
    let options = Options {
        deletion_taints: args.daemon_job_deletion_taints.clone(),
        mark_prefixes: args.daemon_job_node_marks.clone(),
        consumers: ConsumerSettings { image, without_keda: !args.pulsar_consumer_autoscaling, reach },
        identity: identity.to_owned(),
    };
    for kind in &KINDS {
        let is_enabled = enabled.contains(&kind.controller);
        if is_enabled || args.sweep {
            kind.register(context, &options, is_enabled)?;
        }
    }
    Ok(())
}
