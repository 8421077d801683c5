//! The page about common mistakes quotes the compiler and the library.

use std::path::Path;
use std::time::Duration;
use std::{fs, process};

use redlatch::{Client, Error};

use crate::engine::docs::compiled;
use crate::support::cluster::Cluster;
use crate::support::{Server, eventually, logs, ms, open, settings, skipped, timed};

/// Asserts that the page contains the quotation and that `said` matches it; `10.0s` stands for any time.
#[track_caller]
fn quoted(quotation: &str, said: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("src/guide/common_mistakes.md")).unwrap();
    let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(page.contains(quotation), "not on the page: {quotation}");
    for part in quotation.split("10.0s") {
        assert!(said.contains(part), "`{part}` is not in: {said}");
    }
}

#[test]
fn the_compiler_says_what_the_page_quotes() {
    let user = |body: &str| {
        let program = format!(
            "#![warn(let_underscore_drop)]
            pub fn spawn<F: std::future::Future + Send>(_: F) {{}}
            pub fn user(lock: redlatch::Mutex) -> redlatch::Result<()> {{
                {body}
                Ok(())
            }}"
        );
        compiled(&program)
    };
    let Some(unused) = user("lock.lock()?;") else {
        return skipped("what the compiler says", "there is none");
    };
    quoted("unused `Guard` that must be used", &unused);
    assert!(
        unused.contains("`let _ = …` releases it at once"),
        "{unused}"
    );
    let say = |body| user(body).unwrap();
    quoted(
        "non-binding let on a type that has a destructor",
        &say("let _ = lock.lock()?;"),
    );
    let across = "spawn(async move {
        let guard = lock.lock()?;
        std::future::ready(()).await;
        guard.unlock()
    });";
    let across = say(across);
    quoted("future cannot be sent between threads safely", &across);
    quoted(
        "has type `Guard<NonReentrant>` which is not `Send`",
        &across,
    );
    // The compiler accepts these without a warning.
    for silent in [
        "if lock.try_lock()?.is_some() { println!(); }",
        "lock.try_lock()?;",
        "if let Some(_guard) = lock.try_lock()? { println!(); }",
    ] {
        assert_eq!(say(silent), "", "{silent}");
    }
}

/// Clippy's warnings about a program that uses the crate, with `settings` as `clippy.toml`.
fn linted(program: &str, settings: &str) -> Option<String> {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("clippy.toml"), settings).unwrap();
    let compiler = process::Command::new("clippy-driver")
        .arg("--version")
        .output();
    compiler.ok()?;
    crate::engine::docs::compiled_by("clippy-driver", dir.path(), program)
}

#[test]
fn clippy_says_what_the_page_says_of_it() {
    let across = "async fn other() {}
        pub async fn user(lock: redlatch::Mutex) -> redlatch::Result<()> {
            let guard = lock.lock()?;
            other().await;
            guard.unlock()
        }";
    let setting = r#"await-holding-invalid-types = ["redlatch::Guard"]"#;
    let Some(said) = linted(across, setting) else {
        return skipped("what clippy says", "there is none");
    };
    assert!(said.contains("across an await point"), "{said}");
    quoted(setting, setting);
    let some = "pub fn user(lock: redlatch::Mutex) -> redlatch::Result<()> {
            if let Some(_) = lock.try_lock()? { println!(); }
            Ok(())
        }";
    let said = linted(some, "").unwrap();
    assert!(said.contains("lock.try_lock()?.is_some()"), "{said}");
}

timed!(the_library_says_what_the_page_quotes);
fn the_library_says_what_the_page_quotes() {
    let logs = logs();
    let server = Server::start();
    let client = Client::open(settings(&server).log_long_waits(ms(20))).unwrap();
    let said = |err: Error| err.to_string();
    let report = client.mutex("report");

    let guard = report.clone().fixed_lease(ms(10)).lock().unwrap();
    eventually("the lease is over", || !guard.is_valid());
    quoted(
        "`report` is no longer held: its lease expired",
        &said(guard.unlock().unwrap_err()),
    );

    let guard = report.lock().unwrap();
    quoted(
        "waiting for `report`, this thread would wait for itself",
        &said(report.lock().unwrap_err()),
    );
    drop(guard);

    let owned = report.lock_owned().unwrap();
    assert!(report.try_lock_owned_for(ms(200)).unwrap().is_none());
    let waits = "waiting for `report` (reentrant) for 10.0s now";
    let logged = logs.about("waiting for `report` (reentrant) for ");
    assert_eq!(logged[0].0, log::Level::Info);
    quoted(waits, &logged[0].1);
    drop(owned);

    client.latch("never set").wait().unwrap();
    let none = client.semaphore("slots").try_acquire_for(ms(100)).unwrap();
    assert!(none.is_none());
    let unset = "the semaphore `slots` has no permits: their number was never set, or its key is gone; call `try_set_permits`";
    quoted(unset, &logs.about("the semaphore `slots`")[0].1);

    let slots = client.expirable_semaphore("slots");
    let stranger = client.mutex("{slots}:timeout").lock().unwrap();
    slots.try_set_permits(1).ok();
    quoted(
        "the key `{slots}:timeout` holds a hash",
        &said(slots.try_acquire().unwrap_err()),
    );
    drop(stranger);
    quoted(
        "invalid lock name: it is empty",
        &said(client.mutex("").lock().unwrap_err()),
    );
}

timed!(permits_of_the_dead_stay_taken_and_can_be_added_again);
fn permits_of_the_dead_stay_taken_and_can_be_added_again() {
    let server = Server::start();
    let client = open(&server);
    let slots = client.semaphore("slots");
    slots.try_set_permits(1).unwrap();
    // `forget` leaves the permit as a killed process would.
    slots.acquire().unwrap().forget();
    assert!(slots.try_acquire_for(ms(50)).unwrap().is_none());
    slots.add_permits(1).unwrap();
    assert!(
        slots
            .try_acquire_for(Duration::from_secs(10))
            .unwrap()
            .is_some()
    );
}

timed!(a_cluster_says_what_the_page_quotes);
fn a_cluster_says_what_the_page_quotes() {
    let client = Cluster::shared().open();
    let guard = client.mutex("stock:42").lock().unwrap();
    let mut decr = redis::cmd("DECR");
    let away = guard.query::<i64>(decr.arg("left:42")).unwrap_err();
    quoted(
        "invalid guarded command: the key `left:42` is in another slot of the cluster than the lock's, `stock:42`",
        &away.to_string(),
    );
    // A single server has no slots.
    let server = Server::start();
    let guard = open(&server).mutex("stock:42").lock().unwrap();
    assert_eq!(guard.query::<i64>(&decr).unwrap(), -1);
}
