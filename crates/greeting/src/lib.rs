//! Greeting prints its message on creation, change, deletion and every minute, each line at most once.
//!
//! kopf's handlers ([`handlers`]), but level-triggered. The process claims a line in the status, with a
//! resourceVersion, *before* it prints the line. So only one of several processes succeeds, and a restarted
//! one finds the claim. A line is lost only if the process dies between the API server's answer and the
//! print.

pub mod api;
pub mod controller;
pub mod handlers;
pub mod line;
pub mod metrics;
pub mod observe;
pub mod plan;
pub mod printer;

use quintet_runtime::model::rule::Rule;

pub use controller::register;

/// The controller's name, as in `--controllers`.
pub const CONTROLLER: &str = "greeting";

/// The finalizer of every greeted Greeting. It keeps a deleted Greeting until its last line is claimed.
pub const FINALIZER: &str = "example.com/farewell";

/// The permissions of the controller.
pub const RULES: &[Rule] = &[
    Rule::allow("example.com", &["greetings"], &["get", "list", "watch", "patch"])
        .because("The controller reconciles Greetings, and adds and removes their finalizer."),
    Rule::allow("example.com", &["greetings/status"], &["patch"])
        .because("The controller claims each line in the status before it prints the line."),
];

/// The sweeper's name in metrics and logs.
pub const SWEEPER: &str = "greeting-sweeper";

/// The permissions of the sweeper, which runs while the kind is off.
pub const SWEEP_RULES: &[Rule] =
    &[Rule::allow("example.com", &["greetings"], &["get", "list", "watch", "patch"])
        .because("The sweeper removes the finalizer from deleted Greetings while their kind is off.")];

/// The permissions of `quintet uninstall` for this kind.
pub const UNINSTALL_RULES: &[Rule] = &[Rule::allow("example.com", &["greetings"], &["list", "patch"])
    .because("Uninstall removes the finalizer from Greetings, and reports those that remain.")];
