//! `check`: whether a server is fit for locks, and which rights a user lacks.

use redlatch::ops::{Report, Severity};
use redlatch::{Client, Config};

use crate::support::cluster::Cluster;
use crate::support::rights::{OPERATIONS, acl_line};
use crate::support::{Server, deployment, loosely, ms, open, settings_as, skipped, timed};

/// The texts of the findings with this severity.
fn texts(report: &Report, severity: Severity) -> Vec<String> {
    let findings = report.findings.iter();
    let of_severity = findings.filter(|finding| finding.severity == severity);
    of_severity.map(ToString::to_string).collect()
}

timed!(a_server_as_it_comes_is_fit);
fn a_server_as_it_comes_is_fit() {
    let server = Server::start();
    let client = open(&server);
    let report = client.check().unwrap();
    assert!(report.is_fit(), "{report}");
    assert!(report.to_string().contains("role master"), "{report}");
    assert!(report.to_string().contains("every right"), "{report}");
    assert!(
        report.to_string().contains("a hold of each kind"),
        "{report}"
    );
    assert_eq!(server.dbsize(), 0, "nothing is left");
}

timed!(with_the_rights_of_the_guide_nothing_is_a_problem);
fn with_the_rights_of_the_guide_nothing_is_a_problem() {
    if deployment() == crate::support::Deployment::Cluster {
        return; // in a cluster a user needs further rights
    }
    let server = Server::start();
    server.cli(&acl_line(OPERATIONS, "locker"));
    let config = settings_as(&server, "locker:secret@", "").key_prefix("shop:");
    let client = Client::open(config).unwrap();
    let report = client.check().unwrap();
    assert!(report.is_fit(), "{report}");
    let warnings = texts(&report, Severity::Warning).join("\n");
    assert!(!warnings.contains("lacks"), "{report}");
    assert_eq!(server.dbsize(), 0, "nothing is left");
}

timed!(each_right_that_is_missing_is_named_with_what_it_is_for);
fn each_right_that_is_missing_is_named_with_what_it_is_for() {
    let server = Server::start();
    let line = [
        "ACL",
        "SETUSER",
        "guest",
        "on",
        ">secret",
        "resetchannels",
        "~shop:*",
        "&redisson_lock__channel:*",
        "+@all",
    ];
    // First the user may query its own rights; then it may not, and `check` has to try each command.
    for without in [&["-hset", "-zadd"][..], &["-hset", "-zadd", "-acl"]] {
        server.cli(&["ACL", "DELUSER", "guest"]);
        server.cli(&[&line[..], without].concat());
        let config = settings_as(&server, "guest:secret@", "").key_prefix("shop:");
        let client = Client::open(config).unwrap();
        let report = client.check().unwrap();
        assert!(!report.is_fit(), "{report}");
        let problems = texts(&report, Severity::Problem).join("\n");
        for right in [
            "+hset",
            "+zadd",
            "~redisson_lock_queue:{shop:",
            "~redisson_lock_token:{shop:",
        ] {
            assert!(problems.contains(right), "{right}: {report}");
        }
        assert!(!problems.contains("+hget"), "{report}");
        assert!(problems.contains("read-write locks"), "{report}");
        let advice = report
            .findings
            .iter()
            .find(|finding| finding.what.contains("+hset"))
            .unwrap();
        assert!(advice.advice.starts_with("ACL SETUSER"), "{advice}");
        let warnings = texts(&report, Severity::Warning).join("\n");
        assert!(warnings.contains("&redisson_rwlock:{shop:"), "{report}");
        assert_eq!(server.dbsize(), 0, "nothing is left");
    }
}

/// Checks that the report contains this problem with this advice.
#[track_caller]
fn is_a_problem(server: &Server, what: &str, advice: &str) {
    let client = Client::open(Config::new(server.url()).lazy()).unwrap();
    let report = client.check().unwrap();
    assert!(!report.is_fit(), "{what}: {report}");
    let mut problems = report.findings.iter();
    let found = problems
        .find(|finding| finding.severity == Severity::Problem && finding.what.contains(what));
    let found = found.unwrap_or_else(|| panic!("{what}: {report}"));
    assert!(found.advice.contains(advice), "{what}: {report}");
    // A server that does not take a script does not know it either, which is no news.
    assert!(!report.to_string().contains("matching script"), "{report}");
}

#[test]
fn a_server_on_which_nothing_can_be_locked_is_a_problem() {
    for command in ["EVALSHA", "EVAL", "TIME"] {
        let server = Server::start_with(&["--rename-command", command, ""]);
        is_a_problem(&server, command, "must not rename");
    }
    let server = Server::start_with(&[]);
    server.cli(&["CONFIG", "SET", "min-replicas-to-write", "2"]);
    is_a_problem(&server, "NOREPLICAS", "min-replicas-to-write");
    let server = Server::start_with(&["--maxmemory-policy", "noeviction"]);
    server.cli(&["SET", "filling", &"x".repeat(100_000)]);
    server.cli(&["CONFIG", "SET", "maxmemory", "1000"]);
    is_a_problem(&server, "OOM", "maxmemory");
    // Locks work without these commands.
    for command in ["PUBLISH", "SUBSCRIBE", "INFO"] {
        let server = Server::start_with(&["--rename-command", command, ""]);
        let client = Client::open(Config::new(server.url())).unwrap();
        let report = client.check().unwrap();
        assert!(client.mutex("a").try_lock().unwrap().is_some());
        assert!(report.is_fit() || command == "INFO", "{command}: {report}");
        assert!(
            report.to_string().contains(command) || command == "INFO",
            "{report}"
        );
    }
}

#[test]
fn a_valkey_without_lua_is_a_problem() {
    let skip = |why| skipped("a Valkey without Lua", why);
    let info: String = Server::start().ask(&["INFO", "server"]);
    if !info.contains("valkey_version") {
        return skip("the server is no Valkey");
    }
    let server = Server::start_with(&["--enable-module-command", "local"]);
    if server.try_ask::<()>(&["MODULE", "UNLOAD", "lua"]).is_err() {
        return skip("Lua is no module there");
    }
    is_a_problem(&server, "scripting engine", "load Valkey's Lua module");
}

timed!(a_login_that_is_rejected_is_a_finding);
fn a_login_that_is_rejected_is_a_finding() {
    if deployment() == crate::support::Deployment::Cluster {
        return; // in a cluster no client opens without a login
    }
    let server = Server::start();
    let config = settings_as(&server, "nobody:wrong@", "").lazy();
    let report = Client::open(config).unwrap().check().unwrap();
    assert!(!report.is_fit(), "{report}");
    let problems = texts(&report, Severity::Problem).join("\n");
    assert!(
        problems.contains("WRONGPASS") || problems.contains("invalid username"),
        "{report}"
    );
    assert!(problems.contains("the password in the URL"), "{report}");
}

#[test]
fn a_frozen_master_of_a_cluster_is_the_only_problem() {
    let cluster = Cluster::start_bare();
    for frozen in &cluster.nodes {
        let config = cluster.config().command_timeout(loosely(ms(2_000)));
        let client = Client::open(config).unwrap();
        frozen.freeze();
        let report = client.check().unwrap();
        frozen.thaw();
        cluster.is_whole();
        for node in &cluster.nodes {
            let port = format!(":{}", node.port());
            let findings = report.findings.iter();
            let found = findings.filter(|finding| finding.server.ends_with(&port));
            let found = found.map(ToString::to_string).collect::<String>();
            let what = match std::ptr::eq(node, frozen) {
                true => "it cannot be checked",
                false => "a hold of each kind",
            };
            assert!(found.contains(what), "{port}, {what}: {report}");
        }
        assert_eq!(texts(&report, Severity::Problem).len(), 1, "{report}");
    }
}

#[test]
fn settings_that_lose_locks_are_findings() {
    let server = Server::start_with(&[
        "--maxmemory",
        "100mb",
        "--maxmemory-policy",
        "allkeys-lru",
        "--appendonly",
        "no",
    ]);
    let replica = Server::start_with(&["--replicaof", "127.0.0.1", &server.port().to_string()]);
    let client = Client::open(Config::new(server.url())).unwrap();
    let report = client.check().unwrap();
    assert!(
        texts(&report, Severity::Warning)
            .join("\n")
            .contains("allkeys-lru"),
        "{report}"
    );
    assert!(
        texts(&report, Severity::Note)
            .join("\n")
            .contains("appendonly"),
        "{report}"
    );
    assert!(report.is_fit());
    let client = Client::open(Config::new(replica.url()).lazy()).unwrap();
    let report = client.check().unwrap();
    assert!(!report.is_fit());
    assert!(
        report.findings[0].what.contains("its role is slave"),
        "{report}"
    );
}
