use super::*;

#[test]
fn a_prefix_matches_nothing_but_itself() {
    assert_eq!(escaped("a*[b]?\\"), "a\\*\\[b\\]\\?\\\\");
}

#[test]
fn names_are_what_the_client_calls_them() {
    let answer = |kind| Value::Array(vec![Value::Int(kind), Value::Int(2), Value::Int(-1)]);
    let of = |key: &str, kind| summary(key, "shop:", &answer(kind)).map(|summary| summary.name);
    assert_eq!(of("shop:a", 1).as_deref(), Some("a"));
    assert_eq!(of("shop:{a}b", 5).as_deref(), Some("{a}b"));
    assert_eq!(of("bank:a", 1), None);
    assert_eq!(of("shop:a", 9), None);
    assert_eq!(summary("shop:a", "shop:", &Value::Nil), None);
}

#[test]
fn permits_belong_to_the_key_that_their_own_key_is_made_of() {
    for key in ["a", "{a}b", "{a}", "{", "a{", "a}", "}{"] {
        let found = crate::protocol::keys::permit_timeouts(key);
        let passes = Pass::all("", "*").filter(|pass| pass.key(&found) == Some(key));
        assert_eq!(
            passes.filter(|pass| *pass != Pass::Hashes).count(),
            1,
            "{key}"
        );
    }
    assert_eq!(Pass::Bare.rival("{a}").as_deref(), Some("a"));
    assert_eq!(Pass::Bare.rival("{a}b").as_deref(), None);
    assert_eq!(Pass::Braced.rival("a").as_deref(), Some("{a}"));
}
