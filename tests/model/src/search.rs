//! A breadth-first search through all states, so that a counterexample is a shortest one.
//!
//! A state is identified by a digest of 128 bits. With ten million states, the chance of a collision is below
//! 1e-24. The states themselves are kept only until they are expanded.

use std::collections::HashMap;
use std::collections::hash_map::{DefaultHasher, Entry};
use std::fmt::Write as _;
use std::hash::{Hash, Hasher as _};
use std::time::{Duration, Instant};

use crate::environment::{Event, initial, successors};
use crate::invariants;
use crate::state::{Budget, State, Write};
use crate::world::{Variant, Worlds, name_of};

pub struct Found {
    pub states: usize,
    pub transitions: usize,
    pub depth: usize,
    pub took: Duration,
    /// The broken invariant, and the steps to it.
    pub broken: Option<(String, Vec<String>)>,
}

/// A state after its expansion.
struct Known {
    before: u32,
    event: Event,
    /// The next state without further disturbances; the state itself at rest.
    healed: u32,
}

struct Search {
    worlds: Worlds,
    first: State,
    numbers: HashMap<(u64, u64), u32>,
    known: Vec<Known>,
    transitions: usize,
}

fn digest(state: &State) -> (u64, u64) {
    let half = |seed: u8| {
        let mut hasher = DefaultHasher::new();
        hasher.write_u8(seed);
        state.hash(&mut hasher);
        hasher.finish()
    };
    (half(1), half(2))
}

/// Searches until there is no new state, or an invariant is broken.
pub fn search(variant: Variant, budget: Budget) -> Found {
    let began = Instant::now();
    let first = initial(variant, budget);
    let mut search = Search {
        worlds: Worlds::new(variant),
        first: first.clone(),
        numbers: HashMap::from([(digest(&first), 0)]),
        known: vec![Known { before: 0, event: Event::Pass, healed: 0 }],
        transitions: 0,
    };
    let mut level = vec![(0, first)];
    let mut depth = 0;
    let mut broken = None;
    while !level.is_empty() && broken.is_none() {
        depth += 1;
        match search.expand(level) {
            Ok(next) => level = next,
            Err(found) => {
                broken = Some(found);
                break;
            }
        }
    }
    if broken.is_none() {
        broken = search.unhealed();
    }
    Found {
        states: search.known.len(),
        transitions: search.transitions,
        depth: depth - 1,
        took: began.elapsed(),
        broken: broken.map(|(at, last, why)| (why, search.describe(at, last))),
    }
}

type Broken = (u32, Option<Event>, String);

impl Search {
    fn expand(&mut self, level: Vec<(u32, State)>) -> Result<Vec<(u32, State)>, Broken> {
        let mut next = Vec::new();
        for (number, state) in level {
            let found = successors(&mut self.worlds, &state);
            let found = found.map_err(|(event, why)| (number, Some(event), why))?;
            self.transitions += found.len();
            let mut best = None;
            for (event, state) in found {
                let after = u32::try_from(self.known.len()).expect("fewer than 2^32 states");
                let after = match self.numbers.entry(digest(&state)) {
                    Entry::Occupied(known) => *known.get(),
                    Entry::Vacant(vacant) => {
                        vacant.insert(after);
                        self.known.push(Known { before: number, event, healed: after });
                        next.push((after, state));
                        after
                    }
                };
                if let Some(rank) = event.is_provisional()
                    && after != number
                    && best.is_none_or(|(least, _)| rank < least)
                {
                    best = Some((rank, after));
                }
            }
            match best {
                Some((_, after)) => self.known[number as usize].healed = after,
                None => invariants::of_rest(&self.worlds, &state).map_err(|why| (number, None, why))?,
            }
        }
        Ok(next)
    }

    /// A state that never settles, even without further disturbances.
    fn unhealed(&self) -> Option<Broken> {
        let mut rests = vec![false; self.known.len()];
        for start in 0..self.known.len() {
            let mut path = Vec::new();
            let mut at = start;
            while !rests[at] {
                path.push(at);
                let healed = self.known[at].healed as usize;
                if healed == at {
                    break;
                }
                if path.len() > self.known.len() {
                    let why = "5: without disturbances, the DaemonJob never settles".to_owned();
                    return Some((u32::try_from(start).unwrap_or_default(), None, why));
                }
                at = healed;
            }
            for at in path {
                rests[at] = true;
            }
        }
        None
    }

    /// A readable list of the steps to a state, with the last one, which breaks an invariant.
    fn describe(&mut self, to: u32, last: Option<Event>) -> Vec<String> {
        let mut events: Vec<Event> = last.into_iter().collect();
        let mut at = to;
        while at != 0 {
            events.push(self.known[at as usize].event);
            at = self.known[at as usize].before;
        }
        events.reverse();
        let mut state = self.first.clone();
        let mut lines = Vec::new();
        for event in events {
            let is_pass = matches!(event, Event::Pass | Event::PassWithoutStatus | Event::NewLeader { .. });
            let pass = if is_pass { self.pass(&state) } else { String::new() };
            lines.push(format!("{event}{pass}"));
            let found = successors(&mut self.worlds, &state).unwrap_or_default();
            if let Some((_, next)) = found.into_iter().find(|(other, _)| *other == event) {
                state = next;
            }
        }
        lines
    }

    /// A readable list of the writes of a reconcile.
    fn pass(&mut self, state: &State) -> String {
        let pass = self.worlds.pass(state);
        let mut text = String::new();
        for write in pass.steps.iter().flatten() {
            let line = match write {
                Write::Create(pod) => {
                    format!("creates pod {} of node {}", pod.number, name_of(pod.node.name))
                }
                Write::Mark { pod, mark } => {
                    let mark = mark.map_or("nothing", |mark| crate::world::MARKS[usize::from(mark)]);
                    format!("marks pod {} of node {} with {mark}", pod.number, name_of(pod.node.name))
                }
                Write::Delete { pod, .. } => {
                    format!("deletes pod {} of node {}", pod.number, name_of(pod.node.name))
                }
                Write::Release(pod) => {
                    format!("releases pod {} of node {}", pod.number, name_of(pod.node.name))
                }
                Write::Record { slot, after, .. } => format!("writes {}", self.worlds.told(*slot, *after)),
                Write::MarkNode(mark) => {
                    format!("changes node {} for pod {}", name_of(mark.node.name), mark.after.pod)
                }
                Write::Status { .. } => {
                    let status = &pass.status;
                    let conditions = status.conditions.iter().filter(|one| one.status == "True");
                    let conditions: Vec<String> =
                        conditions.map(|one| format!("{} ({})", one.type_, one.reason)).collect();
                    let lists = [&status.failed_nodes, &status.pending_nodes, &status.skipped_nodes];
                    let nodes = lists.into_iter().flatten().map(|one| format!("{} {}", one.node, one.reason));
                    let nodes: Vec<String> = nodes.collect();
                    let due = match pass.reported.due {
                        0 => String::new(),
                        due => format!(", half-day {due} is due"),
                    };
                    format!("sets {:?} and lists {:?}{due}", conditions.join(", "), nodes.join(", "))
                }
            };
            let _ = write!(text, "\n       {line}");
        }
        text
    }
}
