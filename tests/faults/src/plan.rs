//! A plan: one scenario and one fault, by a name that brings the same plan back.
//!
//! `scenario/request:create-pods.3/conflict` is: in that scenario, the third creation of a pod meets a conflict.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// What goes wrong with one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Trouble {
    /// The process dies before the server has it.
    CrashBefore,
    /// The process dies after the server has carried it out, and before the answer.
    CrashAfter,
    /// 409, for another reason than the object's.
    Conflict,
    /// A stranger makes an object of the name first, and takes it away after 40 s.
    Stranger,
    /// 404.
    NotFound,
    /// 404, as a proxy says it.
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
    /// 504, and it was carried out.
    TimeoutAfter,
    /// 504, and it was not.
    TimeoutBefore,
    /// The connection breaks before the server has it.
    ResetBefore,
    /// The connection breaks after it was carried out.
    ResetAfter,
    /// It was carried out, and half of the answer comes.
    Truncated,
    /// No answer; the server never had it.
    SilenceBefore,
    /// No answer; it was carried out.
    SilenceAfter,
    /// The answer comes after 30 s.
    Slow,
    /// The server has it after 25 s, when nobody waits for the answer any more.
    Late,
    /// The server has it after 25 s; meanwhile its sender is cut off for 40 s and another process takes over.
    LateAfterTakeOver,
    /// Everything that the process sends from here on arrives 25 s later, as if it had been stopped; another takes over.
    Paused,
    /// The process is cut off for 40 s and another takes over.
    CutOff,
    /// The process dies after the server has carried it out; another takes over whose watches are 8 s behind.
    TakeOverBehind,
    /// The process dies after the server has carried it out; another takes over that was shown none of the pods,
    /// Deployments and ledgers that were made since it began.
    TakeOverBlind,
    /// The process is asked to end; another takes over.
    HandOver,
    /// As `CutOff`, and then the other way round: of two processes each sees late what the other wrote.
    Crossed,
    /// The process dies after the server has carried it out; it starts again at another API server, which for a while has come
    /// no further than to what was 10 s before.
    StaleServer,
    /// The process dies and starts again with a clock that is ten minutes ahead.
    ClockAhead,
    /// The process dies and starts again with a clock that is ten minutes behind.
    ClockBehind,
}

impl Trouble {
    /// Of each write.
    pub const OF_WRITES: [Self; 29] = [
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
    ];
    /// Of each read.
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

    /// All there are: besides those of every write, the two that are of some requests alone.
    fn all() -> impl Iterator<Item = Self> {
        Self::OF_WRITES.into_iter().chain([Self::Stranger, Self::ProxyNotFound])
    }

    /// Whether another process must stand by.
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
        )
    }

    /// Whether a process dies, or loses what it had in hand.
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

    /// Whether a write may be carried out after its sender has given it up.
    pub fn is_late(self) -> bool {
        matches!(self, Self::Late | Self::LateAfterTakeOver | Self::Paused)
    }
}

/// What goes wrong with one line of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Event {
    /// It comes twice.
    Twice,
    /// It and what follows come 300 ms later: what happens to other types is seen first.
    Reordered,
    /// It and what follows come 5 s later: after the next write.
    Delayed,
    /// The watch ends before it.
    Closed,
    /// The connection breaks in the middle of it.
    Torn,
    /// 410: everything is listed anew.
    Expired,
    /// 410 after 5 s: only the later state is seen.
    Dropped,
    /// Nothing comes any more.
    Silence,
    /// The process dies when it comes.
    Crash,
}

impl Event {
    /// All of them.
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

/// What goes wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fault {
    /// Nothing.
    None,
    /// With the n-th request of this name (`create-pods`), counted from 1.
    Request(String, usize, Trouble),
    /// With the n-th line of the watches of this type (`pods`), counted from 1.
    Line(String, usize, Event),
    /// Several of these.
    Several(Vec<Fault>),
}

/// One run.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Plan {
    /// The scenario's name.
    pub scenario: String,
    /// What goes wrong.
    pub fault: Fault,
}

impl Fault {
    /// The single faults that it is made of.
    pub fn parts(&self) -> &[Self] {
        match self {
            Self::None => &[],
            Self::Several(parts) => parts,
            one => std::slice::from_ref(one),
        }
    }

    /// How its place and what happens there are called.
    fn name(&self) -> String {
        match self {
            Self::None => String::new(),
            Self::Request(name, nth, trouble) => format!("request:{name}.{nth}/{}", kebab(*trouble)),
            Self::Line(resource, nth, event) => format!("event:{resource}.{nth}/{}", kebab(*event)),
            Self::Several(parts) => parts.iter().map(Self::name).collect::<Vec<_>>().join("+"),
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
    /// Whether one of its faults is a request's with such a trouble.
    fn has(&self, is: impl Fn(&str, Trouble) -> bool) -> bool {
        self.fault
            .parts()
            .iter()
            .any(|fault| matches!(fault, Fault::Request(name, _, trouble) if is(name, *trouble)))
    }

    /// Whether one of its faults is this one, of any request.
    pub fn has_trouble(&self, trouble: Trouble) -> bool {
        self.has(|_, one| one == trouble)
    }

    /// Whether one of its faults is this one, of any line of a watch.
    pub fn has_event(&self, event: Event) -> bool {
        self.fault.parts().iter().any(|fault| matches!(fault, Fault::Line(_, _, one) if *one == event))
    }

    /// Whether it has more than one fault.
    pub fn is_compound(&self) -> bool {
        self.fault.parts().len() > 1
    }

    /// Whether it needs a process that stands by.
    pub fn needs_standby(&self) -> bool {
        self.has(|_, trouble| trouble.needs_standby())
    }

    /// Whether a process dies in it.
    pub fn has_crash(&self) -> bool {
        self.has(|_, trouble| trouble.is_crash()) || self.has_event(Event::Crash)
    }

    /// Whether a write may be carried out after its sender has given it up.
    pub fn is_late(&self) -> bool {
        self.has(|_, trouble| trouble.is_late())
    }

    /// Whether somebody sees later than usual what happens.
    pub fn delays_views(&self) -> bool {
        let is_late = |name: &str, trouble: Trouble| {
            trouble.needs_standby() || trouble == Trouble::StaleServer || is_read(name)
        };
        let is_line = |fault: &Fault| matches!(fault, Fault::Line(_, _, event) if *event != Event::Twice);
        self.has(is_late) || self.fault.parts().iter().any(is_line)
    }

    /// The class of its fault, for the table.
    pub fn class(&self) -> String {
        match &self.fault {
            Fault::None => "none".to_owned(),
            Fault::Several(_) => "several".to_owned(),
            Fault::Request(name, _, trouble) => {
                let kind = if is_read(name) { "read" } else { "write" };
                format!("{kind} {}", kebab(*trouble))
            }
            Fault::Line(_, _, event) => format!("event {}", kebab(*event)),
        }
    }

    /// How long nothing may be written before the story goes on.
    pub fn between(&self) -> Duration {
        if self.has_trouble(Trouble::ClockBehind) {
            // Whoever's clock is ten minutes behind waits ten minutes longer before he tries again.
            Duration::from_mins(12)
        } else if self.has_event(Event::Silence) {
            self.quiet()
        } else {
            Duration::ZERO
        }
    }

    /// How long nothing may be written before it counts as settled: what is silent is noticed late.
    pub fn quiet(&self) -> Duration {
        if self.has_event(Event::Silence) || self.has_trouble(Trouble::Crossed) {
            Duration::from_secs(200)
        } else {
            Duration::from_mins(1)
        }
    }
}

/// Whether requests of this name only read.
pub fn is_read(name: &str) -> bool {
    ["get-", "list-", "watch-"].iter().any(|verb| name.starts_with(verb))
}

/// `TimeoutAfter` as `timeout-after`.
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
        match &self.fault {
            Fault::None => f.write_str(&self.scenario),
            fault => write!(f, "{}/{}", self.scenario, fault.name()),
        }
    }
}

impl FromStr for Plan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no plan: use a name that a run has printed");
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
    fn a_name_brings_its_plan_back() {
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
