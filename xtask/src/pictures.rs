//! The pictures of the README and of the documents, as SVG for light and dark pages and small screens.

use std::env;
use std::fs;
use std::io::{BufRead as _, BufReader, pipe};
use std::process::Command;

use anyhow::{Context, Result, bail};
use quintet_kinds::KINDS;
use quintet_localcluster::paths;

/// The picture of the demo, below the root of the checkout.
const DEMO: &str = "docs/pictures/demo.svg";
/// The most characters of a line in the picture of the demo, so that a phone shows them in a legible size.
const COLUMNS: usize = 50;
/// The output of `quintet rollout status`, which a test on real nodes records and compares (`tests/e2e-real/waves.rs`).
const ROLLOUT: &str = "docs/pictures/rollout.txt";
/// The most characters of a line in the picture of that output. The progress bars need 72.
const ROLLOUT_COLUMNS: usize = 80;

fn svg(title: &str, width: usize, height: usize, body: &[String]) -> String {
    let (head, body) = (include_str!("pictures.head.svg"), body.join("\n"));
    let size = format!("viewBox=\"0 0 {width} {height}\" width=\"{width}\" role=\"img\"");
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" {size}>\n<title>{title}</title>\n{head}{body}\n</svg>\n"
    )
}

/// The architecture: from a watch event to a write.
pub fn architecture() -> String {
    let frame = |class: &str, (x, y, width): (usize, usize, usize), head: &str, line: &str| {
        let (middle, lower) = (x + width / 2, if line.is_empty() { 7 } else { 0 });
        format!(
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"48\" rx=\"6\"/>\
             <text class=\"m\" x=\"{middle}\" y=\"{}\">{head}</text><text class=\"m s\" x=\"{middle}\" y=\"{}\">{line}</text>",
            y + 22 + lower,
            y + 40
        )
    };
    let below = 346 + 56 * KINDS.len();
    let (above, middle, end) = (below - 18, below + 24, below + 66);
    let mut body = vec![
        frame("b", (10, 10, 400), "API server", ""),
        frame("b", (10, 110, 290), "cache", "one watch for each type"),
        frame("b", (10, 190, 290), "control", "a queue of changed objects"),
        frame("b", (10, 270, 290), "plan", "a pure function for each kind"),
        frame("b", (10, below, 290), "write", "sends each write, and records it"),
        frame("w", (320, below, 90), "Lease", "one leader"),
        "<text class=\"s\" x=\"165\" y=\"88\">watch events</text>".to_owned(),
        format!("<text class=\"s\" x=\"165\" y=\"{}\">requests</text>", end - 4),
    ];
    body.extend(KINDS.iter().enumerate().map(|(at, kind)| {
        frame("w", (30, 330 + 56 * at, 250), &format!("{} → writes", (kind.resource)().kind), "")
    }));
    let arrows = [
        "M155 58V108".to_owned(),
        "M155 158V188".to_owned(),
        "M155 238V268".to_owned(),
        format!("M155 {above}v16"),
        format!("M320 {middle}h-18"),
        format!("M155 {middle}m0 24V{end}H420V34H412"),
    ];
    body.extend(arrows.map(|path| format!("<path class=\"a\" d=\"{path}\"/>")));
    svg("Quintet: from a watch event to a write", 430, end + 10, &body)
}

/// Runs the demo, and writes a picture of what it prints up to the first empty line.
pub fn write_demo(args: impl Iterator<Item = String>) -> Result<()> {
    let (reader, writer) = pipe().context("cannot open a pipe")?;
    let mut command = Command::new(env::current_exe().context("cannot find this program")?);
    command.arg("demo").args(args).stdout(writer.try_clone()?).stderr(writer);
    let mut demo = command.spawn().context("cannot start the demo")?;
    drop(command);
    let mut lines = vec!["$ cargo xtask demo".to_owned()];
    let mut has_ended = false;
    for line in BufReader::new(reader).lines() {
        let line = line.context("cannot read the output of the demo")?;
        eprintln!("{line}");
        has_ended |= line.is_empty();
        // Lines of cargo and signs of life are indented.
        if !has_ended && !line.starts_with(' ') && !line.contains("(pid ") {
            lines.push(line);
        }
    }
    if !demo.wait().context("cannot wait for the demo")?.success() {
        bail!("the demo failed, so there is no picture of it");
    }
    let path = paths::workspace().join(DEMO);
    let picture = terminal("The output of cargo xtask demo", COLUMNS, lines.iter().map(String::as_str));
    fs::write(&path, picture).with_context(|| format!("cannot write {}", path.display()))
}

/// The recorded output of `quintet rollout status`.
pub fn rollout() -> Result<String> {
    let path = paths::workspace().join(ROLLOUT);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(terminal("The output of quintet rollout status", ROLLOUT_COLUMNS, text.lines()))
}

fn terminal<'l>(title: &str, columns: usize, lines: impl Iterator<Item = &'l str>) -> String {
    let wrapped: Vec<String> = lines.flat_map(|line| wrap(line, columns)).collect();
    let (width, height) = (30 + 9 * columns, 24 + 21 * wrapped.len());
    let frame = format!(
        "<rect class=\"b\" x=\"1\" y=\"1\" width=\"{}\" height=\"{}\" rx=\"8\"/>",
        width - 2,
        height - 2
    );
    let texts = wrapped.iter().enumerate().map(|(at, line)| {
        let line = line.replace('&', "&amp;").replace('<', "&lt;");
        format!("<text class=\"t\" x=\"14\" y=\"{}\">{line}</text>", 27 + 21 * at)
    });
    let body: Vec<String> = std::iter::once(frame).chain(texts).collect();
    svg(title, width, height, &body)
}

/// The words of a line in lines of at most this number of characters.
fn wrap(line: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in line.replace(" s)", "\u{a0}s)").split(' ') {
        let last = lines.last_mut().filter(|last| last.len() + word.len() < columns);
        match last {
            Some(last) if last.is_empty() => last.push_str(word),
            Some(last) => last.extend([" ", word]),
            None => lines.push(format!("  {word}")),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wraps_long_lines_between_words() {
        let line = "PulsarConsumer pulsarconsumer-demo: it consumes from a real broker (38.1 s)";
        let wrapped = wrap(line, COLUMNS);
        assert_eq!(
            wrapped,
            ["PulsarConsumer pulsarconsumer-demo: it consumes", "  from a real broker (38.1\u{a0}s)"]
        );
        assert_eq!(wrap("short", COLUMNS), ["short"]);
        assert_eq!(wrap("a   b", COLUMNS), ["a   b"], "progress bars have columns");
    }
}
