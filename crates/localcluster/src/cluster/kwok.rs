//! Two corrections of kwok 0.8.0. It asks each watch for the whole state at its start (resourceVersion 0). The API server ends a
//! watch that is too slow, as kwok's is in a burst of 1,000 pods. Then kwok handles all pods again, and repeats the patches
//! whose result it has not seen: up to twice the requests of the nodes, which slow down every client. But after a broken
//! connection this also made up for a patch that kwok does not retry. So the other correction retries it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::run;

/// A file of the module, a statement that it has once, and the correction of this statement.
type Correction = (&'static str, &'static str, &'static str);

pub(super) const CORRECTIONS: [Correction; 2] = [
    // The version at which the last watch ended, if there was one.
    (
        "pkg/utils/informer/event.go",
        "opts.ResourceVersion = \"0\"",
        "if opts.ResourceVersion == \"\" { opts.ResourceVersion = \"0\" }",
    ),
    // An error without a reason is not an answer of the API server.
    (
        "pkg/kwok/controllers/utils.go",
        "if utilnet.IsConnectionRefused(err) {",
        "if utilnet.IsConnectionRefused(err) || apierrors.ReasonForError(err) == \"\" {",
    ),
];

/// Fills the new folder `folder` with a corrected copy of kwok's Go module, and with the go.mod of `source` that uses it. Returns
/// the path of this go.mod.
pub(super) fn corrected(source: &Path, folder: &Path, module: &str) -> Result<PathBuf> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let copy = folder.join("kwok");
    run::stdout(Command::new("cp").arg("-R").arg(run::go_module(source, module)?).arg(&copy))?;
    // The files of Go's cache are read-only.
    run::stdout(Command::new("chmod").args(["-R", "u+w"]).arg(&copy))?;
    for (file, statement, correction) in CORRECTIONS {
        let path = copy.join(file);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let times = text.matches(statement).count();
        ensure!(
            times == 1,
            "{module}: {file} has `{statement}` {times} times instead of once: check whether kwok still needs the correction"
        );
        fs::write(&path, text.replace(statement, correction))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    let (go_mod, read) = (folder.join("go.mod"), |name: &str| fs::read_to_string(source.join(name)));
    let replaced = format!("{}\nreplace {module} => {}\n", read("go.mod")?, copy.display());
    fs::write(&go_mod, replaced).with_context(|| format!("cannot write {}", go_mod.display()))?;
    fs::write(folder.join("go.sum"), read("go.sum")?)?;
    Ok(go_mod)
}
