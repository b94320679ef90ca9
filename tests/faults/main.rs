//! `cargo xtask faults`; under `cargo test` a part of it, spread evenly.

use std::process::ExitCode;

fn main() -> ExitCode {
    quintet_faults::cli::main()
}
