//! The environment variables through which `cargo xtask test` passes what it started and built to the tests.

/// The cluster of the end-to-end tests.
pub const CLUSTER: &str = "QUINTET_E2E_CLUSTER";

/// The program that the end-to-end tests run as the manager.
pub const PROGRAM: &str = "QUINTET_E2E_PROGRAM";

/// The folder with the Pulsar programs.
pub const PULSAR_PROGRAMS: &str = "QUINTET_E2E_PULSAR_PROGRAMS";

/// The folder with the archives of the project's images, for tests on real nodes.
pub const IMAGES: &str = "QUINTET_E2E_IMAGES";

/// If set, tests record the outputs that the pictures of the documents show.
pub const RECORD: &str = "QUINTET_E2E_RECORD";

/// The prefix of the names of the brokers for the tests of the Pulsar programs.
pub const BROKERS: &str = "QUINTET_PULSAR_BROKERS";

/// The versions of Kubernetes and Helm ([`crate::cluster::versions`]).
pub const VERSIONS: &str = "QUINTET_E2E_VERSIONS";

/// The program of `cargo xtask`, for tests that run its commands or start real nodes; a node is a process of it.
pub const XTASK: &str = "QUINTET_XTASK";
