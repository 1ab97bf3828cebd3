//! Tests of headers.

use proptest::prelude::*;

use super::*;

fn with(name: &HeaderName, text: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(name.clone(), text);
    headers
}

#[test]
fn what_is_written_is_read_back() {
    let context = Context {
        request_id: Some("req-1".into()),
        budget: Some(Duration::from_micros(1_234_567)),
        trace: Trace::start(),
        epoch: Some(7),
    };
    assert_eq!(Context::read(Some(&context.write().unwrap())), Ok(context));
}

#[test]
fn an_invalid_budget_is_refused_with_the_valid_form() {
    for text in [
        "",
        "-1",
        "+1",
        "1.5",
        "ten",
        "99999999999999999999999",
        "3600000001",
    ] {
        let fault = Context::read(Some(&with(&BUDGET, text))).unwrap_err();
        assert_eq!(fault.code, Code::Malformed, "{text}");
        assert!(fault.message.contains("microseconds"), "{fault}");
    }
    assert_eq!(budget(&with(&BUDGET, "0")), Ok(Some(Duration::ZERO)));
}

/// Regression: a budget above the limit was written as it was, and refused by its receiver.
#[test]
fn every_written_budget_is_read_back() {
    for (written, read) in [
        (Duration::ZERO, Duration::ZERO),
        (MAX_BUDGET, MAX_BUDGET),
        (2 * MAX_BUDGET, MAX_BUDGET),
        (Duration::MAX, MAX_BUDGET),
    ] {
        let mut headers = HeaderMap::new();
        put_budget(&mut headers, written);
        assert_eq!(budget(&headers), Ok(Some(read)), "{written:?}");
    }
}

#[test]
fn ids_that_could_break_a_header_or_a_log_are_refused() {
    for id in ["", "a b", "a\tb", "é", &"x".repeat(129)] {
        assert!(check_request_id(id).is_err(), "{id:?}");
    }
    let context = Context {
        request_id: Some("a\r\nb".into()),
        ..Context::read(None).unwrap()
    };
    assert_eq!(context.write().unwrap_err().code, Code::Malformed);
}

#[test]
fn a_garbage_trace_starts_a_new_one() {
    let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let trace = Trace::parse(good).unwrap();
    assert_eq!(trace.to_string(), good);
    assert!(trace.sampled());
    let later = Trace::parse("01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more");
    assert_eq!(later, Some(trace));
    for garbage in [
        "",
        "00",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
        "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
    ] {
        assert_eq!(Trace::parse(garbage), None, "{garbage}");
        let context = Context::read(Some(&with(&TRACEPARENT, garbage))).unwrap();
        assert_ne!(context.trace.trace_id, 0);
    }
}

#[test]
fn a_child_stays_in_its_trace() {
    let parent = Trace::start();
    let child = parent.child();
    assert_eq!(child.trace_id, parent.trace_id);
    assert_ne!(child.span_id, parent.span_id);
}

#[test]
fn a_fault_in_headers_keeps_its_code_and_stays_on_one_line() {
    let sent = Fault::new(
        Code::Overloaded,
        format!("full\r\nInjected: x {}", "é".repeat(600)),
    );
    let headers = for_fault(ContentType::Json, &sent);
    assert_eq!(headers.get(SERVICE_ERROR_CODE.clone()).unwrap().as_str(), "429");
    let received = fault(Some(&headers)).unwrap();
    assert_eq!(received.code, Code::Overloaded);
    assert!(received.message.starts_with("full  Injected: x é"));
    assert!(received.message.len() <= MAX_ERROR_TEXT);
    assert_eq!(content_type(Some(&headers)), Ok(ContentType::Json));
    assert_eq!(fault(Some(&HeaderMap::new())), None);
}

#[test]
fn another_services_error_is_understood() {
    let mut headers = with(&SERVICE_ERROR, "no");
    headers.insert(SERVICE_ERROR_CODE.clone(), "418");
    assert_eq!(fault(Some(&headers)), Some(Fault::new(Code::Internal, "418: no")));
}

/// Clients that lower the case of header names, as HTTP does, lost their budgets and ids.
#[test]
fn headers_are_found_without_regard_to_case() {
    let mut headers = HeaderMap::new();
    headers.insert("kaskade-budget-us", "250000");
    headers.insert("KASKADE-REQUEST-ID", "a");
    headers.insert(
        "Traceparent",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    );
    let read = Context::read(Some(&headers)).unwrap();
    assert_eq!(read.budget, Some(Duration::from_millis(250)));
    assert_eq!(read.request_id.as_deref(), Some("a"));
    assert_eq!(read.trace.trace_id, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
    headers.insert("kaskade-epoch", "x");
    assert!(Context::read(Some(&headers)).is_err());
}

#[test]
fn a_body_without_a_content_type_is_json_if_it_begins_with_a_brace() {
    for json in [&b"{}"[..], b" \n{}"] {
        assert_eq!(content_type_of(None, json), Ok(ContentType::Json));
    }
    assert_eq!(content_type_of(None, b"\x81"), Ok(ContentType::MessagePack));
    assert_eq!(
        content_type_of(Some(&with(&EPOCH, "1")), b"{}"),
        Ok(ContentType::Json)
    );
    let named = with(&CONTENT_TYPE, "application/msgpack");
    assert_eq!(content_type_of(Some(&named), b"{}"), Ok(ContentType::MessagePack));
}

#[test]
fn the_content_type_is_found_in_either_case() {
    assert_eq!(content_type(None), Ok(ContentType::MessagePack));
    let mut headers = HeaderMap::new();
    headers.insert("Content-Type", "Application/JSON; charset=utf-8");
    assert_eq!(content_type(Some(&headers)), Ok(ContentType::Json));
    assert!(content_type(Some(&with(&CONTENT_TYPE, "text/html"))).is_err());
}

proptest! {
    #[test]
    fn no_header_text_panics(text in "[^\r\n]{0,80}") {
        for name in [&REQUEST_ID, &BUDGET, &EPOCH, &TRACEPARENT, &CONTENT_TYPE] {
            let headers = with(name, &text);
            let _ = Context::read(Some(&headers));
            let _ = content_type(Some(&headers));
        }
    }
}
