//! End-to-end tests on a real API server, controller-manager and scheduler, with simulated nodes.
//!
//! Each test has its own namespace and manager. `cargo xtask test` runs them in parallel.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test that fails should panic")]
#![allow(clippy::too_many_lines, reason = "a test plays a whole scenario")]

mod book;
mod book_health;
mod chart;
mod chart_applied;
mod chart_by_hand;
mod chart_rights;
mod conformance;
mod daemonjob;
mod daemonjob_faults;
mod daemonjob_gitops;
mod daemonjob_health;
mod daemonjob_input;
mod daemonjob_ledger;
mod daemonjob_marks;
mod daemonjob_placement;
mod daemonjob_policies;
mod daemonjob_promises;
mod daemonjob_rollout;
mod daemonjob_samples;
mod docs;
mod doctor;
mod explain;
mod greeting;
mod greeting_health;
mod guard_rails;
mod guard_rails_release;
mod guard_rails_users;
mod manager;
mod manager_election;
mod manager_faults;
mod manager_metrics;
mod manager_restore;
mod podset;
mod podset_adoption;
mod podset_faults;
mod podset_health;
mod podset_revisions;
mod podset_rollout;
mod protobuf;
mod pulsarconsumer;
mod pulsarconsumer_autoscaling;
mod pulsarconsumer_broker;
mod pulsarconsumer_health;
mod pulsarconsumer_keda;
mod pulsarconsumer_scaling;
mod skew;
