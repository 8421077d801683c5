//! The options and exit statuses of the command.

use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgGroup, Args, CommandFactory, Parser, Subcommand};
use redlatch::{Client, Config, Error};

use crate::say::{print, say};
use crate::{run, show};

/// The lock is free.
pub(crate) const FREE: u8 = 1;
/// The lock is held by somebody else: `EX_TEMPFAIL`.
pub(crate) const BUSY: u8 = 75;
/// Redis is unreachable, or rejects the command: `EX_UNAVAILABLE`.
pub(crate) const UNAVAILABLE: u8 = 69;
/// The lock was lost while the program ran: `EX_SOFTWARE`.
pub(crate) const LOST: u8 = 70;
/// A setting or a name cannot work: `EX_USAGE`.
pub(crate) const USAGE: u8 = 64;

const HELP: &str = "\
Exit statuses:
  run     that of the program, 128 + N if signal N ended it; 126, 127 it cannot be started;
          75 somebody else has the lock, 70 the lock was lost
  who     0 held, 1 free
  unlock  0 taken away, 1 nobody holds it, 75 somebody else holds it
  check   0 fit for locks, 69 not
  all     64 wrong use, 69 Redis is unreachable or rejects the command

A SPAN is a number and ms, s, m or h: 500ms, 30s, 5m, 2h. Without a unit, seconds.";

const URL: &str = "redis://127.0.0.1/";

/// Locks in Redis, for shells and for people.
#[derive(Parser)]
#[command(version, about = "Locks in Redis, for shells and for people", after_help = HELP)]
struct Options {
    /// URL of the server: redis://, rediss://, redis+unix://, redis+sentinel:// or redis+cluster://
    #[arg(
        long,
        env = "REDLATCH_URL",
        default_value = URL,
        global = true,
        hide_env_values = true
    )]
    url: String,
    /// Prefix of the Redis keys of all names
    #[arg(long, env = "REDLATCH_PREFIX", default_value = "", global = true)]
    prefix: String,
    /// The CA of a rediss:// server, as a PEM file; by default those of the system
    #[cfg(feature = "tls")]
    #[arg(
        long,
        env = "REDLATCH_CA",
        value_name = "FILE",
        global = true,
        value_parser = clap::builder::OsStringValueParser::new()
    )]
    ca: Option<std::ffi::OsString>,
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Run a program while holding a lock; waits without a limit unless -n or -w is given
    #[command(after_help = HELP)]
    Run(Run),
    /// Show who holds a name, and who waits for it: status 0 if held, 1 if free
    Who {
        /// The name of a lock or semaphore
        name: String,
        #[command(flatten)]
        form: Form,
    },
    /// List the locks that are held
    Ls {
        /// Which names to list, as in SCAN: * ? [a-z]
        #[arg(default_value = "*")]
        pattern: String,
        #[command(flatten)]
        form: Form,
    },
    /// Show who holds a name again and again, until interrupted
    Watch {
        /// The name of a lock or semaphore
        name: String,
        /// Time between two looks
        #[arg(short, long, default_value = "1s", value_parser = span, value_name = "SPAN")]
        interval: Duration,
    },
    /// Take a name from its holder: status 0 if taken away, 1 if nobody holds it
    #[command(group(ArgGroup::new("whose").required(true).args(["owner", "force"])))]
    Unlock {
        /// The name of a lock or semaphore
        name: String,
        /// Take it only from this owner: <id>:<number>, as `who` shows it
        #[arg(long)]
        owner: Option<String>,
        /// Take it from every holder; asks first on a terminal
        #[arg(long)]
        force: bool,
    },
    /// Set how many may hold a semaphore at once, whatever was set before
    Permits {
        /// The name of the semaphore, as in `run --permits`
        name: String,
        /// The number of permits; if more are taken, no holder loses one
        #[arg(value_parser = clap::value_parser!(u32).range(1..))]
        permits: u32,
    },
    /// Check whether locks can be acquired, and whether settings and rights are fit for them
    Check {
        #[command(flatten)]
        form: Form,
    },
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

#[derive(Args, Clone, Copy)]
pub(crate) struct Form {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Run {
    /// Give up at once if the lock is taken
    #[arg(short, long, conflicts_with = "wait")]
    pub(crate) nonblock: bool,
    /// Give up after this long; until then, also wait for an unreachable Redis
    #[arg(short, long, value_parser = span, value_name = "SPAN")]
    pub(crate) wait: Option<Duration>,
    /// Acquire a read-write lock for reading, together with other --shared runs
    #[arg(short, long, conflicts_with_all = ["exclusive", "fair", "fenced", "permits"])]
    pub(crate) shared: bool,
    /// Acquire a read-write lock for writing, alone
    #[arg(short = 'x', long, conflicts_with_all = ["fair", "fenced", "permits"])]
    pub(crate) exclusive: bool,
    /// First come, first served, across all processes
    #[arg(long, conflicts_with_all = ["fenced", "permits"])]
    pub(crate) fair: bool,
    /// Give the program a fencing token, a number that grows with each holder, in `REDLATCH_TOKEN`
    #[arg(long, conflicts_with = "permits")]
    pub(crate) fenced: bool,
    /// Run at most N at once; all runs give the same N, and `redlatch permits` changes it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with_all = ["min_hold", "max_hold"])]
    pub(crate) permits: Option<u32>,
    /// How long the lock outlives this process if it is killed
    #[arg(long, value_parser = span, default_value = "30s", value_name = "SPAN")]
    pub(crate) lease: Duration,
    /// How long the program may hold the lock at most
    #[arg(long, value_parser = span, value_name = "SPAN")]
    pub(crate) max_hold: Option<Duration>,
    /// Keep the lock for at least this long, even if the program ends sooner
    #[arg(long, value_parser = span, value_name = "SPAN")]
    pub(crate) min_hold: Option<Duration>,
    /// How long the job may go on after TERM or the loss of the lock, until it gets KILL
    #[arg(long, value_parser = span, default_value = "10s", value_name = "SPAN")]
    pub(crate) grace: Duration,
    /// The exit status if the lock is taken
    #[arg(short = 'E', long, default_value_t = BUSY, value_name = "STATUS")]
    pub(crate) conflict_exit_code: u8,
    /// Print nothing while waiting, and nothing if the lock is taken
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// The name of the lock: any text that does not begin with `-`. Runs with the same Redis, prefix and name exclude each other
    pub(crate) name: String,
    /// The program and its arguments
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<std::ffi::OsString>,
}

/// Reads a duration such as `500ms`, `30`, `30s`, `5m` or `2h`.
fn span(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err("not a number and ms, s, m or h".into()),
    };
    let number: f64 = digits
        .parse()
        .map_err(|_| "not a number and ms, s, m or h")?;
    Duration::try_from_secs_f64(number * unit).map_err(|err| err.to_string())
}

/// Why the command fails, and with which status.
pub(crate) struct CommandFailure {
    pub(crate) status: u8,
    /// Empty for no message.
    pub(crate) why: String,
    pub(crate) is_retryable: bool,
}

impl CommandFailure {
    pub(crate) fn new(status: u8, why: String) -> Self {
        Self {
            status,
            why,
            is_retryable: false,
        }
    }
}

impl From<Error> for CommandFailure {
    fn from(err: Error) -> Self {
        let status = match err {
            Error::InvalidSetting { .. } | Error::InvalidName { .. } | Error::WrongType { .. } => {
                USAGE
            }
            Error::Lost { .. } => LOST,
            _ => UNAVAILABLE,
        };
        Self {
            status,
            why: err.to_string(),
            is_retryable: err.is_retryable(),
        }
    }
}

impl From<std::io::Error> for CommandFailure {
    fn from(err: std::io::Error) -> Self {
        Self::new(UNAVAILABLE, err.to_string())
    }
}

pub(crate) fn main() -> ExitCode {
    let done = match Options::try_parse() {
        Ok(options) => act(options),
        Err(err) => {
            // `--help` and `--version` are errors here, too.
            err.print().ok();
            Ok(if err.use_stderr() { USAGE } else { 0 })
        }
    };
    ExitCode::from(done.unwrap_or_else(|CommandFailure { status, why, .. }| {
        if !why.is_empty() {
            say(why);
        }
        status
    }))
}

fn act(options: Options) -> Result<u8, CommandFailure> {
    // An empty variable counts as one that is not set.
    let url = match options.url.is_empty() {
        true => URL.to_owned(),
        false => options.url,
    };
    let config = Config::new(url).key_prefix(options.prefix);
    #[cfg(feature = "tls")]
    let config = match options.ca.filter(|ca| !ca.is_empty()) {
        Some(ca) => config.tls(redlatch::TlsConfig::new().ca_file(ca)),
        None => config,
    };
    let open = |label: &str| Client::open(config.clone().label(label));
    match options.action {
        Action::Run(run) => run::run(config, &run),
        Action::Who { name, form } => show::who(&open("who")?, &name, form),
        Action::Ls { pattern, form } => show::ls(&open("ls")?, &pattern, form),
        Action::Watch { name, interval } => show::watch(&open("watch")?, &name, interval),
        Action::Unlock { name, owner, .. } => {
            show::unlock(&open("unlock")?, &name, owner.as_deref())
        }
        Action::Permits { name, permits } => show::permits(&open("permits")?, &name, permits),
        Action::Check { form } => show::check(open("check"), form),
        Action::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Options::command(), "redlatch", &mut text);
            print(String::from_utf8_lossy(&text).trim_end())?;
            Ok(0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_are_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn spans_are_numbers_with_units() {
        let ms = Duration::from_millis;
        for (text, expected) in [
            ("30", ms(30_000)),
            ("1.5s", ms(1_500)),
            ("500ms", ms(500)),
            ("5m", ms(300_000)),
            ("2h", ms(7_200_000)),
        ] {
            assert_eq!(span(text), Ok(expected), "{text}");
        }
        for odd in ["", "s", "-1s", "5d", "1e400", "ten"] {
            assert!(span(odd).is_err(), "{odd}");
        }
    }
}
