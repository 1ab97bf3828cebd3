//! Typed errors as HTTP responses, in the form of each API.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use kaskade_actors::Code;
use serde_json::json;

use crate::http::api::Api;
use crate::http::failure::{Failure, UNAUTHORISED};
use crate::http::grpc_status;

impl Failure {
    fn kind(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            404 => "not_found_error",
            429 => "rate_limit_error",
            400..=498 => "invalid_request_error",
            504 => "timeout_error",
            _ => "server_error",
        }
    }

    /// Returns the body of the error as OpenAI's API has it; also an event of a stream. `code` is OpenAI's where it has one, because clients
    /// shorten a prompt, or wait, by it; `fault` is the code of this gateway.
    pub(crate) fn openai(&self) -> serde_json::Value {
        let known = [
            (Code::TooLong.id(), "context_length_exceeded"),
            (Code::UnknownApp.id(), "model_not_found"),
            (Code::Overloaded.id(), "rate_limit_exceeded"),
            (UNAUTHORISED, "invalid_api_key"),
        ];
        let known = known.into_iter().find(|(own, _)| *own == self.code);
        let code = known.map_or(self.code, |(_, code)| code);
        json!({"error": {
            "message": self.message,
            "type": self.kind(),
            "param": self.param,
            "code": code,
            "fault": self.code,
        }})
    }

    /// Returns the response in the form of the API.
    pub(crate) fn response(&self, api: Api) -> Response<Body> {
        let body = match api {
            Api::Grpc => return grpc_status::of(self).into_http(),
            Api::Oip => json!({"error": self.to_string()}),
            Api::OpenAi => self.openai(),
            Api::Anthropic => {
                json!({"type": "error", "error": {"type": self.kind(), "message": self.message}})
            }
            Api::Tei => json!({"error": self.to_string(), "error_type": self.kind()}),
        };
        let mut response = Response::new(Body::from(body.to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert("x-kaskade-fault", HeaderValue::from_static(self.code));
        let retry = if self.retryable { "true" } else { "false" };
        headers.insert("x-should-retry", HeaderValue::from_static(retry));
        if let Some(pause) = self.pause_ms() {
            headers.insert("retry-after-ms", HeaderValue::from(pause));
            headers.insert(
                header::RETRY_AFTER,
                HeaderValue::from(pause.div_ceil(1_000).max(1)),
            );
        }
        if self.status == StatusCode::UNSUPPORTED_MEDIA_TYPE {
            headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip, deflate"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kaskade_actors::Fault;

    use super::*;

    #[test]
    fn retryable_faults_say_so_and_others_forbid_it() {
        for code in Code::ALL {
            let failure = Failure::from(Fault::new(*code, "why"));
            let response = failure.response(Api::OpenAi);
            let headers = response.headers();
            let expected = if code.retryable() { "true" } else { "false" };
            assert_eq!(headers["x-should-retry"], expected, "{code}");
            assert_eq!(headers.contains_key("retry-after-ms"), code.retryable(), "{code}");
            assert_eq!(response.status().as_u16(), code.status());
        }
    }

    /// The SDK of OpenAI tries again twice: with pauses of 100 ms it gave up within a quarter of a second.
    #[test]
    fn a_pause_is_that_of_the_rate_or_about_a_second() {
        let pauses = |failure: &Failure| {
            let response = failure.response(Api::OpenAi);
            let number = |name: &str| response.headers()[name].to_str().unwrap().parse::<u32>().unwrap();
            (number("retry-after-ms"), number("retry-after"))
        };
        let rate = Failure::too_fast(Duration::from_micros(2_400_100));
        assert_eq!(pauses(&rate), (2_401, 3));
        let short = Failure::too_fast(Duration::from_millis(7));
        assert_eq!(pauses(&short), (7, 1));
        let (full, seconds) = pauses(&Failure::full("many"));
        assert!(
            (750..1_250).contains(&full) && (1..=2).contains(&seconds),
            "{full}"
        );
    }

    #[test]
    fn codes_and_fields_are_those_of_openai_where_it_has_them() {
        for (failure, code, fault, param) in [
            (
                Failure::unknown_app("x", None),
                "model_not_found",
                "KSK0004",
                json!("model"),
            ),
            (Failure::full("x"), "rate_limit_exceeded", "KSK0006", json!(null)),
            (
                Failure::unauthorised(),
                "invalid_api_key",
                "unauthorised",
                json!(null),
            ),
            (
                Fault::new(
                    Code::InvalidInput,
                    "variant a: input `logit_bias_tokens` cannot be used: 7",
                )
                .into(),
                "KSK0003",
                "KSK0003",
                json!("logit_bias"),
            ),
        ] {
            let error = &failure.openai()["error"];
            assert_eq!((&error["code"], &error["fault"]), (&json!(code), &json!(fault)));
            assert_eq!(error["param"], param);
        }
    }

    #[test]
    fn every_api_has_its_own_form() {
        let failure = Failure::param("model", "no");
        assert_eq!(failure.openai()["error"]["param"], "model");
        assert_eq!(failure.openai()["error"]["type"], "invalid_request_error");
        let long = Failure::unknown_app(&"é".repeat(1_000), None).message;
        assert!(long.contains("é...`") && long.len() < 300, "{long}");
    }
}
