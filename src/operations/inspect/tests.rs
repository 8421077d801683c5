use super::*;

const OWNER: &str = "5f0c2b1e-0000-4000-8000-000000000000:17";

#[cfg(feature = "serde")]
#[test]
fn spans_are_serialized_as_numbers_and_kinds_as_words() {
    let process = Process {
        host: "web-3".into(),
        pid: 7,
        address: "10.0.0.7:1".into(),
        label: String::new(),
        idle: Duration::from_millis(2_500),
    };
    let holder = Holder {
        owner: OWNER.into(),
        count: 1,
        mode: HoldMode::Write,
        remaining_lease: Some(Duration::from_micros(29_000_500)),
        process: Some(process),
    };
    let written = serde_json::to_value((LockKind::RwLock, holder)).expect("JSON");
    let process = serde_json::json!(
        {"host": "web-3", "pid": 7, "address": "10.0.0.7:1", "label": "", "idle_s": 2}
    );
    let expected = serde_json::json!([
        "rw_lock",
        {"owner": OWNER, "count": 1, "mode": "write", "remaining_lease_ms": 29_000, "process": process},
    ]);
    assert_eq!(written, expected);
}

/// The info from a reply of the script with these parts.
fn said(
    kind: &str,
    value: &str,
    fields: &[[&str; 3]],
    queue: &[[&str; 2]],
    permits: &[[&str; 2]],
    rest: [&str; 2],
) -> Option<LockInfo> {
    let mut texts = vec![kind.to_owned(), "1500".into(), value.into()];
    let mut put = |all: Vec<String>, n: usize| {
        texts.extend([n.to_string(), n.to_string()]);
        texts.extend(all);
    };
    put(
        fields.concat().into_iter().map(str::to_owned).collect(),
        fields.len(),
    );
    put(
        queue.concat().into_iter().map(str::to_owned).collect(),
        queue.len(),
    );
    put(
        permits.concat().into_iter().map(str::to_owned).collect(),
        permits.len(),
    );
    texts.extend(rest.map(str::to_owned));
    read("n", "p:n", texts)?.ok()
}

#[test]
fn each_kind_is_told_by_what_there_is() {
    let none = ["", ""];
    let held = [[OWNER, "2", ""]];
    let write = format!("{OWNER}:write");
    let both = [
        ["mode", "write", ""],
        [&*write, "1", ""],
        [OWNER, "1", "700"],
    ];
    let taken = [["00ff", "300"]];
    for (info, kind, holders) in [
        (said("none", "", &[], &[], &[], none), LockKind::Free, 0),
        (said("lock", "", &held, &[], &[], none), LockKind::Lock, 1),
        (
            said("lock", "", &held, &[["a:1", ""]], &[], none),
            LockKind::FairLock,
            1,
        ),
        (
            said("none", "", &[], &[["a:1", "9"]], &[], none),
            LockKind::FairLock,
            0,
        ),
        (
            said("lock", "", &held, &[], &[], ["7", ""]),
            LockKind::FencedLock,
            1,
        ),
        (
            said("read-write lock", "", &both, &[], &[], none),
            LockKind::RwLock,
            2,
        ),
        (
            said("string", "3", &[], &[], &[], none),
            LockKind::Semaphore,
            0,
        ),
        (
            said("string", "3", &[], &[], &taken, none),
            LockKind::ExpirableSemaphore,
            1,
        ),
        (
            said("string", "3", &[], &[], &[], ["", "1"]),
            LockKind::Latch,
            0,
        ),
    ] {
        let info = info.expect("it is read");
        assert_eq!((info.kind, info.holders.len()), (kind, holders), "{info:?}");
    }
    for (kind, value) in [("hash", ""), ("string", "x"), ("list", "")] {
        assert_eq!(said(kind, value, &[], &[], &taken, none), None, "{kind}");
    }
    let info = said("read-write lock", "", &both, &[], &[], none).expect("it is read");
    assert_eq!(
        (info.holders[0].mode, info.holders[1].mode),
        (HoldMode::Write, HoldMode::Read)
    );
    assert_eq!(info.holders[0].owner, OWNER);
    assert_eq!(
        info.holders[1].remaining_lease,
        Some(Duration::from_millis(700))
    );
    assert_eq!(info.held, 2);
}

#[test]
fn what_is_shown_says_who_and_where() {
    let mut info = said(
        "lock",
        "",
        &[[OWNER, "2", ""]],
        &[["b:3", ""]],
        &[],
        ["", ""],
    )
    .expect("it is read");
    let list = format!(
        "id=3 addr=[::1]:5142 name=redlatch:{}:web-3:4711:shop:link idle=1",
        OWNER.trim_end_matches(":17")
    );
    info.join(&processes::of_list(&list));
    info.listening = Some(2);
    assert_eq!(
        info.to_string(),
        format!(
            "n: fair lock, held\n  held by {OWNER}, 2 times, 1.5 s left\n      pid 4711 on web-3 ([::1]:5142, shop, idle 1 s)\n  waiting 1. b:3\n  2 processes listen for its release"
        )
    );
    assert_eq!(shown(Duration::from_secs(900)), "15 min");
}

/// The text for each kind of lock, held and free.
pub(crate) fn samples() -> Vec<String> {
    let none = ["", ""];
    let write = format!("{OWNER}:write");
    let both = [
        ["mode", "write", ""],
        [&*write, "1", ""],
        [OWNER, "1", "700"],
    ];
    let held = [[OWNER, "2", ""]];
    let process = Process {
        host: "web-3".into(),
        pid: 4711,
        address: "10.0.0.9:51422".into(),
        label: "shop".into(),
        idle: Duration::from_secs(1),
    };
    let processes = Processes::from([(OWNER.trim_end_matches(":17").to_owned(), process)]);
    let shown = [
        said("none", "", &[], &[], &[], none),
        said("lock", "", &held, &[], &[], none),
        said("lock", "", &[[OWNER, "0", "1500"]], &[], &[], none),
        said(
            "lock",
            "",
            &held,
            &[["b:3", ""], [OWNER, "9000"]],
            &[],
            none,
        ),
        said("none", "", &[], &[], &[], ["7", ""]),
        said("lock", "", &held, &[], &[], ["8", ""]),
        said("read-write lock", "", &both, &[], &[], none),
        said("string", "3", &[], &[], &[], none),
        said("string", "3", &[], &[], &[["00ff", "300"]], none),
        said("string", "3", &[], &[], &[], ["", "1"]),
    ];
    let shown = shown.into_iter().enumerate().map(|(n, info)| {
        let mut info = info.expect("it is read");
        info.join(&processes);
        info.listening = Some(n as u64);
        let denied = "NOPERM User app has no permissions";
        match n {
            1 => info.unknown = vec![unknown_processes(denied), unknown_listeners(denied)],
            3 => (info.held, info.waiting) = (2000, 3000),
            6 => info.holders[1].remaining_lease = None,
            _ => {}
        }
        info.to_string()
    });
    shown.collect()
}
