//! The keys that DaemonJobs may use in `onSuccess`: prefixes that an administrator allows for each namespace.
//!
//! The manager patches Nodes with its own rights. Without this limit, every user who may create a DaemonJob could
//! set any label and remove any taint.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;

/// The domains whose keys belong to Kubernetes. No administrator can allow them.
const RESERVED: [&str; 2] = ["kubernetes.io", "k8s.io"];

/// The longest name of a label or taint, without its domain, and the longest value of a label.
const LONGEST_NAME: usize = 63;
/// The longest domain of a key.
const LONGEST_DOMAIN: usize = 253;

/// Whether a text of ASCII letters, digits and these characters begins and ends with a letter or digit.
fn is_word(text: &str, also: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || also.as_bytes().contains(&byte);
    let is_end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.iter().all(|byte| is_inner(*byte)) && is_end(bytes.first()) && is_end(bytes.last())
}

fn is_domain(text: &str) -> bool {
    text.len() <= LONGEST_DOMAIN && is_word(text, "-.") && !text.bytes().any(|byte| byte.is_ascii_uppercase())
}

/// Whether a text is the key of a label or taint with a domain.
pub fn is_key(text: &str) -> bool {
    let Some((domain, name)) = text.split_once('/') else { return false };
    is_domain(domain) && name.len() <= LONGEST_NAME && is_word(name, "-_.")
}

/// Whether a text is the value of a label. An empty text is one.
pub fn is_label_value(text: &str) -> bool {
    text.is_empty() || text.len() <= LONGEST_NAME && is_word(text, "-_.")
}

/// Whether a key, or the beginning of one, has a domain that belongs to Kubernetes.
pub fn is_reserved(key: &str) -> bool {
    let Some((domain, _)) = key.split_once('/') else { return false };
    RESERVED.iter().any(|reserved| {
        domain.strip_suffix(reserved).is_some_and(|parent| parent.is_empty() || parent.ends_with('.'))
    })
}

/// A value of `--daemon-job-node-marks`: a namespace, and a prefix of the keys that its DaemonJobs may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkPrefix {
    namespace: Box<str>,
    prefix: Box<str>,
}

impl FromStr for MarkPrefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| {
            format!("{why}: use NAMESPACE=DOMAIN/ or NAMESPACE=DOMAIN/BEGINNING, such as team-a=example.com/")
        };
        let (namespace, prefix) = text.split_once('=').ok_or_else(|| wrong("there is no ="))?;
        if !is_domain(namespace) || namespace.contains('.') {
            return Err(wrong(&format!("{namespace:?} is not a namespace")));
        }
        if is_reserved(prefix) {
            return Err(format!("{prefix:?} belongs to Kubernetes: use another domain"));
        }
        let (domain, beginning) = prefix.split_once('/').unwrap_or_default();
        let is_beginning = |text: &str| text.is_empty() || is_word(&format!("{text}x"), "-_.");
        if !is_domain(domain) || !is_beginning(beginning) {
            return Err(wrong(&format!("{prefix:?} is not the beginning of a key with a domain")));
        }
        Ok(Self { namespace: namespace.into(), prefix: prefix.into() })
    }
}

/// The prefixes that an administrator allows, by namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MarkPrefixes(BTreeMap<Box<str>, Arc<[Box<str>]>>);

impl MarkPrefixes {
    /// The prefixes of one namespace.
    pub fn of(&self, namespace: &str) -> Permitted {
        Permitted::Prefixes(self.0.get(namespace).cloned().unwrap_or_default())
    }
}

impl From<&[MarkPrefix]> for MarkPrefixes {
    fn from(all: &[MarkPrefix]) -> Self {
        let mut by_namespace: BTreeMap<Box<str>, Vec<Box<str>>> = BTreeMap::new();
        for MarkPrefix { namespace, prefix } in all {
            by_namespace.entry(namespace.clone()).or_default().push(prefix.clone());
        }
        Self(by_namespace.into_iter().map(|(namespace, prefixes)| (namespace, prefixes.into())).collect())
    }
}

/// The keys that the DaemonJobs of one namespace may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Permitted {
    /// Keys that begin with one of these prefixes. Without a prefix, no key.
    Prefixes(Arc<[Box<str>]>),
    /// Only the manager knows its flags. `quintet explain` assumes that every key is allowed.
    Unknown,
}

impl Default for Permitted {
    fn default() -> Self {
        Self::Prefixes(Arc::default())
    }
}

/// Why the manager does not write a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAllowed {
    /// The namespace has no prefixes.
    Namespace,
    /// The key begins with none of the prefixes of the namespace.
    Prefix,
    /// The key belongs to Kubernetes.
    Reserved,
}

impl Permitted {
    /// Why the manager does not write this key, or None if it may.
    pub fn refuses(&self, key: &str) -> Option<NotAllowed> {
        if is_reserved(key) {
            return Some(NotAllowed::Reserved);
        }
        match self {
            Self::Unknown => None,
            Self::Prefixes(prefixes) if prefixes.is_empty() => Some(NotAllowed::Namespace),
            Self::Prefixes(prefixes) => {
                let is_allowed = prefixes.iter().any(|prefix| key.starts_with(&**prefix));
                (!is_allowed).then_some(NotAllowed::Prefix)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::domain("team-a=example.com/", true)]
    #[case::beginning("team-a=example.com/gpu-", true)]
    #[case::whole_key("team-a=gpu.example.com/ready", true)]
    #[case::no_prefix("team-a", false)]
    #[case::empty_prefix("team-a=", false)]
    #[case::empty_namespace("=example.com/", false)]
    #[case::every_namespace("*=example.com/", false)]
    // Otherwise, example.com would allow example.community/x.
    #[case::no_slash("team-a=example.com", false)]
    #[case::no_domain("team-a=/x", false)]
    #[case::two_slashes("team-a=example.com/a/b", false)]
    #[case::begins_with_a_dash("team-a=example.com/-x", false)]
    #[case::kubernetes("team-a=kubernetes.io/", false)]
    #[case::part_of_kubernetes("team-a=node.kubernetes.io/x", false)]
    #[case::k8s("team-a=x.k8s.io/", false)]
    #[case::another_domain("team-a=notk8s.io/", true)]
    fn a_prefix_has_a_domain(#[case] text: &str, #[case] is_valid: bool) {
        assert_eq!(text.parse::<MarkPrefix>().is_ok(), is_valid, "{:?}", text.parse::<MarkPrefix>());
    }

    #[rstest]
    #[case("example.com/ready", true)]
    #[case("ready", false)]
    #[case("a.b/C_d.e-F", true)]
    #[case("", false)]
    #[case("example.com/", false)]
    #[case("/ready", false)]
    #[case("Example.com/ready", false)]
    #[case("example.com/ready-", false)]
    #[case("example.com/a/b", false)]
    fn a_key_has_a_domain_and_a_name(#[case] text: &str, #[case] expected: bool) {
        assert_eq!(is_key(text), expected);
        assert!(!is_key(&format!("example.com/{}", "a".repeat(64))));
    }

    #[test]
    fn allows_the_prefixes_of_the_namespace_only() {
        let flags = ["team-a=example.com/", "team-b=example.com/gpu-", "team-a=example.org/x"];
        let flags: Vec<MarkPrefix> = flags.iter().map(|flag| flag.parse().unwrap()).collect();
        let all = MarkPrefixes::from(&flags[..]);
        for (namespace, key, expected) in [
            ("team-a", "example.com/ready", None),
            ("team-a", "example.org/x-ray", None),
            ("team-a", "example.org/ready", Some(NotAllowed::Prefix)),
            ("team-a", "example.community/ready", Some(NotAllowed::Prefix)),
            ("team-a", "ready", Some(NotAllowed::Prefix)),
            ("team-b", "example.com/gpu-ready", None),
            ("team-b", "example.com/ready", Some(NotAllowed::Prefix)),
            ("team-c", "example.com/ready", Some(NotAllowed::Namespace)),
            ("team-c", "node.kubernetes.io/ready", Some(NotAllowed::Reserved)),
        ] {
            assert_eq!(all.of(namespace).refuses(key), expected, "{namespace} {key}");
        }
        assert_eq!(Permitted::Unknown.refuses("a.example.com/b"), None);
        assert_eq!(Permitted::Unknown.refuses("kubernetes.io/b"), Some(NotAllowed::Reserved));
    }

    /// A mistake in the definition or in a flag must not allow a key of Kubernetes.
    #[test]
    fn never_allows_a_key_of_kubernetes() {
        let prefixes: [Box<str>; 2] = ["kubernetes.io/".into(), "k8s.io/".into()];
        let all = Permitted::Prefixes(prefixes.into());
        for key in ["kubernetes.io/hostname", "k8s.io/x", "node-restriction.kubernetes.io/x", "a.k8s.io/x"] {
            assert_eq!(all.refuses(key), Some(NotAllowed::Reserved), "{key}");
        }
    }

    #[test]
    fn a_label_value_may_be_empty() {
        for (value, expected) in
            [("", true), ("true", true), ("a.b_c-d", true), ("a b", false), ("-a", false)]
        {
            assert_eq!(is_label_value(value), expected, "{value:?}");
        }
    }
}
