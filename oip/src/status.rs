//! Numbers and names of gRPC's statuses (grpc, `statuscodes.md`).

/// A status of gRPC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// Number of the status, in `grpc-status`.
    pub number: i32,
    /// Name of the status.
    pub name: &'static str,
    /// The HTTP status that means the same.
    pub http: u16,
}

/// All statuses but `OK`.
const ALL: [Status; 16] = [
    of(1, "CANCELLED", 499),
    of(2, "UNKNOWN", 500),
    of(3, "INVALID_ARGUMENT", 400),
    of(4, "DEADLINE_EXCEEDED", 504),
    of(5, "NOT_FOUND", 404),
    of(6, "ALREADY_EXISTS", 409),
    of(7, "PERMISSION_DENIED", 403),
    of(8, "RESOURCE_EXHAUSTED", 429),
    of(9, "FAILED_PRECONDITION", 400),
    of(10, "ABORTED", 409),
    of(11, "OUT_OF_RANGE", 413),
    of(12, "UNIMPLEMENTED", 501),
    of(13, "INTERNAL", 500),
    of(14, "UNAVAILABLE", 503),
    of(15, "DATA_LOSS", 500),
    of(16, "UNAUTHENTICATED", 401),
];

const fn of(number: i32, name: &'static str, http: u16) -> Status {
    Status { number, name, http }
}

impl Status {
    /// Returns the status of a number other than 0; `UNKNOWN` for one that gRPC does not have.
    pub fn of_number(number: i32) -> Self {
        let found = ALL.into_iter().find(|status| status.number == number);
        found.unwrap_or(of(2, "UNKNOWN", 500))
    }

    /// Returns the status that means the same as an HTTP status of an error.
    pub fn of_http(http: u16) -> Self {
        let exact = match http {
            400 | 422 => Some(3),
            409 => Some(10),
            500 => Some(13),
            501 => Some(12),
            _ => None,
        };
        let number = exact.or_else(|| {
            ALL.iter()
                .find(|status| status.http == http)
                .map(|found| found.number)
        });
        Self::of_number(number.unwrap_or(match http {
            400..=499 => 3,
            _ => 13,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_found_both_ways() {
        for status in ALL {
            assert_eq!(Status::of_number(status.number), status);
        }
        for (http, name) in [
            (400, "INVALID_ARGUMENT"),
            (401, "UNAUTHENTICATED"),
            (404, "NOT_FOUND"),
            (413, "OUT_OF_RANGE"),
            (422, "INVALID_ARGUMENT"),
            (429, "RESOURCE_EXHAUSTED"),
            (499, "CANCELLED"),
            (500, "INTERNAL"),
            (502, "INTERNAL"),
            (503, "UNAVAILABLE"),
            (504, "DEADLINE_EXCEEDED"),
        ] {
            assert_eq!(Status::of_http(http).name, name);
        }
        assert_eq!(Status::of_number(99).name, "UNKNOWN");
    }
}
