//! The versions of Kubernetes and Helm that clusters run. Commands pass the choice to the tests that they start.

use std::env;
use std::sync::OnceLock;

use crate::variables;

/// The versions of Kubernetes and Helm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Versions {
    /// The newest Kubernetes and Helm 4
    Newest,
    /// The oldest Kubernetes that the chart supports, and Helm 3
    Oldest,
}

static CHOSEN: OnceLock<Versions> = OnceLock::new();

impl Versions {
    /// The value of the variable that passes the choice on.
    pub fn name(self) -> &'static str {
        match self {
            Self::Newest => "newest",
            Self::Oldest => "oldest",
        }
    }
}

/// The versions that this process uses: [`choose`]'s, or else those of the command that started it.
pub fn current() -> Versions {
    *CHOSEN.get_or_init(|| of_variable(env::var(variables::VERSIONS).ok().as_deref()))
}

/// Chooses the versions for this process.
///
/// # Panics
/// If the process used its versions before.
pub fn choose(versions: Versions) {
    assert!(CHOSEN.set(versions).is_ok(), "choose the versions before a cluster uses them");
}

fn of_variable(value: Option<&str>) -> Versions {
    if value == Some(Versions::Oldest.name()) { Versions::Oldest } else { Versions::Newest }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_passes_its_choice_on() {
        for versions in [Versions::Newest, Versions::Oldest] {
            assert_eq!(of_variable(Some(versions.name())), versions);
        }
        assert_eq!(of_variable(None), Versions::Newest);
    }
}
