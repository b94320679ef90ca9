//! Tables of commands.

use std::fmt::Write as _;

/// Pads the columns, except the last. An empty cell is a dash, so that programs can count the columns.
pub fn aligned(lines: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = Vec::new();
    let lines: Vec<Vec<String>> = lines
        .iter()
        .map(|cells| cells.iter().map(|cell| one_line(if cell.is_empty() { "-" } else { cell })).collect())
        .collect();
    for cells in &lines {
        widths.resize(widths.len().max(cells.len()), 0);
        for (width, cell) in widths.iter_mut().zip(cells) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for cells in &lines {
        let mut line = String::new();
        for (width, cell) in widths.iter().zip(cells) {
            let _ = write!(line, "{cell:<width$}   ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Puts a foreign message (of the scheduler or the API server) on one line, without control characters.
pub fn one_line(text: &str) -> String {
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    plain.split_whitespace().collect::<Vec<_>>().join(" ")
}
