//! A plan: one scenario and its faults, with a name that reproduces it.
//! `scenario/request:create-pods.3/conflict` means: in that scenario, the third creation of a pod gets a
//! conflict.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A fault of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Trouble {
    /// The process dies before the server receives the request.
    CrashBefore,
    /// The process dies after the server has executed the request and before the answer.
    CrashAfter,
    /// 409, not because of the object.
    Conflict,
    /// Another client creates an object with the name first, and deletes it after 40 s.
    Stranger,
    /// 404.
    NotFound,
    /// 404 in the words of a proxy.
    ProxyNotFound,
    /// 410.
    Gone,
    /// 422.
    Invalid,
    /// 403.
    Forbidden,
    /// 429 with Retry-After.
    Busy,
    /// 500.
    Error,
    /// 503.
    Unavailable,
    /// 504, and the request was executed.
    TimeoutAfter,
    /// 504, and the request was not executed.
    TimeoutBefore,
    /// The connection breaks before the server receives the request.
    ResetBefore,
    /// The connection breaks after the request was executed.
    ResetAfter,
    /// The request was executed, and half of the answer arrives.
    Truncated,
    /// No answer, and the server did not receive the request.
    SilenceBefore,
    /// No answer, and the request was executed.
    SilenceAfter,
    /// The answer arrives after 30 s.
    Slow,
    /// The server receives the request after 25 s, when the client no longer waits.
    Late,
    /// Like `Late`; meanwhile the sender is partitioned for 40 s and another process leads.
    LateAfterTakeOver,
    /// All later requests of the process arrive 25 s late, as if it had been stopped; another process leads.
    Paused,
    /// The process is partitioned for 40 s, and another process leads.
    CutOff,
    /// The process dies after the request was executed. The watches of its successor are 8 s behind.
    TakeOverBehind,
    /// The process dies after the request was executed. Its successor has not seen any pod, Deployment or
    /// ledger that was created since it started.
    TakeOverBlind,
    /// The process gets SIGTERM; another process leads.
    HandOver,
    /// Like `CutOff`, then the reverse: each of two processes sees the other's writes late.
    Crossed,
    /// The process dies after the request was executed and restarts at another API server, whose state is 10
    /// s old for some time.
    StaleServer,
    /// The process dies and restarts with a clock that is 10 min ahead.
    ClockAhead,
    /// The process dies and restarts with a clock that is 10 min behind.
    ClockBehind,
    /// For 5 min, lists and watches of the process get no answer. Small requests do.
    Blind,
    /// For 25 min, lists and watches of all processes get no answer. Small requests do.
    AllBlind,
    /// etcd loses all writes since the last step of the scenario, the request included. The API server restarts, which takes
    /// 5 s, and its versions count from the restored one.
    Restored,
    /// As `Restored`, with a raised version, and the API server keeps running.
    RestoredBumped,
    /// As `Restored`, but the API server keeps running: it ends all watches, and for 5 s it answers 500 to lists and watches. Other
    /// requests reach the restored store.
    RestoredRejected,
    /// A proxy answers 400.
    ProxyBadRequest,
    /// The answer is a watch with only the error 500: the store cannot stream lists.
    Unstreamable,
    /// The answer is a watch with only the error 504: the watch cache is behind the store.
    Lagging,
}

impl Trouble {
    /// The faults of every write.
    pub const OF_WRITES: [Self; 32] = [
        Self::CrashBefore,
        Self::CrashAfter,
        Self::Conflict,
        Self::NotFound,
        Self::Gone,
        Self::Invalid,
        Self::Forbidden,
        Self::Busy,
        Self::Error,
        Self::Unavailable,
        Self::TimeoutAfter,
        Self::TimeoutBefore,
        Self::ResetBefore,
        Self::ResetAfter,
        Self::Truncated,
        Self::SilenceBefore,
        Self::SilenceAfter,
        Self::Slow,
        Self::Late,
        Self::LateAfterTakeOver,
        Self::Paused,
        Self::CutOff,
        Self::TakeOverBehind,
        Self::TakeOverBlind,
        Self::HandOver,
        Self::Crossed,
        Self::StaleServer,
        Self::ClockAhead,
        Self::ClockBehind,
        Self::Restored,
        Self::RestoredBumped,
        Self::RestoredRejected,
    ];
    /// The faults of the first write of each name. They concern the process, not the request.
    pub const OF_FIRST_WRITES: [Self; 2] = [Self::Blind, Self::AllBlind];
    /// The faults of every read.
    pub const OF_READS: [Self; 11] = [
        Self::CrashBefore,
        Self::ProxyNotFound,
        Self::Gone,
        Self::Busy,
        Self::Error,
        Self::Unavailable,
        Self::ResetBefore,
        Self::Truncated,
        Self::SilenceBefore,
        Self::Slow,
        Self::Forbidden,
    ];
    /// The further faults of every watch, and so of every list that is streamed.
    pub const OF_WATCHES: [Self; 3] = [Self::ProxyBadRequest, Self::Unstreamable, Self::Lagging];

    /// All faults: those of every write and every watch, and those that only some requests have.
    fn all() -> impl Iterator<Item = Self> {
        let others = [Self::Stranger, Self::ProxyNotFound].into_iter().chain(Self::OF_FIRST_WRITES);
        Self::OF_WRITES.into_iter().chain(Self::OF_WATCHES).chain(others)
    }

    /// Whether the fault needs a standby.
    pub fn needs_standby(self) -> bool {
        matches!(
            self,
            Self::LateAfterTakeOver
                | Self::Paused
                | Self::CutOff
                | Self::TakeOverBehind
                | Self::TakeOverBlind
                | Self::HandOver
                | Self::Crossed
                | Self::Blind
                | Self::AllBlind
        ) || self.is_restore()
    }

    /// Whether etcd is restored.
    pub fn is_restore(self) -> bool {
        matches!(self, Self::Restored | Self::RestoredBumped | Self::RestoredRejected)
    }

    /// Whether a process dies.
    pub fn is_crash(self) -> bool {
        matches!(
            self,
            Self::CrashBefore
                | Self::CrashAfter
                | Self::TakeOverBehind
                | Self::TakeOverBlind
                | Self::StaleServer
                | Self::ClockAhead
                | Self::ClockBehind
        )
    }

    /// Whether a write may be executed after its sender has given it up.
    pub fn is_late(self) -> bool {
        matches!(self, Self::Late | Self::LateAfterTakeOver | Self::Paused)
    }
}

/// A fault of one line of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Event {
    /// The line arrives twice.
    Twice,
    /// This line and later ones arrive 300 ms late, after changes of other types.
    Reordered,
    /// This line and later ones arrive 5 s late, after the next write.
    Delayed,
    /// The watch ends before the line.
    Closed,
    /// The connection breaks within the line.
    Torn,
    /// 410, after which the informer lists again.
    Expired,
    /// 410 after 5 s, so that the informer sees only the later state.
    Dropped,
    /// No more lines arrive.
    Silence,
    /// The process dies when the line arrives.
    Crash,
}

impl Event {
    /// All faults of lines.
    pub const ALL: [Self; 9] = [
        Self::Twice,
        Self::Reordered,
        Self::Delayed,
        Self::Closed,
        Self::Torn,
        Self::Expired,
        Self::Dropped,
        Self::Silence,
        Self::Crash,
    ];
}

/// A fault and its place.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fault {
    /// No fault.
    None,
    /// At the n-th request of this name (`create-pods`), counted from 1.
    Request(String, usize, Trouble),
    /// At the n-th line of the watches of this type (`pods`), counted from 1.
    Line(String, usize, Event),
    /// Several faults.
    Several(Vec<Fault>),
}

/// A scenario and a fault.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Plan {
    /// The scenario's name.
    pub scenario: String,
    /// The fault.
    pub fault: Fault,
}

impl Fault {
    /// The single faults of this fault.
    pub fn parts(&self) -> &[Self] {
        match self {
            Self::None => &[],
            Self::Several(parts) => parts,
            one => std::slice::from_ref(one),
        }
    }

    /// Whether one of the faults is at a request for which `is` is true.
    fn has(&self, is: impl Fn(&str, Trouble) -> bool) -> bool {
        let mut parts = self.parts().iter();
        parts.any(|fault| matches!(fault, Self::Request(name, _, trouble) if is(name, *trouble)))
    }

    /// Whether the fault needs a standby.
    pub fn needs_standby(&self) -> bool {
        self.has(|_, trouble| trouble.needs_standby())
    }

    /// Whether pairs contain the fault. A restore may take back what another fault did, and runs in which managers are blind
    /// take long.
    pub fn can_pair(&self) -> bool {
        !self.has(|_, trouble| trouble.is_restore() || Trouble::OF_FIRST_WRITES.contains(&trouble))
    }

    /// The name of the place and the fault.
    fn name(&self) -> String {
        match self {
            Self::None => String::new(),
            Self::Request(name, nth, trouble) => format!("request:{name}.{nth}/{}", kebab(*trouble)),
            Self::Line(resource, nth, event) => format!("event:{resource}.{nth}/{}", kebab(*event)),
            Self::Several(parts) => parts.iter().map(Self::name).collect::<Vec<_>>().join("+"),
        }
    }

    /// The class of the fault, for the table.
    pub fn class(&self) -> String {
        match self {
            Self::None => "none".to_owned(),
            Self::Several(_) => "several".to_owned(),
            Self::Request(name, _, trouble) => {
                let kind = if is_read(name) { "read" } else { "write" };
                format!("{kind} {}", kebab(*trouble))
            }
            Self::Line(_, _, event) => format!("event {}", kebab(*event)),
        }
    }

    /// The single fault of this name.
    fn by_name(name: &str) -> Option<Self> {
        let (place, what) = name.split_once('/')?;
        let (kind, place) = place.split_once(':')?;
        let (name, nth) = place.rsplit_once('.')?;
        let nth = nth.parse::<usize>().ok()?;
        match kind {
            "request" => {
                let trouble = Trouble::all().find(|trouble| kebab(*trouble) == what)?;
                Some(Self::Request(name.to_owned(), nth, trouble))
            }
            "event" => {
                let event = Event::ALL.into_iter().find(|event| kebab(*event) == what)?;
                Some(Self::Line(name.to_owned(), nth, event))
            }
            _ => None,
        }
    }
}

impl Plan {
    /// Whether the plan has this fault at any request.
    pub fn has_trouble(&self, trouble: Trouble) -> bool {
        self.fault.has(|_, one| one == trouble)
    }

    /// Whether the plan has this fault at any line of a watch.
    pub fn has_event(&self, event: Event) -> bool {
        self.fault.parts().iter().any(|fault| matches!(fault, Fault::Line(_, _, one) if *one == event))
    }

    /// Whether the plan has more than one fault.
    pub fn is_compound(&self) -> bool {
        self.fault.parts().len() > 1
    }

    /// Whether the plan needs a standby.
    pub fn needs_standby(&self) -> bool {
        self.fault.needs_standby()
    }

    /// Whether a process dies.
    pub fn has_crash(&self) -> bool {
        self.fault.has(|_, trouble| trouble.is_crash()) || self.has_event(Event::Crash)
    }

    /// Whether a process gets no events for minutes.
    pub fn is_blind(&self) -> bool {
        self.has_event(Event::Silence) || self.has_blindness()
    }

    /// Whether the lists and watches of a process get no answer for minutes.
    pub fn has_blindness(&self) -> bool {
        self.fault.has(|_, trouble| Trouble::OF_FIRST_WRITES.contains(&trouble))
    }

    /// Whether etcd is restored.
    pub fn has_restore(&self) -> bool {
        self.fault.has(|_, trouble| trouble.is_restore())
    }

    /// Whether a write may be executed after its sender has given it up.
    pub fn is_late(&self) -> bool {
        self.fault.has(|_, trouble| trouble.is_late())
    }

    /// Whether a process sees changes later than usual.
    pub fn delays_views(&self) -> bool {
        let is_late = |name: &str, trouble: Trouble| {
            trouble.needs_standby() || trouble == Trouble::StaleServer || is_read(name)
        };
        let is_line = |fault: &Fault| matches!(fault, Fault::Line(_, _, event) if *event != Event::Twice);
        self.fault.has(is_late) || self.fault.parts().iter().any(is_line)
    }

    /// The time without writes before the next step of the scenario.
    pub fn between(&self) -> Duration {
        if self.has_trouble(Trouble::ClockBehind) {
            // With a clock that is 10 min behind, a process waits 10 min longer for its retries.
            Duration::from_mins(12)
        } else if self.has_event(Event::Silence) || matches!(self.fault, Fault::Several(_)) {
            self.quiet()
        } else {
            Duration::ZERO
        }
    }

    /// The time without writes after which the run counts as settled. A silent watch is noticed late, and two outages can
    /// follow each other.
    pub fn quiet(&self) -> Duration {
        if self.has_event(Event::Silence)
            || self.has_trouble(Trouble::Crossed)
            || matches!(self.fault, Fault::Several(_))
        {
            Duration::from_secs(200)
        } else {
            Duration::from_mins(1)
        }
    }
}

/// Whether requests of this name are reads.
pub fn is_read(name: &str) -> bool {
    ["get-", "list-", "watch-"].iter().any(|verb| name.starts_with(verb))
}

/// The kebab case of a variant's name: `TimeoutAfter` as `timeout-after`.
fn kebab(value: impl fmt::Debug) -> String {
    let mut text = String::new();
    for character in format!("{value:?}").chars() {
        if character.is_uppercase() && !text.is_empty() {
            text.push('-');
        }
        text.extend(character.to_lowercase());
    }
    text
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fault.parts() {
            [] => f.write_str(&self.scenario),
            _ => write!(f, "{}/{}", self.scenario, self.fault.name()),
        }
    }
}

impl FromStr for Plan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a plan: use a name that a run has printed");
        let (scenario, faults) = text.split_once('/').map_or((text, None), |(name, rest)| (name, Some(rest)));
        if scenario.is_empty() {
            return Err(wrong());
        }
        let scenario = scenario.to_owned();
        let Some(faults) = faults else { return Ok(Self { scenario, fault: Fault::None }) };
        let mut parts: Vec<Fault> =
            faults.split('+').map(|name| Fault::by_name(name).ok_or_else(wrong)).collect::<Result<_, _>>()?;
        let fault = if parts.len() == 1 { parts.remove(0) } else { Fault::Several(parts) };
        Ok(Self { scenario, fault })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_reproduce_plans() {
        let scenario = "podset-scale".to_owned();
        for trouble in Trouble::all() {
            let fault = Fault::Request("create-pods".to_owned(), 3, trouble);
            let plan = Plan { scenario: scenario.clone(), fault };
            assert_eq!(plan.to_string().parse(), Ok(plan));
        }
        for event in Event::ALL {
            let plan = Plan { scenario: scenario.clone(), fault: Fault::Line("pods".to_owned(), 1, event) };
            assert_eq!(plan.to_string().parse(), Ok(plan));
        }
        let line = Fault::Line("pods".to_owned(), 1, Event::Torn);
        let request = Fault::Request("create-pods".to_owned(), 3, Trouble::Late);
        let several = Plan { scenario: scenario.clone(), fault: Fault::Several(vec![line, request]) };
        assert_eq!(several.to_string().parse(), Ok(several));
        let none = Plan { scenario, fault: Fault::None };
        assert_eq!(none.to_string().parse(), Ok(none));
        for bad in ["", "a/b", "a/b/c", "a/request:x/crash-after", "a/request:x.1/nonsense"] {
            assert!(bad.parse::<Plan>().is_err(), "{bad}");
        }
    }
}
