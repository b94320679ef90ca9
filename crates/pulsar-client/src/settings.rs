//! Flags and variables of both programs. An empty variable counts as not set, as for the tutorial's programs.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::error::ErrorKind;
use pulsar::message::proto::command_subscribe::{InitialPosition, SubType};
use quintet_oauth2::Client;
use quintet_pulsar_topic::{Malformed, Pattern, Topic, dead_letter_subscription};

use crate::address::ServiceAddress;
use crate::brokers::Service;
use crate::duration;
use crate::issuer::Issuer;
use crate::security::{Files, TokenSource};
use crate::session::Subscription;

/// The service and the topic, for both programs.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Where {
    /// The URL of the Pulsar service: pulsar://host:6650, or pulsar+ssl://host:6651 with TLS. Separate
    /// several hosts by commas [default: pulsar://localhost:6650]
    #[arg(long, env = "PULSAR_SERVER", value_name = "URL", hide_env_values = true)]
    server: Option<String>,
    /// The topic, as NAME or TENANT/NAMESPACE/NAME. The topic may begin with persistent:// or
    /// non-persistent:// [default: my-topic]
    #[arg(long, env = "PULSAR_TOPIC", value_name = "NAME", hide_env_values = true)]
    topic: Option<String>,
    /// The advertised listener of the brokers whose addresses the program uses [default: the brokers' default]
    #[arg(long, env = "PULSAR_LISTENER_NAME", value_name = "NAME", hide_env_values = true)]
    listener_name: Option<String>,
    /// A file with the token. The program reads the file for each connection
    #[arg(long, env = "PULSAR_TOKEN_FILE", value_name = "FILE", hide_env_values = true)]
    token_file: Option<OsString>,
    /// A file with the CA certificates to trust, in PEM. The program reads the file for each connection
    /// [default: the public CAs]
    #[arg(long, env = "PULSAR_TLS_CA_FILE", value_name = "FILE", hide_env_values = true)]
    tls_ca_file: Option<OsString>,
    /// A file with the client's certificate and its chain, in PEM, for a broker that authenticates clients by
    /// TLS. The program reads the file for each connection
    #[arg(long, env = "PULSAR_TLS_CERT_FILE", value_name = "FILE", hide_env_values = true)]
    tls_cert_file: Option<OsString>,
    /// A file with the key of the client's certificate, in PEM
    #[arg(long, env = "PULSAR_TLS_KEY_FILE", value_name = "FILE", hide_env_values = true)]
    tls_key_file: Option<OsString>,
    /// The address of the token endpoint of an OAuth2 issuer, from which the program gets tokens
    #[arg(long, env = "PULSAR_OAUTH2_TOKEN_URL", value_name = "URL", hide_env_values = true)]
    oauth2_token_url: Option<String>,
    /// The ID of the OAuth2 client
    #[arg(long, env = "PULSAR_OAUTH2_CLIENT_ID", value_name = "ID", hide_env_values = true)]
    oauth2_client_id: Option<String>,
    /// A file that has only the secret of the OAuth2 client
    #[arg(long, env = "PULSAR_OAUTH2_CLIENT_SECRET_FILE", value_name = "FILE", hide_env_values = true)]
    oauth2_client_secret_file: Option<OsString>,
    /// The audience of the OAuth2 tokens
    #[arg(long, env = "PULSAR_OAUTH2_AUDIENCE", value_name = "NAME", hide_env_values = true)]
    oauth2_audience: Option<String>,
    /// The scopes of the OAuth2 tokens, separated by blanks
    #[arg(long, env = "PULSAR_OAUTH2_SCOPE", value_name = "NAMES", hide_env_values = true)]
    oauth2_scope: Option<String>,
}

impl Where {
    /// The service.
    pub fn service(&self) -> Result<Service, String> {
        let address = self.given_server().parse();
        let address = address.map_err(|error: crate::address::Malformed| error.to_string())?;
        let files = self.files(&address)?;
        Ok(Service { address, files, listener: given(self.listener_name.as_deref()).map(str::to_owned) })
    }

    /// The topic.
    pub fn topic(&self) -> Result<Topic, String> {
        parse_topic(self.given_topic())
    }

    fn given_server(&self) -> &str {
        given(self.server.as_deref()).unwrap_or("pulsar://localhost:6650")
    }

    fn given_topic(&self) -> &str {
        given(self.topic.as_deref()).unwrap_or("my-topic")
    }

    fn files(&self, server: &ServiceAddress) -> Result<Files, String> {
        let given =
            |file: &Option<OsString>| file.as_ref().filter(|file| !file.is_empty()).map(PathBuf::from);
        let client_certificate = match (given(&self.tls_cert_file), given(&self.tls_key_file)) {
            (Some(certificate), Some(key)) => Some([certificate, key]),
            (None, None) => None,
            _ => {
                return Err(
                    "a certificate file needs a key file, and a key file a certificate file".to_owned()
                );
            }
        };
        if client_certificate.is_some() && !server.tls {
            return Err("a client certificate needs a server that begins with pulsar+ssl://".to_owned());
        }
        let token = match (given(&self.token_file), self.issuer()?) {
            (Some(_), Some(_)) => {
                return Err("a token file and an OAuth2 issuer exclude each other".to_owned());
            }
            (Some(file), None) => Some(TokenSource::File(file)),
            (None, issuer) => {
                issuer.map(|(client, secret)| TokenSource::Issuer(Issuer::new(client, secret).into()))
            }
        };
        Ok(Files { token, ca: given(&self.tls_ca_file), client_certificate })
    }

    /// The OAuth2 client, and the file of its secret.
    fn issuer(&self) -> Result<Option<(Client, PathBuf)>, String> {
        let text = |value: &Option<String>| given(value.as_deref()).map(str::to_owned);
        let file = self.oauth2_client_secret_file.as_ref().filter(|file| !file.is_empty());
        let [audience, scope] = [&self.oauth2_audience, &self.oauth2_scope].map(text);
        match (text(&self.oauth2_token_url), text(&self.oauth2_client_id), file) {
            (Some(token_url), Some(client_id), Some(file)) => {
                let client = Client { token_url, client_id, audience, scope };
                let scheme =
                    client.request("").ok().and_then(|request| request.uri().scheme_str().map(str::to_owned));
                if !matches!(scheme.as_deref(), Some("http" | "https")) {
                    return Err(format!("{:?} is not an address: use https://host/path", client.token_url));
                }
                Ok(Some((client, file.into())))
            }
            (None, None, None) if audience.is_none() && scope.is_none() => Ok(None),
            _ => Err("OAuth2 needs the URL of the token endpoint, a client ID, and the file of its secret"
                .to_owned()),
        }
    }
}

/// Receives the messages of an Apache Pulsar topic and prints each message on a line
///
/// The program prints every message as a line "Message Received: PAYLOAD" on stdout, and then acknowledges
/// the message. The program escapes control characters, so that each message is one line. Other output goes
/// to stderr. The program runs until SIGTERM or SIGINT, and then exits with code 0. If the broker is
/// unreachable, rejects the credentials, or a file is unreadable, the program retries.
///
/// The exit code is 2 for a malformed setting, 3 if the broker requires credentials and none are set, 5
/// for a closed stdout, and 1 for any other error.
#[derive(Clone, Debug, Default, clap::Parser)]
#[command(name = "pulsar-consumer", version)]
pub struct ConsumerArgs {
    #[command(flatten)]
    location: Where,
    /// Several topics in place of --topic, separated by commas
    #[arg(long, env = "PULSAR_TOPICS", value_name = "NAMES", hide_env_values = true)]
    topics: Option<String>,
    /// The persistent topics whose names match, in place of --topic: REGEX or TENANT/NAMESPACE/REGEX. REGEX is a
    /// regular expression for the whole last part of the name. The program looks for new topics every minute
    #[arg(long, env = "PULSAR_TOPICS_PATTERN", value_name = "PATTERN", hide_env_values = true)]
    topics_pattern: Option<String>,
    /// The name of the subscription [default: first-subscription]
    #[arg(long, env = "PULSAR_SUBSCRIPTION_NAME", value_name = "NAME", hide_env_values = true)]
    subscription_name: Option<String>,
    /// How consumers share the subscription: Shared, Exclusive, Failover or Key_Shared [default: Shared]
    #[arg(long, env = "PULSAR_SUBSCRIPTION_TYPE", value_name = "TYPE", hide_env_values = true)]
    subscription_type: Option<String>,
    /// The message at which a new subscription begins: Latest or Earliest [default: Latest]
    #[arg(long, env = "PULSAR_INITIAL_POSITION", value_name = "POSITION", hide_env_values = true)]
    initial_position: Option<String>,
    /// Whether to get only the latest message of each key from compacted topics: true or false. Needs the
    /// subscription type Exclusive or Failover [default: false]
    #[arg(long, env = "PULSAR_READ_COMPACTED", value_name = "BOOL", hide_env_values = true)]
    read_compacted: Option<String>,
    /// Whether the broker replicates the position of the subscription to other clusters: true or false
    /// [default: false]
    #[arg(long, env = "PULSAR_REPLICATE_SUBSCRIPTION_STATE", value_name = "BOOL", hide_env_values = true)]
    replicate_subscription_state: Option<String>,
    /// The topic to which the program moves messages that were redelivered too often. --dead-letter-topic
    /// needs --max-redeliver-count, and the subscription type Shared or Key_Shared, because the broker counts
    /// redeliveries only for these types
    #[arg(long, env = "PULSAR_DEAD_LETTER_TOPIC", value_name = "NAME", hide_env_values = true)]
    dead_letter_topic: Option<String>,
    /// The subscription that keeps dead letters until someone reads them. The program creates it before the first
    /// dead letter [default: the subscription's name and -dlq]
    #[arg(long, env = "PULSAR_DEAD_LETTER_SUBSCRIPTION", value_name = "NAME", hide_env_values = true)]
    dead_letter_subscription: Option<String>,
    /// The number of redeliveries before a message goes to the dead-letter topic
    #[arg(long, env = "PULSAR_MAX_REDELIVER_COUNT", value_name = "NUMBER", hide_env_values = true)]
    max_redeliver_count: Option<String>,
    /// The topic to which the program moves unreadable messages, to get them again after a delay. After the maximum
    /// number of retries, they go to the dead-letter topic
    #[arg(long, env = "PULSAR_RETRY_LETTER_TOPIC", value_name = "NAME", hide_env_values = true)]
    retry_letter_topic: Option<String>,
    /// The delays before the first, the second and further retries, separated by commas. The last delay is that of
    /// all further retries [default: the delay of --negative-ack-redelivery-delay]
    #[arg(long, env = "PULSAR_RETRY_DELAYS", value_name = "DURATIONS", hide_env_values = true)]
    retry_delays: Option<String>,
    /// The time after which received messages that wait for stdout go back to the broker, for other consumers.
    /// Needs the subscription type Shared, and excludes dead letters [default: never]
    #[arg(long, env = "PULSAR_ACK_TIMEOUT", value_name = "DURATION", hide_env_values = true)]
    ack_timeout: Option<String>,
    /// The delay before the program requests an unreadable message again, such as 60s, 1m30s or 500ms
    /// [default: 60s]
    #[arg(
        long,
        env = "PULSAR_NEGATIVE_ACK_REDELIVERY_DELAY",
        value_name = "DURATION",
        hide_env_values = true
    )]
    negative_ack_redelivery_delay: Option<String>,
    /// How many messages of each partition the broker may send before the program prints them [default: 1000]
    #[arg(long, env = "PULSAR_RECEIVER_QUEUE_SIZE", value_name = "NUMBER", hide_env_values = true)]
    receiver_queue_size: Option<String>,
    /// How many bytes of received messages may wait until the program prints them. The last of these messages may
    /// exceed the limit [default: 33554432]
    #[arg(long, env = "PULSAR_RECEIVER_QUEUE_BYTES", value_name = "NUMBER", hide_env_values = true)]
    receiver_queue_bytes: Option<String>,
    /// The name that the broker shows for this consumer [default: the host's name]
    #[arg(long, env = "PULSAR_CONSUMER_NAME", value_name = "NAME", hide_env_values = true)]
    consumer_name: Option<String>,
    /// The address of /healthz, /readyz and /metrics, or 0 to serve none of them [default: [::]:8080, or
    /// 0.0.0.0:8080 on a host without IPv6]
    #[arg(long, env = "PULSAR_HTTP_BIND_ADDRESS", value_name = "ADDRESS", hide_env_values = true)]
    http_bind_address: Option<String>,
}

/// The settings of the consumer.
#[derive(Clone, Debug)]
pub struct ConsumerSettings {
    /// The subscription.
    pub subscription: Subscription,
    /// The dead-letter policy. The broker counts redeliveries only for Shared and Key_Shared.
    pub dead_letters: Option<DeadLetterPolicy>,
    /// The delay before an unreadable message is requested again.
    pub redelivery_delay: Duration,
    /// The time after which waiting messages go back to the broker.
    pub ack_timeout: Option<Duration>,
    /// The address of its probes; None for no probes.
    pub http: Option<String>,
    /// The server and the topics of the user, for messages.
    pub given: [String; 2],
}

/// When a message goes to the dead-letter topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetterPolicy {
    /// The number of allowed redeliveries.
    pub max_redeliver_count: u32,
    /// The topic.
    pub topic: Topic,
    /// The subscription that keeps the messages.
    pub subscription: String,
    /// The delays before the retries of unreadable messages; None without retries.
    pub retry_delays: Option<Vec<Duration>>,
}

impl ConsumerArgs {
    /// The settings, or an error message. `host` is the name of this host.
    pub fn settings(&self, host: Option<String>) -> Result<ConsumerSettings, String> {
        let (topics, pattern, shown) = self.topics()?;
        let retry_letters = given(self.retry_letter_topic.as_deref()).map(parse_topic).transpose()?;
        let position = position(given(self.initial_position.as_deref()).unwrap_or("Latest"))?;
        let mut subscription = Subscription {
            service: self.location.service()?,
            topics,
            pattern,
            retry_letters,
            name: given(self.subscription_name.as_deref()).unwrap_or("first-subscription").to_owned(),
            kind: subscription_type(given(self.subscription_type.as_deref()).unwrap_or("Shared"))?,
            position,
            matched_position: position,
            read_compacted: boolean(self.read_compacted.as_deref())?,
            replicated: boolean(self.replicate_subscription_state.as_deref())?,
            consumer: given(self.consumer_name.as_deref()).map(str::to_owned).or(host),
            queue: number::<u32>(
                "a size of the receiver queue",
                given(self.receiver_queue_size.as_deref()).unwrap_or("1000"),
            )?
            .max(1),
            queue_bytes: number::<usize>(
                "a size of the receiver queue in bytes",
                given(self.receiver_queue_bytes.as_deref()).unwrap_or("33554432"),
            )?
            .max(1),
        };
        let is_shared = matches!(subscription.kind, SubType::Shared | SubType::KeyShared);
        if subscription.read_compacted && is_shared {
            return Err(
                "only the subscription types Exclusive and Failover can read compacted topics".to_owned()
            );
        }
        let redelivery_delay =
            duration::parse(given(self.negative_ack_redelivery_delay.as_deref()).unwrap_or("60s"))?;
        let dead_letters = self.dead_letters(&subscription, redelivery_delay)?;
        if let Some(pattern) = &mut subscription.pattern {
            let dead = dead_letters.as_ref().map(|policy| &policy.topic);
            pattern.except = dead.into_iter().chain(&subscription.retry_letters).cloned().collect();
        }
        let ack_timeout = given(self.ack_timeout.as_deref()).map(duration::parse).transpose()?;
        match ack_timeout {
            Some(_) if subscription.kind != SubType::Shared => {
                return Err("an ack timeout needs the subscription type Shared".to_owned());
            }
            Some(_) if dead_letters.is_some() => {
                return Err(
                    "an ack timeout and dead letters exclude each other: messages that are given back too \
                    often would become dead letters"
                        .to_owned(),
                );
            }
            Some(timeout) if timeout < Duration::from_secs(1) => {
                return Err("an ack timeout must be at least 1s".to_owned());
            }
            _ => {}
        }
        let http = given(self.http_bind_address.as_deref()).unwrap_or("[::]:8080").to_owned();
        Ok(ConsumerSettings {
            dead_letters,
            redelivery_delay,
            ack_timeout,
            http: (http != "0").then_some(http),
            given: [self.location.given_server().to_owned(), shown],
            subscription,
        })
    }

    /// The topics, the pattern, and the text of the user.
    fn topics(&self) -> Result<(Vec<Topic>, Option<Pattern>, String), String> {
        let topic = given(self.location.topic.as_deref());
        match (topic, given(self.topics.as_deref()), given(self.topics_pattern.as_deref())) {
            (_, None, None) => {
                Ok((vec![self.location.topic()?], None, self.location.given_topic().to_owned()))
            }
            (None, Some(names), None) => {
                let mut topics: Vec<Topic> = Vec::new();
                for name in names.split(',') {
                    let topic = parse_topic(name.trim())?;
                    if topics.contains(&topic) {
                        return Err(format!("the topic {topic} is named twice"));
                    }
                    topics.push(topic);
                }
                Ok((topics, None, names.to_owned()))
            }
            (None, None, Some(pattern)) => {
                let parsed = pattern.parse().map_err(|error: Malformed| error.to_string())?;
                Ok((Vec::new(), Some(parsed), pattern.to_owned()))
            }
            _ => Err("a topic, several topics and a pattern exclude each other".to_owned()),
        }
    }

    fn dead_letters(&self, of: &Subscription, delay: Duration) -> Result<Option<DeadLetterPolicy>, String> {
        let count = given(self.max_redeliver_count.as_deref());
        if given(self.retry_delays.as_deref()).is_some() && of.retry_letters.is_none() {
            return Err("delays of retries need a retry-letter topic".to_owned());
        }
        match (given(self.dead_letter_topic.as_deref()), count) {
            (None, None) if of.retry_letters.is_some() => {
                Err("a retry-letter topic needs a dead-letter topic and a maximum number of redeliveries"
                    .to_owned())
            }
            (None, None) => Ok(None),
            (Some(name), Some(count)) => {
                let dead = parse_topic(name)?;
                let retry = of.retry_letters.as_ref();
                if !matches!(of.kind, SubType::Shared | SubType::KeyShared) {
                    return Err("dead letters need the subscription type Shared or Key_Shared".to_owned());
                }
                if retry == Some(&dead) {
                    return Err(format!("{dead} is both the dead-letter topic and the retry-letter topic"));
                }
                for topic in retry.into_iter().chain([&dead]) {
                    if of.topics.contains(topic) {
                        return Err(format!("{topic} is the topic itself: use another topic for letters"));
                    }
                    if !topic.is_persistent() {
                        return Err(format!("{topic} would lose letters: use a persistent topic"));
                    }
                }
                let delays = given(self.retry_delays.as_deref()).map(|delays| {
                    delays
                        .split(',')
                        .map(|delay| duration::parse(delay.trim()))
                        .collect::<Result<Vec<_>, _>>()
                });
                let delays = delays.transpose()?.unwrap_or_else(|| vec![delay]);
                let subscription = given(self.dead_letter_subscription.as_deref());
                Ok(Some(DeadLetterPolicy {
                    max_redeliver_count: number("a number of redeliveries", count)?,
                    topic: dead,
                    subscription: subscription
                        .map_or_else(|| dead_letter_subscription(&of.name), str::to_owned),
                    retry_delays: retry.map(|_| delays),
                }))
            }
            (Some(_), None) => Err("a dead-letter topic needs a maximum number of redeliveries".to_owned()),
            (None, Some(_)) => Err("a maximum number of redeliveries needs a dead-letter topic".to_owned()),
        }
    }
}

/// Sends messages to an Apache Pulsar topic
///
/// The program sends one message, or several messages with --count. When the broker has confirmed all
/// messages, the program prints "Published message" or the number of messages, and exits with code 0.
///
/// The exit code is 1 if the broker did not confirm all messages in time, and the error has the number of
/// confirmed messages. The exit code is 2 for a malformed setting, 3 for rejected credentials, 4 for an
/// unreadable file, and 1 for any other error.
#[derive(Clone, Debug, Default, clap::Parser)]
#[command(name = "pulsar-producer", version)]
pub struct ProducerArgs {
    /// The topic.
    #[command(flatten)]
    pub location: Where,
    /// The message [default: Sample Message]
    #[arg(long, env = "PULSAR_MESSAGE", value_name = "TEXT", hide_env_values = true)]
    message: Option<String>,
    /// How many messages to send. If the program sends several messages, each message ends with its number,
    /// from 1
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub count: u64,
    /// The maximum number of messages per second
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: Option<u32>,
    /// Send each message separately. By default, the program sends several messages in one batch
    #[arg(long)]
    pub no_batching: bool,
    /// The time limit for the connection to the broker, and for the confirmation of each message
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse)]
    pub timeout: Duration,
}

impl ProducerArgs {
    /// The message.
    pub fn message(&self) -> &str {
        given(self.message.as_deref()).unwrap_or("Sample Message")
    }
}

/// The error of a command line as one line, or the text of `--help`.
pub fn complaint(error: &clap::Error) -> Result<String, String> {
    let text = error.to_string();
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return Ok(text);
    }
    let line = text.lines().next().unwrap_or_default();
    Err(line.strip_prefix("error: ").unwrap_or(line).to_owned())
}

fn given(value: Option<&str>) -> Option<&str> {
    value.filter(|value| !value.is_empty())
}

fn parse_topic(name: &str) -> Result<Topic, String> {
    name.parse().map_err(|error: Malformed| error.to_string())
}

fn subscription_type(name: &str) -> Result<SubType, String> {
    match name {
        "Shared" => Ok(SubType::Shared),
        "Exclusive" => Ok(SubType::Exclusive),
        "Failover" => Ok(SubType::Failover),
        "Key_Shared" => Ok(SubType::KeyShared),
        _ => {
            Err(format!("{name:?} is not a subscription type: use Shared, Exclusive, Failover or Key_Shared"))
        }
    }
}

fn position(name: &str) -> Result<InitialPosition, String> {
    match name {
        "Latest" => Ok(InitialPosition::Latest),
        "Earliest" => Ok(InitialPosition::Earliest),
        _ => Err(format!("{name:?} is not an initial position: use Latest or Earliest")),
    }
}

fn boolean(text: Option<&str>) -> Result<bool, String> {
    match given(text) {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(other) => Err(format!("{other:?} is neither true nor false")),
    }
}

fn number<N: FromStr>(what: &str, text: &str) -> Result<N, String> {
    text.parse().map_err(|_| format!("{text:?} is not {what}: use a number"))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use rstest::rstest;

    use super::*;

    fn consumer(args: &[&str]) -> Result<ConsumerSettings, String> {
        let args = std::iter::once("pulsar-consumer").chain(args.iter().copied());
        ConsumerArgs::try_parse_from(args)
            .map_err(|error| complaint(&error).unwrap_or_else(|line| line))?
            .settings(Some("pod".to_owned()))
    }

    #[test]
    fn defaults_are_those_of_the_tutorial() {
        for args in
            [&[][..], &["--server=", "--topic=", "--subscription-name=", "--token-file=", "--consumer-name="]]
        {
            let settings = consumer(args).unwrap();
            let subscription = settings.subscription;
            assert_eq!(subscription.service.address, "pulsar://localhost:6650".parse().unwrap());
            assert_eq!(subscription.topics, ["my-topic".parse().unwrap()]);
            assert_eq!(settings.given[1], "my-topic");
            assert_eq!(subscription.name, "first-subscription");
            assert_eq!(
                (subscription.kind, subscription.position),
                (SubType::Shared, InitialPosition::Latest)
            );
            assert_eq!((subscription.queue, subscription.consumer.as_deref()), (1_000, Some("pod")));
            assert_eq!(subscription.queue_bytes, 32 << 20);
            let files = subscription.service.files;
            assert!(files.method().is_none() && files.ca.is_none());
            assert_eq!(settings.redelivery_delay, Duration::from_mins(1));
            assert_eq!(settings.dead_letters, None);
            assert_eq!(settings.http.as_deref(), Some("[::]:8080"));
        }
        let args = ProducerArgs::try_parse_from(["pulsar-producer", "--message="]).unwrap();
        assert_eq!(
            (args.message(), args.count, args.timeout),
            ("Sample Message", 1, Duration::from_secs(30))
        );
    }

    #[test]
    fn dead_letters_need_a_topic_and_a_number() {
        let given = ["--dead-letter-topic=d", "--max-redeliver-count=3", "--dead-letter-subscription=s"];
        for (args, subscription) in [(&given[..2], "first-subscription-dlq"), (&given, "s")] {
            let subscription = subscription.to_owned();
            let topic = "d".parse().unwrap();
            let policy = DeadLetterPolicy { max_redeliver_count: 3, topic, subscription, retry_delays: None };
            assert_eq!(consumer(args).unwrap().dead_letters, Some(policy));
        }
    }

    #[test]
    fn a_pattern_does_not_match_the_topics_of_letters() {
        let args = [
            "--topics-pattern=.*",
            "--dead-letter-topic=d",
            "--retry-letter-topic=r",
            "--max-redeliver-count=3",
        ];
        let settings = consumer(&args).unwrap();
        let pattern = settings.subscription.pattern.unwrap();
        let matches = |name: &str| pattern.matches(&format!("persistent://public/default/{name}"));
        assert!(matches("t") && !matches("d") && !matches("r-partition-1"));
        assert!(settings.subscription.topics.is_empty());
        assert_eq!(settings.given[1], ".*");
    }

    #[test]
    fn retries_have_delays() {
        let given =
            ["--dead-letter-topic=d", "--retry-letter-topic=r", "--max-redeliver-count=3", "--topics=a, b"];
        let delays = |more: &str| {
            let settings = consumer(&[&given[..], &[more]].concat()).unwrap();
            assert_eq!(settings.subscription.topics, ["a".parse().unwrap(), "b".parse().unwrap()]);
            settings.dead_letters.unwrap().retry_delays.unwrap()
        };
        assert_eq!(delays("--retry-delays=1s,1m"), [Duration::from_secs(1), Duration::from_mins(1)]);
        assert_eq!(delays("--negative-ack-redelivery-delay=5s"), [Duration::from_secs(5)]);
    }

    #[rstest]
    #[case(&["--server=localhost"], "not an address")]
    #[case(&["--topic=a/b"], "not a topic name")]
    #[case(&["--tls-cert-file=c"], "needs a key file")]
    #[case(&["--tls-key-file=k"], "needs a key file")]
    #[case(&["--tls-cert-file=c", "--tls-key-file=k"], "pulsar+ssl://")]
    #[case(&["--oauth2-token-url=http://issuer"], "a client ID")]
    #[case(&["--oauth2-audience=pulsar"], "a client ID")]
    #[case(&["--oauth2-token-url=a b", "--oauth2-client-id=c", "--oauth2-client-secret-file=f"], "not an address")]
    #[case(&["--token-file=t", "--oauth2-token-url=http://i", "--oauth2-client-id=c", "--oauth2-client-secret-file=f"], "exclude")]
    #[case(&["--subscription-type=shared"], "not a subscription type")]
    #[case(&["--initial-position=First"], "not an initial position")]
    #[case(&["--receiver-queue-size=many"], "use a number")]
    #[case(&["--receiver-queue-bytes=32Mi"], "use a number")]
    #[case(&["--negative-ack-redelivery-delay=60"], "not a duration")]
    #[case(&["--dead-letter-topic=d"], "needs a maximum number")]
    #[case(&["--max-redeliver-count=3"], "needs a dead-letter topic")]
    #[case(&["--dead-letter-topic=my-topic", "--max-redeliver-count=3"], "is the topic itself")]
    #[case(&["--topics=a,a"], "named twice")]
    #[case(&["--topics=a,,b"], "must not be empty")]
    #[case(&["--topic=a", "--topics=b"], "exclude each other")]
    #[case(&["--topics-pattern=("], "not a regular expression")]
    #[case(&["--retry-letter-topic=r"], "needs a dead-letter topic")]
    #[case(&["--retry-letter-topic=my-topic", "--dead-letter-topic=d", "--max-redeliver-count=3"], "is the topic itself")]
    #[case(&["--retry-delays=1s"], "need a retry-letter topic")]
    #[case(&["--retry-letter-topic=d", "--dead-letter-topic=d", "--max-redeliver-count=3"], "is both")]
    #[case(&["--dead-letter-topic=non-persistent://a/b/d", "--max-redeliver-count=3"], "persistent topic")]
    #[case(&["--dead-letter-topic=d", "--max-redeliver-count=3", "--subscription-type=Failover"], "Shared or Key_Shared")]
    #[case(&["--ack-timeout=10s", "--dead-letter-topic=d", "--max-redeliver-count=3"], "exclude each other")]
    #[case(&["--ack-timeout=10ms"], "at least 1s")]
    #[case(&["--read-compacted=true"], "Exclusive and Failover")]
    #[case(&["--read-compacted=yes"], "neither true nor false")]
    #[case(&["--ack-timeout=10s", "--subscription-type=Key_Shared"], "type Shared")]
    #[case(&["--unknown"], "unexpected argument '--unknown'")]
    #[case(&["--topic"], "a value is required")]
    fn reports_a_malformed_setting_in_one_line(#[case] args: &[&str], #[case] why: &str) {
        let line = consumer(args).unwrap_err();
        assert!(line.contains(why) && !line.contains('\n'), "{line}");
    }

    #[test]
    fn prints_help_on_request() {
        let error = ConsumerArgs::try_parse_from(["pulsar-consumer", "--help"]).unwrap_err();
        assert!(complaint(&error).unwrap().contains("PULSAR_RECEIVER_QUEUE_SIZE"));
    }
}
