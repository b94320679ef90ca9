//! Book: a record that its schema alone validates.
//!
//! The controller has nothing to do but to say so: Ready, for the generation that it has seen. A Book that was stored
//! under the post's first definition, which had no schema, gets a condition that says what it lacks.

pub mod api;
pub mod controller;
pub mod plan;

use quintet_runtime::model::rule::Rule;

pub use controller::register;

/// The controller's name, as in `--controllers`.
pub const CONTROLLER: &str = "book";

/// What this kind may do.
pub const RULES: &[Rule] = &[
    Rule {
        group: "christianb93.github.com",
        resources: &["books"],
        verbs: &["get", "list", "watch"],
        why: "Books are what this controller acts for.",
    },
    Rule {
        group: "christianb93.github.com",
        resources: &["books/status"],
        verbs: &["patch"],
        why: "Their status is applied.",
    },
];

/// What `quintet uninstall` may do for this kind.
pub const UNINSTALL_RULES: &[Rule] = &[Rule {
    group: "christianb93.github.com",
    resources: &["books"],
    verbs: &["list"],
    why: "Uninstall reports the Books that remain.",
}];
