use super::*;
use rcgen::{CertificateParams, KeyPair};

fn refusal(tls: &TlsConfig) -> String {
    match tls.build() {
        Err(Error::InvalidSetting { reason, .. }) => reason,
        other => panic!("{:?}", other.map(|_| ())),
    }
}

fn certificate() -> (String, String) {
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(["here".to_owned()]).expect("a name");
    let certificate = params.self_signed(&key).expect("a certificate");
    (certificate.pem(), key.serialize_pem())
}

#[test]
fn what_is_wrong_is_said_with_the_setting() {
    let (trusted, key) = certificate();
    let (theirs, _) = certificate();
    let tls = || TlsConfig::new().ca_pem(trusted.clone());
    assert!(tls().build().is_ok());
    assert!(
        tls()
            .client_certificate(trusted.clone(), key.clone())
            .build()
            .is_ok()
    );
    let encrypted = key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
    for (tls, said) in [
        (TlsConfig::new().ca_pem(""), "no certificate in the text"),
        (TlsConfig::new().ca_pem(key.clone()), "no certificate in"),
        (
            TlsConfig::new().ca_file("/nowhere/ca.pem"),
            "/nowhere/ca.pem",
        ),
        (
            TlsConfig::new().ca_pem("-----BEGIN CERTIFICATE-----\n=\n-----END"),
            "not PEM",
        ),
        (
            TlsConfig::new()
                .ca_pem("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
            "cannot be used",
        ),
        (tls().server_name("not a name"), "`not a name`"),
        (
            tls().client_certificate(theirs, key.clone()),
            "does not belong to the certificate",
        ),
        (
            tls().client_certificate(trusted.clone(), trusted.clone()),
            "no private key in",
        ),
        (
            tls().client_certificate(key, trusted.clone()),
            "client certificate: there is no certificate",
        ),
        (
            tls().client_certificate(trusted.clone(), encrypted),
            "is encrypted",
        ),
    ] {
        let reason = refusal(&tls);
        assert!(
            reason.starts_with("tls: ") && reason.contains(said),
            "{reason}"
        );
    }
}

#[test]
fn a_private_key_is_never_shown() {
    let (certificate, key) = certificate();
    let line = key
        .lines()
        .nth(1)
        .expect("a key of several lines")
        .to_owned();
    let tls = TlsConfig::new().client_certificate(certificate, key);
    assert!(!format!("{tls:?}").contains(&line));
}
