//! What the command takes, and its exit statuses.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand};
use redlatch::{Client, Config, Error};

use crate::{run, show};

/// Somebody else has the lock: `EX_TEMPFAIL`.
pub(crate) const BUSY: u8 = 75;
/// Redis is away, or refuses: `EX_UNAVAILABLE`.
pub(crate) const UNAVAILABLE: u8 = 69;
/// The lock was lost while the program ran: `EX_SOFTWARE`.
pub(crate) const LOST: u8 = 70;
/// A setting or a name cannot work: `EX_USAGE`.
pub(crate) const USAGE: u8 = 64;

/// Locks in Redis, for shells and for people.
#[derive(Parser)]
#[command(
    version,
    about = "Locks in Redis, for shells and for people",
    after_help = "Exit statuses: that of the command of `run`; 75 busy, 70 lost, 69 no Redis, 64 wrong use."
)]
struct Options {
    /// Where Redis is: redis://, rediss://, redis+unix://, redis+sentinel:// or redis+cluster://
    #[arg(
        long,
        env = "REDLATCH_URL",
        default_value = "redis://127.0.0.1/",
        global = true,
        hide_env_values = true
    )]
    url: String,
    /// What is put before every name to make its key
    #[arg(long, env = "REDLATCH_PREFIX", default_value = "", global = true)]
    prefix: String,
    /// The CA of a rediss:// server, as a PEM file; the system's otherwise
    #[cfg(feature = "tls")]
    #[arg(long, env = "REDLATCH_CA", value_name = "FILE", global = true)]
    ca: Option<std::path::PathBuf>,
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Run a program while holding a lock
    Run(Run),
    /// Show who holds a name, and who waits for it
    Who {
        name: String,
        #[command(flatten)]
        form: Form,
    },
    /// List the locks that are held
    Ls {
        /// As in SCAN: * ? [a-z]
        #[arg(default_value = "*")]
        pattern: String,
        #[command(flatten)]
        form: Form,
    },
    /// Show who holds a name again and again, until interrupted
    Watch {
        name: String,
        /// How often
        #[arg(short, long, default_value = "1s", value_parser = span)]
        interval: Duration,
    },
    /// Take a name from whoever holds it
    Unlock {
        name: String,
        /// Only if this owner still has it: <id>:<number>, as `who` shows it
        #[arg(long, required_unless_present = "force", conflicts_with = "force")]
        owner: Option<String>,
        /// Whoever has it; asks first on a terminal
        #[arg(long)]
        force: bool,
    },
    /// Check whether the servers are fit for locks, and what the user may do
    Check {
        #[command(flatten)]
        form: Form,
    },
    /// Print completions for a shell
    Completions { shell: clap_complete::Shell },
    /// Become the program, and die with the one that has started it
    #[command(hide = true)]
    Become {
        parent: i32,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<std::ffi::OsString>,
    },
}

#[derive(Args, Clone, Copy)]
pub(crate) struct Form {
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Run {
    /// Give up at once if somebody has it
    #[arg(short, long, conflicts_with = "wait")]
    pub(crate) nonblock: bool,
    /// Give up after this long
    #[arg(short, long, value_parser = span, value_name = "SPAN")]
    pub(crate) wait: Option<Duration>,
    /// Share it with others that share it: a read-write lock, to read
    #[arg(short, long, conflicts_with_all = ["exclusive", "fair", "fenced", "permits"])]
    pub(crate) shared: bool,
    /// Alone, among those that share it: a read-write lock, to write
    #[arg(short = 'x', long, conflicts_with_all = ["fair", "fenced", "permits"])]
    pub(crate) exclusive: bool,
    /// First come, first served
    #[arg(long, conflicts_with_all = ["fenced", "permits"])]
    pub(crate) fair: bool,
    /// With a number that rises with each holder, in `REDLATCH_TOKEN`
    #[arg(long, conflicts_with = "permits")]
    pub(crate) fenced: bool,
    /// At most so many at once
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with_all = ["at_least", "max_hold"])]
    pub(crate) permits: Option<u32>,
    /// How long the lock outlives this process
    #[arg(long, value_parser = span, default_value = "30s", value_name = "SPAN")]
    pub(crate) lease: Duration,
    /// The longest that the program may have it
    #[arg(long, value_parser = span, value_name = "SPAN")]
    pub(crate) max_hold: Option<Duration>,
    /// Keep the name until this long after the grant, even if the program ends sooner
    #[arg(long, value_parser = span, value_name = "SPAN")]
    pub(crate) at_least: Option<Duration>,
    /// After a loss the program gets TERM, and KILL this long after
    #[arg(long, value_parser = span, default_value = "10s", value_name = "SPAN")]
    pub(crate) grace: Duration,
    /// The exit status if somebody else has it
    #[arg(short = 'E', long, default_value_t = BUSY, value_name = "STATUS")]
    pub(crate) conflict_exit_code: u8,
    pub(crate) name: String,
    /// The program and its arguments
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<std::ffi::OsString>,
}

/// `500ms`, `30`, `30s`, `5m`, `2h`.
fn span(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err("it is a number and ms, s, m or h".into()),
    };
    let number: f64 = digits
        .parse()
        .map_err(|_| "it is a number and ms, s, m or h")?;
    Duration::try_from_secs_f64(number * unit).map_err(|err| err.to_string())
}

/// Why the command ends without having done what it was asked for.
pub(crate) struct Failure {
    pub(crate) status: u8,
    pub(crate) why: String,
}

impl From<Error> for Failure {
    fn from(err: Error) -> Self {
        let status = match err {
            Error::Config { .. } | Error::InvalidName { .. } | Error::WrongType { .. } => USAGE,
            Error::Lost { .. } => LOST,
            _ => UNAVAILABLE,
        };
        Self {
            status,
            why: err.to_string(),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(err: std::io::Error) -> Self {
        let status = UNAVAILABLE;
        Self {
            status,
            why: err.to_string(),
        }
    }
}

pub(crate) fn main() -> ExitCode {
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(err) => {
            // Also what it is asked for by --help.
            let status = if err.use_stderr() { USAGE } else { 0 };
            err.print().ok();
            return ExitCode::from(status);
        }
    };
    let config = Config::new(options.url).key_prefix(options.prefix);
    #[cfg(feature = "tls")]
    let config = match options.ca {
        Some(ca) => config.tls(redlatch::TlsConfig::new().ca_file(ca)),
        None => config,
    };
    let open = |label: &str| Client::open(config.clone().label(label));
    let done = match options.action {
        Action::Run(its) => run::run(config, &its),
        Action::Become { parent, command } => run::become_command(parent, &command),
        Action::Who { name, form } => open("who")
            .map_err(Failure::from)
            .and_then(|client| show::who(&client, &name, form)),
        Action::Ls { pattern, form } => open("ls")
            .map_err(Failure::from)
            .and_then(|client| show::ls(&client, &pattern, form)),
        Action::Watch { name, interval } => open("watch")
            .map_err(Failure::from)
            .and_then(|client| show::watch(&client, &name, interval)),
        Action::Unlock { name, owner, .. } => open("unlock")
            .map_err(Failure::from)
            .and_then(|client| show::unlock(&client, &name, owner.as_deref())),
        Action::Check { form } => open("check")
            .map_err(Failure::from)
            .and_then(|client| show::check(&client, form)),
        Action::Completions { shell } => {
            clap_complete::generate(
                shell,
                &mut Options::command(),
                "redlatch",
                &mut std::io::stdout(),
            );
            Ok(0)
        }
    };
    match done {
        Ok(status) => ExitCode::from(status),
        Err(Failure { status, why }) => {
            eprintln!("redlatch: {why}");
            ExitCode::from(status)
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
