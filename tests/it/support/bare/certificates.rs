//! Certificates for servers and their clients, made while the tests run.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

/// A certificate authority (CA).
pub(crate) struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its private key, as PEM.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// Paths of the files that a server loads.
pub(crate) struct Files {
    pub(crate) ca: PathBuf,
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

/// The CA that most tests trust.
pub(crate) fn authority() -> &'static Authority {
    static AUTHORITY: LazyLock<Authority> = LazyLock::new(|| Authority::new("tests"));
    &AUTHORITY
}

fn named(params: &mut CertificateParams, name: &str) {
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        named(&mut params, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Self {
            pem,
            issuer: Issuer::new(params, key),
        }
    }

    pub(crate) fn pem(&self) -> String {
        self.pem.clone()
    }

    /// Issues a certificate for these names and addresses.
    pub(crate) fn issue(&self, names: &[&str]) -> Identity {
        self.issue_with(names, |_| {})
    }

    /// Issues a certificate that `change` adjusts before it is signed.
    pub(crate) fn issue_with(
        &self,
        names: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) -> Identity {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(names).expect("good names");
        named(&mut params, "somebody");
        change(&mut params);
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        Identity {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }
}

impl Identity {
    /// A self-signed certificate that is marked as a CA, as `openssl req -x509` makes it.
    pub(crate) fn self_made(names: &[&str]) -> Self {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(names).expect("good names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self {
            certificate: params.self_signed(&key).expect("a certificate").pem(),
            key: key.serialize_pem(),
        }
    }

    /// Writes the certificate and its key to `dir`, with the CA that the server requires of its clients.
    pub(crate) fn write_to(&self, dir: &Path, ca: &str) -> Files {
        let files = Files {
            ca: dir.join("ca.pem"),
            certificate: dir.join("certificate.pem"),
            key: dir.join("key.pem"),
        };
        for (path, text) in [
            (&files.ca, ca),
            (&files.certificate, &self.certificate),
            (&files.key, &self.key),
        ] {
            fs::write(path, text).expect("a file");
        }
        files
    }
}
