//! Flags and variables of both programs. An empty variable counts as one that is not set, as the operator and the post's
//! programs have it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use pulsar::message::proto::command_subscribe::{InitialPosition, SubType};

use crate::address::ServiceAddress;
use crate::duration;
use crate::security::Files;
use crate::session::Subscription;
use crate::topic::TopicName;

/// What both programs need to find a topic.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Where {
    /// The Pulsar service: pulsar://host:6650 or pulsar+ssl://host:6651, with commas between hosts
    /// [default: pulsar://localhost:6650]
    #[arg(long, env = "PULSAR_SERVER", value_name = "URL", hide_env_values = true)]
    server: Option<String>,
    /// The topic: a name, tenant/namespace/name, or persistent:// or non-persistent:// before that [default: my-topic]
    #[arg(long, env = "PULSAR_TOPIC", value_name = "NAME", hide_env_values = true)]
    topic: Option<String>,
    /// A file with the token to show; read anew for every connection
    #[arg(long, env = "PULSAR_TOKEN_FILE", value_name = "FILE", hide_env_values = true)]
    token_file: Option<OsString>,
    /// A file with the CA certificates to trust, in PEM, in place of those of the public internet; read anew for every
    /// connection
    #[arg(long, env = "PULSAR_TLS_CA_FILE", value_name = "FILE", hide_env_values = true)]
    tls_ca_file: Option<OsString>,
}

impl Where {
    /// The service.
    pub fn server(&self) -> Result<ServiceAddress, String> {
        self.given_server().parse().map_err(|error: crate::address::Malformed| error.to_string())
    }

    /// The topic.
    pub fn topic(&self) -> Result<TopicName, String> {
        parse_topic(self.given_topic())
    }

    fn given_server(&self) -> &str {
        given(self.server.as_deref()).unwrap_or("pulsar://localhost:6650")
    }

    fn given_topic(&self) -> &str {
        given(self.topic.as_deref()).unwrap_or("my-topic")
    }

    /// Token and CA.
    pub fn files(&self) -> Files {
        let given =
            |file: &Option<OsString>| file.as_ref().filter(|file| !file.is_empty()).map(PathBuf::from);
        Files { token: given(&self.token_file), ca: given(&self.tls_ca_file) }
    }
}

/// Receives the messages of a topic of Apache Pulsar and prints each on a line
///
/// Every message becomes a line "Message Received: PAYLOAD" on stdout and is acknowledged after that. Control characters
/// are escaped, so that a message is one line. What happens else goes to stderr. The program runs until it is told to
/// stop (SIGTERM, SIGINT), and then ends with 0; a broker that cannot be reached is tried for ever. It ends by itself
/// only for what trying again cannot mend: 2 for a malformed setting, 3 for a refused token, 4 for a file that cannot be
/// read, 5 for a stdout that was closed, 1 for anything else.
#[derive(Clone, Debug, Default, clap::Parser)]
#[command(name = "pulsar-consumer", version)]
pub struct ConsumerArgs {
    #[command(flatten)]
    location: Where,
    /// The subscription [default: first-subscription]
    #[arg(long, env = "PULSAR_SUBSCRIPTION_NAME", value_name = "NAME", hide_env_values = true)]
    subscription_name: Option<String>,
    /// How consumers share the subscription: Shared, Exclusive, Failover or Key_Shared [default: Shared]
    #[arg(long, env = "PULSAR_SUBSCRIPTION_TYPE", value_name = "TYPE", hide_env_values = true)]
    subscription_type: Option<String>,
    /// Where a new subscription begins: Latest or Earliest [default: Latest]
    #[arg(long, env = "PULSAR_INITIAL_POSITION", value_name = "POSITION", hide_env_values = true)]
    initial_position: Option<String>,
    /// The topic for messages that were delivered too often; needs --max-redeliver-count, and Shared or Key_Shared: for the
    /// others the broker counts no deliveries, and it stays empty
    #[arg(long, env = "PULSAR_DEAD_LETTER_TOPIC", value_name = "NAME", hide_env_values = true)]
    dead_letter_topic: Option<String>,
    /// How often a message may be delivered again before it goes to the dead-letter topic
    #[arg(long, env = "PULSAR_MAX_REDELIVER_COUNT", value_name = "NUMBER", hide_env_values = true)]
    max_redeliver_count: Option<String>,
    /// When a message that cannot be read is asked for again, such as 60s, 1m30s or 500ms [default: 60s]
    #[arg(
        long,
        env = "PULSAR_NEGATIVE_ACK_REDELIVERY_DELAY",
        value_name = "DURATION",
        hide_env_values = true
    )]
    negative_ack_redelivery_delay: Option<String>,
    /// How many messages of each partition the broker may send ahead of those that became lines [default: 1000]
    #[arg(long, env = "PULSAR_RECEIVER_QUEUE_SIZE", value_name = "NUMBER", hide_env_values = true)]
    receiver_queue_size: Option<String>,
    /// The consumer's name, as the broker shows it [default: the host's name]
    #[arg(long, env = "PULSAR_CONSUMER_NAME", value_name = "NAME", hide_env_values = true)]
    consumer_name: Option<String>,
    /// Where /healthz, /readyz and /metrics are served; 0 for nowhere [default: [::]:8080, or 0.0.0.0:8080 without IPv6]
    #[arg(long, env = "PULSAR_HTTP_BIND_ADDRESS", value_name = "ADDRESS", hide_env_values = true)]
    http_bind_address: Option<String>,
}

/// What the consumer does.
#[derive(Clone, Debug)]
pub struct ConsumerSettings {
    /// What it subscribes to.
    pub subscription: Subscription,
    /// Where messages go that were delivered too often. The broker counts that for Shared and Key_Shared alone.
    pub dead_letters: Option<DeadLetterPolicy>,
    /// When a message that cannot be read is asked for again.
    pub redelivery_delay: Duration,
    /// Where it serves its probes; nothing for nowhere.
    pub http: Option<String>,
    /// Server and topic as they were given, to be said.
    pub given: [String; 2],
}

/// When a message has been delivered too often, and where it goes then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetterPolicy {
    /// How often it may be delivered again.
    pub max_redeliver_count: u32,
    /// The topic.
    pub topic: TopicName,
}

impl ConsumerArgs {
    /// The settings, or what is wrong with them. `host` is the name of this host.
    pub fn settings(&self, host: Option<String>) -> Result<ConsumerSettings, String> {
        let subscription = Subscription {
            server: self.location.server()?,
            topic: self.location.topic()?,
            name: given(self.subscription_name.as_deref()).unwrap_or("first-subscription").to_owned(),
            kind: subscription_type(given(self.subscription_type.as_deref()).unwrap_or("Shared"))?,
            position: position(given(self.initial_position.as_deref()).unwrap_or("Latest"))?,
            consumer: given(self.consumer_name.as_deref()).map(str::to_owned).or(host),
            queue: number(
                "the receiver queue's size",
                given(self.receiver_queue_size.as_deref()).unwrap_or("1000"),
            )?
            .max(1),
            files: self.location.files(),
        };
        let http = given(self.http_bind_address.as_deref()).unwrap_or("[::]:8080").to_owned();
        Ok(ConsumerSettings {
            dead_letters: self.dead_letters(&subscription.topic)?,
            redelivery_delay: duration::parse(
                given(self.negative_ack_redelivery_delay.as_deref()).unwrap_or("60s"),
            )?,
            http: (http != "0").then_some(http),
            given: [self.location.given_server(), self.location.given_topic()].map(str::to_owned),
            subscription,
        })
    }

    fn dead_letters(&self, topic: &TopicName) -> Result<Option<DeadLetterPolicy>, String> {
        let count = given(self.max_redeliver_count.as_deref());
        match (given(self.dead_letter_topic.as_deref()), count) {
            (None, None) => Ok(None),
            (Some(name), Some(count)) => {
                let dead = parse_topic(name)?;
                if dead == *topic {
                    return Err(format!("the dead-letter topic {name:?} is the topic itself"));
                }
                let max_redeliver_count = number("the maximal number of redeliveries", count)?;
                Ok(Some(DeadLetterPolicy { max_redeliver_count, topic: dead }))
            }
            (Some(_), None) => Err("a dead-letter topic needs the maximal number of redeliveries".to_owned()),
            (None, Some(_)) => Err("a maximal number of redeliveries needs a dead-letter topic".to_owned()),
        }
    }
}

/// Sends messages to a topic of Apache Pulsar
///
/// One message, or with --count more of them. It waits until the broker has confirmed each, prints "Published message" and
/// ends with 0; for more than one message it prints how many. It ends with 1 if not all were confirmed in time, and says
/// how many were; with 2 for a malformed setting, 3 for a refused token, 4 for a file that cannot be read.
#[derive(Clone, Debug, Default, clap::Parser)]
#[command(name = "pulsar-producer", version)]
pub struct ProducerArgs {
    /// Where to.
    #[command(flatten)]
    pub location: Where,
    /// What to send [default: Sample Message]
    #[arg(long, env = "PULSAR_MESSAGE", value_name = "TEXT", hide_env_values = true)]
    message: Option<String>,
    /// How many messages to send; more than one end with their number, from 1
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub count: u64,
    /// How many messages to send in a second at most
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: Option<u32>,
    /// Send every message by itself; else more than one are sent in batches
    #[arg(long)]
    pub no_batching: bool,
    /// How long the broker may be out of reach, and how long it may take to confirm a message
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse)]
    pub timeout: Duration,
}

impl ProducerArgs {
    /// What to send.
    pub fn message(&self) -> &str {
        given(self.message.as_deref()).unwrap_or("Sample Message")
    }
}

/// What is wrong with a command line, in one line; a whole text where it is asked for (`--help`).
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

fn parse_topic(name: &str) -> Result<TopicName, String> {
    name.parse().map_err(|error: crate::topic::Malformed| error.to_string())
}

fn subscription_type(name: &str) -> Result<SubType, String> {
    match name {
        "Shared" => Ok(SubType::Shared),
        "Exclusive" => Ok(SubType::Exclusive),
        "Failover" => Ok(SubType::Failover),
        "Key_Shared" => Ok(SubType::KeyShared),
        _ => Err(format!(
            "{name:?} is no type of a subscription: use Shared, Exclusive, Failover or Key_Shared"
        )),
    }
}

fn position(name: &str) -> Result<InitialPosition, String> {
    match name {
        "Latest" => Ok(InitialPosition::Latest),
        "Earliest" => Ok(InitialPosition::Earliest),
        _ => Err(format!("{name:?} is no position to begin at: use Latest or Earliest")),
    }
}

fn number(what: &str, text: &str) -> Result<u32, String> {
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
    fn what_is_not_given_is_as_in_the_post() {
        for args in
            [&[][..], &["--server=", "--topic=", "--subscription-name=", "--token-file=", "--consumer-name="]]
        {
            let settings = consumer(args).unwrap();
            let subscription = settings.subscription;
            assert_eq!(subscription.server, "pulsar://localhost:6650".parse().unwrap());
            assert_eq!(subscription.topic, "my-topic".parse().unwrap());
            assert_eq!(subscription.name, "first-subscription");
            assert_eq!(
                (subscription.kind, subscription.position),
                (SubType::Shared, InitialPosition::Latest)
            );
            assert_eq!((subscription.queue, subscription.consumer.as_deref()), (1_000, Some("pod")));
            assert_eq!(subscription.files, Files::default());
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
        let settings = consumer(&["--dead-letter-topic=d", "--max-redeliver-count=3"]).unwrap();
        let policy = DeadLetterPolicy { max_redeliver_count: 3, topic: "d".parse().unwrap() };
        assert_eq!(settings.dead_letters, Some(policy));
    }

    #[rstest]
    #[case(&["--server=localhost"], "no address")]
    #[case(&["--topic=a/b"], "no name of a topic")]
    #[case(&["--subscription-type=shared"], "no type of a subscription")]
    #[case(&["--initial-position=First"], "no position")]
    #[case(&["--receiver-queue-size=many"], "use a number")]
    #[case(&["--negative-ack-redelivery-delay=60"], "no duration")]
    #[case(&["--dead-letter-topic=d"], "needs the maximal number")]
    #[case(&["--max-redeliver-count=3"], "needs a dead-letter topic")]
    #[case(&["--dead-letter-topic=my-topic", "--max-redeliver-count=3"], "is the topic itself")]
    #[case(&["--unknown"], "unexpected argument '--unknown'")]
    #[case(&["--topic"], "a value is required")]
    fn what_is_malformed_gets_one_line(#[case] args: &[&str], #[case] why: &str) {
        let line = consumer(args).unwrap_err();
        assert!(line.contains(why) && !line.contains('\n'), "{line}");
    }

    #[test]
    fn help_is_given_where_it_is_asked_for() {
        let error = ConsumerArgs::try_parse_from(["pulsar-consumer", "--help"]).unwrap_err();
        assert!(complaint(&error).unwrap().contains("PULSAR_RECEIVER_QUEUE_SIZE"));
    }
}
