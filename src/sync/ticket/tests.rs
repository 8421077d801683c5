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
    for name in [
        "a",
        "job 7",
        " ",
        "é{x}:\n",
        "50%",
        "%41",
        "\u{2003}\u{7f}\t",
    ] {
        let ticket = Ticket {
            kind: "fair".into(),
            owner: "u:7".into(),
            name: name.into(),
        };
        let text = ticket.to_string();
        assert_eq!(text.split_whitespace().count(), 4, "{text}");
        assert_eq!(text.parse::<Ticket>().expect("a ticket"), ticket);
        // A line of a message may have lost or gained spaces at its ends.
        let line = format!(" {text}\r\n");
        assert_eq!(line.parse::<Ticket>().expect("a ticket"), ticket);
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
        "redlatch-ticket-1 fair u:7 a b",
        "redlatch-ticket-1 fair u:7 %4",
        "redlatch-ticket-1 fair u:7 %é",
        "redlatch-ticket-1 fair u:7 %zz",
        "redlatch-ticket-1 fair u:7 %+9",
        "redlatch-ticket-1 fair u:7 %ff",
    ] {
        let err = odd.parse::<Ticket>().expect_err(odd);
        assert!(matches!(err, Error::InvalidSetting { .. }), "{err}");
        #[cfg(feature = "serde")]
        assert!(serde_json::from_value::<Ticket>(odd.into()).is_err());
    }
}
