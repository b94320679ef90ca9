//! The health of objects by the libraries of Helm, Flux and Argo CD, with the program of `tests/health`.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::go::Program;
use crate::run;

/// The Go module of kstatus that Helm 4 and Flux link.
const KSTATUS: &str = "github.com/fluxcd/cli-utils";

/// The health of one object.
#[derive(Debug, Deserialize)]
pub struct Health {
    /// The answer of kstatus.
    pub kstatus: Answer,
    /// The answer of a script for Argo CD, if one was given.
    pub argo: Option<Answer>,
}

/// A status in the words of the tool.
#[derive(Debug, Deserialize)]
pub struct Answer {
    /// Such as `InProgress` or `Progressing`.
    pub status: String,
    /// Empty if the tool gives none.
    pub message: String,
}

/// Returns the program, and builds it unless the cache has it.
pub fn program() -> Result<Program> {
    Program::built("tests/health", KSTATUS)
}

/// The health of each object. `script` is a file with a health check for Argo CD.
pub fn of(objects: &[&Value], script: Option<&Path>) -> Result<Vec<Health>> {
    let mut command = Command::new(program()?.file);
    if let Some(script) = script {
        command.arg("-lua").arg(script);
    }
    let text = run::stdout_with_input(&mut command, Some(&serde_json::to_string(objects)?))?;
    let health: Vec<Health> = serde_json::from_str(&text).context("the health program printed no results")?;
    ensure!(health.len() == objects.len(), "{} results for {} objects", health.len(), objects.len());
    Ok(health)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::cluster::binaries::required_version;
    use crate::paths;

    #[test]
    fn kstatus_has_the_version_that_helm_links() {
        let version = |folder: &str| {
            let go_mod = fs::read_to_string(paths::workspace().join(folder).join("go.mod")).unwrap();
            required_version(&go_mod, KSTATUS).unwrap().to_owned()
        };
        assert_eq!(version("tests/health"), version("tests/controlplane/helm"));
    }
}
