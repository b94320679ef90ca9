//! What the manager would do on every node now, and why: the answer of `quintet explain`.
//!
//! A pure function of what the command read, and the forms in which the command prints it.

pub mod print;
pub mod report;
