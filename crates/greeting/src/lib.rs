//! Greeting: says its message on create, update, delete and every minute, each at most once.
//!
//! kopf's handlers ([`handlers`]) made level-triggered. What was said is a claim in the status, written with
//! resourceVersion *before* the line is printed: of several processes the API server lets one win, and a restart finds
//! the claim. A line is lost only if the process dies between the server's answer and the print.

pub mod api;
pub mod controller;
pub mod handlers;
pub mod line;
pub mod metrics;
pub mod observe;
pub mod plan;
pub mod printer;
pub mod sweep;

use quintet_runtime::model::rule::Rule;

pub use controller::register;

/// The controller's name, as in `--controllers`.
pub const CONTROLLER: &str = "greeting";

/// The finalizer on every Greeting that was said: it keeps a Greeting that is deleted until its last line is claimed.
pub const FINALIZER: &str = "example.com/farewell";

/// What this kind may do.
pub const RULES: &[Rule] = &[
    Rule {
        group: "example.com",
        resources: &["greetings"],
        verbs: &["get", "list", "watch", "patch"],
        why: "The controller reconciles Greetings, and adds and removes their finalizer.",
    },
    Rule {
        group: "example.com",
        resources: &["greetings/status"],
        verbs: &["patch"],
        why: "The controller claims each line in the status before it prints the line.",
    },
];

/// What [`sweep`] may do, also where the kind is switched off: its finalizers must hang nothing.
pub const SWEEP_RULES: &[Rule] = &[Rule {
    group: "example.com",
    resources: &["greetings"],
    verbs: &["get", "list", "watch", "patch"],
    why: "The sweeper removes the finalizer from deleted Greetings while their kind is off.",
}];

/// What `quintet uninstall` may do for this kind.
pub const UNINSTALL_RULES: &[Rule] = &[Rule {
    group: "example.com",
    resources: &["greetings"],
    verbs: &["list", "patch"],
    why: "Uninstall removes the finalizer from Greetings, and reports those that remain.",
}];
