//! `cargo xtask faults`. `cargo test` runs a part of it, spread evenly.

use std::process::ExitCode;

fn main() -> ExitCode {
    quintet_faults::cli::main()
}
