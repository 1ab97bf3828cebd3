//! Broker addresses as shown in logs and errors.

/// Removes user information (everything between `//` and `@`) from each address.
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
