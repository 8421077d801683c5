//! Failures of encrypted connections, in words that say what to do.

use std::io;

use redis::RedisError;
use rustls::{AlertDescription, CertificateError, Error};

use crate::config::tls::TlsContext;
use crate::error::{excerpt, lasting};

impl TlsContext {
    /// Explains `err`. If only a change of the settings or of a certificate can help, the error is lasting: it is not
    /// worth a retry.
    pub(super) fn explain(self, err: &Error) -> RedisError {
        match err {
            Error::InvalidCertificate(why) => lasting(self.certificate(why)),
            Error::AlertReceived(alert) => self.alert(*alert),
            Error::InvalidMessage(_) => lasting(
                "the server does not speak TLS; if it is a Redis server without TLS, use redis://"
                    .into(),
            ),
            Error::PeerIncompatible(_) => lasting(format!(
                "the client and the server have no way to encrypt in common: {err}"
            )),
            err => io::Error::other(format!("TLS: {err}")).into(),
        }
    }

    fn certificate(self, why: &CertificateError) -> String {
        use CertificateError::{
            BadSignature, ExpiredContext, NotValidForNameContext, NotValidYetContext, UnknownIssuer,
        };
        match why {
            ExpiredContext { time, not_after } => {
                let ago = time.as_secs().saturating_sub(not_after.as_secs());
                format!("the server's certificate expired {} ago", span(ago))
            }
            NotValidYetContext { time, not_before } => {
                let until_valid = not_before.as_secs().saturating_sub(time.as_secs());
                format!(
                    "the server's certificate becomes valid in {}; is the clock of this machine right?",
                    span(until_valid)
                )
            }
            // `BadSignature`: the certificate names a CA that is trusted, but was signed with another key.
            UnknownIssuer | BadSignature => match self.has_own_ca {
                false => {
                    "the server's certificate is signed by no CA that this system trusts; name its CA with `TlsConfig::ca_file`"
                }
                true => {
                    "the server's certificate is not signed by the CA given with `TlsConfig::ca_file` or `ca_pem`"
                }
            }
            .into(),
            NotValidForNameContext {
                expected,
                presented,
            } => {
                let names: Vec<_> = presented.iter().map(|name| bare(name)).collect();
                let names = match names.as_slice() {
                    [] => "for no name at all".to_owned(),
                    names => format!("for {}", excerpt(&names.join(", "))),
                };
                format!(
                    "the server's certificate is {names} and not for {}; if this is the right server, set one of its names with `TlsConfig::server_name`",
                    expected.to_str()
                )
            }
            why if format!("{why:?}").contains("CaUsedAsEndEntity") => {
                "the server's certificate is marked as that of a CA (CA:TRUE), which no server may use: have the CA issue one for the server"
                    .into()
            }
            why => format!("the server's certificate was rejected: {why}"),
        }
    }

    fn alert(self, alert: AlertDescription) -> RedisError {
        use AlertDescription as Alert;
        let text = match alert {
            Alert::CertificateRequired | Alert::NoCertificate => {
                "the server requires a client certificate: set it with `TlsConfig::client_certificate`".into()
            }
            // Over TLS 1.2, an OpenSSL server that requires a client certificate and gets none sends this alert.
            Alert::HandshakeFailure if !self.has_certificate => {
                "the server rejected the handshake; it may require a client certificate: set it with `TlsConfig::client_certificate`"
                    .into()
            }
            Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied
            | Alert::DecryptError
                if self.has_certificate =>
            {
                format!("the server rejected the client certificate: {alert:?}")
            }
            Alert::ProtocolVersion => "the server speaks neither TLS 1.2 nor 1.3".into(),
            Alert::HandshakeFailure | Alert::InsufficientSecurity | Alert::UnrecognisedName => {
                format!("the server rejected the handshake: {alert:?}")
            }
            alert => {
                return io::Error::other(format!("the server ended the TLS connection: {alert:?}")).into();
            }
        };
        lasting(text)
    }
}

/// A name as rustls shows it, without its kind.
fn bare(name: &str) -> &str {
    let inside = name.split_once('(').map_or(name, |(_, inside)| inside);
    inside.trim_end_matches(')').trim_matches('"')
}

/// Seconds, in words.
fn span(secs: u64) -> String {
    match (secs / 86_400, secs / 3_600) {
        (0, 0) => format!("{secs} seconds"),
        (0 | 1, hours) => format!("{hours} hours"),
        (days, _) => format!("{days} days"),
    }
}

#[cfg(test)]
mod tests;
