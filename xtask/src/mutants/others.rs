//! The mutants of all other parts, and the tests or plans that catch each of them.

use super::{Catcher, Mutant};

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "random pod names",
        file: "crates/podset/src/plan.rs",
        edits: &[(
            "digest::short(&parts, 10)",
            "digest::short(&[&parts[..], &[&*format!(\"{:?}\", std::time::Instant::now())]].concat(), 10)",
        )],
        catchers: &[Catcher::Plans("podset-create", "/late")],
    },
    Mutant {
        name: "no gate before writes",
        file: "crates/runtime/src/server/gate.rs",
        edits: &[
            ("        self.state.send_replace(None);\n", ""),
            (
                "(until > Instant::now()).then_some(Self { until, ..self })",
                "Some(Self { until: until.max(Instant::now() + Duration::from_secs(20)), ..self })",
            ),
        ],
        catchers: &[Catcher::Plans("podset-scale", "/cut-off")],
    },
    Mutant {
        name: "sends writes over a connection without the check",
        file: "crates/runtime/src/server/connection.rs",
        edits: &[(
            "about.get::<Sending>().ok_or(Unsent::Unchecked)?.set(Some(fence.clone()));",
            "if let Some(sending) = about.get::<Sending>() { sending.set(Some(fence.clone())); }",
        )],
        catchers: &[Catcher::Tests("quintet-runtime", "sends_no_write_over_a_connection_without_the_check")],
    },
    Mutant {
        name: "acquires the Lease before it has expired",
        file: "crates/runtime/src/election/lease.rs",
        edits: &[(
            "self.at.is_some() && self.expiry(settings) <= Instant::now()",
            "self.at.is_some() && settings.lease > Duration::ZERO",
        )],
        catchers: &[Catcher::Plans("podset-create", "/cut-off")],
    },
    Mutant {
        name: "keeps the Lease with dead caches",
        file: "crates/runtime/src/election/leadership.rs",
        edits: &[("*silence >= DEAD", "*silence >= DEAD * 100")],
        catchers: &[
            Catcher::Plans("podset-create", "/blind"),
            Catcher::Tests("quintet-runtime", "releases_the_lease_if_a_cache_is_dead"),
        ],
    },
    Mutant {
        name: "counts a rejection before an outage",
        file: "crates/runtime/src/election/candidate.rs",
        edits: &[("                self.forbidden = None;\n", "")],
        catchers: &[Catcher::Tests("quintet-runtime", "a_candidate_does_not_give_up_after_its_first_answer")],
    },
    Mutant {
        name: "takes the right to read a Lease for the right to write it",
        file: "crates/runtime/src/election/candidate.rs",
        edits: &[(
            "if !needs_write || !matches!(outcome, Ok(Attempt::HeldByOther(_))) {",
            "if !needs_write || outcome.is_ok() {",
        )],
        catchers: &[Catcher::Tests("quintet-runtime", "gives_up_a_lease_that_it_may_only_read_between")],
    },
    Mutant {
        name: "gives up after the first rejection",
        file: "crates/runtime/src/election/candidate.rs",
        edits: &[(
            "if self.allowed < needed && since.elapsed() >= FORBIDDEN {",
            "if self.allowed < needed && since.elapsed() <= FORBIDDEN {",
        )],
        catchers: &[Catcher::Tests("quintet-runtime", "a_candidate_does_not_give_up_after_its_first_answer")],
    },
    Mutant {
        name: "takes the Lease with dead caches",
        file: "crates/runtime/src/election/leadership.rs",
        edits: &[("if self.free >= patience {", "if self.free >= patience.min(Duration::ZERO) {")],
        catchers: &[
            Catcher::Tests("quintet-runtime", "leaves_a_free_lease_to_processes_with_live_caches"),
            Catcher::Tests("quintet-runtime", "moves_the_lease_to_a_manager_that_can_watch"),
        ],
    },
    Mutant {
        name: "releases the Lease again and again",
        file: "crates/runtime/src/election/leadership.rs",
        edits: &[("is_none_or(|ago| ago >= TURN)", "is_none_or(|ago| ago >= PAUSE)")],
        catchers: &[Catcher::Tests("quintet-runtime", "keeps_the_leader_if_no_manager_can_watch")],
    },
    Mutant {
        name: "keeps writing after losing the race to create",
        file: "crates/runtime/src/election/candidate.rs",
        edits: &[("            Err(kube::Error::Api(status)) if status.code == 409 => None,\n", "")],
        catchers: &[Catcher::Tests("quintet-runtime", "stands_by_after_losing_the_race_to_create")],
    },
    Mutant {
        name: "informer hides deletions",
        file: "crates/runtime/src/cache/informer.rs",
        edits: &[("            self.tell(&Change::Deleted { old });\n", "            let _ = old;\n")],
        catchers: &[Catcher::Plans("podset-pod-lost", "event:pods")],
    },
    Mutant {
        name: "a panic of a subscriber ends the watch",
        file: "crates/runtime/src/cache/informer.rs",
        edits: &[(
            "is_told &= catch_unwind(AssertUnwindSafe(|| subscriber(change))).is_ok();",
            "subscriber(change);\n            is_told &= true;",
        )],
        catchers: &[Catcher::Tests("quintet-runtime", "a_panic_of_a_subscriber")],
    },
    Mutant {
        name: "list removes no deleted objects",
        file: "crates/runtime/src/cache/list_watch.rs",
        edits: &[("chain(undecodable) {", "chain(undecodable).take(0) {")],
        catchers: &[Catcher::Plans("podset-node-lost", "/dropped")],
    },
    Mutant {
        name: "stale lists",
        file: "crates/runtime/src/cache/list_watch.rs",
        edits: &[(
            "sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
            "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=0",
        )],
        catchers: &[Catcher::Plans("daemonjob-ttl", "/stale-server")],
    },
    Mutant {
        name: "lists only by streams",
        file: "crates/runtime/src/cache/list_watch.rs",
        edits: &[("if !interrupted.is_misunderstanding()", "if interrupted.code() == Some(1)")],
        catchers: &[Catcher::Tests("quintet-runtime", "lists_by_pages_after_a_stream_that_failed")],
    },
    Mutant {
        name: "continues a watch in a restored store",
        file: "crates/runtime/src/cache/list_watch.rs",
        edits: &[("newest > 0 && newest < known", "newest > u64::MAX - 1")],
        catchers: &[Catcher::Tests("quintet-runtime", "lists_again_after_a_restore_of_etcd")],
    },
    Mutant {
        name: "a restore may lose own writes unnoticed",
        file: "crates/runtime/src/cache/state.rs",
        edits: &[("written.max(self.progress", "written.min(0).max(self.progress")],
        catchers: &[Catcher::Tests("quintet-runtime", "a_list_older_than_an_own_write")],
    },
    Mutant {
        name: "owners of lost writes sleep",
        file: "crates/runtime/src/cache/state.rs",
        edits: &[("if listing.known > listing.position", "if listing.known > u64::MAX - 1")],
        catchers: &[Catcher::Tests("quintet-runtime", "a_list_after_an_unshown_write")],
    },
    Mutant {
        name: "continues a silent watch",
        file: "crates/runtime/src/cache/list_watch.rs",
        edits: &[("|| self.part.state().is_silent() {", "|| at.is_empty() {")],
        catchers: &[Catcher::Tests("quintet-runtime", "lists_again_after_a_long_silence")],
    },
    Mutant {
        name: "continues a watch after an outage",
        file: "crates/runtime/src/cache/list_watch.rs",
        edits: &[(
            "if self.lost.is_some_and(|since| since.elapsed() >= OUTAGE) ||",
            "if self.lost.is_some_and(|since| since.elapsed() >= Duration::MAX) ||",
        )],
        catchers: &[Catcher::Tests("quintet-runtime", "begins_with_a_list_after_an_outage")],
    },
    Mutant {
        name: "lists as often while watches are rejected",
        file: "crates/runtime/src/cache/list_watch.rs",
        edits: &[(".min(LONGEST_RELIST)", ".min(RELIST)")],
        catchers: &[Catcher::Tests("quintet-runtime", "lists_less_often_while_watches_are_rejected")],
    },
    Mutant {
        name: "trusts its watches after a restore",
        file: "crates/runtime/src/cache/list_watch.rs",
        edits: &[
            (
                "if self.lost.is_some_and(|since| since.elapsed() >= OUTAGE) ||",
                "if self.lost.is_some_and(|since| since.elapsed() >= Duration::MAX) ||",
            ),
            ("newest > 0 && newest < known", "newest > u64::MAX - 1"),
            ("            _ = restores.wait_for(|since| *since > listed) => return Next::List,\n", ""),
        ],
        catchers: &[Catcher::Plans("podset-scale", "/restored")],
    },
    Mutant {
        name: "a restore looks like deletions by a user",
        file: "crates/runtime/src/control/controller.rs",
        edits: &[("            self.reconciler.restored();\n", "")],
        catchers: &[Catcher::Plans("daemonjob-suspend", "/restored")],
    },
    Mutant {
        name: "plans from a cache without history",
        file: "crates/runtime/src/cache/list_watch.rs",
        edits: &[("        part.state().expire();\n", "")],
        catchers: &[Catcher::Tests("quintet-runtime", "a_cache_without_history")],
    },
    Mutant {
        name: "plans from a cache whose watch is rejected",
        file: "crates/runtime/src/cache/list_watch.rs",
        edits: &[(
            "        part.state().expire();\n",
            "        if from.is_none() || interrupted.is_silence() {\n            part.state().expire();\n        }\n",
        )],
        catchers: &[Catcher::Tests("quintet-runtime", "a_rejected_watch_shows_nothing")],
    },
    Mutant {
        name: "plans from a cache whose watch has ended",
        file: "crates/runtime/src/cache/list_watch.rs",
        edits: &[("        self.part.state().expire();\n", "")],
        catchers: &[Catcher::Tests("quintet-runtime", "a_watch_that_ended_shows_nothing")],
    },
    Mutant {
        name: "old objects do not show a restore",
        file: "crates/runtime/src/cache/informer.rs",
        edits: &[("if !is_known && !is_undecodable() {", "if !is_known && is_undecodable() {")],
        catchers: &[Catcher::Tests("quintet-runtime", "an_old_object_shows")],
    },
    Mutant {
        name: "caches from before a restore count",
        file: "crates/runtime/src/server/gate.rs",
        edits: &[("!progress.expired && progress.listed >= *self.restored.borrow()", "!progress.expired")],
        catchers: &[Catcher::Tests("quintet-runtime", "a_restore_starts_the_term_again")],
    },
    Mutant {
        name: "writes of plans from before a restore",
        file: "crates/runtime/src/server/gate.rs",
        edits: &[(
            "                    term.since = now;\n",
            "                    term.until = term.until.max(now);\n",
        )],
        catchers: &[
            Catcher::Tests("quintet-runtime", "a_restore_starts_the_term_again"),
            Catcher::Tests("quintet-runtime", "starts_its_term_again_after_a_restore"),
        ],
    },
    Mutant {
        name: "takes a Lease that a restore brought back",
        file: "crates/runtime/src/election/candidate.rs",
        edits: &[("        if is_older\n", "        if is_older && observed.is_free()\n")],
        catchers: &[Catcher::Tests("quintet-runtime", "waits_for_the_holder_that_a_restore_removed")],
    },
    Mutant {
        name: "an event leaves a key among the bulk keys",
        file: "crates/runtime/src/control/queue.rs",
        edits: &[("if priority < place.priority {", "if false && priority < place.priority {")],
        catchers: &[
            Catcher::Tests("quintet-runtime", "every_wake_is_followed_by_a_reconcile"),
            Catcher::Tests("quintet-faults", "a_scaled_podset_is_among_the_next_reconciles"),
        ],
    },
    Mutant {
        name: "a parked bulk key becomes fresh",
        file: "crates/runtime/src/control/queue.rs",
        edits: &[(
            "entry.running.take().into_iter().chain(entry.dirty.take()).min()",
            "entry.running.take().and(entry.dirty.take())",
        )],
        catchers: &[Catcher::Tests("quintet-runtime", "every_wake_is_followed_by_a_reconcile")],
    },
    Mutant {
        name: "a parked bulk key returns as a fresh one",
        file: "crates/runtime/src/control/controller.rs",
        edits: &[(
            "            self.add(key, priority);\n",
            "            self.add(key, priority.min(Priority::Fresh));\n",
        )],
        catchers: &[Catcher::Tests("quintet-runtime", "parked_keys_keep_their_highest_priority")],
    },
    Mutant {
        name: "a parked key loses the priority of an event",
        file: "crates/runtime/src/control/controller.rs",
        edits: &[("priority.min(*before)", "priority.max(*before)")],
        catchers: &[Catcher::Tests("quintet-runtime", "parked_keys_keep_their_highest_priority")],
    },
    Mutant {
        name: "an unfinished handshake closes an older connection",
        file: "crates/runtime/src/probes.rs",
        edits: &[(
            "connections.remove(unfinished.unwrap_or(0))",
            "connections.remove(unfinished.map_or(0, |_| 0))",
        )],
        catchers: &[
            Catcher::Tests("quintet-runtime", "closes_unfinished_handshakes_before_older_connections"),
            Catcher::Tests("quintet", "silent_connections_do_not_block_others"),
        ],
    },
    Mutant {
        name: "an address without a host accepts only IPv6",
        file: "crates/runtime/src/probes.rs",
        edits: &[("    SockRef::from(&socket).set_only_v6(false)?;\n", "")],
        catchers: &[Catcher::Tests("quintet-runtime", "an_empty_host_accepts_ipv4")],
    },
    Mutant {
        name: "kinds share a window",
        file: "crates/runtime/src/write/executor.rs",
        edits: &[("= (Slots::new(WINDOW), Slots", "= (self.slots.clone(), Slots")],
        catchers: &[
            Catcher::Tests("quintet-runtime", "a_slow_step_delays_no_other_kind"),
            Catcher::Tests("quintet-faults", "a_slow_webhook_for_pods_delays_no_other_kind"),
        ],
    },
    Mutant {
        name: "a deletion takes a whole slot",
        file: "crates/runtime/src/write/slots.rs",
        edits: &[("const DELETION: u32 = 2;", "const DELETION: u32 = 3;")],
        catchers: &[Catcher::Tests("quintet-runtime", "three_deletions_take_two_slots")],
    },
    Mutant {
        name: "writes without urgency run beside the others",
        file: "crates/runtime/src/control/reconcile.rs",
        edits: &[("        if execution.writes > 0 {\n            return true;\n        }\n", "")],
        catchers: &[Catcher::Tests("quintet-runtime", "writes_without_urgency_follow_the_others")],
    },
    Mutant {
        name: "sends queued actions after a failure",
        file: "crates/runtime/src/write/executor.rs",
        edits: &[("if stop.load(Ordering::Relaxed) || !is_effect", "if !is_effect")],
        catchers: &[Catcher::Tests("quintet-runtime", "a_failure_or_a_change_stops_the_actions")],
    },
    Mutant {
        name: "writes in a later term",
        file: "crates/runtime/src/write/executor.rs",
        edits: &[
            (
                "if !self.gate.fence(of.since).holds() {\n            return Err(Error::NotLeading);",
                "if self.gate.deadline().is_none() {\n            return Err(Error::NotLeading);",
            ),
            (
                "&self.gate, of.since, CALL, request)",
                "&self.gate, self.gate.term().map_or(of.since, |term| term.since), CALL, request)",
            ),
        ],
        catchers: &[Catcher::Tests("quintet-runtime", "sends_no_write_of_a_plan_in_a_later_term")],
    },
    Mutant {
        name: "counts an Event of an ended term",
        file: "crates/runtime/src/write/events.rs",
        edits: &[(
            "if !gate.fence(record.since).holds() {",
            "if gate.deadline().is_none() && record.event.note.is_empty() {",
        )],
        catchers: &[Catcher::Tests("quintet-runtime", "an_event_of_an_ended_term_changes_no_series")],
    },
    Mutant {
        name: "bulk keys starve",
        file: "crates/runtime/src/control/queue.rs",
        edits: &[("const FRESH_IN_A_ROW: u32 = 16;", "const FRESH_IN_A_ROW: u32 = u32::MAX;")],
        catchers: &[
            Catcher::Tests("quintet-runtime", "fresh_keys_do_not_starve_bulk_keys"),
            Catcher::Tests("quintet-faults", "a_flood_of_new_objects_starves_no_other_object"),
        ],
    },
    Mutant {
        name: "ignores status code 410",
        file: "crates/runtime/src/cache/response.rs",
        edits: &[(
            "self.code() == Some(410)\n            || matches!(self, Self::Watch(status) if status.reason == \"Expired\" || status.reason == \"Gone\")",
            "self.code() == Some(1)",
        )],
        catchers: &[Catcher::Plans("podset-create", "event:pods")],
    },
    Mutant {
        name: "takes a line without end for the end of a watch",
        file: "crates/runtime/src/cache/response.rs",
        edits: &[("if line.len() > LARGEST_EVENT {", "if line.len() > usize::MAX - 1 {")],
        catchers: &[Catcher::Tests("quintet-runtime", "a_line_has_a_limit")],
    },
    Mutant {
        name: "does not wait for its own writes",
        file: "crates/runtime/src/write/owner_memory.rs",
        edits: &[(
            "lock(&self.owners).get_mut(&owner.uid).is_none_or(|one| one.written.is_shown(caches))",
            "lock(&self.owners).get_mut(&owner.uid).is_none_or(|one| one.written.is_shown(caches) || true)",
        )],
        catchers: &[Catcher::Plans("daemonjob-retry", "/delayed")],
    },
    Mutant {
        name: "exits before the last log lines",
        file: "crates/manager/src/logs/lines.rs",
        edits: &[("Instant::now() < until {", "Instant::now() > until {")],
        catchers: &[Catcher::Tests("quintet", "drain_waits_for_a_full_queue")],
    },
    Mutant {
        name: "adopts a foreign pod",
        file: "crates/runtime/src/write/executor.rs",
        edits: &[
            ("if !meta.is_controlled_by(owner) {", "if meta.uid.is_empty() {"),
            ("resource == PODS && meta.labels.get(KIND_LABEL).is_none()", "meta.uid.is_empty()"),
        ],
        catchers: &[Catcher::Plans("podset-create", "/stranger")],
    },
    Mutant {
        name: "drops a refusal immediately",
        file: "crates/runtime/src/model/clock.rs",
        edits: &[(
            "const FIRST_BACKOFF: SignedDuration = SignedDuration::from_secs(10);",
            "const FIRST_BACKOFF: SignedDuration = SignedDuration::ZERO;",
        )],
        catchers: &[Catcher::Plans("podset-create", "/stranger")],
    },
    Mutant {
        name: "does not retry a failed reconcile",
        file: "crates/runtime/src/control/controller.rs",
        edits: &[(
            "(\"error\", Ended::Failed)",
            "(\"error\", Ended::Well { again: None, rest: Duration::ZERO })",
        )],
        catchers: &[Catcher::Plans("book-status-changed", "/error")],
    },
    Mutant {
        name: "prints a line before its claim",
        file: "crates/greeting/src/plan.rs",
        edits: &[(
            "        plan.steps.push(vec![Action::Claim { status, token }]);\n        plan.steps.push(vec![Action::Effect(Effect::Say(say))]);",
            "        plan.steps.push(vec![Action::Effect(Effect::Say(say))]);\n        plan.steps.push(vec![Action::Claim { status, token }]);",
        )],
        catchers: &[Catcher::Plans("greeting-life", "/crash-")],
    },
    Mutant {
        name: "partition keeps only pods of the current template",
        file: "crates/podset/src/rollout.rs",
        edits: &[(
            "outdated.saturating_sub(kept)",
            "outdated.saturating_sub(kept.min(members.iter().filter(|member| member.current).count()))",
        )],
        catchers: &[Catcher::Tests("quintet-podset", "replaces_a_template_between_the_two")],
    },
    Mutant {
        name: "a rollout up to its partition accepts the template",
        file: "crates/podset/src/revision.rs",
        edits: &[("let keeps = limits.has_partition || limits.paused;", "let keeps = false;")],
        catchers: &[
            Catcher::Tests("quintet-podset", "a_partition_accepts_a_template"),
            Catcher::Tests("quintet-podset", "keeps_its_promises"),
        ],
    },
    Mutant {
        name: "deletes the current revision",
        file: "crates/podset/src/revision.rs",
        edits: &[(".chain([current]).chain(stored)", "")],
        catchers: &[
            Catcher::Tests("quintet-podset", "keeps_the_revisions_of_pods"),
            Catcher::Tests("quintet-podset", "keeps_its_promises"),
        ],
    },
    Mutant {
        name: "creates pods of a template that was not read",
        file: "crates/podset/src/plan.rs",
        edits: &[(
            "        CurrentTemplate::Missing => lost = 0,",
            "        CurrentTemplate::Unread | CurrentTemplate::Missing => lost = 0,",
        )],
        catchers: &[Catcher::Tests("quintet-podset", "reports_why_old_pods_stay")],
    },
    Mutant {
        name: "an undo keeps the canary",
        file: "crates/podset/src/revision.rs",
        edits: &[("let kept = if current == updated {", "let kept = if updated.is_empty() {")],
        catchers: &[Catcher::Tests("quintet-podset", "an_undo_replaces_the_canary")],
    },
    Mutant {
        name: "a paused canary spreads",
        file: "crates/podset/src/revision.rs",
        edits: &[("} else if limits.paused {", "} else if updated.is_empty() {")],
        catchers: &[Catcher::Tests("quintet-podset", "a_paused_canary")],
    },
    Mutant {
        name: "adopts more pods than are missing",
        file: "crates/podset/src/adoption.rs",
        edits: &[("    found.truncate(missing);\n", "")],
        catchers: &[Catcher::Tests("quintet-podset", "adopts_pods_in_place_of_missing_ones")],
    },
    Mutant {
        name: "adopts pods that a user took out",
        file: "crates/podset/src/adoption.rs",
        edits: &[("pod.label(RELEASED_LABEL).is_none()", "true")],
        catchers: &[Catcher::Tests("quintet-podset", "leaves_other_pods")],
    },
    Mutant {
        name: "a rejected adoption keeps its place",
        file: "crates/podset/src/adoption.rs",
        edits: &[(" && !waits(pod)", "")],
        catchers: &[Catcher::Tests("quintet-podset", "a_rejected_adoption_leaves_its_place")],
    },
    Mutant {
        name: "adopts a pod that has changed",
        file: "crates/podset/src/adoption.rs",
        edits: &[("            \"resourceVersion\": &*pod.meta.resource_version,\n", "")],
        catchers: &[Catcher::Plans("podset-adopt", "request:apply-pods")],
    },
    Mutant {
        name: "adopts pods that its own deletion orphaned",
        file: "crates/podset/src/controller.rs",
        edits: &[("if pods.iter().any(adoption::is_orphan) {", "if pods.is_empty() {")],
        catchers: &[Catcher::Plans("podset-adopt-again", "event:podsets")],
    },
    Mutant {
        name: "pods wake no PodSet",
        file: "crates/podset/src/controller.rs",
        edits: &[("controller.owns(&pods);", "")],
        catchers: &[Catcher::Plans("podset-pod-lost", "event:pods")],
    },
    Mutant {
        name: "reads each pod that the manager deleted",
        file: "crates/podset/src/controller.rs",
        edits: &[("memory.deletes(&owner.uid, &pod.meta.uid)", "memory.deletes(&owner.uid, \"\")")],
        catchers: &[Catcher::Tests("quintet-faults", "reads_no_pod_that_it_deleted")],
    },
    Mutant {
        name: "applies an outdated PulsarConsumer",
        file: "crates/pulsarconsumer/src/controller.rs",
        edits: &[(
            "if found.is_none_or(|found| !is_same_version(object, &found)) {",
            "if found.is_none_or(|found| found.uid != key.uid && !is_same_version(object, &found)) {",
        )],
        catchers: &[Catcher::Tests("quintet-faults", "never_takes_back_the_writes_of_a_newer_version")],
    },
    Mutant {
        name: "new leader trusts old caches",
        file: "crates/runtime/src/server/gate.rs",
        edits: &[("since.is_some_and(|since| progress.listed >= Some(since))", "since.is_some()")],
        catchers: &[Catcher::Plans("podset-pod-lost", "/take-over-blind")],
    },
    Mutant {
        name: "deletes an object with another UID",
        file: "crates/runtime/src/write/request.rs",
        edits: &[("let mut preconditions = json!({ \"uid\": uid });", "let mut preconditions = json!({});")],
        catchers: &[Catcher::Plans("podset-scale-back", "delete-pods")],
    },
];
