//! Subjects and headers: text that others choose.

use std::str::FromStr;

use async_nats::{HeaderMap, HeaderName, HeaderValue};
use kaskade_actors::error::{Code, Fault};
use kaskade_actors::subjects::{App, Route, check_token, discovery, discovery_verb, is_reply_allowed};
use kaskade_actors::wire::headers::{self, Context};
use kaskade_actors::wire::{ContentType, Token};

/// Lines: an app, a name, and subjects. What a name makes is read back as it was meant; what is read is one of the app's.
pub fn subjects(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let mut lines = text.split('\n');
    let (app, name) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let Ok(app) = App::new(app) else {
        return;
    };
    named(&app, name);
    for subject in lines {
        let _ = (is_reply_allowed(subject), discovery_verb(subject));
        if let Some(route) = app.parse(subject) {
            parsed(&app, subject, route);
        }
    }
}

fn named(app: &App, name: &str) {
    let sound = check_token("name", name).is_ok();
    let made = [
        (app.stage(name), Route::Stage(name)),
        (app.replica(name), Route::Replica(name)),
        (app.beat(name), Route::Beat(name)),
        (app.ingress(name), Route::Ingress(name)),
        (app.event(name), Route::Event(name)),
        (
            app.done(name, u64::MAX, u32::MAX, "1-a-b"),
            Route::StageReply {
                ingress: name,
                id: u64::MAX,
                attempt: u32::MAX,
                token: "1-a-b",
            },
        ),
    ];
    for (subject, route) in made {
        assert_eq!(subject.is_ok(), sound, "{name:?}");
        if let Ok(subject) = subject {
            assert_eq!(app.parse(&subject), Some(route));
            assert!(!is_reply_allowed(&subject), "{subject} is an actor's");
        }
    }
    assert_eq!(discovery("PING", app.name(), name).is_ok(), sound);
}

/// One meaning has one subject: whatever is taken for a stage's subject is the one that the stage listens to.
fn parsed(app: &App, subject: &str, route: Route<'_>) {
    let made = match route {
        Route::Stage(name) => app.stage(name),
        Route::Replica(name) => app.replica(name),
        Route::Beat(name) => app.beat(name),
        Route::Ingress(name) => app.ingress(name),
        Route::Event(name) => app.event(name),
        Route::StageReply {
            ingress,
            id,
            attempt,
            token,
        } => {
            // A token that is read is written in the same way.
            if let Ok(read) = token.parse::<Token>() {
                assert_eq!(read.to_string(), token);
            }
            app.done(ingress, id, attempt, token)
        }
        _ => return,
    };
    let made = made.expect("what was read can be written");
    assert_eq!(made.as_str(), subject);
}

/// Lines of headers. What they say is written and read again as the same; a fault in headers keeps its code.
pub fn headers(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let headers = header_map(&text);
    let _ = (
        headers::content_type(Some(&headers)),
        headers::fault(Some(&headers)),
        headers::request_id(&headers),
    );
    if let Ok(Some(chunk)) = headers::chunk(&headers) {
        let mut again = HeaderMap::new();
        headers::put_chunk(&mut again, chunk);
        assert_eq!(headers::chunk(&again), Ok(Some(chunk)));
    }
    if let Ok(context) = Context::read(Some(&headers)) {
        let written = context.write().expect("what was read can be written");
        assert_eq!(Context::read(Some(&written)), Ok(context));
    }
    let written = headers::for_fault(ContentType::Json, &Fault::new(Code::Overloaded, text));
    let fault = headers::fault(Some(&written)).expect("a fault is in its headers");
    assert_eq!(fault.code, Code::Overloaded);
    assert!(
        !fault.message.contains(['\r', '\n']),
        "a fault's text ends its header"
    );
}

fn header_map(text: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in text.split('\n') {
        let (name, value) = line.split_once(": ").unwrap_or((line, ""));
        if let (Ok(name), Ok(value)) = (HeaderName::from_str(name), HeaderValue::from_str(value)) {
            headers.append(name, value);
        }
    }
    headers
}
