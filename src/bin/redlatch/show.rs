//! The actions that show, list, check and take away locks.

use std::io::IsTerminal as _;
use std::time::Duration;

use redlatch::ops::{LockInfo, LockKind, Severity};
use redlatch::{Client, Error};
use serde_json::json;

use crate::options::{BUSY, CommandFailure, FREE, Form, UNAVAILABLE, USAGE};
use crate::say::{ask, print, say};
use crate::shown::Shown;

fn is_coloured() -> bool {
    std::io::stdout().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// The text with its first line in bold, if the output is coloured.
fn headed(text: &str) -> String {
    match text.split_once('\n') {
        _ if !is_coloured() => text.to_owned(),
        Some((head, rest)) => format!("\x1b[1m{head}\x1b[0m\n{rest}"),
        None => format!("\x1b[1m{text}\x1b[0m"),
    }
}

/// Prints JSON with sorted keys.
fn pretty(shown: impl serde::Serialize) -> Result<(), CommandFailure> {
    let value = serde_json::to_value(shown).expect("strings and numbers");
    print(format_args!("{value:#}"))
}

pub(crate) fn who(client: &Client, name: &str, form: Form) -> Result<u8, CommandFailure> {
    let info = client.inspect(name)?;
    match form.json {
        true => pretty(&info)?,
        false => print(headed(&info.to_string()))?,
    }
    let is_held = match info.kind {
        LockKind::Latch => true,
        LockKind::Semaphore => info.free.is_none_or(|free| free <= 0),
        _ => info.held > 0,
    };
    Ok(if is_held { 0 } else { FREE })
}

pub(crate) fn ls(client: &Client, pattern: &str, form: Form) -> Result<u8, CommandFailure> {
    let mut all = Vec::new();
    for lock in client.locks(pattern) {
        let lock = lock?;
        match form.json {
            false => print(&lock)?,
            true => all.push(lock),
        }
    }
    if form.json {
        pretty(&all)?;
    }
    Ok(0)
}

pub(crate) fn watch(client: &Client, name: &str, interval: Duration) -> Result<u8, CommandFailure> {
    let in_place = std::io::stdout().is_terminal();
    loop {
        let shown = match client.inspect(name) {
            Ok(info) => headed(&info.to_string()),
            Err(err @ (Error::InvalidName { .. } | Error::InvalidSetting { .. })) => {
                return Err(err.into());
            }
            Err(err) => err.to_string(),
        };
        match in_place {
            // Clear the screen, and start in its upper left corner.
            true => print(format_args!("\x1b[2J\x1b[H{shown}"))?,
            false => print(&shown)?,
        }
        std::thread::sleep(interval.max(Duration::from_millis(50)));
    }
}

pub(crate) fn unlock(
    client: &Client,
    name: &str,
    owner: Option<&str>,
) -> Result<u8, CommandFailure> {
    let is_done = match owner {
        Some(owner) => client.force_unlock_owner(name, owner)?,
        None => force(client, name)?,
    };
    let shown = Shown(name);
    if is_done {
        print(format_args!("{shown}: taken away"))?;
        return Ok(0);
    }
    let held = match owner {
        Some(_) => {
            let info = client.inspect(name)?;
            if let Some(failure) = without_owners(&info) {
                return Err(failure);
            }
            info.held
        }
        None => 0,
    };
    if held > 0 {
        say(format_args!("`{shown}` is held by somebody else"));
        return Ok(BUSY);
    }
    say(format_args!("nobody holds `{shown}`"));
    Ok(FREE)
}

pub(crate) fn permits(client: &Client, name: &str, permits: u32) -> Result<u8, CommandFailure> {
    client.expirable_semaphore(name).set_permits(permits)?;
    print(client.inspect(name)?)?;
    Ok(0)
}

/// How many holders `inspect` lists at most.
const LISTED: u64 = 1000;

/// The failure of `unlock` for a kind that has no owners in Redis.
fn without_owners(info: &LockInfo) -> Option<CommandFailure> {
    let name = Shown(&info.name);
    let why = match info.kind {
        LockKind::Semaphore => {
            format!("`{name}` is a semaphore, and Redis does not know who has its permits")
        }
        LockKind::Latch => format!("`{name}` is a latch, which nobody holds"),
        _ => return None,
    };
    Some(CommandFailure::new(USAGE, why))
}

fn force(client: &Client, name: &str) -> Result<bool, CommandFailure> {
    let mut info = client.inspect(name)?;
    if info.held > 0 && std::io::stdin().is_terminal() {
        let whom = if info.held > 1 {
            "all of them"
        } else {
            "its holder"
        };
        ask(format_args!("{info}\ntake it from {whom}? [y/N] "));
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer)?;
        if !["y", "yes"].contains(&answer.trim().to_lowercase().as_str()) {
            return Err(CommandFailure::new(BUSY, "left unchanged".into()));
        }
    }
    if let Some(failure) = without_owners(&info) {
        return Err(failure);
    }
    Ok(match info.kind {
        LockKind::FairLock => client.fair_lock(name).force_unlock()?,
        LockKind::RwLock => client.rw_lock(name).force_unlock()?,
        LockKind::ExpirableSemaphore => {
            let semaphore = client.expirable_semaphore(name);
            let (rounds, mut is_done) = (info.held.div_ceil(LISTED), false);
            for round in 0..rounds {
                // `inspect` lists the next permits, now that those of the last round are released.
                if round > 0 {
                    info = client.inspect(name)?;
                }
                let ids: Vec<_> = info.holders.iter().map(|permit| &permit.owner).collect();
                is_done |= semaphore.release_ids(&ids)?.contains(&true);
            }
            is_done
        }
        LockKind::Free | LockKind::Lock | LockKind::FencedLock => {
            client.reentrant_lock(name).force_unlock()?
        }
        kind => {
            let why = format!(
                "`{}` is a {kind}, which cannot be unlocked here",
                Shown(name)
            );
            return Err(CommandFailure::new(USAGE, why));
        }
    })
}

pub(crate) fn check(client: redlatch::Result<Client>, form: Form) -> Result<u8, CommandFailure> {
    let report = match client.and_then(|client| client.check()) {
        Ok(report) => report,
        // A client that cannot connect is reported as a finding.
        Err(err @ Error::Redis { .. }) => {
            let (severity, text) = (Severity::Problem.to_string(), err.to_string());
            match form.json {
                true => {
                    let found =
                        json!({"server": "", "severity": severity, "what": text, "advice": ""});
                    pretty(json!([found]))?;
                }
                false => print(format_args!("{severity} {text}"))?,
            }
            return Ok(UNAVAILABLE);
        }
        Err(err) => return Err(err.into()),
    };
    let status = if report.is_fit() { 0 } else { UNAVAILABLE };
    if form.json {
        pretty(&report.findings)?;
        return Ok(status);
    }
    for finding in &report.findings {
        let colour = match finding.severity {
            Severity::Problem => "\x1b[31m",
            Severity::Warning => "\x1b[33m",
            _ => "",
        };
        match is_coloured() {
            true => print(format_args!("{colour}{finding}\x1b[0m"))?,
            false => print(finding)?,
        }
    }
    Ok(status)
}
