use super::*;

#[test]
fn the_compiler_warns_about_a_ticket_that_is_dropped() {
    #[expect(unused_must_use, reason = "the warning is what is tested")]
    {
        Ticket::new("fair", "u:7", "job");
    }
}

#[test]
fn a_ticket_is_read_as_it_is_written() {
    for name in ["a", "job 7", " ", "é{x}:\n"] {
        let ticket = Ticket {
            kind: "fair".into(),
            owner: "u:7".into(),
            name: name.into(),
        };
        assert_eq!(
            ticket.to_string().parse::<Ticket>().expect("a ticket"),
            ticket
        );
        #[cfg(feature = "serde")]
        {
            let json = serde_json::to_value(&ticket).expect("JSON");
            assert_eq!(json, ticket.to_string());
            assert_eq!(
                serde_json::from_value::<Ticket>(json).expect("a ticket"),
                ticket
            );
        }
    }
    for odd in [
        "",
        "u:7",
        "redlatch-ticket-1",
        "redlatch-ticket-1 fair u:7",
        "redlatch-ticket-1  u:7 a",
        "redlatch-ticket-1 fair  a",
        "redlatch-ticket-2 fair u:7 a",
    ] {
        let err = odd.parse::<Ticket>().expect_err(odd);
        assert!(matches!(err, Error::Config { .. }), "{err}");
        #[cfg(feature = "serde")]
        assert!(serde_json::from_value::<Ticket>(odd.into()).is_err());
    }
}
