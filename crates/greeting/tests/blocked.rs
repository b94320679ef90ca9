//! Standard output that is blocked for an hour, with the real printer and a simulated clock.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests may panic")]

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex};

use jiff::{SignedDuration, Timestamp};
use quintet_greeting::FINALIZER;
use quintet_greeting::api::Greeting;
use quintet_greeting::line::most_bytes;
use quintet_greeting::observe::{Memory, World};
use quintet_greeting::plan::plan;
use quintet_greeting::printer::Printer;
use quintet_runtime::model::plan::Action;
use serde_json::json;

/// More lines than fit into the queue.
const COUNT: usize = 120;

/// A reader that takes nothing until it is opened.
#[derive(Clone, Default)]
struct Reader {
    is_open: Arc<(Mutex<bool>, Condvar)>,
    text: Arc<Mutex<Vec<u8>>>,
}

impl Reader {
    fn open(&self) {
        *self.is_open.0.lock().unwrap() = true;
        self.is_open.1.notify_all();
    }
}

impl Write for Reader {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let is_open = self.is_open.0.lock().unwrap();
        drop(self.is_open.1.wait_while(is_open, |is_open| !*is_open).unwrap());
        self.text.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A Greeting in the API server, and the memory of its manager.
struct Stored {
    greeting: Greeting,
    memory: Memory,
}

impl Stored {
    fn new(number: usize) -> Self {
        let mut greeting = Greeting::new("g", serde_json::from_value(json!({})).unwrap());
        greeting.metadata.uid = Some(number.to_string());
        let mut stored = Self { greeting, memory: Memory::default() };
        stored.set_message(&number.to_string());
        stored
    }

    fn set_message(&mut self, first_word: &str) {
        self.greeting.spec.message = Some(format!("{first_word} {}", "long ".repeat(3_000)));
        self.write(|_| ());
    }

    fn write(&mut self, change: impl FnOnce(&mut Greeting)) {
        change(&mut self.greeting);
        let version = self.greeting.metadata.resource_version.as_deref().unwrap_or("0");
        let version: u64 = version.parse().unwrap();
        self.greeting.metadata.resource_version = Some((version + 1).to_string());
    }

    /// One reconcile.
    fn reconcile(&mut self, printer: &Printer, (leading_since, now): (Timestamp, Timestamp)) {
        let recalled = self.memory.recall(&self.greeting);
        assert!(recalled.owed.is_none(), "each claim is answered and printed at once");
        let room = printer.reserve(most_bytes(self.greeting.spec.message.as_deref().unwrap()));
        let version = self.greeting.metadata.resource_version.clone().unwrap();
        let token = format!("{}-{version}", self.greeting.metadata.uid.as_deref().unwrap());
        let world = World { token, leading_since, recalled, room };
        let plan = plan(&self.greeting, &world, now);
        for action in plan.steps.into_iter().flatten() {
            match action {
                Action::JsonPatch { .. } => {
                    self.write(|greeting| greeting.metadata.finalizers = Some(vec![FINALIZER.into()]));
                }
                Action::Claim { status, .. } => self.write(|greeting| greeting.status = Some(status)),
                Action::Effect(effect) => {
                    if let Some(say) = self.memory.take(effect) {
                        printer.print(say.lines, say.room).unwrap();
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        if let Some(status) = plan.status {
            self.write(|greeting| greeting.status = Some(status));
        }
    }
}

/// Every claimed line is printed once, a change that waits too, and of the missed ticks at most the last.
#[test]
fn an_hour_of_blocked_output_loses_no_line() {
    let reader = Reader::default();
    let printer = Printer::start(reader.clone()).unwrap();
    let begin: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let mut all: Vec<Stored> = (0..COUNT).map(Stored::new).collect();
    // Its ticks always fit into the queue.
    all[1].greeting.spec.message = Some("1 short".to_owned());
    let reconcile = |all: &mut [Stored], minute: i64| {
        let now = begin + SignedDuration::from_mins(minute);
        for one in all {
            one.reconcile(&printer, (begin, now));
        }
    };
    for minute in 0..60 {
        if minute == 30 {
            all[0].set_message("changed");
        }
        reconcile(&mut all, minute);
    }
    let is_claimed =
        |one: &&Stored| one.greeting.status.as_ref().is_some_and(|status| status.claim.is_some());
    let claimed = all.iter().filter(is_claimed).count();
    assert!((50..COUNT).contains(&claimed), "{claimed}: only those that fit into the queue are claimed");
    assert!(reader.text.lock().unwrap().is_empty());

    reader.open();
    for _ in 0..6 {
        assert_eq!(printer.flush(), Ok(()));
        reconcile(&mut all, 60);
    }
    assert_eq!(printer.flush(), Ok(()));
    let text = String::from_utf8(reader.text.lock().unwrap().clone()).unwrap();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').take(2).collect();
        *counts.entry(words.join(" ")).or_default() += 1;
    }
    let count = |line: &str| counts.get(line).copied().unwrap_or_default();
    for number in 0..COUNT {
        for kind in ["Greeting", "Create"] {
            assert_eq!(count(&format!("{kind}: {number}")), 1, "{kind} {number}");
        }
    }
    assert_eq!(count("Update: changed"), 1);
    // The tick of the creation, and the last one of the hour for those that were created before it.
    let ticks: Vec<usize> = (1..COUNT).map(|number| count(&format!("Timer: {number}"))).collect();
    assert!(ticks.iter().all(|ticks| (1..=2).contains(ticks)), "{ticks:?}");
    assert_eq!((count("Timer: 0"), count("Timer: changed")), (1, 1));
}
