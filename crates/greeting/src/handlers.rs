//! The lines of each cause, in kopf's terms: a table of handlers.
//!
//! A handler is a pure function. It runs *before* the claim. The controller claims and then prints its line, and
//! retries nothing after the claim.

use crate::line::line;

/// The reason to call handlers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::IntoStaticStr)]
pub enum Cause {
    /// The Greeting has no claim. kopf: `@kopf.on.create`.
    Create,
    /// The message differs from the claimed one. kopf: `@kopf.on.update`, of a field.
    Update,
    /// The Greeting is being deleted and has the finalizer. kopf: `@kopf.on.delete`.
    Delete,
    /// The message is already claimed, by this process or another. kopf: `@kopf.on.resume`.
    Resume,
    /// A tick is due. kopf: `@kopf.timer`.
    Timer,
}

impl Cause {
    /// The kind of its claim, which the status stores, and the action of its Event.
    pub fn word(self) -> &'static str {
        self.into()
    }
}

/// A function that is called for a cause with the message. It returns a line to print.
pub type Handler = fn(&str) -> String;

/// The handlers, in the order of their calls. The tutorial has two scripts, and so two handlers on creation. A
/// restarted process only continues, so no handler has the cause Resume.
pub const HANDLERS: [(Cause, Handler); 5] = [
    (Cause::Create, |message| line("Greeting", message)),
    (Cause::Create, |message| line("Create", message)),
    (Cause::Update, |message| line("Update", message)),
    (Cause::Delete, |message| line("Delete", message)),
    (Cause::Timer, |message| line("Timer", message)),
];

/// Calls the handlers of a cause.
pub fn call(cause: Cause, message: &str) -> Vec<String> {
    HANDLERS.iter().filter(|(of, _)| *of == cause).map(|(_, handler)| handler(message)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(Cause::Create, &["Greeting: Hi", "Create: Hi"])]
    #[case(Cause::Update, &["Update: Hi"])]
    #[case(Cause::Delete, &["Delete: Hi"])]
    #[case(Cause::Resume, &[])]
    #[case(Cause::Timer, &["Timer: Hi"])]
    fn returns_the_lines_of_each_cause(#[case] cause: Cause, #[case] lines: &[&str]) {
        assert_eq!(call(cause, "Hi"), lines);
    }
}
