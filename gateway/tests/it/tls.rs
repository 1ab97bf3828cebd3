//! TLS, and requests of pages of other origins.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;

use kaskade_gateway::config::TenantKey;
use kaskade_gateway::{Gateway, GatewayError, Limits, TlsFiles};
use kaskade_testkit::TIMEOUT;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::support::{Stand, exchange, request};

fn files(folder: &Path) -> TlsFiles {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let files = TlsFiles {
        certificate: folder.join("gateway.pem"),
        key: folder.join("gateway.key"),
    };
    std::fs::write(&files.certificate, made.cert.pem()).unwrap();
    std::fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
    files
}

/// Asks over TLS, offering `protocol`. Returns the answer and the protocol that the server chose.
fn get(address: SocketAddr, certificate: &Path, protocol: &str) -> (String, String) {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(certificate).unwrap())
        .unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let tcp = TcpStream::connect(address).unwrap();
    tcp.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut stream = StreamOwned::new(connection, tcp);
    let asked = if protocol == "h2" {
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec()
    } else {
        request("GET", "/v2", &[], b"")
    };
    stream.write_all(&asked).unwrap();
    let mut bytes = [0; 12];
    stream.read_exact(&mut bytes).unwrap();
    let chosen = stream.conn.alpn_protocol().unwrap_or_default().to_vec();
    (
        String::from_utf8_lossy(&bytes).into_owned(),
        String::from_utf8(chosen).unwrap(),
    )
}

#[test]
fn a_gateway_with_a_certificate_speaks_tls_alone() {
    let folder = tempfile::tempdir().unwrap();
    let files = files(folder.path());
    let limits = Limits {
        tls: Some(files.clone()),
        ..Limits::default()
    };
    let gateway = Gateway::listen("127.0.0.1:0".parse().unwrap(), limits).unwrap();
    // A client that sends nothing keeps no other waiting.
    let silent = TcpStream::connect(gateway.address()).unwrap();
    let (head, chosen) = get(gateway.address(), &files.certificate, "http/1.1");
    assert_eq!((head.as_str(), chosen.as_str()), ("HTTP/1.1 200", "http/1.1"));
    let (frame, chosen) = get(gateway.address(), &files.certificate, "h2");
    // The first frame of HTTP/2 is its settings, type 4.
    assert_eq!((frame.as_bytes()[3], chosen.as_str()), (4, "h2"));
    // Plain HTTP gets no answer.
    let mut plain = TcpStream::connect(gateway.address()).unwrap();
    plain.set_read_timeout(Some(TIMEOUT)).unwrap();
    plain.write_all(&request("GET", "/v2", &[], b"")).unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"));
    drop(silent);
    gateway.stop();
}

#[test]
fn files_that_are_no_certificate_and_key_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let files = files(folder.path());
    let listen = |tls: TlsFiles| {
        let limits = Limits {
            tls: Some(tls),
            ..Limits::default()
        };
        match Gateway::listen("127.0.0.1:0".parse().unwrap(), limits) {
            Ok(_) => panic!("the files cannot be used"),
            Err(error) => error,
        }
    };
    let absent = listen(TlsFiles {
        key: folder.path().join("absent.key"),
        ..files.clone()
    });
    assert!(
        matches!(absent, GatewayError::Tls(_)) && absent.to_string().contains("absent.key"),
        "{absent}"
    );
    let swapped = listen(TlsFiles {
        certificate: files.key.clone(),
        key: files.certificate.clone(),
    });
    assert!(swapped.to_string().contains("certificate"), "{swapped}");
}

#[test]
fn pages_of_other_origins_are_kept_out_unless_they_are_listed() {
    let origin = ("origin", "https://app.example");
    let preflight = |address: SocketAddr| {
        let headers = [
            origin,
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "authorization,content-type"),
        ];
        exchange(
            address,
            &request("OPTIONS", "/v1/chat/completions", &headers, b""),
        )
    };
    let get = |address: SocketAddr, headers: &[(&str, &str)]| {
        exchange(address, &request("GET", "/v2", headers, b""))
    };
    let closed = Stand::cascade(Limits::default());
    assert_eq!(
        get(closed.address(), &[origin]).header("access-control-allow-origin"),
        None
    );
    assert_eq!(preflight(closed.address()).status, 405);

    let limits = Limits {
        cors: vec!["https://app.example".to_owned()],
        keys: vec![TenantKey {
            tenant: "blue".to_owned(),
            key: "secret".to_owned(),
            max_in_flight: None,
            rate: None,
            operator: false,
        }],
        ..Limits::default()
    };
    let open = Stand::keyed(limits, "secret");
    // A browser asks without the key, and sends the request with it.
    let asked = preflight(open.address());
    assert_eq!(asked.status, 204);
    assert_eq!(
        asked.header("access-control-allow-origin"),
        Some("https://app.example")
    );
    assert_eq!(
        asked.header("access-control-allow-headers"),
        Some("authorization,content-type")
    );
    let key = ("authorization", "Bearer secret");
    let answer = get(open.address(), &[origin, key]);
    assert_eq!(
        (answer.status, answer.header("access-control-allow-origin")),
        (200, Some("https://app.example"))
    );
    let exposed = answer.header("access-control-expose-headers").unwrap();
    for name in ["x-kaskade-variant", "x-kaskade-cost", "x-kaskade-cost-source"] {
        assert!(
            exposed.split(", ").any(|found| found == name),
            "{name}: {exposed}"
        );
    }
    // A refusal can be read too.
    assert_eq!(get(open.address(), &[origin]).status, 401);
    let other = get(open.address(), &[("origin", "https://evil.example"), key]);
    assert_eq!(other.header("access-control-allow-origin"), None);
    // A cache must not give the answer without the header to a page that may read it.
    for headers in [
        vec![origin, key],
        vec![("origin", "https://evil.example"), key],
        vec![key],
    ] {
        let vary = get(open.address(), &headers).header("vary").map(str::to_owned);
        assert_eq!(vary.as_deref(), Some("origin"), "{headers:?}");
    }
}
