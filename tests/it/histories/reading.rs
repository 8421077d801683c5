//! Logs of histories: what is written can be read, and unreadable lines are reported.

use crate::support::history::{
    Divides, Edge, Entry, Event, Mode, NEMESIS, Phase, Rule, Setup, Wanted, What, check, millis,
    read,
};
use crate::support::made_up::{fault_of, has, history};

#[test]
fn what_was_written_is_read() {
    let wanted = Wanted {
        kind: "multi".into(),
        names: vec!["{a}-1".into(), "b \"2\"\n".into()],
        mode: Mode::Write,
        permits: 2,
        lease: Some(millis(300)),
    };
    let (id, name) = (Some("07a3".into()), "latch-1".into());
    let whats = [
        What::Setup(Box::new(Setup {
            seed: 42,
            permits: vec![("permits-0".into(), 3)],
            deployment: "five masters".to_owned(),
            is_durable: false,
            guards: false,
            recovery: Some(millis(7)),
            ..Setup::default()
        })),
        What::Acquire {
            wanted: wanted.clone(),
            limit: Some(millis(5_000)),
            token: Some(u64::MAX),
            id: id.clone(),
        },
        What::Lost {
            wanted: wanted.clone(),
            id: id.clone(),
            valid_until: Some(123_456_789),
        },
        What::Release {
            wanted: wanted.clone(),
            id,
            valid_until: None,
        },
        What::Work {
            name: "a".into(),
            read: 7,
            wrote: 8,
        },
        What::Write {
            name: "a".into(),
            entry: Entry {
                process: 1001,
                number: 17,
            },
        },
        What::Written {
            name: "a".into(),
            entries: vec![Entry {
                process: 2001,
                number: u64::MAX,
            }],
        },
        What::ForceUnlock { name: "a".into() },
        What::Set { wanted, count: 3 },
        What::CountDown {
            name: "latch-1".into(),
        },
        What::Await { name, limit: None },
        What::Fault(Edge {
            fault: "stop-worker".into(),
            number: Some(5),
            is_end: true,
            client: Some(3),
            name: Some("a".into()),
            divides: Some(Divides::Clients),
        }),
        What::Late { span: millis(30) },
        What::LeftBehind {
            keys: vec!["a".to_owned()],
        },
        What::Panic,
        What::Remark,
    ];
    let phases = [Phase::Invoke, Phase::Ok, Phase::Fail, Phase::Info];
    let events = whats.into_iter().zip(phases.into_iter().cycle()).zip(1..);
    let mut events: Vec<Event> = events
        .map(|((what, phase), line)| Event {
            line,
            ..Event::new(NEMESIS, phase, what, millis(line as u64))
        })
        .collect();
    events[2].error = Some("gone: \"a\"".to_owned());
    let lines: Vec<_> = events.iter().map(Event::to_line).collect();
    assert_eq!(read(lines.join("\n").as_bytes()), events);
}

#[test]
fn a_line_means_what_the_format_says() {
    let log = r#"
        {"process":-1,"type":"info","f":"setup","value":{"seed":1,"lease_ms":1000,"command_timeout_ms":500,"slack_ms":100},"time":0}
        {"process":1001,"type":"invoke","f":"acquire","value":{"kind":"fair","name":"fair-0","mode":"exclusive","limit_ms":5000},"time":1000000}
        {"process":1001,"type":"ok","f":"acquire","value":{"kind":"fair","name":"fair-0","mode":"exclusive"},"time":2000000}
        {"process":2001,"type":"invoke","f":"acquire","value":{"kind":"fair","name":"fair-0","mode":"exclusive","limit_ms":5000},"time":3000000}

        {"process":2001,"type":"ok","f":"acquire","value":{"kind":"fair","name":"fair-0","mode":"exclusive"},"time":5000000}
        {"process":1001,"type":"invoke","f":"release","value":{"kind":"fair","name":"fair-0","mode":"exclusive"},"time":6000000}
        {"process":1001,"type":"ok","f":"release","value":{"kind":"fair","name":"fair-0","mode":"exclusive"},"time":7000000}
        {"process":2001,"type":"invoke","f":"release","value":{"kind":"fair","name":"fair-0","mode":"exclusive"},"time":8000000}
        {"process":2001,"type":"ok","f":"release","value":{"kind":"fair","name":"fair-0","mode":"exclusive"},"time":9000000}
        {"process":-1,"type":"info","f":"heal","value":{"what":"everything"},"time":9500000}
    "#;
    let report = check(read(log.as_bytes()));
    let [wrong] = &report.violations[..] else {
        panic!("{report}")
    };
    assert_eq!(wrong.rule, Rule::Exclusion);
    assert_eq!(wrong.lines, [3, 4, 8, 9, 5, 7, 10, 11]);
    assert!(wrong.words.contains("process 2001"), "{report}");
    assert!(report.to_string().contains("exclusion: 1"), "{report}");
}

#[test]
fn the_order_of_the_lines_does_not_matter() {
    let kill = fault_of("kill-worker", Some(2), [15, 16]);
    let turns = [
        has(1001, "mutex", [0, 10, 20]),
        has(2001, "mutex", [15, 19, 30]),
    ];
    let mut events = history(&turns, &[kill]);
    let forwards = check(events.clone());
    // The events of a worker after those of the other.
    events.sort_by_key(|event| -event.process);
    let backwards = check(events);
    assert_eq!(forwards.to_string(), backwards.to_string());
}

#[test]
fn a_line_that_cannot_be_read_is_found() {
    let whole = history(&[has(1001, "mutex", [0, 10, 20])], &[]);
    let lines: Vec<_> = whole.iter().map(Event::to_line).collect();
    assert!(check(read(lines.join("\n").as_bytes())).is_fine());
    for torn in [
        r#"{"process":1001,"type":"invoke","f":"acq"#,
        r#"{"process":1001,"type":"invoke","value":{},"time":5}"#,
        r#"{"process":1001,"type":"perhaps","f":"acquire","value":{},"time":5}"#,
        r#"{"process":1001,"type":"ok","f":"acquire","value":{"kind":"mutex"},"time":5}"#,
        r#"{"process":1001,"type":"ok","f":"acquire","value":{"kind":"mutex","name":"a"}}"#,
        r#"{"process":1001,"type":"ok","f":"write","value":{"name":"a","entry":"1001"},"time":5}"#,
        r#"{"process":-1,"type":"info","f":"written","value":{"name":"a","entries":[1001]},"time":5}"#,
        "[1]",
    ] {
        let log = format!("{}\n{torn}", lines.join("\n"));
        let report = check(read(log.as_bytes()));
        let [wrong] = &report.violations[..] else {
            panic!("{report}")
        };
        assert_eq!(
            (wrong.rule, &wrong.lines[..]),
            (Rule::Log, &[lines.len() + 1][..])
        );
    }
}
