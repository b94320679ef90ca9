//! Standard error.

use std::io::{self, Write as _};

/// Writes a line to standard error. A line that cannot be written, as where standard error is closed, is lost.
pub fn note(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}
