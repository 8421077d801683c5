use super::*;
use std::time::Duration;

use rustls::InvalidMessage;
use rustls::pki_types::{ServerName, UnixTime};

use crate::error::is_transient;

fn context(has_certificate: bool) -> TlsContext {
    TlsContext {
        has_own_ca: true,
        has_certificate,
    }
}

#[test]
fn certificates_that_are_refused_say_why_and_what_to_do() {
    use CertificateError::{
        ExpiredContext, NotValidForNameContext, NotValidYetContext, Revoked, UnknownIssuer,
    };
    let at = |secs| UnixTime::since_unix_epoch(Duration::from_secs(secs));
    let expected = ServerName::try_from("10.0.0.1").expect("an address");
    for (why, said) in [
        (
            ExpiredContext {
                time: at(1_000_000),
                not_after: at(1_000_000 - 3 * 86_400),
            },
            "expired 3 days ago",
        ),
        (
            NotValidYetContext {
                time: at(100),
                not_before: at(7_301),
            },
            "becomes valid in 2 hours",
        ),
        (UnknownIssuer, "`TlsConfig::ca_file` or `ca_pem`"),
        (
            NotValidForNameContext {
                expected: expected.clone(),
                presented: vec![
                    r#"DnsName("a.example")"#.into(),
                    "IpAddress(10.0.0.2)".into(),
                ],
            },
            "for a.example, 10.0.0.2 and not for 10.0.0.1",
        ),
        (
            NotValidForNameContext {
                expected,
                presented: Vec::new(),
            },
            "for no name at all and not for 10.0.0.1",
        ),
        (Revoked, "rejected: Revoked"),
    ] {
        let err = context(false).explain(&Error::InvalidCertificate(why));
        assert!(err.to_string().contains(said), "{err}");
        assert!(!is_transient(&err), "{err}");
    }
}

#[test]
fn alerts_are_read_by_whether_there_is_a_client_certificate() {
    let explain = |has_certificate, alert| {
        let err = context(has_certificate).explain(&Error::AlertReceived(alert));
        (err.to_string(), is_transient(&err))
    };
    for (has_certificate, alert, said, transient) in [
        (
            false,
            AlertDescription::CertificateRequired,
            "requires a client",
            false,
        ),
        (
            false,
            AlertDescription::HandshakeFailure,
            "may require a client",
            false,
        ),
        (
            true,
            AlertDescription::HandshakeFailure,
            "rejected the handshake",
            false,
        ),
        (
            true,
            AlertDescription::UnknownCA,
            "rejected the client",
            false,
        ),
        (
            false,
            AlertDescription::ProtocolVersion,
            "neither TLS 1.2",
            false,
        ),
        (
            false,
            AlertDescription::InternalError,
            "InternalError",
            true,
        ),
        (false, AlertDescription::UnknownCA, "UnknownCA", true),
    ] {
        let (text, is_transient) = explain(has_certificate, alert);
        assert!(text.contains(said), "{text}");
        assert_eq!(is_transient, transient, "{text}");
    }
    let garbage = Error::InvalidMessage(InvalidMessage::InvalidContentType);
    let err = context(false).explain(&garbage);
    assert!(err.to_string().contains("does not speak TLS"), "{err}");
}
