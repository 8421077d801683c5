//! Settings of encrypted connections: which CAs to trust, and which certificate to present.

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};

use crate::error::{Error, Result};

/// How connections are encrypted, for URLs with `rediss://` (feature `tls`).
///
/// ```
/// use redlatch::{Config, TlsConfig};
///
/// let tls = TlsConfig::new().ca_file("/etc/redis/ca.pem");
/// let config = Config::new("rediss://redis.example:6380/").tls(tls);
/// # let _ = config;
/// ```
///
/// By default the server's certificate must be issued by a CA that the system trusts, for the host in the URL.
/// Certificate checks cannot be turned off; for a private CA, give its certificate with [`ca_file`](Self::ca_file) or
/// [`ca_pem`](Self::ca_pem). Connections use TLS 1.2 or 1.3. [`Client::open`](crate::Client::open) reads all files,
/// once.
#[derive(Clone, Default)]
pub struct TlsConfig {
    ca: Option<Pem>,
    client_certificate: Option<(Pem, Pem)>,
    server_name: Option<String>,
}

/// Text in PEM, or the file that contains it.
#[derive(Clone)]
enum Pem {
    Text(Vec<u8>),
    File(PathBuf),
}

impl Pem {
    fn read(&self) -> std::result::Result<Vec<u8>, String> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::File(path) => {
                fs::read(path).map_err(|err| format!("cannot read {}: {err}", path.display()))
            }
        }
    }

    fn certificates(&self) -> std::result::Result<Vec<CertificateDer<'static>>, String> {
        let found = CertificateDer::pem_slice_iter(&self.read()?)
            .collect::<std::result::Result<Vec<_>, _>>()
            .map_err(|err| format!("{self} is not PEM: {err}"))?;
        if found.is_empty() {
            return Err(format!("there is no certificate in {self}"));
        }
        Ok(found)
    }

    fn key(&self) -> std::result::Result<PrivateKeyDer<'static>, String> {
        let text = self.read()?;
        PrivateKeyDer::from_pem_slice(&text).map_err(|err| match err {
            pem::Error::NoItemsFound if contains(&text, b"ENCRYPTED PRIVATE KEY") => {
                format!("the private key in {self} is encrypted, which is not supported")
            }
            pem::Error::NoItemsFound => format!("there is no private key in {self}"),
            err => format!("{self} is not PEM: {err}"),
        })
    }
}

fn contains(text: &[u8], words: &[u8]) -> bool {
    text.windows(words.len()).any(|part| part == words)
}

impl fmt::Display for Pem {
    /// The source of the text, never the text itself.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("the text given"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

impl TlsConfig {
    /// Returns the defaults: the system's root certificates, no client certificate, the host name of the URL.
    ///
    /// ```
    /// let tls = redlatch::TlsConfig::new();
    /// # let _ = tls;
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts these CA certificates (PEM) instead of the system's.
    ///
    /// ```
    /// let pem = b"-----BEGIN CERTIFICATE-----";
    /// let tls = redlatch::TlsConfig::new().ca_pem(pem);
    /// # let _ = tls;
    /// ```
    #[must_use]
    pub fn ca_pem(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.ca = Some(Pem::Text(pem.into()));
        self
    }

    /// Trusts the CA certificates in this file (PEM) instead of the system's.
    ///
    /// ```
    /// let tls = redlatch::TlsConfig::new().ca_file("/etc/redis/ca.pem");
    /// # let _ = tls;
    /// ```
    #[must_use]
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca = Some(Pem::File(path.into()));
        self
    }

    /// Presents this certificate to servers that require one, with its private key; both in PEM.
    ///
    /// Intermediate certificates follow the client's own. The key must not be encrypted. Default: none.
    ///
    /// ```
    /// # let (certificate, key) = ("", "");
    /// let tls = redlatch::TlsConfig::new().client_certificate(certificate, key);
    /// # let _ = tls;
    /// ```
    #[must_use]
    pub fn client_certificate(
        mut self,
        certificate_pem: impl Into<Vec<u8>>,
        key_pem: impl Into<Vec<u8>>,
    ) -> Self {
        self.client_certificate =
            Some((Pem::Text(certificate_pem.into()), Pem::Text(key_pem.into())));
        self
    }

    /// Presents the certificate in this file to servers that require one, with its private key from another; both in
    /// PEM.
    ///
    /// Intermediate certificates follow the client's own. The key must not be encrypted. Default: none.
    ///
    /// ```
    /// let tls = redlatch::TlsConfig::new()
    ///     .client_certificate_files("/etc/redis/client.pem", "/etc/redis/client.key");
    /// # let _ = tls;
    /// ```
    #[must_use]
    pub fn client_certificate_files(
        mut self,
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Self {
        self.client_certificate = Some((Pem::File(certificate.into()), Pem::File(key.into())));
        self
    }

    /// Sets the name that the server's certificate must be for, a DNS name or an IP address. The name is also sent to
    /// the server (SNI).
    ///
    /// Needed if the server is reached by an address that its certificate does not contain: through a tunnel, a port
    /// forward or a service name. Default: the host in the URL.
    ///
    /// ```
    /// let tls = redlatch::TlsConfig::new().server_name("redis.internal");
    /// # let _ = tls;
    /// ```
    #[must_use]
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    /// Reads all files and checks the settings.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidSetting`], naming the setting.
    pub(crate) fn build(&self) -> Result<TlsSettings> {
        let bad = |reason: String| Error::setting(format!("tls: {reason}"));
        let name = match &self.server_name {
            Some(name) => Some(ServerName::try_from(name.clone()).map_err(|_| {
                bad(format!(
                    "server_name: `{name}` is neither a DNS name nor an IP address"
                ))
            })?),
            None => None,
        };
        let roots = match &self.ca {
            Some(ca) => own_roots(ca).map_err(|reason| bad(format!("CA: {reason}")))?,
            None => system_roots().map_err(bad)?,
        };
        // The process's default provider is not used: it may be missing, or set by another library.
        let provider = Arc::new(ring::default_provider());
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let verifier = verifier.build().map_err(|err| bad(err.to_string()))?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|err| bad(err.to_string()))?
            .with_webpki_verifier(verifier);
        let rustls = match &self.client_certificate {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let bad = |reason: String| bad(format!("client certificate: {reason}"));
                let certificates = certificate.certificates().map_err(bad)?;
                let key = key.key().map_err(bad)?;
                let with_it = builder.with_client_auth_cert(certificates, key);
                with_it.map_err(|err| {
                    bad(match err {
                        rustls::Error::InconsistentKeys(_) => {
                            "the private key does not belong to the certificate".into()
                        }
                        err => err.to_string(),
                    })
                })?
            }
        };
        Ok(TlsSettings {
            rustls: Arc::new(rustls),
            name,
            context: TlsContext {
                has_own_ca: self.ca.is_some(),
                has_certificate: self.client_certificate.is_some(),
            },
        })
    }
}

impl fmt::Debug for TlsConfig {
    /// Omits the private key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsConfig")
            .field("ca", &self.ca.as_ref().map(Pem::to_string))
            .field("client_certificate", &self.client_certificate.is_some())
            .field("server_name", &self.server_name)
            .finish()
    }
}

fn own_roots(ca: &Pem) -> std::result::Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in ca.certificates()? {
        let added = roots.add(certificate);
        added.map_err(|err| format!("a certificate in {ca} cannot be used: {err}"))?;
    }
    Ok(roots)
}

fn system_roots() -> std::result::Result<RootCertStore, String> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // Some of the hundreds of system certificates may have an old form that cannot be parsed. Those are skipped and not
    // trusted.
    let (usable, _) = roots.add_parsable_certificates(found.certs);
    if usable == 0 {
        let why = found.errors.first();
        let why = why.map_or_else(String::new, |err| format!(" ({err})"));
        return Err(format!(
            "this system has no root certificates{why}; name the CA of the server with `TlsConfig::ca_file`"
        ));
    }
    Ok(roots)
}

/// What an explanation of a failure needs to know of the settings.
#[derive(Clone, Copy)]
pub(crate) struct TlsContext {
    /// Whether a CA was given, which is trusted instead of the system's.
    pub(crate) has_own_ca: bool,
    /// Whether the client has a certificate to present.
    pub(crate) has_certificate: bool,
}

/// The settings shared by all encrypted connections of a client. Built once, since reading the system's roots takes
/// milliseconds.
#[derive(Clone)]
pub(crate) struct TlsSettings {
    pub(crate) rustls: Arc<ClientConfig>,
    /// The name that the server's certificate must be for, if not the host in the URL.
    pub(crate) name: Option<ServerName<'static>>,
    pub(crate) context: TlsContext,
}

#[cfg(test)]
mod tests;
