//! Endpoints whose certificates no authority of the system has signed.

use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use super::*;

/// A server with a certificate for these names, which it has signed itself and marked as an authority or not. Returns its port and
/// the file of its certificate.
fn served(
    runtime: &tokio::runtime::Runtime,
    folder: &std::path::Path,
    names: &[&str],
    is_ca: bool,
) -> (u16, PathBuf) {
    let mut params =
        CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
    if is_ca {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    }
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let file = folder.join(format!("{}-{is_ca}.pem", names[0]));
    std::fs::write(&file, certificate.pem()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        )
        .unwrap();
    let listener = runtime
        .block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))
        .unwrap();
    let port = listener.local_addr().unwrap().port();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    runtime.spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(tcp).await else {
                continue;
            };
            let mut read = [0; 4096];
            drop(stream.read(&mut read).await);
            let body = good();
            let answer = format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
            drop(stream.write_all(answer.as_bytes()).await);
            drop(stream.shutdown().await);
        }
    });
    (port, file)
}

#[test]
fn a_certificate_of_a_file_is_trusted_and_no_other() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (plain, plain_file) = served(&runtime, folder.path(), &["localhost"], false);
    let (marked, marked_file) = served(&runtime, folder.path(), &["localhost"], true);
    let (elsewhere, elsewhere_file) = served(&runtime, folder.path(), &["elsewhere.test"], true);
    let nowhere = Server::start(|_, _| ok(&good()));
    let ask = |port: u16, ca: Option<&PathBuf>| {
        let mut secure = endpoint(&nowhere, classify());
        secure.base_url = format!("https://localhost:{port}/v1");
        secure.ca = ca.cloned();
        secure.retry.retries = 0;
        let answer = model(&secure).model.run(&[text("fine")]).remove(0);
        answer.map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(ask(plain, Some(&plain_file)), Ok(()));
    assert_eq!(
        ask(marked, Some(&marked_file)),
        Ok(()),
        "it signs its own, as an authority"
    );
    for (port, ca) in [
        (plain, None),
        (plain, Some(&marked_file)),
        (elsewhere, Some(&elsewhere_file)),
    ] {
        let refused = ask(port, ca).unwrap_err();
        assert!(refused.contains("certificate"), "{refused}");
    }
    let mut secure = endpoint(&nowhere, classify());
    secure.base_url = "https://localhost:1".to_owned();
    for (content, said) in [
        ("", "holds no certificate"),
        (
            "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n",
            "cannot be used",
        ),
    ] {
        let file = folder.path().join("bad.pem");
        std::fs::write(&file, content).unwrap();
        secure.ca = Some(file);
        let error = connect(&secure).err().unwrap().to_string();
        assert!(error.contains(said) && error.contains("bad.pem"), "{error}");
    }
}
