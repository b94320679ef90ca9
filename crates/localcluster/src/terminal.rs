//! Runs a program on a terminal, and returns the text that the terminal shows when the program has ended.

use std::fs::File;
use std::io::Read as _;
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result};
use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// The number of rows. A progress bar needs one.
const ROWS: u16 = 50;

/// Runs a program on a terminal with this number of columns. Returns its exit status, and the text on the
/// terminal without blanks at the ends of lines.
pub fn output(mut command: Command, columns: u16) -> Result<(ExitStatus, String)> {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).context("cannot open a terminal")?;
    grantpt(&terminal).and_then(|()| unlockpt(&terminal)).context("cannot unlock the terminal")?;
    let size = Winsize { ws_row: ROWS, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&terminal, size).context("cannot size the terminal")?;
    let name = ptsname(&terminal, Vec::new()).context("the terminal has no name")?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let side = open(name, flags, Mode::empty()).context("cannot open the program's side of the terminal")?;
    command.env("TERM", "xterm").stdin(Stdio::null()).stdout(side.try_clone()?).stderr(side);
    let mut child = command.spawn().context("cannot run the program on a terminal")?;
    // The output ends when no process has the program's side of the terminal.
    drop(command);
    let mut printed = Vec::new();
    // Linux reports the end as an error.
    let _ = File::from(terminal).read_to_end(&mut printed);
    let status = child.wait().context("cannot wait for the program on the terminal")?;
    Ok((status, screen(&String::from_utf8_lossy(&printed), columns.into())))
}

/// The text on a terminal after this output. Knows the control sequences of progress bars.
fn screen(output: &str, columns: usize) -> String {
    let mut rows: Vec<Vec<char>> = Vec::new();
    let (mut row, mut column) = (0_usize, 0_usize);
    let mut rest = output.chars();
    while let Some(next) = rest.next() {
        match next {
            '\r' => column = 0,
            '\n' => row += 1,
            '\u{1b}' => {
                let mut digits = String::new();
                let letter = rest.by_ref().inspect(|next| digits.push(*next)).find(char::is_ascii_alphabetic);
                let count = digits.trim_matches(|next: char| !next.is_ascii_digit()).parse().unwrap_or(1);
                match letter {
                    Some('A') => row = row.saturating_sub(count),
                    Some('B') => row += count,
                    Some('K') => rows.iter_mut().skip(row).take(1).for_each(Vec::clear),
                    _ => {}
                }
            }
            next => {
                // A full row continues on the next one, as soon as there is another character.
                if column == columns {
                    (row, column) = (row + 1, 0);
                }
                rows.resize(rows.len().max(row + 1), Vec::new());
                let line = &mut rows[row];
                line.resize(line.len().max(column + 1), ' ');
                line[column] = next;
                column += 1;
            }
        }
    }
    let lines = rows.into_iter().map(|line| line.into_iter().collect::<String>().trim_end().to_owned());
    lines.collect::<Vec<_>>().join("\n").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_a_program_on_a_terminal() {
        let mut command = Command::new("sh");
        command.args(["-c", "test -t 1 && printf 'one\\ntwo\\033[1A\\rthree' && stty size <&1"]);
        let (status, text) = output(command, 70).unwrap();
        assert!(status.success(), "{text}");
        assert_eq!(text, "three50 70\ntwo");
    }

    #[test]
    fn shows_the_last_text_of_each_row() {
        assert_eq!(screen("abcdef", 4), "abcd\nef");
        // A bar fills its row, and the text after it begins on the next row.
        assert_eq!(screen("ab  cd  \u{1b}[1A\rAB  CD  end\n", 4), "AB\nCD\nend");
        assert_eq!(screen("one\r\ntwo\u{1b}[1A\r\u{1b}[2Kx", 9), "x\ntwo");
        assert_eq!(screen("\u{1b}[?25lone \u{1b}[?25h\r\n", 9), "one");
    }
}
