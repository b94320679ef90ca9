//! The reason why a consumer gets no messages: a code for `/readyz`, a sentence, and whether a retry can
//! help.

use pulsar::message::proto::ServerError;

use crate::exit::{Exit, Failure};

/// The status codes of `/readyz`. The Event of a failed probe has only the code, so the code names the
/// reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// Subscribed.
    Subscribed,
    /// The broker rejects or requires credentials.
    Unauthorized,
    /// The role of the credentials may not consume from the topic.
    NotPermitted,
    /// The topic or namespace does not exist, and the broker does not create it.
    NotFound,
    /// Another consumer has the Exclusive subscription, or the subscription has another type.
    Busy,
    /// No broker is reachable, or it does not serve the topic now.
    Unreachable,
    /// Starting or shutting down.
    Starting,
    /// TLS failed: the broker's certificate has expired or comes from another CA, or the port has no TLS.
    TlsFailed,
}

impl Code {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Subscribed,
        Self::Unauthorized,
        Self::NotPermitted,
        Self::NotFound,
        Self::Busy,
        Self::Unreachable,
        Self::Starting,
        Self::TlsFailed,
    ];

    /// The number.
    pub const fn status(self) -> u16 {
        match self {
            Self::Subscribed => 200,
            Self::Unauthorized => 401,
            Self::NotPermitted => 403,
            Self::NotFound => 404,
            Self::Busy => 409,
            Self::Unreachable => 502,
            Self::Starting => 503,
            Self::TlsFailed => 525,
        }
    }
}

/// A failure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{sentence}")]
pub struct Problem {
    /// The status code of `/readyz`.
    pub code: Code,
    /// The failure in one line.
    pub sentence: String,
    /// The exit of the program, if a retry cannot help.
    pub end: Option<Exit>,
    /// Whether the topic does not exist, and the broker was not to create it.
    pub is_missing_topic: bool,
}

impl Problem {
    /// A temporary failure.
    pub fn passing(code: Code, sentence: impl Into<String>) -> Self {
        Self { code, sentence: one_line(&sentence.into()), end: None, is_missing_topic: false }
    }

    /// A permanent failure.
    pub fn last(end: Exit, code: Code, sentence: impl Into<String>) -> Self {
        Self { end: Some(end), ..Self::passing(code, sentence) }
    }

    /// The exit of the program; None for a temporary failure.
    pub fn failure(&self) -> Option<Failure> {
        self.end.map(|exit| Failure { exit, line: self.sentence.clone() })
    }

    /// The meaning of a broker's error.
    pub fn answered(error: ServerError, message: &str) -> Self {
        let says = |what: &str| format!("{what}; the broker's message is {message:?}");
        match error {
            ServerError::AuthenticationError => Self::last(
                Exit::Unauthorized,
                Code::Unauthorized,
                says("the broker rejected the credentials"),
            ),
            ServerError::AuthorizationError => {
                Self::passing(Code::NotPermitted, says("the role has no permission for the topic"))
            }
            ServerError::TopicNotFound => Self {
                is_missing_topic: true,
                ..Self::passing(Code::NotFound, says("the topic does not exist"))
            },
            ServerError::SubscriptionNotFound => Self::passing(
                Code::NotFound,
                says("the subscription does not exist, and the broker does not create it"),
            ),
            // Pulsar has no separate error for a missing namespace or tenant.
            ServerError::MetadataError | ServerError::UnknownError if is_about_absence(message) => {
                Self::passing(Code::NotFound, says("the topic's namespace does not exist"))
            }
            ServerError::ConsumerBusy | ServerError::ConsumerAssignError => {
                Self::passing(Code::Busy, says("the subscription is in use"))
            }
            ServerError::InvalidTopicName => {
                Self::last(Exit::Setting, Code::NotFound, says("the topic name is invalid"))
            }
            other => Self::passing(
                Code::Unreachable,
                says(&format!("the broker does not serve the topic ({})", other.as_str_name())),
            ),
        }
    }
}

fn is_about_absence(message: &str) -> bool {
    ["not found", "does not exist"].iter().any(|words| message.to_lowercase().contains(words))
}

/// The first line, without the stack trace of a Java program.
fn one_line(sentence: &str) -> String {
    sentence.lines().next().unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn every_code_has_another_status() {
        let mut statuses: Vec<u16> = Code::ALL.iter().map(|code| code.status()).collect();
        statuses.dedup();
        assert_eq!(statuses.len(), Code::ALL.len());
        assert!(statuses.is_sorted());
        assert!(Code::ALL.iter().all(|code| (code.status() == 200) == (*code == Code::Subscribed)));
    }

    #[rstest]
    #[case(ServerError::AuthenticationError, "", 401, true)]
    #[case(ServerError::AuthorizationError, "", 403, false)]
    #[case(ServerError::TopicNotFound, "", 404, false)]
    #[case(ServerError::SubscriptionNotFound, "", 404, false)]
    #[case(ServerError::MetadataError, "Namespace not found", 404, false)]
    #[case(ServerError::MetadataError, "store is down", 502, false)]
    #[case(ServerError::ConsumerBusy, "", 409, false)]
    #[case(ServerError::ServiceNotReady, "", 502, false)]
    #[case(ServerError::InvalidTopicName, "", 404, true)]
    fn maps_the_errors_of_a_broker(
        #[case] error: ServerError,
        #[case] message: &str,
        #[case] status: u16,
        #[case] is_final: bool,
    ) {
        let problem = Problem::answered(error, message);
        assert_eq!((problem.code.status(), problem.end.is_some()), (status, is_final));
    }

    #[test]
    fn a_sentence_has_one_line() {
        assert_eq!(Problem::passing(Code::Busy, "a\n  at b\n").sentence, "a");
    }
}
