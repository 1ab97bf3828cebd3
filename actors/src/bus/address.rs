//! Addresses of brokers as logs and errors show them.

/// Removes user information (everything between `//` and `@`) from the addresses.
pub(super) fn without_credentials(url: &str) -> String {
    url.split(',')
        .map(
            |address| match (address.split_once("://"), address.rsplit_once('@')) {
                (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
                (None, Some((_, host))) => host.to_owned(),
                (_, None) => address.to_owned(),
            },
        )
        .collect::<Vec<_>>()
        .join(",")
}
