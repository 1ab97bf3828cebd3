//! Which certificates of endpoints are trusted: those of the system's authorities, or those of a file.

use std::path::Path;
use std::sync::Arc;

use hyper_rustls::ConfigBuilderExt as _;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::client::{WebPkiServerVerifier, verify_server_name};
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::error::ConnectError;

/// Returns how connections are protected. A file in PEM names the only certificates to trust: of authorities, or of servers
/// themselves.
///
/// # Errors
/// [`ConnectError::Certificates`] or [`ConnectError::CertificateFile`].
pub(crate) fn config(ca: Option<&Path>) -> Result<ClientConfig, ConnectError> {
    let provider = Arc::new(default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| ConnectError::Certificates(std::io::Error::other(error)))?;
    let Some(file) = ca else {
        let builder = builder.with_native_roots().map_err(ConnectError::Certificates)?;
        return Ok(builder.with_no_client_auth());
    };
    let bad = |reason: String| ConnectError::CertificateFile {
        path: file.display().to_string(),
        reason,
    };
    let trusted: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect)
        .map_err(|error| bad(error.to_string()))?;
    if trusted.is_empty() {
        return Err(bad("it holds no certificate".to_owned()));
    }
    let mut roots = RootCertStore::empty();
    for certificate in &trusted {
        roots
            .add(certificate.clone())
            .map_err(|error| bad(error.to_string()))?;
    }
    let by_authority = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|error| bad(error.to_string()))?;
    let verifier = Arc::new(Trusted {
        trusted,
        by_authority,
    });
    Ok(builder
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth())
}

/// Trusts what the authorities of a file have signed, and servers whose own certificate is in the file: those that sign their own
/// are often marked as authorities, which the usual check refuses.
#[derive(Debug)]
struct Trusted {
    trusted: Vec<CertificateDer<'static>>,
    by_authority: Arc<WebPkiServerVerifier>,
}

impl ServerCertVerifier for Trusted {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.trusted.iter().any(|trusted| trusted == end_entity) {
            verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
            return Ok(ServerCertVerified::assertion());
        }
        self.by_authority
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.by_authority.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.by_authority.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.by_authority.supported_verify_schemes()
    }
}
