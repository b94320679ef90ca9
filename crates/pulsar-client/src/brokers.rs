//! The connections to the brokers that serve some topics: lookups, redirects, and frames from all of them.

use std::task::{Context, Poll};

use pulsar::message::proto::base_command::Type;
use pulsar::message::proto::command_lookup_topic_response::LookupType;
use pulsar::message::proto::command_partitioned_topic_metadata_response::LookupType as Found;
use pulsar::message::proto::{
    BaseCommand, CommandGetTopicsOfNamespace, CommandLookupTopic, CommandLookupTopicResponse,
    CommandPartitionedTopicMetadata, ServerError,
};
use quintet_pulsar_topic::{Pattern, Topic};

use crate::address::{Host, ServiceAddress};
use crate::backoff;
use crate::frame::Frame;
use crate::link::{Link, command};
use crate::problem::{Code, Problem};
use crate::security::Files;

/// The limit of redirects between brokers.
const REDIRECTS: usize = 20;

/// A Pulsar service, and how to connect to its brokers.
#[derive(Clone, Debug)]
pub struct Service {
    /// The address.
    pub address: ServiceAddress,
    /// The credentials and the CA.
    pub files: Files,
    /// The advertised listener of the brokers whose addresses are used; None for the default listener.
    pub listener: Option<String>,
}

/// Connections, by number. The first one served the first lookup.
#[derive(Debug)]
pub struct Brokers {
    service: Service,
    links: Vec<(Host, Option<String>, Link)>,
    /// The next connection to poll first, so that none starves.
    next: usize,
}

/// A consumer that needs the broker of its topic.
#[derive(Debug)]
pub struct Lost {
    /// The consumer's number.
    pub number: usize,
    /// The topic, or the partition.
    pub topic: String,
    /// Whether the topic may be deleted.
    pub is_matched: bool,
}

/// The brokers of topics.
#[derive(Debug)]
pub struct Located {
    /// The connections.
    pub brokers: Brokers,
    /// The connection of each consumer, by the consumer's number.
    pub links: Vec<(usize, usize)>,
    /// Consumers whose topics are deleted.
    pub missing: Vec<usize>,
    /// Why other topics were not found.
    pub problem: Option<Problem>,
}

/// Which connections are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// All of them.
    All,
    /// Only this one, so that its message arrives.
    One(usize),
    /// None of them.
    None,
}

/// Which connections to read, so that messages use at most `limit` bytes and the size of one message. `waiting` is
/// the size of the received messages, and `partial` that of the incomplete one of each connection.
///
/// If the incomplete messages alone exceed the limit, the largest one arrives first.
pub fn reading(limit: usize, waiting: usize, partial: impl Iterator<Item = usize> + Clone) -> Reading {
    let used = partial.clone().fold(waiting, usize::saturating_add);
    let largest = partial.enumerate().max_by_key(|(_, size)| *size);
    match largest {
        _ if used < limit => Reading::All,
        Some((largest, _)) if waiting == 0 => Reading::One(largest),
        _ => Reading::None,
    }
}

impl Reading {
    /// Whether this connection is read.
    pub fn includes(self, link: usize) -> bool {
        match self {
            Self::All => true,
            Self::One(only) => link == only,
            Self::None => false,
        }
    }
}

impl Brokers {
    /// Connects to any host of a service.
    pub async fn connect(service: &Service) -> Result<Self, Problem> {
        // An issuer that gives no token gives none for every host.
        service.files.token().await?;
        let base = connect_any(service).await?;
        let links = vec![(base.host().clone(), None, base)];
        Ok(Self { service: service.clone(), links, next: 0 })
    }

    /// Given connections.
    #[cfg(test)]
    pub fn over(service: Service, links: Vec<Link>) -> Self {
        let links = links.into_iter().map(|link| (link.host().clone(), None, link)).collect();
        Self { service, links, next: 0 }
    }

    /// A connection.
    pub fn link(&mut self, number: usize) -> &mut Link {
        &mut self.links[number].2
    }

    /// Closes the first connection if it served only lookups. `used` are the numbers of the used connections.
    pub fn close_unused(&mut self, used: Vec<&mut usize>) {
        if !used.is_empty() && used.iter().all(|link| **link > 0) {
            self.links.remove(0);
            self.next = 0;
            for link in used {
                *link -= 1;
            }
        }
    }

    /// The number of partitions of a topic; 0 without partitions.
    pub async fn partitions(&mut self, topic: &Topic) -> Result<u32, Problem> {
        let answer = self.link(0).request(|request| partitions_of(topic, request)).await?;
        let answer = answer.partition_metadata_response.unwrap_or_default();
        match (answer.response(), answer.error) {
            (Found::Success, None) => Ok(answer.partitions()),
            // The answer for a topic that does not exist yet.
            (_, Some(error)) if error == ServerError::TopicNotFound as i32 => Ok(0),
            _ => Err(Problem::answered(answer.error(), answer.message())),
        }
    }

    /// Requests the number of partitions. The answer to the returned request arrives as a frame.
    pub fn ask_for_partitions(&mut self, topic: &Topic) -> Result<u64, Problem> {
        self.link(0).ask(|request| partitions_of(topic, request))
    }

    /// The topics of a pattern's namespace, each partition by itself.
    pub async fn topics(&mut self, pattern: &Pattern) -> Result<Vec<String>, Problem> {
        let answer = self.link(0).request(|request| topics_of(pattern, request)).await?;
        Ok(answer.get_topics_of_namespace_response.unwrap_or_default().topics)
    }

    /// Requests the topics of a pattern's namespace. The answer arrives as a frame.
    pub fn ask_for_topics(&mut self, pattern: &Pattern) -> Result<(), Problem> {
        self.link(0).ask(|request| topics_of(pattern, request)).map(drop)
    }

    /// Looks up the broker of a topic, and connects to it.
    pub async fn find(&mut self, topic: &str) -> Result<usize, Problem> {
        let (mut link, mut authoritative) = (0, false);
        for _ in 0..REDIRECTS {
            let lookup = CommandLookupTopic {
                topic: topic.to_owned(),
                authoritative: Some(authoritative),
                advertised_listener_name: self.service.listener.clone(),
                ..CommandLookupTopic::default()
            };
            let answer = self
                .link(link)
                .request(|request_id| {
                    let lookup = CommandLookupTopic { request_id, ..lookup };
                    command(Type::Lookup, |c| c.lookup_topic = Some(lookup))
                })
                .await?;
            let answer = answer.lookup_topic_response.unwrap_or_default();
            if answer.response() == LookupType::Failed {
                return Err(Problem::answered(answer.error(), answer.message()));
            }
            let (host, behind) = target(&self.service.address, self.links[0].2.host(), &answer)?;
            authoritative = answer.authoritative();
            link = self.link_to(host, behind).await?;
            if answer.response() == LookupType::Connect {
                return Ok(link);
            }
        }
        Err(Problem::passing(Code::Unreachable, format!("the lookup of {topic} has too many redirects")))
    }

    /// Connects to the brokers of topics, until a failure.
    pub async fn locate(service: Service, all: Vec<Lost>) -> Result<Located, Problem> {
        let brokers = Self::connect(&service).await?;
        let mut located = Located { brokers, links: Vec::new(), missing: Vec::new(), problem: None };
        for Lost { number, topic, is_matched } in all {
            match located.brokers.find(&topic).await {
                Ok(link) => located.links.push((number, link)),
                Err(problem) if is_matched && problem.is_missing_topic => {
                    located.missing.push(number);
                }
                Err(problem) => {
                    located.problem = Some(problem);
                    break;
                }
            }
        }
        Ok(located)
    }

    async fn link_to(&mut self, host: Host, behind: Option<String>) -> Result<usize, Problem> {
        if let Some(link) = self.position(&host, behind.as_ref()) {
            return Ok(link);
        }
        self.service.files.token().await?;
        let tls = self.service.address.tls;
        let link = Link::connect(tls, &host, behind.clone(), &self.service.files).await?;
        self.links.push((host, behind, link));
        Ok(self.links.len() - 1)
    }

    /// The next frame or failure of a connection, with its number. `waiting` is as for [`reading`]. Cancel safe.
    pub fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
        limit: usize,
        waiting: usize,
    ) -> Poll<(usize, Result<Frame, Problem>)> {
        for step in 0..self.links.len() {
            let link = (self.next + step) % self.links.len();
            let is_read = self.reading(limit, waiting).includes(link);
            let (.., connection) = &mut self.links[link];
            let frame = if is_read {
                connection.poll_frame(context)
            } else {
                connection.poll_unsent(context).map_or(Poll::Pending, |problem| Poll::Ready(Err(problem)))
            };
            if let Poll::Ready(frame) = frame {
                self.next = (link + 1) % self.links.len();
                return Poll::Ready((link, frame));
            }
        }
        Poll::Pending
    }

    fn reading(&self, limit: usize, waiting: usize) -> Reading {
        reading(limit, waiting, self.links.iter().map(|(.., link)| link.partial()))
    }

    /// Keeps all connections alive. Returns which ones are read, or a silent one with its failure.
    pub async fn keep_alive(&mut self, limit: usize, waiting: usize) -> Result<Reading, (usize, Problem)> {
        let reading = self.reading(limit, waiting);
        for (link, (.., connection)) in self.links.iter_mut().enumerate() {
            let kept = connection.keep_alive(reading.includes(link)).await;
            kept.map_err(|problem| (link, problem))?;
        }
        Ok(reading)
    }

    /// Whether no connection is left.
    pub fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// Removes a connection. The numbers of later connections decrease by one.
    pub fn remove(&mut self, link: usize) {
        self.links.remove(link);
        self.next = 0;
    }

    /// Takes over those `used` connections of others that lead to other brokers. Returns the numbers that all
    /// connections of the others have here, if any.
    pub fn take_over(&mut self, others: Self, used: &[usize]) -> Vec<Option<usize>> {
        let mut numbers = Vec::new();
        for (number, (host, behind, link)) in others.links.into_iter().enumerate() {
            let known = self.position(&host, behind.as_ref());
            if known.is_none() && used.contains(&number) {
                self.links.push((host, behind, link));
                numbers.push(Some(self.links.len() - 1));
            } else {
                numbers.push(known);
            }
        }
        numbers
    }

    fn position(&self, host: &Host, behind: Option<&String>) -> Option<usize> {
        self.links.iter().position(|(to, via, _)| (to, via.as_ref()) == (host, behind))
    }
}

fn topics_of(pattern: &Pattern, request_id: u64) -> Box<BaseCommand> {
    let namespace = pattern.namespace().to_owned();
    let ask = CommandGetTopicsOfNamespace { request_id, namespace, ..CommandGetTopicsOfNamespace::default() };
    command(Type::GetTopicsOfNamespace, |c| c.get_topics_of_namespace = Some(ask))
}

fn partitions_of(topic: &Topic, request_id: u64) -> Box<BaseCommand> {
    let ask = CommandPartitionedTopicMetadata {
        topic: topic.to_string(),
        request_id,
        ..CommandPartitionedTopicMetadata::default()
    };
    command(Type::PartitionedMetadata, |c| c.partition_metadata = Some(ask))
}

/// Connects to any host of a service, in random order.
async fn connect_any(Service { address, files, .. }: &Service) -> Result<Link, Problem> {
    let count = address.hosts.len();
    let first = usize::try_from(backoff::random() % u64::try_from(count).unwrap_or(1)).unwrap_or_default();
    let mut problem = None;
    for step in 0..count {
        match Link::connect(address.tls, &address.hosts[(first + step) % count], None, files).await {
            Ok(link) => return Ok(link),
            Err(other) if other.end.is_some() => return Err(other),
            Err(other) => problem = Some(other),
        }
    }
    Err(problem.unwrap_or_else(|| Problem::passing(Code::Unreachable, "the server has no host")))
}

/// The target of a lookup's answer: a host, and the broker behind it if the host is a proxy.
fn target(
    server: &ServiceAddress,
    base: &Host,
    answer: &CommandLookupTopicResponse,
) -> Result<(Host, Option<String>), Problem> {
    let url = if server.tls { answer.broker_service_url_tls() } else { answer.broker_service_url() };
    let broker = url.parse::<ServiceAddress>().ok().and_then(|address| address.hosts.into_iter().next());
    let broker = broker.ok_or_else(|| {
        let tls = if server.tls { " with TLS" } else { "" };
        Problem::passing(Code::Unreachable, format!("the topic's broker has no address{tls}"))
    })?;
    if answer.proxy_through_service_url() {
        let behind = broker.to_string();
        Ok((base.clone(), Some(behind)))
    } else {
        Ok((broker, None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(url: &str, tls: &str, proxy: bool) -> CommandLookupTopicResponse {
        CommandLookupTopicResponse {
            broker_service_url: Some(url.to_owned()),
            broker_service_url_tls: Some(tls.to_owned()),
            proxy_through_service_url: Some(proxy),
            ..CommandLookupTopicResponse::default()
        }
    }

    #[test]
    fn reads_until_the_messages_use_the_limit() {
        let reading = |limit, waiting, partial: &[usize]| reading(limit, waiting, partial.iter().copied());
        assert_eq!(reading(10, 4, &[3, 2]), Reading::All);
        assert_eq!(reading(10, 4, &[3, 3]), Reading::None);
        assert_eq!(reading(10, usize::MAX, &[1]), Reading::None);
        // Nothing else can make room, so a message that is larger than the limit arrives.
        assert_eq!(reading(10, 0, &[5, 6]), Reading::One(1));
        assert_eq!(reading(1, 0, &[0, 0]), Reading::All);
    }

    #[test]
    fn follows_the_lookup_to_the_topics_broker() {
        let base = Host { name: "proxy".to_owned(), port: 1 };
        let find = |server: &str, answer: &CommandLookupTopicResponse| {
            let server: ServiceAddress = server.parse().unwrap();
            target(&server, &base, answer).map(|(host, behind)| (host.to_string(), behind))
        };
        let plain = answer("pulsar://b:2", "pulsar+ssl://b:3", false);
        assert_eq!(find("pulsar://a", &plain), Ok(("b:2".to_owned(), None)));
        assert_eq!(find("pulsar+ssl://a", &plain), Ok(("b:3".to_owned(), None)));
        let proxied = answer("pulsar://b:2", "", true);
        assert_eq!(find("pulsar://a", &proxied), Ok(("proxy:1".to_owned(), Some("b:2".to_owned()))));
        assert!(find("pulsar+ssl://a", &proxied).unwrap_err().sentence.contains("with TLS"));
    }
}
