//! The labels and annotations of pods and ControllerRevisions.

/// Label: the PodSet's name, as in the tutorial.
pub const NAME_LABEL: &str = "app";
/// Label of the tutorial. A template may set it.
pub const VERSION_LABEL: &str = "version";
/// Label: the PodSet's UID.
pub const UID_LABEL: &str = "batch.tutorial.kubebuilder.io/podset-uid";
/// Label: the hash of the pod's template.
pub const HASH_LABEL: &str = "batch.tutorial.kubebuilder.io/template-hash";
/// Annotation: how many pods in a row ended early before this replacement.
pub const ATTEMPT_ANNOTATION: &str = "batch.tutorial.kubebuilder.io/attempt";
/// Label of a released pod. The manager does not adopt it.
pub const RELEASED_LABEL: &str = "batch.tutorial.kubebuilder.io/released";
