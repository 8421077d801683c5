//! What a history amounts to: faults, operations, and how soon things worked again.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use serde_json::Value;

/// One kind of fault.
#[derive(Default)]
struct Row {
    times: u64,
    asked: u64,
    granted: u64,
    in_vain: u64,
    failed: u64,
    lost: u64,
    wrong: u64,
    /// Nanoseconds from the end of a fault until whatever was waited for then was granted or released again.
    recovery: u64,
}

/// A fault that has ended.
struct Past {
    name: String,
    begin: u64,
    end: u64,
}

pub(crate) struct Table {
    rows: BTreeMap<String, Row>,
    kinds: BTreeMap<String, Row>,
    all: Row,
    pub(crate) panics: Vec<String>,
}

/// What happens that long after a fault is put down to it.
const AFTER: u64 = 1_000_000_000;

impl Table {
    pub(crate) fn of(history: &str) -> Self {
        let mut lines: Vec<Value> = history
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        lines.sort_by_key(|line| line["time"].as_u64());
        let mut table = Self {
            rows: BTreeMap::new(),
            kinds: BTreeMap::new(),
            all: Row::default(),
            panics: Vec::new(),
        };
        let past = faults(&lines);
        for fault in &past {
            table.rows.entry(fault.name.clone()).or_default().times += 1;
        }
        for line in &lines {
            if line["f"] == "panic" {
                table.panics.push(line.to_string());
            }
            let Some(count) = counted(line) else { continue };
            let time = line["time"].as_u64().unwrap_or(0);
            let kind = line["value"]["kind"].as_str().unwrap_or("").to_owned();
            let mut names: Vec<&str> = Vec::new();
            for fault in &past {
                if (fault.begin..fault.end + AFTER).contains(&time)
                    && !names.contains(&&*fault.name)
                {
                    names.push(&fault.name);
                }
            }
            for name in names {
                if let Some(row) = table.rows.get_mut(name) {
                    *count(row) += 1;
                }
            }
            *count(table.kinds.entry(kind).or_default()) += 1;
            *count(&mut table.all) += 1;
        }
        for (name, recovery) in recoveries(&lines, &past) {
            if let Some(row) = table.rows.get_mut(&name) {
                row.recovery = row.recovery.max(recovery);
            }
        }
        table
    }
}

fn counted(line: &Value) -> Option<fn(&mut Row) -> &mut u64> {
    Some(match (line["f"].as_str()?, line["type"].as_str()?) {
        ("acquire" | "await", "invoke") => |row| &mut row.asked,
        ("acquire" | "await", "ok") => |row| &mut row.granted,
        ("acquire" | "await", "fail") => |row| &mut row.in_vain,
        ("acquire" | "await" | "release", "info") => |row| &mut row.failed,
        ("lost", _) => |row| &mut row.lost,
        _ => return None,
    })
}

fn faults(lines: &[Value]) -> Vec<Past> {
    let mut open: HashMap<u64, (String, u64)> = HashMap::new();
    let mut past = Vec::new();
    for line in lines {
        let Some(number) = line["value"]["fault"].as_u64() else {
            continue;
        };
        let time = line["time"].as_u64().unwrap_or(0);
        let name = line["f"].as_str().unwrap_or("").to_owned();
        match line["value"]["until"].as_str() {
            Some("begin") => {
                open.insert(number, (name, time));
            }
            _ => {
                if let Some((name, begin)) = open.remove(&number) {
                    past.push(Past {
                        name,
                        begin,
                        end: time,
                    });
                }
            }
        }
    }
    past
}

fn names_in(value: &Value) -> Vec<String> {
    let text = |name: &Value| name.as_str().unwrap_or("").to_owned();
    match value["names"].as_array() {
        Some(names) => names.iter().map(text).collect(),
        None => vec![text(&value["name"])],
    }
}

/// A time at which a thread waited for something, or had it.
struct Span {
    from: u64,
    until: u64,
    names: Vec<String>,
}

impl Span {
    fn covers(&self, moment: u64) -> bool {
        self.from <= moment && moment < self.until
    }
}

/// For each fault how long after its end somebody had what was free then and waited for.
fn recoveries(lines: &[Value], past: &[Past]) -> Vec<(String, u64)> {
    let mut waits: Vec<Span> = Vec::new();
    let mut holds: Vec<Span> = Vec::new();
    // For each thread what it waits for or has, and when it wrote its last line.
    let mut waiting: HashMap<i64, Span> = HashMap::new();
    let mut holding: HashMap<i64, Span> = HashMap::new();
    for line in lines {
        let (Some(time), Some(process)) = (line["time"].as_u64(), line["process"].as_i64()) else {
            continue;
        };
        let value = &line["value"];
        if value["mode"] == "permits" {
            // Permits that do not come back are nobody's fault.
            continue;
        }
        let span = || Span {
            from: time,
            until: u64::MAX,
            names: names_in(value),
        };
        let end = |spans: &mut HashMap<i64, Span>, all: &mut Vec<Span>| {
            if let Some(mut span) = spans.remove(&process) {
                span.until = time;
                all.push(span);
            }
        };
        match (line["f"].as_str(), line["type"].as_str()) {
            (Some("acquire"), Some("invoke")) => {
                // A killed worker leaves open what it did; its successor has other numbers.
                waiting.insert(process, span());
            }
            (Some("acquire"), answer) => {
                end(&mut waiting, &mut waits);
                if answer == Some("ok") {
                    holding.insert(process, span());
                }
            }
            (Some("release"), Some("invoke")) | (Some("lost"), _) => {
                end(&mut holding, &mut holds);
            }
            _ => {}
        }
    }
    let mut recoveries = Vec::new();
    for fault in past {
        for wait in waits.iter().filter(|wait| wait.covers(fault.end)) {
            let shared = |hold: &&Span| hold.names.iter().any(|name| wait.names.contains(name));
            let mut of_it = holds.iter().filter(shared);
            if of_it.clone().any(|hold| hold.covers(fault.end)) {
                continue;
            }
            let later = of_it.by_ref().filter(|hold| hold.from >= fault.end);
            let next = later.map(|hold| hold.from).min().unwrap_or(wait.until);
            recoveries.push((fault.name.clone(), next.min(wait.until) - fault.end));
        }
    }
    recoveries
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = |nanos: u64| nanos / 1_000_000;
        writeln!(
            f,
            "| fault | times | asked | granted | in vain | errors | lost | violations | slowest recovery |\n\
             | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
        )?;
        let mut row = |name: &str, row: &Row| {
            writeln!(
                f,
                "| {name} | {} | {} | {} | {} | {} | {} | {} | {} ms |",
                row.times,
                row.asked,
                row.granted,
                row.in_vain,
                row.failed,
                row.lost,
                row.wrong,
                millis(row.recovery),
            )
        };
        for (name, its) in &self.rows {
            row(name, its)?;
        }
        row("all", &self.all)?;
        writeln!(
            f,
            "\n| kind | asked | granted | in vain | errors | lost |\n| --- | --- | --- | --- | --- | --- |"
        )?;
        for (kind, its) in &self.kinds {
            let Row {
                asked,
                granted,
                in_vain,
                failed,
                lost,
                ..
            } = its;
            writeln!(
                f,
                "| {kind} | {asked} | {granted} | {in_vain} | {failed} | {lost} |"
            )?;
        }
        Ok(())
    }
}
