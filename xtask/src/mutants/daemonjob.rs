//! The mutants of DaemonJob, and the tests or plans that catch each of them.

use super::{Catcher, Mutant};

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "removes finalizers before the ledger write",
        file: "crates/daemonjob/src/plan.rs",
        edits: &[(
            "[first, ledger, then_free, creations].into_iter()",
            "[first, then_free, ledger, creations].into_iter()",
        )],
        catchers: &[Catcher::Plans("daemonjob-done-deleted", "/crash-")],
    },
    Mutant {
        name: "ignores ledger lines",
        file: "crates/daemonjob/src/controller.rs",
        edits: &[(
            "(if is_going { &mut world.deleted_shards } else { &mut world.ledger }).push(shard);",
            "let _ = (is_going, shard);",
        )],
        catchers: &[Catcher::Plans("daemonjob-ttl", "/crash-")],
    },
    Mutant {
        name: "failure policy counts only eligible nodes",
        file: "crates/daemonjob/src/assess.rs",
        edits: &[(
            "        if let Some(failure) = &assessment.failure {\n            failures.add(",
            "        if let (Some(failure), Eligibility::Run) = (&assessment.failure, &history.eligibility) {\n            failures.add(",
        )],
        catchers: &[Catcher::Plans("daemonjob-brake", "/"), Catcher::Search],
    },
    Mutant {
        name: "waiting node frees its slot under Pause",
        file: "crates/daemonjob/src/parallelism.rs",
        edits: &[(
            "let holders = survey.nodes.iter().filter(|one| one.holds_slot.is_some());",
            "let is_unready = |one: &&crate::node_state::SelectedNode<'_>| one.holds_slot.is_some() && !one.node.ready;\n    \
             let holders = survey.nodes.iter().filter(is_unready);",
        )],
        catchers: &[Catcher::Plans("daemonjob-brake-and-retry", "/"), Catcher::Search],
    },
    Mutant {
        name: "drops a deleted suspect node",
        file: "crates/daemonjob/src/history.rs",
        edits: &[(
            "has_failed(latest) || is_suspect(latest) && !is_leaving",
            "has_failed(latest) || is_suspect(latest) && is_leaving && !is_leaving",
        )],
        catchers: &[Catcher::Plans("daemonjob-node-deleted", "/"), Catcher::Search],
    },
    Mutant {
        name: "taint turns Failed into Complete",
        file: "crates/daemonjob/src/node_state.rs",
        edits: &[(
            "_ => !is_done && blocking.is_none(),",
            "_ => !is_done && blocking.is_none() && history.eligibility == Eligibility::Run,",
        )],
        catchers: &[Catcher::Plans("daemonjob-failed-node-tainted", "/"), Catcher::Search],
    },
    Mutant {
        name: "counts a rejected pod as an attempt",
        file: "crates/daemonjob/src/outcome.rs",
        edits: &[(
            "if pod.rejection.is_some() => ended(Outcome::Rejected, 0),",
            "if pod.rejection.is_some() => ended(Outcome::Failed, 1),",
        )],
        catchers: &[Catcher::Tests("quintet-daemonjob", "a_rejected_pod"), Catcher::Search],
    },
    Mutant {
        name: "counts a pod that the manager deleted",
        file: "crates/daemonjob/src/outcome.rs",
        edits: &[(
            "                DeletedFor::Superfluous => PodOutcome::NeverRan,\n                _ => ended(Outcome::Ignored, 0),",
            "                DeletedFor::Superfluous => PodOutcome::NeverRan,\n                _ => ended(Outcome::Failed, 1),",
        )],
        catchers: &[Catcher::Tests("quintet-daemonjob", "the_reason_on_a_deleted_pod"), Catcher::Search],
    },
    Mutant {
        name: "rollback skips half-done nodes",
        file: "crates/daemonjob/src/ledger.rs",
        edits: &[(
            "let attempt = result.map(|result| {",
            "let attempt = result.filter(|result| *result == AttemptResult::Succeeded || !before.is_some_and(Self::has_succeeded)).map(|result| {",
        )],
        catchers: &[
            Catcher::Tests("quintet-daemonjob", "only_an_attempt_replaces_a_success"),
            Catcher::Search,
        ],
    },
    Mutant {
        name: "a failed wave opens the next one",
        file: "crates/daemonjob/src/waves.rs",
        edits: &[(
            "let has_succeeded = progress.settled > progress.failed;",
            "let has_succeeded = progress.finished() > 0;",
        )],
        catchers: &[
            Catcher::Tests("quintet-daemonjob", "a_failed_canary_does_not_open_the_next_wave"),
            Catcher::Search,
        ],
    },
    Mutant {
        name: "nodes start in a wave that no status has",
        file: "crates/daemonjob/src/waves.rs",
        edits: &[("let size = self.sizes.get(self.reported);", "let size = self.sizes.get(self.passed);")],
        catchers: &[Catcher::Tests("quintet-daemonjob", "writes_the_wave_before_the_first_pod_of_it")],
    },
    Mutant {
        name: "settling node frees its slot",
        file: "crates/daemonjob/src/node_state.rs",
        edits: &[("self.is_suspect() || self.is_settling", "self.is_suspect()")],
        catchers: &[Catcher::Tests("quintet-daemonjob", "a_node_that_settles_keeps_its_slot")],
    },
    Mutant {
        name: "due time before a change of the schedule begins",
        file: "crates/daemonjob/src/schedule.rs",
        edits: &[(".filter(|_| is_same && !resumes);", ".filter(|_| is_same || !resumes);")],
        catchers: &[
            Catcher::Tests("quintet-daemonjob", "due_times_before_a_change_do_not_begin"),
            Catcher::Search,
        ],
    },
    Mutant {
        name: "second of two equal local times is due",
        file: "crates/daemonjob/src/schedule.rs",
        edits: &[("found.compatible().ok()?", "found.later().ok()?")],
        catchers: &[Catcher::Tests("quintet-daemonjob", "a_local_time_is_due_once_if_it_exists")],
    },
    Mutant {
        name: "due time begins although nodes failed",
        file: "crates/daemonjob/src/assess.rs",
        edits: &[(
            "if !is_paused && stops_due_times(&survey) =>",
            "if is_paused && stops_due_times(&survey) =>",
        )],
        catchers: &[Catcher::Tests(
            "quintet-daemonjob",
            "no_due_time_begins_while_failed_nodes_stop_the_rollout",
        )],
    },
    Mutant {
        name: "success of an earlier due time counts",
        file: "crates/daemonjob/src/node_state.rs",
        edits: &[(
            "key.due.is_none() || attempt.due == key.due;",
            "key.due.is_none() || attempt.due <= key.due;",
        )],
        catchers: &[Catcher::Tests("quintet-daemonjob", "every_node_runs_at_each_due_time"), Catcher::Search],
    },
    Mutant {
        name: "success of a later due time counts",
        file: "crates/daemonjob/src/node_state.rs",
        edits: &[(
            "key.due.is_none() || attempt.due == key.due;",
            "key.due.is_none() || attempt.due >= key.due;",
        )],
        catchers: &[Catcher::Tests("quintet-daemonjob", "a_clock_that_was_ahead_leaves_no_node_out")],
    },
    Mutant {
        name: "nodes that waited run at a retry",
        file: "crates/daemonjob/src/rollout.rs",
        edits: &[(
            "rollout.over == Some(true) && is_its(rollout))",
            "rollout.over == Some(true) && is_its(rollout) && number(rollout.number) == key.rollout)",
        )],
        catchers: &[Catcher::Tests("quintet-daemonjob", "a_retry_after_the_run_runs_only_failed_nodes")],
    },
    Mutant {
        name: "failed node is skipped while a template waits",
        file: "crates/daemonjob/src/node_state.rs",
        edits: &[(
            "state(if has_failed { State::Waiting(reason) } else { State::Skipped(reason) });",
            "state(if has_failed { State::Skipped(reason) } else { State::Skipped(reason) });",
        )],
        catchers: &[
            Catcher::Tests("quintet-daemonjob", "a_failed_node_waits_for_the_due_time_of_a_changed_template"),
            Catcher::Search,
        ],
    },
    Mutant {
        name: "dead node holds back the replacements of a wave",
        file: "crates/daemonjob/src/parallelism.rs",
        edits: &[("is_outdated && survey.holds_slot(assessed)", "is_outdated")],
        catchers: &[Catcher::Tests("quintet-daemonjob", "a_dead_node_does_not_hold_back_replacements")],
    },
    Mutant {
        name: "new node runs between due times",
        file: "crates/daemonjob/src/schedule.rs",
        edits: &[("self.for_all || is_late || self.is_over", "self.for_all || self.is_over")],
        catchers: &[Catcher::Tests("quintet-daemonjob", "a_node_that_joins_waits_for_the_next_due_time")],
    },
    Mutant {
        name: "approves a wave that has not settled",
        file: "crates/daemonjob/src/command/change.rs",
        edits: &[("_ if !is_ahead => Err", "_ if !is_ahead && number > current => Err")],
        catchers: &[Catcher::Tests("quintet-daemonjob", "rejects_approvals_without_effect")],
    },
    Mutant {
        name: "removes a taint again after its mark",
        file: "crates/daemonjob/src/marks.rs",
        edits: &[
            (
                "if Success::recorded(node, annotation) == Some(success) {",
                "if Success::recorded(node, annotation) == Some(success) && !node.taints.iter().any(|taint| removes(spec, taint)) {",
            ),
            (
                "let is_marked = Success::recorded(selected.node, &annotation) == Some(success);",
                "let is_marked = Success::recorded(selected.node, &annotation) == Some(success) && !selected.node.taints.iter().any(|taint| removes(spec, taint));",
            ),
        ],
        catchers: &[
            Catcher::Tests("quintet-daemonjob", "an_administrators_change_stays"),
            Catcher::Tests("quintet-daemonjob", "keeps_its_invariants"),
            Catcher::Plans("daemonjob-marks", "/"),
            Catcher::Search,
        ],
    },
    Mutant {
        name: "marks a suspect node",
        file: "crates/daemonjob/src/marks.rs",
        edits: &[("latest.attempt.as_ref().filter(|attempt| attempt.clear)?;", "latest.attempt.as_ref()?;")],
        catchers: &[Catcher::Tests("quintet-daemonjob", "finds_the_success_of_a_node")],
    },
    Mutant {
        name: "a mark does not test the record that it replaces",
        file: "crates/daemonjob/src/marks.rs",
        edits: &[(
            "operations.push(test(&path, json!(node.meta.annotations.get(annotation))));",
            "operations.push(test(\"/metadata/name\", json!(&*node.meta.name)));",
        )],
        catchers: &[
            Catcher::Tests("quintet-daemonjob", "one_patch_has_the_changes_and_their_record"),
            Catcher::Search,
        ],
    },
    Mutant {
        name: "removes a taint with another key",
        file: "crates/daemonjob/src/marks.rs",
        edits: &[(
            "operations.push(test(&format!(\"{path}/key\"), json!(&*taint.key)));",
            "operations.push(test(\"/metadata/name\", json!(&*node.meta.name)));",
        )],
        catchers: &[Catcher::Tests("quintet-daemonjob", "one_patch_has_the_changes_and_their_record")],
    },
    Mutant {
        name: "marks with keys that the namespace may not use",
        file: "crates/daemonjob/src/marks.rs",
        edits: &[(
            "Some((key, permitted.refuses(key)?))",
            "Some((key, permitted.refuses(key).filter(|why| *why == NotAllowed::Reserved)?))",
        )],
        catchers: &[
            Catcher::Tests("quintet-daemonjob", "changes_only_allowed_keys"),
            Catcher::Tests("quintet-daemonjob", "reports_what_is_not_allowed_and_marks_later"),
        ],
    },
    Mutant {
        name: "Complete does not wait for marks",
        file: "crates/daemonjob/src/status.rs",
        edits: &[(
            "filter(|marks| is_over && !has_failed && marks.missing > 0);",
            "filter(|marks| is_over && !has_failed && marks.missing > 1_000_000);",
        )],
        catchers: &[
            Catcher::Tests("quintet-daemonjob", "is_complete_after_the_last_mark"),
            Catcher::Tests("quintet-daemonjob", "keeps_its_invariants"),
            Catcher::Search,
        ],
    },
    Mutant {
        name: "releases a deleted pod whose shard is lost",
        file: "crates/daemonjob/src/release.rs",
        edits: &[("!is_owed && !self.restores_shard_of(uid)", "!is_owed")],
        catchers: &[Catcher::Tests("quintet-daemonjob", "does_not_release_a_pod_whose_shard_is_lost")],
    },
    Mutant {
        name: "plan creates no pods",
        file: "crates/daemonjob/src/plan.rs",
        edits: &[(
            "State::Due(number) => Some((selected.node, number)),",
            "State::Due(number) if number == u64::MAX => Some((selected.node, number)),",
        )],
        catchers: &[Catcher::Tests("quintet-daemonjob", "keeps_its_invariants"), Catcher::Search],
    },
];
