//! The table of the kinds.
//!
//! Every list of kinds derives from it: the manager's flags, the finalizers that uninstall removes, the generated definitions
//! and roles. To add a kind, add it to [`KINDS`] and to [`definitions`].

pub mod guard_rails;

use anyhow::{Context as _, Result};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;
use quintet_book::api::Book;
use quintet_daemonjob::api::DaemonJob;
pub use quintet_daemonjob::mark_prefixes::MarkPrefix;
use quintet_greeting::api::Greeting;
use quintet_greeting::printer::Printer;
use quintet_podset::api::PodSet;
use quintet_pulsarconsumer::api::PulsarConsumer;
pub use quintet_pulsarconsumer::{Image, Reach, Settings as ConsumerSettings};
use quintet_runtime::control::context::Context;
use quintet_runtime::control::sweeper;
use quintet_runtime::model::problem::{FindProblems, problems_in};
use quintet_runtime::model::resource::{PODS, Resource};
use quintet_runtime::model::rule::Rule;

/// A kind, as the rest of Quintet sees it.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// The controller's name. It is a value of `--controllers`, and the kind's folder in `crates/` and `samples/`.
    pub controller: &'static str,
    /// Its custom resource.
    pub resource: fn() -> Resource,
    /// The file of the kind's first sample, from the tutorial if there is one. It is called like its object.
    pub sample: &'static str,
    /// The RBAC rules of its controller.
    pub rules: &'static [Rule],
    /// The RBAC rules of its sweeper, which also runs for a disabled kind.
    pub sweep_rules: &'static [Rule],
    /// The RBAC rules of `quintet uninstall`.
    pub uninstall_rules: &'static [Rule],
    /// The finalizer that its controller adds to objects.
    pub finalizer: Option<Finalizer>,
    /// The problems that the status of an object shows, as in the metric that names objects.
    pub problems: FindProblems,
    register: fn(&Context, &Options, is_enabled: bool) -> Result<()>,
}

/// A finalizer and the type of its objects.
#[derive(Clone, Copy, Debug)]
pub struct Finalizer {
    /// Its name.
    pub name: &'static str,
    /// The type of the objects.
    pub resource: fn() -> Resource,
}

/// The flags for single kinds.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Keys of additional taints that announce the deletion of a node, for DaemonJob.
    pub deletion_taints: Vec<String>,
    /// The keys that `onSuccess` may use, for DaemonJob.
    pub mark_prefixes: Vec<MarkPrefix>,
    /// The settings for PulsarConsumer.
    pub consumers: ConsumerSettings,
    /// The unique identity of this process, for Greeting.
    pub identity: String,
}

impl Kind {
    /// Adds the kind's controller to the process. If the kind is not enabled, adds only its sweeper, if it has one.
    ///
    /// # Errors
    ///
    /// If its metrics cannot be registered, or its thread cannot be started.
    pub fn register(&self, context: &Context, options: &Options, is_enabled: bool) -> Result<()> {
        (self.register)(&context.windowed(), options, is_enabled)
            .with_context(|| format!("cannot start controller {}", self.controller))
    }
}

/// The kinds, in the order in which documents list them.
pub const KINDS: [Kind; 5] = [
    Kind {
        controller: quintet_daemonjob::CONTROLLER,
        resource: Resource::of::<DaemonJob>,
        sample: "daemonjob-sample.yaml",
        rules: quintet_daemonjob::RULES,
        sweep_rules: quintet_daemonjob::SWEEP_RULES,
        uninstall_rules: quintet_daemonjob::UNINSTALL_RULES,
        finalizer: Some(Finalizer { name: quintet_daemonjob::FINALIZER, resource: || PODS }),
        problems: |json, now| problems_in(json, now, quintet_daemonjob::problems::problems),
        register: |context, options, is_enabled| {
            let (taints, marks) = (&options.deletion_taints, &options.mark_prefixes);
            let register = || quintet_daemonjob::register(context, taints, marks);
            let served = is_enabled.then(register).transpose()?;
            quintet_daemonjob::sweep::register(context, served);
            Ok(())
        },
    },
    Kind {
        controller: quintet_podset::CONTROLLER,
        resource: Resource::of::<PodSet>,
        sample: "podset-sample.yaml",
        rules: quintet_podset::RULES,
        sweep_rules: &[],
        uninstall_rules: quintet_podset::UNINSTALL_RULES,
        finalizer: None,
        problems: |json, now| problems_in(json, now, quintet_podset::metrics::problems),
        register: |context, _, is_enabled| {
            if is_enabled {
                quintet_podset::register(context)?;
            }
            Ok(())
        },
    },
    Kind {
        controller: quintet_pulsarconsumer::CONTROLLER,
        resource: Resource::of::<PulsarConsumer>,
        sample: "pulsarconsumer-sample-1.yaml",
        rules: quintet_pulsarconsumer::RULES,
        sweep_rules: quintet_pulsarconsumer::SWEEP_RULES,
        uninstall_rules: quintet_pulsarconsumer::UNINSTALL_RULES,
        finalizer: Some(Finalizer {
            name: quintet_pulsarconsumer::FINALIZER,
            resource: Resource::of::<PulsarConsumer>,
        }),
        problems: |json, now| problems_in(json, now, quintet_pulsarconsumer::metrics::problems),
        register: |context, options, is_enabled| {
            if is_enabled {
                quintet_pulsarconsumer::register(context, options.consumers.clone())?;
            } else {
                let (name, finalizer) = (quintet_pulsarconsumer::SWEEPER, quintet_pulsarconsumer::FINALIZER);
                sweeper::register::<PulsarConsumer>(context, name, finalizer);
            }
            Ok(())
        },
    },
    Kind {
        controller: quintet_greeting::CONTROLLER,
        resource: Resource::of::<Greeting>,
        sample: "hello-world.yaml",
        rules: quintet_greeting::RULES,
        sweep_rules: quintet_greeting::SWEEP_RULES,
        uninstall_rules: quintet_greeting::UNINSTALL_RULES,
        finalizer: Some(Finalizer { name: quintet_greeting::FINALIZER, resource: Resource::of::<Greeting> }),
        problems: |json, now| problems_in(json, now, quintet_greeting::metrics::problems),
        register: |context, options, is_enabled| {
            if is_enabled {
                let printer = Printer::stdout().context("cannot start the printer's thread")?;
                quintet_greeting::register(context, &options.identity, printer)?;
            } else {
                sweeper::register::<Greeting>(
                    context,
                    quintet_greeting::SWEEPER,
                    quintet_greeting::FINALIZER,
                );
            }
            Ok(())
        },
    },
    Kind {
        controller: quintet_book::CONTROLLER,
        resource: Resource::of::<Book>,
        sample: "david-copperfield.yaml",
        rules: quintet_book::RULES,
        sweep_rules: &[],
        uninstall_rules: quintet_book::UNINSTALL_RULES,
        finalizer: None,
        problems: |json, now| problems_in(json, now, quintet_book::controller::problems),
        register: |context, _, is_enabled| {
            if is_enabled {
                quintet_book::register(context);
            }
            Ok(())
        },
    },
];

/// The definitions of the kinds, in the order of [`KINDS`]. Kept out of the table, so that the manager does not link them.
pub fn definitions() -> [CustomResourceDefinition; KINDS.len()] {
    [DaemonJob::crd(), PodSet::crd(), PulsarConsumer::crd(), Greeting::crd(), Book::crd()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_a_controller_include_those_of_its_sweeper() {
        for kind in &KINDS {
            for sweep in kind.sweep_rules {
                let same = |rule: &&Rule| (rule.group, rule.resources) == (sweep.group, sweep.resources);
                let verbs: Vec<_> = kind.rules.iter().filter(same).flat_map(|rule| rule.verbs).collect();
                let missing: Vec<_> = sweep.verbs.iter().filter(|verb| !verbs.contains(verb)).collect();
                assert!(missing.is_empty(), "{}: {:?} {missing:?}", kind.controller, sweep.resources);
            }
        }
    }

    #[test]
    fn finds_the_problems_of_each_kind_in_json() {
        let now = "2026-01-01T01:00:00Z".parse().unwrap();
        for (kind, spec) in KINDS.iter().zip([
            r#"{"template": {}}"#,
            "{}",
            r#"{"serverAddress": "", "subscriptionName": "s"}"#,
            r#"{"message": "m"}"#,
            r#"{"title": "t", "author": "a"}"#,
        ]) {
            let resource = (kind.resource)();
            let (version, name) = (resource.api_version(), resource.kind);
            let object = |metadata: &str| {
                let stalled = r#"{"type": "Stalled", "status": "True", "reason": "R", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"}"#;
                format!(
                    r#"{{"apiVersion": "{version}", "kind": "{name}",
                        "metadata": {{"namespace": "a", "name": "b"{metadata}}}, "spec": {spec},
                        "status": {{"conditions": [{stalled}]}}}}"#
                )
            };
            let reasons: Vec<_> = (kind.problems)(&object(""), now).iter().map(|one| one.reason).collect();
            assert_eq!(reasons, ["Stalled"], "{}", kind.controller);
            let deleted = object(r#", "deletionTimestamp": "2026-01-01T00:30:00Z""#);
            assert_eq!((kind.problems)(&deleted, now), [], "{}", kind.controller);
        }
    }

    #[test]
    fn definitions_are_in_the_order_of_the_kinds() {
        for (kind, definition) in KINDS.iter().zip(definitions()) {
            assert_eq!(Some((kind.resource)().crd_name()), definition.metadata.name);
        }
    }
}
