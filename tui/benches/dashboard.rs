//! Measures the dashboard while a daemon sends it a thousand events a second: CPU time, memory, and the time from a key to its
//! effect on the screen.
//!
//! `cargo bench -p sluice-tui --bench dashboard --profile dev` prints a row for each page and size of the terminal.

use std::{
    fs,
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use fake_daemon::{FakeDaemon, StressLoad};
use rustix::process::Pid;
use testkit::terminal::Journey;

const USAGE: &str = "Options, each of which may be given more than once:
  --size COLUMNSxROWS  terminal [default: 160x50 and 80x24]
  --page 1..6          page [default: all]
  --length POSITIONS   canvas of the request [default: 128 and 4096]
Options for all rows:
  --seconds N          how long each row is measured [default: 10]
  --keys N             keys pressed for each row [default: 100]
  --passes N           passes told in a second [default: 500]
  --snapshots N        snapshots told in a second [default: 500]";

/// Time before measuring, for the first screen and other work that is done once.
const WARM_UP: Duration = Duration::from_secs(3);
/// Words that only the help shows.
const HELP_TITLE: &str = " Keys";

/// Figures of one measurement.
struct Options {
    sizes: Vec<(u16, u16)>,
    pages: Vec<char>,
    lengths: Vec<u32>,
    seconds: u64,
    keys: usize,
    passes: u32,
    snapshots: u32,
}

fn main() {
    let options = match parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("{problem}\n\n{USAGE}");
            std::process::exit(64);
        }
    };
    println!(
        "  size   page  canvas | told/s taken/s  CPU %  frames/s  KiB/s | MiB at first, after 10 s, at the end | key to screen, \
         ms: median, 95 %, worst of {}",
        options.keys
    );
    for size in &options.sizes {
        for length in &options.lengths {
            for page in &options.pages {
                measure(&options, *size, *length, *page);
            }
        }
    }
}

fn measure(options: &Options, (columns, rows): (u16, u16), length: u32, page: char) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let load = StressLoad {
        length,
        passes_per_second: options.passes,
        snapshots_per_second: options.snapshots,
        // Keys are pressed only after CPU time is measured, about five a second.
        lasts: 2 * WARM_UP + Duration::from_secs(2 * options.seconds + options.keys as u64 / 2),
    };
    let (daemon, counts) = FakeDaemon::under_load(load);
    let count = |which: &AtomicUsize| which.load(Ordering::Relaxed) as f64;
    let mut client = Command::new(env!("CARGO_BIN_EXE_sluice"));
    client
        .arg("--socket")
        .arg(&daemon.socket)
        .env("HOME", folder.path())
        .env_remove("XDG_CONFIG_HOME")
        .env_remove("XDG_STATE_HOME")
        .env_remove("NO_COLOR");
    let mut journey = Journey::sized(client, columns, rows);
    journey.expect("connected");
    journey.press(&page.to_string());
    std::thread::sleep(WARM_UP);

    let pid = journey.pid();
    let bytes_at = |journey: &Journey| journey.written_bytes();
    let resident_first = resident_mib(pid);
    let (frames, bytes) = (journey.frames(), bytes_at(&journey));
    let (told, taken) = (count(&counts.sent), count(&counts.received));
    let (cpu, start) = (cpu_seconds(pid), Instant::now());
    let part = Duration::from_secs(options.seconds.min(10));
    std::thread::sleep(part);
    let resident_then = resident_mib(pid);
    std::thread::sleep(Duration::from_secs(options.seconds) - part);
    let elapsed = start.elapsed().as_secs_f64();
    let cpu = (cpu_seconds(pid) - cpu) / elapsed;
    let told = (count(&counts.sent) - told) / elapsed;
    let taken = (count(&counts.received) - taken) / elapsed;
    let frames = (journey.frames() - frames) as f64 / elapsed;
    let bytes = (bytes_at(&journey) - bytes) as f64 / elapsed;
    let delays = key_delays(&mut journey, options.keys);
    let resident_last = resident_mib(pid);
    println!(
        "{columns:>3}x{rows:<3}    {page} {length:>7} | {told:>6.0} {taken:>7.0} {:>6.1} {frames:>9.1} {:>6.0} | {resident_first:>10.1} \
         {resident_then:>10.1} {resident_last:>10.1}   | {:>17.1} {:>8.1} {:>8.1}",
        100.0 * cpu,
        bytes / 1024.0,
        quantile(&delays, 0.5),
        quantile(&delays, 0.95),
        quantile(&delays, 1.0),
    );
    journey.press("\x03");
    assert!(journey.end().success(), "the dashboard failed");
}

/// Milliseconds from a key to its effect, for a help that is opened and closed at varying times between frames.
fn key_delays(journey: &mut Journey, keys: usize) -> Vec<f64> {
    let mut delays = Vec::new();
    for key in 0..keys {
        // Pauses of different length spread the keys over the time between two frames, the same in each run.
        std::thread::sleep(Duration::from_millis(60 + key as u64 * 37 % 101));
        let pressed = Instant::now();
        journey.press("?");
        let shown = match key % 2 {
            0 => journey.expect(HELP_TITLE),
            _ => journey.expect_gone(HELP_TITLE),
        };
        delays.push(shown.saturating_duration_since(pressed).as_secs_f64() * 1000.0);
    }
    delays.sort_by(f64::total_cmp);
    delays
}

fn quantile(sorted: &[f64], part: f64) -> f64 {
    let index = ((sorted.len() as f64 * part).ceil() as usize).saturating_sub(1);
    sorted.get(index).copied().unwrap_or(f64::NAN)
}

/// CPU time of all threads of a process, in seconds.
fn cpu_seconds(pid: Pid) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    let stat = stat.expect("the process is there");
    // The program's name in front may contain spaces, so fields are counted from behind it.
    let (_, fields) = stat.rsplit_once(')').expect("a name in parentheses");
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks: f64 = fields[11..13]
        .iter()
        .map(|field| field.parse::<f64>().expect("a number"))
        .sum();
    ticks / rustix::param::clock_ticks_per_second() as f64
}

fn resident_mib(pid: Pid) -> f64 {
    let statm = fs::read_to_string(format!("/proc/{}/statm", pid.as_raw_nonzero()));
    let statm = statm.expect("the process is there");
    let pages: f64 = statm
        .split_whitespace()
        .nth(1)
        .and_then(|pages| pages.parse().ok())
        .expect("a number");
    pages * rustix::param::page_size() as f64 / f64::from(1 << 20)
}

fn parse(arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options {
        sizes: vec![],
        pages: vec![],
        lengths: vec![],
        seconds: 10,
        keys: 100,
        passes: 500,
        snapshots: 500,
    };
    let mut arguments = arguments.filter(|argument| argument != "--bench");
    while let Some(option) = arguments.next() {
        let value = arguments.next().unwrap_or_default();
        let wrong = || format!("cannot take {option} {value}");
        let number = || value.parse::<u32>().map_err(|_| wrong());
        match option.as_str() {
            "--size" => {
                let (columns, rows) = value.split_once('x').ok_or_else(wrong)?;
                let side = |side: &str| side.parse().map_err(|_| wrong());
                options.sizes.push((side(columns)?, side(rows)?));
            }
            "--page" => options.pages.push(value.parse().map_err(|_| wrong())?),
            "--length" => options.lengths.push(number()?),
            "--seconds" => options.seconds = number()?.into(),
            "--keys" => options.keys = number()? as usize,
            "--passes" => options.passes = number()?.max(1),
            "--snapshots" => options.snapshots = number()?.max(1),
            _ => return Err(wrong()),
        }
    }
    if options.sizes.is_empty() {
        options.sizes = vec![(160, 50), (80, 24)];
    }
    if options.pages.is_empty() {
        options.pages = ('1'..='6').collect();
    }
    if options.lengths.is_empty() {
        options.lengths = vec![128, 4096];
    }
    Ok(options)
}
