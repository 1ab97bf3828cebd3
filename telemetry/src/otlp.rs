//! Spans as the JSON of OTLP (opentelemetry-proto, `ExportTraceServiceRequest`): ids in hexadecimal, times as texts.

use serde_json::{Value as Json, json};

use crate::span::{Kind, Span, Value};

/// Returns the request that exports these spans for a service.
pub(crate) fn request(service: &str, instance: &str, spans: &[Span]) -> Json {
    let attribute = |name: &str, value: &str| json!({"key": name, "value": {"stringValue": value}});
    let spans: Vec<Json> = spans.iter().map(span).collect();
    json!({"resourceSpans": [{
        "resource": {"attributes": [
            attribute("service.name", service),
            attribute("service.instance.id", instance),
            attribute("service.version", env!("CARGO_PKG_VERSION")),
        ]},
        "scopeSpans": [{"scope": {"name": "kaskade"}, "spans": spans}],
    }]})
}

fn span(span: &Span) -> Json {
    let attributes = span.attributes.iter().map(|(name, value)| {
        let value = match value {
            Value::Text(text) => json!({"stringValue": text}),
            // 64 bits are a text in the JSON of protocol buffers.
            Value::Int(number) => json!({"intValue": number.to_string()}),
            Value::Float(number) => json!({"doubleValue": number}),
            Value::Bool(value) => json!({"boolValue": value}),
        };
        json!({"key": name, "value": value})
    });
    let kind = match span.kind {
        Kind::Internal => 1,
        Kind::Server => 2,
        Kind::Client => 3,
    };
    let parent = (span.parent_id != 0).then(|| format!("{:016x}", span.parent_id));
    json!({
        "traceId": format!("{:032x}", span.trace_id),
        "spanId": format!("{:016x}", span.span_id),
        "parentSpanId": parent.unwrap_or_default(),
        "name": span.name,
        "kind": kind,
        "startTimeUnixNano": span.start.to_string(),
        "endTimeUnixNano": span.end.max(span.start).to_string(),
        "attributes": attributes.collect::<Vec<_>>(),
        "status": match &span.error {
            None => json!({}),
            Some(reason) => json!({"code": 2, "message": reason}),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_has_the_form_of_otlp() {
        let one = Span {
            trace_id: 0xab,
            span_id: 1,
            parent_id: 0,
            name: "stage small".to_owned(),
            kind: Kind::Internal,
            start: 5,
            end: 3,
            attributes: vec![
                ("a", 1_i64.into()),
                ("b", 0.5.into()),
                ("c", "x".into()),
                ("d", true.into()),
            ],
            error: Some("why".to_owned()),
        };
        let request = request("app", "here", &[one]);
        let span = &request["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
        assert_eq!(span["traceId"], "000000000000000000000000000000ab");
        assert_eq!(
            (&span["spanId"], &span["parentSpanId"]),
            (&json!("0000000000000001"), &json!(""))
        );
        assert_eq!(
            span["endTimeUnixNano"], "5",
            "a clock that was set back ends no span before its start"
        );
        assert_eq!(span["attributes"][0]["value"]["intValue"], "1");
        assert_eq!(span["attributes"][3]["value"]["boolValue"], true);
        assert_eq!(span["status"]["code"], 2);
    }
}
