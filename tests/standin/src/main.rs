//! The container program of real nodes, which need no registry: a multi-call binary like busybox, with the
//! commands of the samples only. Under its own name it waits, as the pause container of a pod does.

use std::io::{Read as _, Write as _, copy, stdout};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

fn main() -> ExitCode {
    let mut words = std::env::args();
    let called = words.next().unwrap_or_default();
    let name = Path::new(&called).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let args: Vec<String> = words.collect();
    let code = if name == "sh" {
        match args.split_first() {
            Some((flag, script)) if flag == "-c" && !script.is_empty() => shell(&script[0]),
            _ => fail("sh", "this stand-in only supports `sh -c SCRIPT`"),
        }
    } else {
        command(&name, &args)
    };
    ExitCode::from(code)
}

/// Runs a script of commands separated by `;`, with words in single or double quotes. `exit` ends it.
fn shell(script: &str) -> u8 {
    let commands = match parse(script) {
        Ok(commands) => commands,
        Err(what) => return fail("sh", &format!("this stand-in does not support {what}")),
    };
    let mut last = 0;
    for words in commands {
        let Some((name, args)) = words.split_first() else { continue };
        if name == "exit" {
            return args.first().map_or(last, |code| code.parse().unwrap_or(2));
        }
        last = command(name, args);
    }
    last
}

/// The words of each command. The error names the unsupported syntax.
fn parse(script: &str) -> Result<Vec<Vec<String>>, String> {
    let (mut commands, mut words, mut word) = (Vec::new(), Vec::new(), None::<String>);
    let mut quote = None;
    for c in script.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None | Some('"'), '$' | '`' | '\\') => return Err(format!("the character {c}")),
            (None, '|' | '&' | '<' | '>' | '(' | ')' | '*' | '?') => {
                return Err(format!("the character {c}"));
            }
            (None, ';' | '\n') => {
                words.extend(word.take());
                commands.push(std::mem::take(&mut words));
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    if quote.is_some() {
        return Err("an open quote".to_owned());
    }
    words.extend(word);
    commands.push(words);
    Ok(commands)
}

fn command(name: &str, args: &[String]) -> u8 {
    match name {
        "true" => 0,
        "false" => 1,
        "echo" => print(&args.join(" ")),
        "hostname" => match std::fs::read_to_string("/proc/sys/kernel/hostname") {
            Ok(name) => print(name.trim()),
            Err(error) => fail(name, &error.to_string()),
        },
        "date" => print(&jiff::Timestamp::now().to_string()),
        "ip" if args == ["route"] => match std::fs::read_to_string("/proc/net/route") {
            Ok(table) => print(&routes(&table).join("\n")),
            Err(error) => fail(name, &error.to_string()),
        },
        "cat" => args.iter().map(|file| cat(file)).max().unwrap_or(0),
        "sleep" => match args.first().and_then(|seconds| seconds.parse().ok()) {
            Some(seconds) => wait(Some(Duration::from_secs(seconds))),
            None => fail(name, "the argument must be a number of seconds"),
        },
        "nginx" => match TcpListener::bind((Ipv4Addr::UNSPECIFIED, 80)) {
            Ok(listener) => {
                thread::spawn(move || serve(&listener));
                wait(None)
            }
            Err(error) => fail(name, &error.to_string()),
        },
        "quintet-standin" => wait(None),
        _ => fail(name, "this stand-in does not have this command") + 126,
    }
}

/// Answers every request with status 200, as a ready server does.
fn serve(listener: &TcpListener) {
    for mut stream in listener.incoming().flatten() {
        let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
        // The request does not matter, but closing a connection with unread bytes resets it.
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    }
}

/// The routes in `/proc/net/route`, in the format of `ip route`. Addresses in the table have the byte order
/// of the processor.
fn routes(table: &str) -> Vec<String> {
    let address =
        |text: &str| u32::from_str_radix(text, 16).ok().map(|number| Ipv4Addr::from(number.to_ne_bytes()));
    let route = |line: &str| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let [interface, to, through, ..] = words[..] else { return None };
        let (to, through) = (address(to)?, address(through)?);
        let bits = address(words.get(7)?)?.to_bits().count_ones();
        let to = if to.is_unspecified() { "default".to_owned() } else { format!("{to}/{bits}") };
        let through = if through.is_unspecified() { String::new() } else { format!(" via {through}") };
        Some(format!("{to}{through} dev {interface}"))
    };
    table.lines().skip(1).filter_map(route).collect()
}

fn print(line: &str) -> u8 {
    u8::from(writeln!(stdout(), "{line}").is_err())
}

fn fail(name: &str, what: &str) -> u8 {
    eprintln!("{name}: {what}");
    1
}

fn cat(file: &str) -> u8 {
    let copied = std::fs::File::open(file).and_then(|mut file| copy(&mut file, &mut stdout()));
    copied.map_or_else(|error| fail("cat", &format!("{file}: {error}")), |_| 0)
}

/// Waits until the time is over or a signal arrives. The kernel ignores signals to the first process of a
/// container unless the process handles them. The exit code is that of a program that a signal ended.
fn wait(limit: Option<Duration>) -> u8 {
    let (sender, ends) = channel();
    if let Ok(mut signals) = Signals::new([SIGINT, SIGTERM]) {
        thread::spawn(move || signals.forever().next().map(|signal| sender.send(signal)));
    }
    let signal = match limit {
        Some(limit) => match ends.recv_timeout(limit) {
            Ok(signal) => Some(signal),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return fail("sleep", "cannot handle signals"),
        },
        None => ends.recv().ok(),
    };
    match signal {
        // The pause container exits with success.
        Some(_) if limit.is_none() => 0,
        Some(signal) => 128 + u8::try_from(signal).unwrap_or(0),
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_words_quotes_and_semicolons() {
        let parsed = parse("echo this fails on purpose; exit 1").unwrap();
        assert_eq!(parsed, [vec!["echo", "this", "fails", "on", "purpose"], vec!["exit", "1"]]);
        assert_eq!(parse("echo 'a;  b' \"\"").unwrap(), [["echo", "a;  b", ""]]);
        for unknown in ["a | b", "echo $HOME", "echo \"$HOME\"", "a && b", "echo 'a"] {
            assert!(parse(unknown).is_err(), "{unknown}");
        }
    }

    #[test]
    fn serves_a_page() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || serve(&listener));
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn prints_routes_as_ip_does() {
        let table = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n\
            eth0\t00000000\t0100580A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
            eth0\t0000580A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
        assert_eq!(routes(table), ["default via 10.88.0.1 dev eth0", "10.88.0.0/24 dev eth0"]);
        assert!(routes("").is_empty());
    }

    #[test]
    fn a_script_returns_its_exit_or_its_last_command() {
        assert_eq!(shell("exit 42"), 42);
        assert_eq!(shell("false; true"), 0);
        assert_eq!(shell("true; false"), 1);
        assert_eq!(shell("false; exit"), 1);
        assert_eq!(shell("nothing-of-the-kind"), 127);
        assert_eq!(shell("echo $HOME; exit 0"), 1);
    }
}
