//! The log has a line per request, with its ids and without its content.

use std::io::Write;
use std::sync::{Arc, Mutex};

use kaskade_gateway::Limits;
use kaskade_gateway::config::TenantKey;
use serde_json::Value;
use tracing_subscriber::fmt::MakeWriter;

use crate::support::Stand;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[test]
fn a_line_names_request_trace_and_tenant_and_holds_neither_body_nor_key() {
    let lines = Lines::default();
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter("kaskade_gateway=trace")
        .json()
        .with_writer(lines.clone())
        .finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let limits = Limits {
        keys: vec![TenantKey {
            tenant: "blue".to_owned(),
            key: "sk-very-secret".to_owned(),
            max_in_flight: None,
            rate: None,
            operator: false,
        }],
        ..Limits::default()
    };
    let stand = Stand::keyed(limits, "sk-very-secret");
    let body =
        r#"{"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1], "data": ["confidential words"]}]}"#;
    let context = "00-4bf92f3577b34da6a3ce929d0e0e4737-00f067aa0ba902b7-00";
    let headers = [
        ("authorization", "Bearer sk-very-secret"),
        ("x-request-id", "logged-request"),
        ("traceparent", context),
    ];
    assert_eq!(stand.post("/v2/models/app/infer", &headers, body).status, 200);
    assert_eq!(
        stand
            .post("/v2/models/app/infer", &headers, r#"{"confidential words"#)
            .status,
        400
    );
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    assert!(
        !text.contains("confidential") && !text.contains("sk-very"),
        "{text}"
    );
    let of: Vec<Value> = text
        .lines()
        .filter(|line| line.contains("logged-request"))
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["fields"].clone())
        .collect();
    assert_eq!(of.len(), 2);
    for (fields, status) in of.iter().zip([200, 400]) {
        assert_eq!(fields["trace_id"], "4bf92f3577b34da6a3ce929d0e0e4737");
        assert_eq!(
            (&fields["tenant"], &fields["status"]),
            (&"blue".into(), &status.into())
        );
        assert_eq!(
            (&fields["method"], &fields["path"]),
            (&"POST".into(), &"/v2/models/app/infer".into())
        );
        assert!(fields["seconds"].as_f64().is_some());
    }
}
