//! How the programs end, for whoever looks at the exit code.

use std::process::ExitCode;

use crate::notes::note;

/// Why a program ended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exit {
    /// None of the others.
    Other,
    /// A flag or variable is malformed.
    Setting,
    /// The broker refuses the token, or asks for one.
    TokenRefused,
    /// The file of the token or the CA cannot be read.
    File,
    /// Nobody reads standard output any more.
    StdoutClosed,
}

impl Exit {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Other, Self::Setting, Self::TokenRefused, Self::File, Self::StdoutClosed];

    /// The number.
    pub const fn code(self) -> u8 {
        match self {
            Self::Other => 1,
            Self::Setting => 2,
            Self::TokenRefused => 3,
            Self::File => 4,
            Self::StdoutClosed => 5,
        }
    }
}

/// A program's end before its time, in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}")]
pub struct Failure {
    /// Why.
    pub exit: Exit,
    /// What happened.
    pub line: String,
}

impl Failure {
    /// One that fits nowhere else.
    pub fn other(line: impl Into<String>) -> Self {
        Self { exit: Exit::Other, line: line.into() }
    }
}

/// Says how a program ended.
pub fn conclude(ended: Result<(), Failure>) -> ExitCode {
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            note(&format!("error: {failure}"));
            ExitCode::from(failure.exit.code())
        }
    }
}
