//! What stands between a consumer and its messages: a code for `/readyz`, a sentence, and whether trying again can help.

use pulsar::message::proto::ServerError;

use crate::exit::{Exit, Failure};

/// The status codes of `/readyz`. The event of a failed probe carries the code alone, so the code says why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// Subscribed.
    Subscribed,
    /// The broker refuses the token, or asks for one.
    TokenRefused,
    /// The token's role may not consume from the topic.
    NotPermitted,
    /// There is no such topic or namespace, and none is made by itself.
    NotFound,
    /// Another consumer has the subscription, which is Exclusive, or of another type.
    Busy,
    /// No broker can be reached, or the one that can does not serve the topic now.
    Unreachable,
    /// Starting or shutting down.
    Starting,
    /// TLS cannot be agreed on with the broker: its certificate has expired, or comes from another CA.
    TlsFailed,
}

impl Code {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Subscribed,
        Self::TokenRefused,
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
            Self::TokenRefused => 401,
            Self::NotPermitted => 403,
            Self::NotFound => 404,
            Self::Busy => 409,
            Self::Unreachable => 502,
            Self::Starting => 503,
            Self::TlsFailed => 525,
        }
    }
}

/// Something that went wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{sentence}")]
pub struct Problem {
    /// What it means for readiness.
    pub code: Code,
    /// What happened, in one line.
    pub sentence: String,
    /// How the program ends of it, where trying again cannot help.
    pub end: Option<Exit>,
}

impl Problem {
    /// One that may pass.
    pub fn passing(code: Code, sentence: impl Into<String>) -> Self {
        Self { code, sentence: one_line(&sentence.into()), end: None }
    }

    /// One that trying again cannot mend.
    pub fn last(end: Exit, code: Code, sentence: impl Into<String>) -> Self {
        Self { end: Some(end), ..Self::passing(code, sentence) }
    }

    /// What the program ends with, where trying again cannot help.
    pub fn failure(&self) -> Option<Failure> {
        self.end.map(|exit| Failure { exit, line: self.sentence.clone() })
    }

    /// What a broker's error means.
    pub fn answered(error: ServerError, message: &str) -> Self {
        let says = |what: &str| format!("{what}: the broker says {message:?}");
        match error {
            ServerError::AuthenticationError => {
                Self::last(Exit::TokenRefused, Code::TokenRefused, says("the token was refused"))
            }
            ServerError::AuthorizationError => {
                Self::passing(Code::NotPermitted, says("the token's role has no right to the topic"))
            }
            ServerError::TopicNotFound | ServerError::SubscriptionNotFound => {
                Self::passing(Code::NotFound, says("the topic was not found"))
            }
            // Pulsar has no error of its own for an absent namespace or tenant.
            ServerError::MetadataError | ServerError::UnknownError if is_about_absence(message) => {
                Self::passing(Code::NotFound, says("the topic's namespace was not found"))
            }
            ServerError::ConsumerBusy | ServerError::ConsumerAssignError => {
                Self::passing(Code::Busy, says("the subscription is taken"))
            }
            ServerError::InvalidTopicName => {
                Self::last(Exit::Setting, Code::NotFound, says("this is no name of a topic"))
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

/// The first line, without what a Java program puts before and after it.
fn one_line(sentence: &str) -> String {
    sentence.lines().next().unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn every_code_has_a_status_of_its_own() {
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
    #[case(ServerError::MetadataError, "Namespace not found", 404, false)]
    #[case(ServerError::MetadataError, "store is down", 502, false)]
    #[case(ServerError::ConsumerBusy, "", 409, false)]
    #[case(ServerError::ServiceNotReady, "", 502, false)]
    #[case(ServerError::InvalidTopicName, "", 404, true)]
    fn a_brokers_error_has_a_meaning(
        #[case] error: ServerError,
        #[case] message: &str,
        #[case] status: u16,
        #[case] is_final: bool,
    ) {
        let problem = Problem::answered(error, message);
        assert_eq!((problem.code.status(), problem.end.is_some()), (status, is_final));
    }

    #[test]
    fn a_sentence_is_one_line() {
        assert_eq!(Problem::passing(Code::Busy, "a\n  at b\n").sentence, "a");
    }
}
