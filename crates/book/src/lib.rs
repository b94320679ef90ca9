//! Book: a record that only its schema validates.
//!
//! The controller sets the condition Ready for the observed generation. A Book may have been stored under the tutorial's first
//! definition, which had no schema. If such a Book lacks a field, the condition names the field.

pub mod api;
pub mod controller;
pub mod plan;

use quintet_runtime::model::rule::Rule;

pub use controller::register;

/// The controller's name, as in `--controllers`.
pub const CONTROLLER: &str = "book";

/// The RBAC rules of the controller.
pub const RULES: &[Rule] = &[
    Rule {
        group: "christianb93.github.com",
        resources: &["books"],
        verbs: &["get", "list", "watch"],
        why: "The controller reconciles Books.",
    },
    Rule {
        group: "christianb93.github.com",
        resources: &["books/status"],
        verbs: &["patch"],
        why: "The controller applies their status.",
    },
];

/// The RBAC rules of `quintet uninstall`.
pub const UNINSTALL_RULES: &[Rule] = &[Rule {
    group: "christianb93.github.com",
    resources: &["books"],
    verbs: &["list"],
    why: "Uninstall reports the Books that remain.",
}];
