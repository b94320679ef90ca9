//! The exit codes of the programs.

use std::process::ExitCode;

use crate::notes::note;

/// Why a program exited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exit {
    /// Any other reason.
    Other,
    /// A flag or variable is malformed.
    Setting,
    /// The broker rejects or requires credentials.
    Unauthorized,
    /// A file with credentials or the CA is unusable.
    File,
    /// Standard output was closed.
    StdoutClosed,
}

impl Exit {
    /// All reasons.
    pub const ALL: [Self; 5] =
        [Self::Other, Self::Setting, Self::Unauthorized, Self::File, Self::StdoutClosed];

    /// The exit code.
    pub const fn code(self) -> u8 {
        match self {
            Self::Other => 1,
            Self::Setting => 2,
            Self::Unauthorized => 3,
            Self::File => 4,
            Self::StdoutClosed => 5,
        }
    }
}

/// A failure that ends a program, in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}")]
pub struct Failure {
    /// The reason.
    pub exit: Exit,
    /// The failure.
    pub line: String,
}

impl Failure {
    /// A failure of any other reason.
    pub fn other(line: impl Into<String>) -> Self {
        Self { exit: Exit::Other, line: line.into() }
    }
}

/// Prints a failure, and returns the exit code.
pub fn conclude(ended: Result<(), Failure>) -> ExitCode {
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            note(&format!("error: {failure}"));
            ExitCode::from(failure.exit.code())
        }
    }
}
