//! The Open Inference Protocol over gRPC, by the generated client and by a remote variant.

use std::num::NonZeroUsize;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kaskade_actors::Service;
use kaskade_gateway::config::TenantKey;
use kaskade_gateway::{AppOptions, Limits, Streaming};
use kaskade_models::Tensor;
use kaskade_oip::codec::CappedCodec;
use kaskade_oip::health::{HealthCheckRequest, HealthCheckResponse, ServingStatus};
use kaskade_oip::proto::grpc_inference_service_client::GrpcInferenceServiceClient;
use kaskade_oip::proto::infer_parameter::ParameterChoice;
use kaskade_oip::proto::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use kaskade_oip::proto::{
    InferTensorContents, ModelConfigRequest, ModelInferRequest, ModelInferResponse, ModelMetadataRequest,
    ModelReadyRequest, ModelStatisticsRequest, RepositoryIndexRequest, ServerLiveRequest,
    ServerMetadataRequest, ServerReadyRequest,
};
use kaskade_policy::remote::breaker::BreakerConfig;
use kaskade_policy::remote::retry::RetryConfig;
use kaskade_remote::{Api, Endpoint, Secret};
use kaskade_testkit::{TIMEOUT, wait_until};
use serde_json::json;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Code, Request};

use crate::streaming;
use crate::support::{Slow, Stand};

type Grpc = GrpcInferenceServiceClient<Client<HttpConnector, tonic::body::Body>>;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
}

fn client(stand: &Stand) -> Grpc {
    let http = Client::builder(TokioExecutor::new())
        .http2_only(true)
        .build_http();
    let origin = format!("http://{}", stand.address()).parse().unwrap();
    GrpcInferenceServiceClient::with_origin(http, origin)
}

fn input(name: &str, datatype: &str, shape: &[i64]) -> InferInputTensor {
    InferInputTensor {
        name: name.to_owned(),
        datatype: datatype.to_owned(),
        shape: shape.to_vec(),
        ..InferInputTensor::default()
    }
}

/// A request with `x = 1.5` and the confidence of the small model.
fn asked(sure: f32) -> ModelInferRequest {
    ModelInferRequest {
        model_name: "app".to_owned(),
        id: "7".to_owned(),
        inputs: vec![input("sure", "FP32", &[1]), input("x", "FP32", &[1, 1])],
        raw_input_contents: [sure, 1.5]
            .map(|value| Bytes::copy_from_slice(&value.to_le_bytes()))
            .to_vec(),
        ..ModelInferRequest::default()
    }
}

fn raw<'a>(answer: &'a ModelInferResponse, name: &str) -> &'a [u8] {
    let place = answer.outputs.iter().position(|output| output.name == name);
    &answer.raw_output_contents[place.expect("the output")]
}

fn text<'a>(answer: &'a ModelInferResponse, name: &str) -> &'a str {
    match &answer.parameters[name].parameter_choice {
        Some(ParameterChoice::StringParam(text)) => text,
        other => panic!("{name}: {other:?}"),
    }
}

#[test]
fn the_cascade_answers_raw_and_typed_contents() {
    let stand = Stand::cascade(Limits::default());
    let runtime = runtime();
    let mut client = client(&stand);
    for (sure, variant, hops) in [(0.8, "small", "first"), (0.6, "large", "first>second")] {
        let mut request = Request::new(asked(sure));
        request
            .metadata_mut()
            .insert("x-request-id", "mine".parse().unwrap());
        let response = runtime.block_on(client.model_infer(request)).unwrap();
        let metadata = response.metadata();
        assert_eq!(metadata.get("x-kaskade-variant").unwrap(), variant);
        assert_eq!(metadata.get("x-request-id").unwrap(), "mine");
        let answer = response.into_inner();
        assert_eq!(
            (answer.id.as_str(), answer.model_version.as_str()),
            ("7", variant)
        );
        assert_eq!(text(&answer, "hops"), hops);
        assert_eq!(raw(&answer, "x"), 1.5_f32.to_le_bytes());
    }
    // Typed contents, and one output alone.
    let mut typed = asked(0.8);
    typed.raw_input_contents.clear();
    for (tensor, value) in typed.inputs.iter_mut().zip([0.8, 1.5]) {
        tensor.contents = Some(InferTensorContents {
            fp32_contents: vec![value],
            ..InferTensorContents::default()
        });
    }
    typed.outputs = vec![InferRequestedOutputTensor {
        name: "x".to_owned(),
        ..InferRequestedOutputTensor::default()
    }];
    let answer = runtime.block_on(client.model_infer(typed)).unwrap().into_inner();
    assert_eq!(
        (answer.outputs.len(), raw(&answer, "x")),
        (1, &1.5_f32.to_le_bytes()[..])
    );
    assert_eq!(answer.outputs[0].shape, [1, 1]);

    let stats = ModelStatisticsRequest {
        name: "app".to_owned(),
        version: "large".to_owned(),
    };
    let stats = runtime
        .block_on(client.model_statistics(stats))
        .unwrap()
        .into_inner();
    assert_eq!(stats.model_stats[0].inference_count, 1);
}

#[test]
fn the_server_and_its_models_describe_themselves() {
    let stand = Stand::cascade(Limits::default());
    let mut client = client(&stand);
    runtime().block_on(async {
        assert!(
            client
                .server_live(ServerLiveRequest {})
                .await
                .unwrap()
                .into_inner()
                .live
        );
        assert!(
            client
                .server_ready(ServerReadyRequest {})
                .await
                .unwrap()
                .into_inner()
                .ready
        );
        let server = client.server_metadata(ServerMetadataRequest {}).await.unwrap();
        assert_eq!(server.into_inner().name, "kaskade");
        let named = |name: &str, version: &str| (name.to_owned(), version.to_owned());
        for (name, version, expected) in [
            ("app", "", true),
            ("app", "large", true),
            // As Triton answers.
            ("app", "huge", false),
            ("other", "", false),
        ] {
            let (name, version) = named(name, version);
            let ready = client.model_ready(ModelReadyRequest { name, version }).await;
            let ready = ready.unwrap();
            assert_eq!(ready.metadata().contains_key("kaskade-reason"), !expected);
            assert_eq!(ready.into_inner().ready, expected);
        }
        client.model_infer(asked(0.8)).await.unwrap();
        let (name, version) = named("app", "");
        let metadata = client
            .model_metadata(ModelMetadataRequest { name, version })
            .await;
        let metadata = metadata.unwrap().into_inner();
        assert_eq!(metadata.versions, ["small", "large"]);
        assert!(
            metadata
                .inputs
                .iter()
                .any(|input| input.name == "x" && input.datatype == "FP32")
        );
        let (name, version) = named("app", "");
        let config = client.model_config(ModelConfigRequest { name, version }).await;
        let config = config.unwrap().into_inner().config.unwrap();
        assert_eq!((config.max_batch_size, config.input.len()), (0, 2));
        let index = client.repository_index(RepositoryIndexRequest::default()).await;
        assert_eq!(index.unwrap().into_inner().models[0].state, "READY");
    });
}

#[test]
fn metadata_over_grpc_is_complete_before_the_first_request() {
    let stand = crate::oip::named();
    runtime().block_on(async {
        let mut client = client(&stand);
        let name = "app".to_owned();
        let metadata = client
            .model_metadata(ModelMetadataRequest {
                name: name.clone(),
                version: String::new(),
            })
            .await;
        let metadata = metadata.unwrap().into_inner();
        let input = &metadata.inputs[0];
        assert_eq!(
            (input.name.as_str(), input.datatype.as_str(), &input.shape[..]),
            ("x", "FP32", &[2, -1][..])
        );
        assert_eq!(
            (metadata.inputs.len(), metadata.outputs[0].name.as_str()),
            (1, "logits")
        );
        let version = String::new();
        let config = client.model_config(ModelConfigRequest { name, version }).await;
        let config = config.unwrap().into_inner().config.unwrap();
        assert_eq!(
            (&config.input[0].dims[..], &config.output[0].dims[..]),
            (&[2, -1][..], &[2][..])
        );
    });
}

#[test]
fn a_message_that_never_arrives_frees_its_place() {
    let limits = Limits {
        max_in_flight: 1,
        body_pause: Duration::from_millis(200),
        ..Limits::default()
    };
    let stand = Stand::cascade(limits);
    let http = Client::builder(TokioExecutor::new())
        .http2_only(true)
        .build_http();
    let origin = format!("http://{}", stand.address()).parse().unwrap();
    let mut client = tonic::client::Grpc::with_origin(http, origin);
    let silent = Request::new(futures::stream::pending::<ModelInferRequest>());
    let path = PathAndQuery::from_static("/inference.GRPCInferenceService/ModelInfer");
    let codec = CappedCodec::<ModelInferRequest, ModelInferResponse>::default();
    let refused = runtime().block_on(async {
        client.ready().await.unwrap();
        let asking = client.client_streaming(silent, path, codec);
        tokio::time::timeout(TIMEOUT, asking).await.expect("an answer")
    });
    let refused = refused.unwrap_err();
    assert_eq!(
        refused.metadata().get("x-kaskade-fault").unwrap(),
        "body_timeout",
        "{refused}"
    );
    assert_eq!(stand.get("/v2").status, 200);
}

#[test]
fn failures_are_statuses_that_say_whether_to_retry() {
    let limits = Limits {
        keys: vec![key("blue", "secret", None), key("red", "slow", Some(1.0))],
        max_body: 10_000,
        ..Limits::default()
    };
    let stand = Stand::keyed(limits, "secret");
    let mut client = client(&stand);
    let runtime = runtime();
    let mut infer = |key: &str, request: ModelInferRequest| {
        let mut request = Request::new(request);
        if !key.is_empty() {
            let value = format!("Bearer {key}").parse().unwrap();
            request.metadata_mut().insert("authorization", value);
        }
        runtime.block_on(client.model_infer(request))
    };
    assert_eq!(infer("", asked(0.8)).unwrap_err().code(), Code::Unauthenticated);
    infer("secret", asked(0.8)).unwrap();
    infer("slow", asked(0.8)).unwrap();
    let refused = infer("slow", asked(0.8)).unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!(refused.metadata().get("x-kaskade-fault").unwrap(), "KSK0006");
    let pause = refused.metadata().get("grpc-retry-pushback-ms").unwrap();
    let pause: u32 = pause.to_str().unwrap().parse().unwrap();
    assert!(
        (1..=1_000).contains(&pause),
        "until the rate of one a second admits it: {pause}"
    );

    let mut other = asked(0.8);
    other.model_name = "other".to_owned();
    let refused = infer("secret", other).unwrap_err();
    assert_eq!(
        (
            refused.code(),
            refused
                .metadata()
                .get("x-should-retry")
                .unwrap()
                .to_str()
                .unwrap()
        ),
        (Code::NotFound, "false")
    );
    let mut short = asked(0.8);
    short.raw_input_contents[1] = Bytes::from_static(b"\0");
    let refused = infer("secret", short).unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    let mut many = asked(0.8);
    many.inputs = vec![InferInputTensor::default(); 2_000];
    assert_eq!(infer("secret", many).unwrap_err().code(), Code::InvalidArgument);
    let mut large = asked(0.8);
    large.raw_input_contents[1] = vec![0; 20_000].into();
    assert_eq!(infer("secret", large).unwrap_err().code(), Code::OutOfRange);
}

#[test]
fn a_deadline_ends_a_call_and_the_caller_that_leaves_cancels_it() {
    let service = Service::new("app").model("slow", || Ok::<_, String>(Slow(Duration::from_millis(1_500))));
    let stand = Stand::of(
        service,
        AppOptions::new("app").default_budget(TIMEOUT),
        Limits::default(),
    );
    let runtime = runtime();
    let mut late = Request::new(asked(0.8));
    late.set_timeout(Duration::from_millis(100));
    let refused = runtime.block_on(client(&stand).model_infer(late)).unwrap_err();
    assert_eq!(refused.code(), Code::DeadlineExceeded, "{refused}");
    drop(stand);

    let (stand, in_model) = streaming::stand(100_000, Duration::from_millis(5), Streaming::AfterCertain);
    let mut client = client(&stand);
    let call = runtime.spawn(async move {
        let mut asked = asked(0.8);
        asked.parameters.insert(
            "timeout".to_owned(),
            kaskade_oip::proto::InferParameter {
                parameter_choice: Some(ParameterChoice::Int64Param(60_000_000)),
            },
        );
        client.model_infer(asked).await
    });
    wait_until("the model has the request", TIMEOUT, || {
        in_model.load(Ordering::SeqCst) == 1
    });
    call.abort();
    wait_until("the model has dropped it", TIMEOUT, || {
        in_model.load(Ordering::SeqCst) == 0
    });
}

#[test]
fn the_messages_of_a_stream_take_no_more_memory_than_allowed() {
    let service = Service::new("app").model("slow", || Ok::<_, String>(Slow(Duration::from_millis(300))));
    let limits = Limits {
        max_body: 1_000_000,
        max_in_flight_bytes: 1_000_000,
        ..Limits::default()
    };
    let stand = Stand::of(service, AppOptions::new("app").default_budget(TIMEOUT), limits);
    let of_size = |elements: usize| ModelInferRequest {
        model_name: "app".to_owned(),
        inputs: vec![input("x", "FP32", &[i64::try_from(elements).unwrap()])],
        raw_input_contents: vec![vec![0; 4 * elements].into()],
        ..ModelInferRequest::default()
    };
    let requests = vec![of_size(150_000), of_size(150_000), of_size(1)];
    let mut client = client(&stand);
    let errors = runtime().block_on(async {
        let stream = client
            .model_stream_infer(futures::stream::iter(requests))
            .await
            .unwrap();
        let mut stream = stream.into_inner();
        let mut errors = Vec::new();
        while let Some(answer) = stream.message().await.unwrap() {
            errors.push(answer.error_message.chars().take(7).collect::<String>());
        }
        errors
    });
    assert_eq!(errors, ["", "KSK0006", ""]);
}

fn key(tenant: &str, key: &str, rate: Option<f64>) -> TenantKey {
    TenantKey {
        tenant: tenant.to_owned(),
        key: key.to_owned(),
        max_in_flight: None,
        rate,
        operator: false,
    }
}

/// Balancers and Kubernetes ask it, without a key.
#[test]
fn the_health_protocol_answers_as_ready_and_unknown_methods_are_unimplemented() {
    let limits = Limits {
        keys: vec![key("blue", "secret", None)],
        ..Limits::default()
    };
    let stand = Stand::keyed(limits, "secret");
    let http = Client::builder(TokioExecutor::new())
        .http2_only(true)
        .build_http();
    let origin = format!("http://{}", stand.address()).parse().unwrap();
    let mut client = tonic::client::Grpc::with_origin(http, origin);
    let asked = |service: &str| {
        Request::new(HealthCheckRequest {
            service: service.to_owned(),
        })
    };
    let codec = || CappedCodec::<HealthCheckRequest, HealthCheckResponse>::default();
    let path = |name: &'static str| PathAndQuery::from_static(name);
    runtime().block_on(async {
        client.ready().await.unwrap();
        let check = || path("/grpc.health.v1.Health/Check");
        for service in ["", "inference.GRPCInferenceService"] {
            let found = client.unary(asked(service), check(), codec()).await.unwrap();
            assert_eq!(found.into_inner().status(), ServingStatus::Serving);
        }
        let long = "x".repeat(100_000);
        let unknown = client.unary(asked(&long), check(), codec()).await.unwrap_err();
        assert_eq!(unknown.code(), Code::NotFound);
        let watched = client
            .server_streaming(asked(""), path("/grpc.health.v1.Health/Watch"), codec())
            .await
            .unwrap();
        let first = watched.into_inner().message().await.unwrap().unwrap();
        assert_eq!(first.status(), ServingStatus::Serving);
        for (method, said) in [
            (
                "/other.Service/Method",
                "it serves `inference.GRPCInferenceService`",
            ),
            // A method of Triton had an empty message.
            (
                "/inference.GRPCInferenceService/RepositoryModelLoad",
                "model control",
            ),
        ] {
            let mut other = asked("");
            let key = "Bearer secret".parse().unwrap();
            other.metadata_mut().insert("authorization", key);
            let missing = client.unary(other, path(method), codec()).await.unwrap_err();
            assert_eq!(missing.code(), Code::Unimplemented);
            let message = missing.message();
            assert!(message.contains(method) && message.contains(said), "{missing}");
        }
    });
}

#[test]
fn the_requests_of_a_stream_are_answered_in_order_and_fail_alone() {
    let stand = Stand::cascade(Limits::default());
    let mut client = client(&stand);
    let mut wrong = asked(0.8);
    wrong.model_name = "other".to_owned();
    wrong.id = "wrong".to_owned();
    let requests = vec![asked(0.8), wrong, asked(0.6)];
    let answers = runtime().block_on(async {
        let stream = client
            .model_stream_infer(futures::stream::iter(requests))
            .await
            .unwrap();
        let mut stream = stream.into_inner();
        let mut answers = Vec::new();
        while let Some(answer) = stream.message().await.unwrap() {
            answers.push(answer);
        }
        answers
    });
    let short: Vec<(bool, String)> = answers
        .into_iter()
        .map(|answer| {
            let response = answer.infer_response.unwrap();
            let is_final = response.parameters.get("triton_final_response");
            let is_final = is_final.and_then(|found| found.parameter_choice.clone());
            assert_eq!(is_final, Some(ParameterChoice::BoolParam(true)));
            (
                answer.error_message.contains("KSK0004"),
                if response.id == "wrong" {
                    response.id
                } else {
                    response.model_version
                },
            )
        })
        .collect();
    let expected = [(false, "small"), (true, "wrong"), (false, "large")];
    assert_eq!(short, expected.map(|(failed, name)| (failed, name.to_owned())));
}

fn endpoint(stand: &Stand, key: &str, model: &str) -> Endpoint {
    Endpoint {
        name: "far".to_owned(),
        base_url: format!("grpc://{}", stand.address()),
        key: (!key.is_empty()).then(|| Secret::new(key, "the test").unwrap()),
        ca: None,
        api: Api::Oip {
            model: model.to_owned(),
            version: None,
        },
        price: None,
        concurrency: NonZeroUsize::new(4).unwrap(),
        timeout: TIMEOUT,
        retry: RetryConfig {
            retries: 0,
            ..RetryConfig::default()
        },
        breaker: BreakerConfig::default(),
        cache: None,
        spend_limit: None,
    }
}

#[test]
fn a_remote_variant_asks_over_grpc() {
    let stand = Stand::cascade(Limits::default());
    // Metadata are those of answered requests.
    let first = json!({"inputs": [
        {"name": "sure", "datatype": "FP32", "shape": [1], "data": [0.8]},
        {"name": "x", "datatype": "INT64", "shape": [2], "data": [1, 2]},
        {"name": "t", "datatype": "BYTES", "shape": [1], "data": ["hi"]},
    ]});
    assert_eq!(
        stand.post("/v2/models/app/infer", &[], first.to_string()).status,
        200
    );
    let mut remote = kaskade_remote::connect(&endpoint(&stand, "", "app")).unwrap();
    let inputs = |sure: f32| {
        vec![
            Tensor::from_f32("sure", &[1], &[sure]).unwrap(),
            Tensor::from_i64("x", &[2], &[3, -4]).unwrap(),
            Tensor::from_texts("t", &["snow 雪"]).unwrap(),
        ]
    };
    let answers = remote.model.run(&[inputs(0.8), inputs(0.6), inputs(0.8)]);
    for answer in answers {
        let outputs = answer.unwrap();
        let found = |name: &str| outputs.iter().find(|output| output.name == name).unwrap();
        assert_eq!(found("x").to_i64().unwrap(), [3, -4]);
        assert_eq!(found("t").to_texts().unwrap(), ["snow 雪"]);
    }
    let Err(unknown) = kaskade_remote::connect(&endpoint(&stand, "", "other")) else {
        panic!("the gateway serves no such app");
    };
    assert!(unknown.to_string().contains("NOT_FOUND"), "{unknown}");
    // An address that answers nothing is a typed error.
    let mut gone = endpoint(&stand, "", "app");
    gone.base_url = "grpc://127.0.0.1:1".to_owned();
    assert!(kaskade_remote::connect(&gone).is_err());
}

#[test]
fn a_revoked_key_is_named_in_no_error() {
    let limits = Limits {
        keys: vec![TenantKey {
            tenant: "blue".to_owned(),
            key: "secret".to_owned(),
            max_in_flight: None,
            rate: None,
            operator: false,
        }],
        ..Limits::default()
    };
    let stand = Stand::keyed(limits, "secret");
    let Err(refused) = kaskade_remote::connect(&endpoint(&stand, "sk-revoked", "app")) else {
        panic!("the key is not known");
    };
    let text = format!("{refused} {refused:?}");
    assert!(
        text.contains("UNAUTHENTICATED") && !text.contains("sk-revoked"),
        "{text}"
    );
}
