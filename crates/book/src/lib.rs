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
    Rule::allow("christianb93.github.com", &["books"], &["get", "list", "watch"])
        .because("The controller reconciles Books."),
    Rule::allow("christianb93.github.com", &["books/status"], &["patch"])
        .because("The controller applies their status."),
];

/// The RBAC rules of `quintet uninstall`.
pub const UNINSTALL_RULES: &[Rule] = &[Rule::allow("christianb93.github.com", &["books"], &["list"])
    .because("Uninstall reports the Books that remain.")];
