//! Request ids over NATS. All clients of an app share the id space, so the gateway generates ids: the `x-request-id` of
//! a client, or its `id` in the Open Inference Protocol, may also be used by another client.

use kaskade_actors::ids;
use kaskade_policy::fnv::fnv1a;

/// Longest tenant name used in ids, bytes.
const MAX_NAME: usize = 64;

/// Returns a new id. Ids begin with the tenant's name, so that a tenant can label only its own requests.
pub(crate) fn new(tenant: Option<&str>) -> String {
    let token = ids::unique_token();
    match tenant {
        Some(tenant) => format!("{}:{token}", prefix(tenant)),
        None => token,
    }
}

/// Returns whether an id belongs to the tenant.
pub(crate) fn is_of(tenant: Option<&str>, id: &str) -> bool {
    let Some(tenant) = tenant else {
        return true;
    };
    id.rsplit_once(':')
        .is_some_and(|(name, _)| name == prefix(tenant))
}

/// Returns the id prefix of a tenant: its name, or a hash of it, because ids have at most 128 visible characters.
fn prefix(tenant: &str) -> String {
    if tenant.len() <= MAX_NAME && tenant.bytes().all(|byte| byte.is_ascii_graphic()) {
        return tenant.to_owned();
    }
    // No cryptographic hash is needed, because the operator chooses the names.
    format!("{:016x}", fnv1a(tenant.bytes()))
}

#[cfg(test)]
mod tests {
    use kaskade_actors::wire::headers::check_request_id;

    use super::*;

    #[test]
    fn a_tenant_has_ids_of_its_own() {
        let long = "x".repeat(200);
        for tenant in ["ward", "ward:b", "Gäste", long.as_str()] {
            let id = new(Some(tenant));
            assert_eq!(check_request_id(&id), Ok(()), "{id}");
            assert!(is_of(Some(tenant), &id) && is_of(None, &id));
            for other in ["war", "b", "a:ward", ""] {
                assert!(!is_of(Some(other), &id), "{other} and {id}");
            }
        }
        assert!(!is_of(Some("ward"), &new(Some("ward:b"))));
        assert!(!is_of(Some("ward:b"), &new(Some("ward"))));
        assert!(!is_of(Some("ward"), &new(None)));
        assert_eq!(check_request_id(&new(None)), Ok(()));
    }
}
