//! Replication factor of the buckets and streams created on a cluster of nats-servers.

use std::error::Error;

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{CreateStreamError, CreateStreamErrorKind};

use super::Bus;

/// Default number of replicas in a cluster: survives the loss of one server.
const IN_CLUSTER: usize = 3;

/// JetStream errors for a number of replicas that the cluster cannot place.
const TOO_FEW_SERVERS: [ErrorCode; 3] = [
    ErrorCode::CLUSTER_NO_PEERS,
    ErrorCode::INSUFFICIENT_RESOURCES,
    ErrorCode::STREAM_REPLICAS_NOT_SUPPORTED,
];

/// Returns the numbers of replicas to try, in order: the configured one; else [`IN_CLUSTER`] in a cluster, then 1 if it
/// has fewer servers.
fn choices(configured: Option<usize>, clustered: bool) -> Vec<usize> {
    match configured {
        Some(replicas) => vec![replicas.max(1)],
        None if clustered => vec![IN_CLUSTER, 1],
        None => vec![1],
    }
}

/// Calls `attempt` with a number of replicas until the cluster has enough servers for it.
///
/// # Errors
/// The last error of `attempt`.
pub(crate) async fn create<T, E, F>(
    bus: &Bus,
    configured: Option<usize>,
    attempt: impl Fn(usize) -> F,
) -> Result<T, E>
where
    E: Error + 'static,
    F: Future<Output = Result<T, E>>,
{
    let clustered = bus.client().server_info().cluster.is_some();
    let mut choices = choices(configured, clustered).into_iter().peekable();
    loop {
        let replicas = choices.next().unwrap_or(1);
        match attempt(replicas).await {
            Err(error) if choices.peek().is_some() && lacks_servers(&error) => {
                tracing::warn!(%error, replicas, "the cluster has too few servers; creating with fewer replicas");
            }
            outcome => return outcome,
        }
    }
}

/// Returns whether JetStream refused because the cluster has too few servers.
fn lacks_servers(error: &(dyn Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |error: &&(dyn Error + 'static)| (*error).source());
    causes.any(|cause| {
        let kind = cause.downcast_ref::<CreateStreamError>().map(CreateStreamError::kind);
        matches!(kind, Some(CreateStreamErrorKind::JetStream(error)) if TOO_FEW_SERVERS.contains(&error.error_code()))
    })
}

#[cfg(test)]
mod tests {
    use async_nats::jetstream::context::{CreateKeyValueError, CreateKeyValueErrorKind};

    use super::*;

    #[test]
    fn a_cluster_gets_three_replicas_and_a_single_server_one() {
        assert_eq!(choices(None, false), [1]);
        assert_eq!(choices(None, true), [3, 1], "one replica in a cluster of two");
        assert_eq!(choices(Some(5), true), [5], "a configured number is not lowered");
        assert_eq!(choices(Some(1), true), [1]);
        assert_eq!(choices(Some(0), false), [1]);
    }

    #[test]
    fn only_a_lack_of_servers_lowers_the_number_of_replicas() {
        let refused = |code: ErrorCode| -> CreateStreamError {
            let said = serde_json::json!({"code": 400, "err_code": code.0, "description": "no"});
            serde_json::from_value::<async_nats::jetstream::Error>(said)
                .unwrap()
                .into()
        };
        assert!(lacks_servers(&refused(ErrorCode::CLUSTER_NO_PEERS)));
        assert!(lacks_servers(&refused(ErrorCode::STREAM_REPLICAS_NOT_SUPPORTED)));
        assert!(!lacks_servers(&refused(ErrorCode::STREAM_NAME_EXIST)));
        let around = CreateKeyValueError::with_source(
            CreateKeyValueErrorKind::BucketCreate,
            refused(ErrorCode::INSUFFICIENT_RESOURCES),
        );
        assert!(lacks_servers(&around));
    }
}
