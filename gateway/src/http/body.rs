//! Bodies: read up to a limit, decompressed, and compressed.

use std::future::poll_fn;
use std::io::{Read, Write as _};
use std::task::Poll;

use axum::body::{Body, HttpBody as _};
use axum::http::{HeaderMap, HeaderValue, Response, header};
use bytes::Bytes;
use flate2::Compression;
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use flate2::write::{GzEncoder, ZlibEncoder};
use futures::{Stream, StreamExt as _};
use kaskade_actors::{Code, Fault};
use tokio::time::{Instant, timeout_at};

use crate::config::Limits;
use crate::config::MIN_BYTES_PER_PAUSE;
use crate::http::failure::Failure;

/// A compression of HTTP bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Coding {
    /// RFC 1952.
    Gzip,
    /// RFC 1950, which HTTP calls `deflate`.
    Deflate,
}

impl Coding {
    const fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
        }
    }

    /// Returns the coding of a request's body; `None` if it has none.
    ///
    /// # Errors
    /// `KSK0001` with status 415 for another one.
    fn of_body(headers: &HeaderMap) -> Result<Option<Self>, Failure> {
        let Some(coding) = headers.get(header::CONTENT_ENCODING) else {
            return Ok(None);
        };
        // Names of codings have no case, and `x-gzip` is the older name (RFC 9110, section 8.4.1).
        match coding.as_bytes().trim_ascii().to_ascii_lowercase().as_slice() {
            b"identity" | b"" => Ok(None),
            b"gzip" | b"x-gzip" => Ok(Some(Self::Gzip)),
            b"deflate" => Ok(Some(Self::Deflate)),
            _ => Err(Failure::unknown_coding()),
        }
    }

    /// Returns the first coding of `accept-encoding` that the gateway has, unless its weight is 0.
    pub(crate) fn accepted(headers: &HeaderMap) -> Option<Self> {
        let accepted = headers.get(header::ACCEPT_ENCODING)?.to_str().ok()?;
        accepted.split(',').find_map(|item| {
            let mut parts = item.split(';').map(str::trim);
            let name = parts.next()?;
            let coding = if name.eq_ignore_ascii_case("gzip") || name.eq_ignore_ascii_case("x-gzip") {
                Self::Gzip
            } else if name.eq_ignore_ascii_case("deflate") {
                Self::Deflate
            } else {
                return None;
            };
            let refused = parts.any(|part| matches!(part, "q=0" | "q=0.0" | "q=0.00" | "q=0.000"));
            (!refused).then_some(coding)
        })
    }

    /// Decompresses a body of at most `limit` bytes. `count` is called with the number of decompressed bytes of each part.
    ///
    /// # Errors
    /// `KSK0001` for one that is damaged, `KSK0002` for one that becomes too large, those of `count`.
    fn decompress(
        self,
        body: &[u8],
        limit: usize,
        count: impl Fn(usize) -> Result<(), Failure>,
    ) -> Result<Bytes, Failure> {
        let mut decoder: Box<dyn Read + '_> = match self {
            // A file may be several compressed ones behind each other (RFC 1952, section 2.2).
            Self::Gzip => Box::new(MultiGzDecoder::new(body)),
            Self::Deflate => Box::new(ZlibDecoder::new(body)),
        };
        let mut plain = Vec::new();
        loop {
            let read = decoder
                .by_ref()
                .take(DECOMPRESSED_AT_ONCE)
                .read_to_end(&mut plain);
            let read = read.map_err(|error| {
                Failure::malformed(format!("the body is not valid {}: {error}", self.name()))
            })?;
            if read == 0 {
                return Ok(plain.into());
            }
            if plain.len() > limit {
                return Err(too_large(limit));
            }
            count(read)?;
        }
    }

    fn compress(self, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
        match self {
            Self::Gzip => {
                let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
                encoder.write_all(bytes)?;
                encoder.finish()
            }
            Self::Deflate => {
                let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
                encoder.write_all(bytes)?;
                encoder.finish()
            }
        }
    }
}

/// Bytes of a body that are decompressed before they are counted.
const DECOMPRESSED_AT_ONCE: u64 = 1 << 20;

/// Bytes from which a body is processed on a thread of its own; JSON of that size takes milliseconds.
const LARGE: usize = 256 << 10;

/// Returns the next piece if it has arrived, and `None` within if the body has ended. Most bodies arrive with their head, but only
/// the connection's next poll brings them; a timer would cost more than that.
async fn arrived<S: Stream + Unpin>(pieces: &mut S) -> Option<Option<S::Item>> {
    let mut polled = false;
    poll_fn(|cx| match pieces.poll_next_unpin(cx) {
        Poll::Ready(piece) => Poll::Ready(Some(piece)),
        Poll::Pending if polled => Poll::Ready(None),
        Poll::Pending => {
            polled = true;
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await
}

fn too_large(limit: usize) -> Failure {
    let message = format!(
        "the body has more than {limit} bytes, the limit of this gateway; send less, or raise `max_body` in `[gateway]` of app.toml"
    );
    Fault::new(Code::TooLarge, message).into()
}

/// Reads a request's body, decompressed, within the limits of the gateway. `count` is called with the number of decompressed bytes of each part of a compressed one.
///
/// # Errors
/// `KSK0002` for one that is too large, `KSK0006` for one that finds no room beside others, 408 for one that stops arriving, `KSK0001` for one that ends early or has another coding.
pub(crate) async fn read(
    headers: &HeaderMap,
    body: Body,
    limits: &Limits,
    count: impl Fn(usize) -> Result<(), Failure> + Send + 'static,
) -> Result<Bytes, Failure> {
    let limit = limits.max_body;
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large(limit));
    }
    let mut pieces = body.into_data_stream();
    let (mut body, mut joined) = (Bytes::new(), Vec::new());
    // When the next bytes must have arrived; set by the first wait for them.
    let (mut due, mut missing) = (None, MIN_BYTES_PER_PAUSE);
    // A body of a known length has ended with its last byte.
    while !pieces.is_end_stream() {
        let piece = if let Some(piece) = arrived(&mut pieces).await {
            piece
        } else {
            let due = *due.get_or_insert_with(|| Instant::now() + limits.body_pause);
            let piece = timeout_at(due, pieces.next()).await;
            piece.map_err(|_| Failure::stalled(limits.body_pause))?
        };
        let Some(piece) = piece else { break };
        let piece = piece.map_err(|error| match error.into_inner().downcast::<Failure>() {
            Ok(failure) => *failure,
            Err(error) => Failure::malformed(format!("the body ended early: {error}")),
        })?;
        missing = missing.saturating_sub(piece.len());
        if missing == 0 {
            (due, missing) = (None, MIN_BYTES_PER_PAUSE);
        }
        if body.is_empty() && joined.is_empty() {
            // Most bodies arrive in one piece, which is not copied.
            body = piece;
        } else {
            joined.extend_from_slice(&std::mem::take(&mut body));
            joined.extend_from_slice(&piece);
        }
        if body.len().max(joined.len()) > limit {
            return Err(too_large(limit));
        }
    }
    if !joined.is_empty() {
        body = joined.into();
    }
    let Some(coding) = Coding::of_body(headers)? else {
        return Ok(body);
    };
    // A few bytes may stand for many.
    run_blocking(move || coding.decompress(&body, limit, count)).await
}

/// Processes a body: here, or on a thread of its own if it is large, because this one would serve no other connection meanwhile.
///
/// # Errors
/// Those of `work`.
pub(crate) async fn process<T: Send + 'static>(
    body: Bytes,
    work: impl FnOnce(&Bytes) -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    if body.len() < LARGE {
        return work(&body);
    }
    run_blocking(move || work(&body)).await
}

/// Runs work that takes long on a thread of its own.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Fault::new(Code::Internal, format!("a body was not processed: {error}")))?
}

/// Compresses a complete response of at least `from` bytes; leaves a stream as it is.
pub(crate) async fn compressed(response: Response<Body>, coding: Coding, from: usize) -> Response<Body> {
    let size = response.body().size_hint().exact();
    if response.headers().contains_key(header::CONTENT_ENCODING) || size.is_none_or(|size| size < from as u64)
    {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let Ok(plain) = axum::body::to_bytes(body, usize::MAX).await else {
        return Response::from_parts(parts, Body::empty());
    };
    let copy = plain.clone();
    let compressed = process(plain, move |plain| Ok(coding.compress(plain).ok())).await;
    let Ok(Some(compressed)) = compressed else {
        return Response::from_parts(parts, Body::from(copy));
    };
    parts.headers.remove(header::CONTENT_LENGTH);
    parts
        .headers
        .insert(header::CONTENT_ENCODING, HeaderValue::from_static(coding.name()));
    parts
        .headers
        .append(header::VARY, HeaderValue::from_static("accept-encoding"));
    Response::from_parts(parts, Body::from(compressed))
}

#[cfg(test)]
mod tests {
    use futures::stream;

    use super::*;

    fn headers(name: header::HeaderName, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_static(value))])
    }

    #[test]
    fn the_first_known_coding_is_chosen() {
        let accepted = |value| Coding::accepted(&headers(header::ACCEPT_ENCODING, value));
        assert_eq!(accepted("br, gzip;q=0.5"), Some(Coding::Gzip));
        assert_eq!(accepted("gzip;q=0, deflate"), Some(Coding::Deflate));
        assert_eq!(accepted("br, GZIP"), Some(Coding::Gzip));
        assert_eq!(accepted("identity"), None);
    }

    async fn read(headers: &HeaderMap, body: Body, limits: &Limits) -> Result<Bytes, Failure> {
        super::read(headers, body, limits, |_| Ok(())).await
    }

    #[tokio::test]
    async fn what_a_compressed_body_becomes_is_counted_as_it_comes() {
        let packed = Coding::Gzip.compress(&vec![0; 5 << 20]).unwrap();
        assert!(packed.len() < 64 << 10);
        let headers = headers(header::CONTENT_ENCODING, "gzip");
        let left = std::sync::Mutex::new(2_usize << 20);
        let count = move |bytes: usize| {
            let mut left = left.lock().unwrap();
            *left = left.checked_sub(bytes).ok_or_else(|| Failure::full("no room"))?;
            Ok(())
        };
        let refused = super::read(&headers, Body::from(packed), &at_most(8 << 20), count).await;
        assert_eq!(refused.unwrap_err().code, "KSK0006");
    }

    fn at_most(max_body: usize) -> Limits {
        Limits {
            max_body,
            ..Limits::default()
        }
    }

    #[tokio::test]
    async fn a_body_in_pieces_is_joined_and_one_that_stops_is_refused() {
        let piece = |text: &'static str| Ok::<_, std::io::Error>(Bytes::from_static(text.as_bytes()));
        let whole = stream::iter([piece("a"), piece("b"), piece(""), piece("c")]);
        let body = read(&HeaderMap::new(), Body::from_stream(whole), &at_most(3)).await;
        assert_eq!(body.unwrap(), "abc");
        let longer = stream::iter([piece("a"), piece("bc"), piece("d")]);
        let refused = read(&HeaderMap::new(), Body::from_stream(longer), &at_most(3))
            .await
            .unwrap_err();
        assert_eq!(refused.code, "KSK0002");
        let broken = stream::iter([piece("a"), Err(std::io::Error::other("gone"))]);
        let refused = read(&HeaderMap::new(), Body::from_stream(broken), &at_most(3))
            .await
            .unwrap_err();
        assert_eq!(refused.status.as_u16(), 400);
        let limits = Limits {
            body_pause: std::time::Duration::from_millis(1),
            ..at_most(3)
        };
        let stopped = stream::iter([piece("a")]).chain(stream::pending());
        let refused = read(&HeaderMap::new(), Body::from_stream(stopped), &limits)
            .await
            .unwrap_err();
        assert_eq!((refused.status.as_u16(), refused.retryable), (408, true));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_must_arrive_at_a_pace() {
        let asked = async |size: usize, pieces: usize| {
            let piece = move |_| async move {
                tokio::time::sleep(Limits::default().body_pause / 2).await;
                Ok::<_, std::io::Error>(Bytes::from(vec![b' '; size]))
            };
            let body = stream::iter(0..pieces).then(piece);
            let body = Body::from_stream(body);
            read(&HeaderMap::new(), body, &at_most(1 << 20)).await
        };
        assert_eq!(
            asked(MIN_BYTES_PER_PAUSE, 60).await.unwrap().len(),
            60 * MIN_BYTES_PER_PAUSE,
            "slow and steady"
        );
        assert_eq!(asked(1, 1_000).await.unwrap_err().status.as_u16(), 408);
    }

    #[tokio::test]
    async fn compressed_bodies_are_read_up_to_the_limit() {
        let plain = vec![7_u8; 100_000];
        for (coding, name) in [(Coding::Gzip, "gzip"), (Coding::Deflate, "deflate")] {
            let packed = coding.compress(&plain).unwrap();
            assert!(packed.len() < 1_000);
            let headers = headers(header::CONTENT_ENCODING, name);
            let read_back = read(&headers, Body::from(packed.clone()), &at_most(100_000))
                .await
                .unwrap();
            assert_eq!(read_back, plain);
            let refused = read(&headers, Body::from(packed), &at_most(99_999))
                .await
                .unwrap_err();
            assert_eq!(refused.code, "KSK0002");
        }
        let packed = |bytes: &[u8]| Coding::Gzip.compress(bytes).unwrap();
        let two = [packed(b"one "), packed(b"body")].concat();
        for name in ["gzip", "GZIP", "x-gzip"] {
            let headers = headers(header::CONTENT_ENCODING, name);
            let read_back = read(&headers, Body::from(two.clone()), &at_most(100)).await;
            assert_eq!(read_back.unwrap(), "one body", "{name}");
        }
        let refused = read(&HeaderMap::new(), Body::from(plain), &at_most(99))
            .await
            .unwrap_err();
        assert_eq!(refused.status.as_u16(), 413);
        assert!(refused.message.contains("`max_body`"));
    }

    #[tokio::test]
    async fn a_large_body_is_decoded_while_other_connections_are_served() {
        let (other, told) = std::sync::mpsc::channel();
        let body = Bytes::from(vec![b' '; LARGE]);
        // The runtime of the test has one thread, which sends only if it does not wait for the body.
        let decoded = process(body, move |_| {
            Ok(told.recv_timeout(std::time::Duration::from_secs(10)).is_ok())
        });
        let (decoded, told) = tokio::join!(decoded, async move { other.send(()) });
        assert!(decoded.unwrap() && told.is_ok());
    }

    #[tokio::test]
    async fn a_response_is_compressed_from_a_size() {
        let large = Response::new(Body::from("a".repeat(5_000)));
        let large = compressed(large, Coding::Gzip, 4_096).await;
        assert_eq!(large.headers()[header::CONTENT_ENCODING], "gzip");
        let small = compressed(Response::new(Body::from("a")), Coding::Gzip, 4_096).await;
        assert!(!small.headers().contains_key(header::CONTENT_ENCODING));
    }
}
