//! The leader's view: its caches, and the objects that it cannot reconcile. From its metrics, and its debug page if this program
//! runs beside it.

use quintet_runtime::control::context::UNREADY;

use super::finding::{Fact, Finding, LISTED};
use super::installation::Installation;
use crate::pages::objects_in_error;

/// The pages of the leader.
#[derive(Clone, Debug, Default)]
pub struct Activity {
    /// `/metrics`.
    pub metrics: String,
    /// `/debug/controllers`; None if only the metrics can be read.
    pub controllers: Option<String>,
}

/// The metric for the silence of each cache.
const SILENCE: &str = "quintet_informer_silence_seconds";
/// The reasons of objects that a reconcile or a write concerns, and the words for them.
const REASONS: [(&str, &str); 2] =
    [("ReconcileFailed", "fails"), ("WriteRejected", "has had rejected writes")];

impl Activity {
    /// These pages, if they are whole and those of the leader. The leader may have changed since its Lease was read.
    pub fn of_leader(self) -> Fact<Self> {
        let has = |name: &str| samples(&self.metrics, name).next().is_some();
        if !has("quintet_build_info") {
            return Err("The leader's metrics are incomplete, or not those of quintet.".to_owned());
        }
        if !samples(&self.metrics, "leader_election_master_status").any(|(_, leads)| leads > 0.0) {
            return Err("The leader changed during the check. Run this command again.".to_owned());
        }
        if !has(SILENCE) {
            return Err("The leader's metrics contain no cache.".to_owned());
        }
        Ok(self)
    }

    /// The version in the metrics.
    pub fn version(&self) -> Option<&str> {
        samples(&self.metrics, "quintet_build_info").find_map(|(labels, _)| label(labels, "version"))
    }
}

/// The samples of a metric: the text of the labels, and the value.
fn samples<'a>(metrics: &'a str, name: &str) -> impl Iterator<Item = (&'a str, f64)> {
    metrics.lines().filter_map(move |line| {
        let (labels, value) = line.strip_prefix(name)?.strip_prefix('{')?.rsplit_once("} ")?;
        Some((labels, value.parse().ok()?))
    })
}

/// The value of a label, which has no quotes.
fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = labels.split_once(&format!("{name}=\""))?;
    rest.split('"').next()
}

/// The finding if the leader's pages cannot be read.
fn unread(installation: &Installation, leader: Option<&str>, why: &str) -> Vec<Finding> {
    let finding = Finding::unknown(why);
    vec![match leader {
        Some(pod) => finding.then(installation.in_pod(pod)),
        None => finding,
    }]
}

/// Whether the leader's caches get events, and can decode all objects. `leader` is its pod.
pub fn caches(installation: &Installation, leader: Option<&str>, activity: &Fact<Activity>) -> Vec<Finding> {
    let metrics = match activity {
        Ok(activity) => &activity.metrics,
        Err(why) => return unread(installation, leader, why),
    };
    let mut findings = Vec::new();
    let mut count = 0;
    for (labels, silence) in samples(metrics, SILENCE) {
        count += 1;
        if silence > UNREADY.as_secs_f64() {
            let cache = label(labels, "cache").unwrap_or_default();
            let why = format!("The leader's cache of {cache} has had no event for {silence:.0} s.");
            findings.push(Finding::problem(why, installation.logs()));
        }
    }
    for (labels, objects) in samples(metrics, "quintet_informer_undecodable_objects") {
        if objects > 0.0 {
            let resource = label(labels, "resource").unwrap_or_default();
            let why = format!("The leader cannot decode {objects} {resource}, and ignores them.");
            findings.push(Finding::problem(why, "kubectl get events -A --field-selector reason=Undecodable"));
        }
    }
    if findings.is_empty() {
        let why = format!("The leader's {count} caches get events, and it can decode all objects.");
        findings.push(Finding::well(why));
    }
    findings
}

/// Whether the leader's reconciles fail, and the API server rejects its writes.
pub fn reconciles(
    installation: &Installation,
    leader: Option<&str>,
    activity: &Fact<Activity>,
) -> Vec<Finding> {
    let activity = match activity {
        Ok(activity) => activity,
        Err(why) => return unread(installation, leader, why),
    };
    let mut findings = match &activity.controllers {
        Some(page) => of_page(installation, page),
        None => of_metrics(installation, leader, &activity.metrics),
    };
    if findings.is_empty() {
        findings.push(Finding::well("No reconcile fails, and no write is rejected."));
    }
    findings
}

/// The objects on the leader's debug page.
fn of_page(installation: &Installation, page: &str) -> Vec<Finding> {
    let objects = objects_in_error(page);
    let listed = objects.iter().take(LISTED).cloned();
    let more = objects.len().saturating_sub(LISTED);
    let rest = (more > 0).then(|| format!("{more} more objects fail or have rejected writes."));
    listed.chain(rest).map(|line| Finding::problem(line, installation.logs())).collect()
}

/// The objects that the leader's metrics name, those that fail longest first, and the numbers of all objects.
fn of_metrics(installation: &Installation, leader: Option<&str>, metrics: &str) -> Vec<Finding> {
    let remedy = leader.map_or_else(|| installation.logs(), |pod| installation.in_pod(pod));
    let counts = [("quintet_failing_objects", "fail"), ("quintet_refused_objects", "have rejected writes")];
    let mut named: Vec<(f64, String)> = Vec::new();
    for (labels, seconds) in samples(metrics, "quintet_object_problem_seconds") {
        let of = |name| label(labels, name).unwrap_or_default();
        if let Some((_, what)) = REASONS.iter().find(|(reason, _)| *reason == of("reason")) {
            let (kind, namespace, name) = (of("kind"), of("namespace"), of("name"));
            named.push((seconds, format!("{kind} {namespace}/{name} {what} for {seconds:.0} s.")));
        }
    }
    named.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    let named = named.into_iter().take(LISTED).map(|(_, why)| why);
    let totals = counts.iter().flat_map(|(name, what)| {
        let positive = samples(metrics, name).filter(|(_, objects)| *objects > 0.0);
        positive.map(move |(labels, objects)| {
            let controller = label(labels, "controller").unwrap_or_default();
            format!("{controller}: {objects} objects {what}.")
        })
    });
    named.chain(totals).map(|why| Finding::problem(why, remedy.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::super::installation::usual;
    use super::*;

    const METRICS: &str = "# HELP quintet_informer_silence_seconds x\n\
        leader_election_master_status{name=\"quintet-manager\"} 1\n\
        quintet_build_info{target=\"x\",version=\"9.9.9\"} 1\n\
        quintet_failing_objects{controller=\"book\"} 0\n\
        quintet_failing_objects{controller=\"podset\"} 0\n\
        quintet_informer_silence_seconds{cache=\"books.christianb93.github.com\"} 3.5\n\
        quintet_informer_silence_seconds{cache=\"team-a/pods.\"} 149.9\n\
        quintet_informer_undecodable_objects{resource=\"books\"} 0\n\
        quintet_refused_objects{controller=\"podset\"} 0\n";

    #[expect(clippy::unnecessary_wraps, reason = "the checks take facts that may be missing")]
    fn activity(change: (&str, &str), controllers: Option<&str>) -> Fact<Activity> {
        assert!(METRICS.contains(change.0), "{change:?}");
        let metrics = METRICS.replace(change.0, change.1);
        Ok(Activity { metrics, controllers: controllers.map(str::to_owned) })
    }

    fn texts(findings: &[Finding]) -> Vec<(Verdict, &str)> {
        findings.iter().map(|finding| (finding.verdict, finding.sentence.as_str())).collect()
    }

    #[test]
    fn reads_the_version() {
        assert_eq!(activity(("", ""), None).unwrap().version(), Some("9.9.9"));
        assert_eq!(Activity::default().version(), None);
    }

    #[test]
    fn accepts_only_whole_metrics_of_the_leader() {
        let why = |metrics: &str| {
            let activity = Activity { metrics: metrics.to_owned(), controllers: None };
            activity.of_leader().map(|activity| activity.metrics)
        };
        assert_eq!(why(METRICS), Ok(METRICS.to_owned()));
        for foreign in ["", "<html>ok</html>", &METRICS[..80]] {
            let incomplete = "The leader's metrics are incomplete, or not those of quintet.";
            assert_eq!(why(foreign), Err(incomplete.to_owned()), "{foreign}");
        }
        let cut = METRICS.find("quintet_informer_silence_seconds{").unwrap();
        assert_eq!(why(&METRICS[..cut]), Err("The leader's metrics contain no cache.".to_owned()));
        let standby = METRICS.replace("manager\"} 1", "manager\"} 0");
        assert!(why(&standby).unwrap_err().starts_with("The leader changed"), "{standby}");
    }

    #[test]
    fn names_objects_from_the_metrics() {
        let problem = |name: &str, reason: &str, seconds: u32| {
            format!(
                "quintet_object_problem_seconds{{kind=\"Book\",name=\"{name}\",namespace=\"a\",\
                 reason=\"{reason}\",state=\"failing\"}} {seconds}\n"
            )
        };
        let problems = [
            problem("late", "WriteRejected", 5),
            problem("early", "ReconcileFailed", 70),
            problem("other", "Stalled", 90),
        ];
        let line = "quintet_failing_objects{controller=\"book\"} 1\n";
        let changed = problems.concat() + line;
        let found = |changed: &str| {
            let change = ("quintet_failing_objects{controller=\"book\"} 0\n", changed);
            reconciles(&usual(), Some("pod-1"), &activity(change, None))
        };
        let expected = [
            "Book a/early fails for 70 s.",
            "Book a/late has had rejected writes for 5 s.",
            "book: 1 objects fail.",
        ];
        assert_eq!(texts(&found(&changed)), expected.map(|text| (Verdict::Problem, text)));
        let many: String = (0..30).map(|at| problem(&format!("book-{at}"), "WriteRejected", at)).collect();
        assert_eq!(found(&(many + line)).len(), LISTED + 1);
    }

    #[test]
    fn reports_silent_caches_and_undecodable_objects() {
        let check = |change| caches(&usual(), Some("pod-1"), &activity(change, None));
        let well = "The leader's 2 caches get events, and it can decode all objects.";
        assert_eq!(texts(&check(("", ""))), [(Verdict::Well, well)]);
        let expected = "The leader's cache of team-a/pods. has had no event for 151 s.";
        assert_eq!(texts(&check(("149.9", "151"))), [(Verdict::Problem, expected)]);
        let expected = "The leader cannot decode 2 books, and ignores them.";
        assert_eq!(texts(&check(("\"books\"} 0", "\"books\"} 2"))), [(Verdict::Problem, expected)]);
    }

    #[test]
    fn reports_failing_and_rejected_objects() {
        let check = |change, page| reconciles(&usual(), Some("pod-1"), &activity(change, page));
        let well = "No reconcile fails, and no write is rejected.";
        assert_eq!(texts(&check(("", ""), None)), [(Verdict::Well, well)]);
        assert_eq!(texts(&check(("", ""), Some("Leader: x.\nbook: 0 waiting\n"))), [(Verdict::Well, well)]);
        let page = "Leader: x.\npodset: 0 waiting\n  rejected  a/b  the quota is exceeded\n";
        let expected = "podset: rejected  a/b  the quota is exceeded";
        assert_eq!(texts(&check(("", ""), Some(page))), [(Verdict::Problem, expected)]);
        let findings = check(
            (
                "quintet_refused_objects{controller=\"podset\"} 0",
                "quintet_refused_objects{controller=\"podset\"} 3",
            ),
            None,
        );
        assert_eq!(texts(&findings), [(Verdict::Problem, "podset: 3 objects have rejected writes.")]);
        assert!(findings[0].remedy.as_ref().unwrap().contains("exec --namespace ns pod-1"), "{findings:?}");
        let many = "  failing  a/b  1 times\n".repeat(30);
        let findings = check(("", ""), Some(&format!("book: 0 waiting\n{many}")));
        assert_eq!(findings.len(), LISTED + 1);
        assert!(findings[LISTED].sentence.starts_with("10 more objects"), "{findings:?}");
    }

    #[test]
    fn without_the_leaders_pages_both_checks_have_no_result() {
        let away = Err("permission denied".to_owned());
        for findings in [caches(&usual(), Some("pod-1"), &away), reconciles(&usual(), Some("pod-1"), &away)] {
            assert_eq!(texts(&findings), [(Verdict::Unknown, "permission denied")]);
            assert!(findings[0].remedy.as_ref().unwrap().contains("pod-1"), "{findings:?}");
        }
        assert_eq!(caches(&usual(), None, &away)[0].remedy, None);
    }
}
