//! Standard error.

use std::io::{self, Write as _};

/// Writes a line to standard error. The line is lost if standard error is closed.
pub fn note(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}
