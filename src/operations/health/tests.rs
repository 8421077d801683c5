use super::*;

#[test]
fn spans_below_a_second_are_written() {
    let health = Health {
        reachable: true,
        since: Duration::from_millis(2_500),
        why: None,
        renewal: Some(UnconfirmedRenewal {
            name: "n".into(),
            confirmed_ago: Duration::from_millis(600),
            lease: Duration::from_millis(800),
        }),
    };
    let written = serde_json::to_value(health).expect("JSON");
    let expected = serde_json::json!({
        "reachable": true,
        "since_ms": 2_500,
        "why": null,
        "renewal": {"name": "n", "confirmed_ago_ms": 600, "lease_ms": 800},
    });
    assert_eq!(written, expected);
}
