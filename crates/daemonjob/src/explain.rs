//! The report of `quintet explain`: the state of every node, and the reason for it.
//!
//! The report is a pure function of the objects that the command read.

pub mod print;
pub mod report;
