//! Validated scalar values: each is checked while it is parsed, so that the error carries the line.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// Maximum length of a name, bytes: it leaves room for the rest of a NATS subject.
pub(crate) const MAX_TOKEN: usize = 64;

/// A name that is one token of a NATS subject: 1 to 64 ASCII letters, digits, `-` or `_`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(extend("pattern" = "^[A-Za-z0-9_-]{1,64}$"))]
pub struct SubjectToken(String);

impl SubjectToken {
    /// Returns the name of the default worker.
    pub(super) fn local() -> Self {
        Self("local".to_owned())
    }

    /// Returns the name of a variant whose files have none.
    pub(crate) fn model() -> Self {
        Self("model".to_owned())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SubjectToken {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let fits = !name.is_empty()
            && name.len() <= MAX_TOKEN
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
        if fits {
            return Ok(Self(name.to_owned()));
        }
        Err(format!(
            "`{name}` cannot be part of a NATS subject: use 1 to {MAX_TOKEN} ASCII letters, digits, `-` or `_`"
        ))
    }
}

impl TryFrom<String> for SubjectToken {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        name.parse()
    }
}

impl From<SubjectToken> for String {
    fn from(token: SubjectToken) -> Self {
        token.0
    }
}

impl fmt::Display for SubjectToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A duration above zero, such as `250ms`, `2s` or `1m 30s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(extend("examples" = ["250ms", "2s", "1m 30s"]))]
pub struct HumanDuration(Duration);

impl<'de> Deserialize<'de> for HumanDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(HumanDurationText)
    }
}

/// Reads a [`HumanDuration`], and says of a number that its unit is missing.
struct HumanDurationText;

impl Visitor<'_> for HumanDurationText {
    type Value = HumanDuration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a length of time with its unit, such as `\"250ms\"` or `\"2s\"`")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<HumanDuration, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<HumanDuration, E> {
        Err(E::custom(format_args!(
            "`{number}` has no unit; write `\"{number}ms\"` for milliseconds or `\"{number}s\"` for seconds"
        )))
    }
}

impl HumanDuration {
    /// The longest, ten years: sums and products of some such times are still times.
    pub(crate) const MAX: Self = Self(Duration::from_hours(10 * 365 * 24));

    /// Returns `millis` milliseconds, at least one.
    pub const fn from_millis(millis: u64) -> Self {
        Self(Duration::from_millis(if millis == 0 { 1 } else { millis }))
    }

    /// Returns `micros` microseconds, at least one.
    pub const fn from_micros(micros: u64) -> Self {
        Self(Duration::from_micros(if micros == 0 { 1 } else { micros }))
    }

    /// Returns the duration.
    pub const fn duration(self) -> Duration {
        self.0
    }

    /// Returns the duration in microseconds.
    pub fn as_micros(self) -> u64 {
        u64::try_from(self.0.as_micros()).unwrap_or(u64::MAX)
    }
}

impl FromStr for HumanDuration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let duration = humantime::parse_duration(text)
            .map_err(|error| format!("`{text}` is not a length of time ({error}); write `250ms` or `2s`"))?;
        if duration < Duration::from_micros(1) {
            return Err(format!(
                "`{text}` is shorter than a microsecond; write a length of time such as `250ms`"
            ));
        }
        if duration > Self::MAX.0 {
            return Err(format!(
                "`{text}` is longer than ten years; write at most `{}days`",
                Self::MAX.0.as_secs() / 86_400
            ));
        }
        Ok(Self(duration))
    }
}

impl TryFrom<String> for HumanDuration {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<HumanDuration> for String {
    fn from(span: HumanDuration) -> Self {
        span.to_string()
    }
}

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

/// A size in bytes above zero with its unit, such as `64 KiB`, `1 MiB` or `500 kB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(extend("examples" = ["64 KiB", "1 MiB"]))]
pub struct ByteSize(u64);

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(ByteSizeText)
    }
}

/// Reads a [`ByteSize`], and says of a number that its unit is missing.
struct ByteSizeText;

impl Visitor<'_> for ByteSizeText {
    type Value = ByteSize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a size with its unit, such as `\"64 KiB\"` or `\"16 GB\"`")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<ByteSize, E> {
        Err(E::custom(no_unit(&number)))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<ByteSize, E> {
        Err(E::custom(no_unit(&number)))
    }
}

/// Returns the error of a size without a unit.
fn no_unit(number: &dyn fmt::Display) -> String {
    format!(
        "`{number}` has no unit; write `\"{number} MiB\"` or `\"{number} GB\"`, or `\"{number} B\"` for bytes"
    )
}

impl ByteSize {
    /// Returns `count` mebibytes.
    pub const fn mebibytes(count: u64) -> Self {
        Self(count.saturating_mul(1 << 20))
    }

    /// Returns `count` gigabytes of 10^9 bytes.
    pub const fn gigabytes(count: u64) -> Self {
        Self(count.saturating_mul(1_000_000_000))
    }

    /// The number of bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.trim();
        if number.parse::<f64>().is_ok() {
            return Err(no_unit(&number));
        }
        let size: bytesize::ByteSize = text
            .parse()
            .map_err(|error| format!("`{text}` is not a size ({error}); write `64 KiB` or `1 MiB`"))?;
        if size.as_u64() == 0 {
            return Err(format!("`{text}` leaves no room; write a size such as `1 MiB`"));
        }
        Ok(Self(size.as_u64()))
    }
}

impl TryFrom<String> for ByteSize {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<ByteSize> for String {
    fn from(size: ByteSize) -> Self {
        size.to_string()
    }
}

impl fmt::Display for ByteSize {
    /// Writes the size with a unit if that is exact, otherwise in bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short = bytesize::ByteSize::b(self.0).display().iec().to_string();
        if short.parse().is_ok_and(|read: Self| read == *self) {
            return f.write_str(&short);
        }
        write!(f, "{} B", self.0)
    }
}

/// A power in watts: finite and above zero.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "f64", into = "f64")]
#[schemars(extend("exclusiveMinimum" = 0))]
pub struct Watts(f64);

impl Watts {
    /// Ten watts, about a core.
    pub(crate) const TEN: Self = Self(10.0);

    /// The power, watts.
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl TryFrom<f64> for Watts {
    type Error = String;

    fn try_from(watts: f64) -> Result<Self, String> {
        if watts.is_finite() && watts > 0.0 {
            return Ok(Self(watts));
        }
        Err(format!(
            "{watts} is not a power; energy is modelled from a wattage above zero, or reported as unknown"
        ))
    }
}

impl From<Watts> for f64 {
    fn from(watts: Watts) -> Self {
        watts.0
    }
}

/// The power of an idle device in watts: finite and not negative; zero if another process states it.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "f64", into = "f64")]
#[schemars(extend("minimum" = 0))]
pub struct IdleWatts(f64);

impl IdleWatts {
    /// The power, watts.
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl TryFrom<f64> for IdleWatts {
    type Error = String;

    fn try_from(watts: f64) -> Result<Self, String> {
        if watts.is_finite() && watts >= 0.0 {
            return Ok(Self(watts));
        }
        Err(format!(
            "{watts} is not a power of an idle device; give watts, or 0"
        ))
    }
}

impl From<IdleWatts> for f64 {
    fn from(watts: IdleWatts) -> Self {
        watts.0
    }
}

impl From<Watts> for IdleWatts {
    fn from(watts: Watts) -> Self {
        Self(watts.0)
    }
}

/// A finite number above zero.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "f64", into = "f64")]
#[schemars(extend("exclusiveMinimum" = 0))]
pub struct Positive(f64);

impl Positive {
    /// The number 1.
    pub const ONE: Self = Self(1.0);

    /// 255, the largest byte.
    pub(crate) const BYTE: Self = Self(255.0);
    /// 1.3, the default headroom of the allocator.
    pub const DEFAULT_HEADROOM: Self = Self(1.3);

    /// The number.
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl TryFrom<f64> for Positive {
    type Error = String;

    fn try_from(number: f64) -> Result<Self, String> {
        if number.is_finite() && number > 0.0 {
            return Ok(Self(number));
        }
        Err(format!("{number} is not a finite number above zero"))
    }
}

impl From<Positive> for f64 {
    fn from(number: Positive) -> Self {
        number.0
    }
}

/// A finite number.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "f64", into = "f64")]
pub struct Finite(f64);

impl Finite {
    /// The number 0.
    pub const ZERO: Self = Self(0.0);

    /// The number 1.
    pub const ONE: Self = Self(1.0);

    /// The number.
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl TryFrom<f64> for Finite {
    type Error = String;

    fn try_from(number: f64) -> Result<Self, String> {
        if number.is_finite() {
            return Ok(Self(number));
        }
        Err(format!("{number} is not a finite number"))
    }
}

impl From<Finite> for f64 {
    fn from(number: Finite) -> Self {
        number.0
    }
}

/// An address to listen on or to connect to: a numeric IP address and a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String", extend("examples" = ["127.0.0.1:8080", "0.0.0.0:8080", "[::]:8080"]))]
pub struct Address(SocketAddr);

impl Address {
    /// Returns the socket address.
    pub const fn socket(self) -> SocketAddr {
        self.0
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self).map_err(|_| {
            format!(
                "`{text}` is not an address to listen on: write IP address and port, `127.0.0.1:8080` for this machine only or \
                 `0.0.0.0:8080` for all interfaces"
            )
        })
    }
}

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Address> for String {
    fn from(address: Address) -> Self {
        address.0.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_read_and_write_as_people_do() {
        let span: HumanDuration = "1s 500ms".parse().unwrap();
        assert_eq!(span.duration(), Duration::from_millis(1_500));
        assert_eq!(span.to_string(), "1s 500ms");
        for bad in ["", "250", "0s", "-1s", "1 fortnight", "10ns"] {
            assert!(bad.parse::<HumanDuration>().is_err(), "{bad}");
        }
        assert_eq!("3650days".parse(), Ok(HumanDuration::MAX));
        // Such a time panicked where a clock was added to it.
        for long in ["18446744073709551615s", "3650days 1us"] {
            let error = long.parse::<HumanDuration>().unwrap_err();
            assert!(error.contains("at most `3650days`"), "{error}");
        }
    }

    #[test]
    fn sizes_read_and_write_as_people_do() {
        let one = ByteSize::mebibytes(1);
        assert_eq!("1 MiB".parse::<ByteSize>(), Ok(one));
        assert_eq!("64KiB".parse::<ByteSize>().unwrap().bytes(), 65_536);
        assert_eq!(one.to_string().parse::<ByteSize>(), Ok(one));
        for bad in ["", "0", "0 B", "-1 MiB", "much"] {
            assert!(bad.parse::<ByteSize>().is_err(), "{bad}");
        }
    }

    /// A number was taken as bytes, where hundreds of megabytes were meant.
    #[test]
    fn a_size_without_a_unit_is_refused_with_how_to_write_it() {
        #[derive(Debug, Deserialize)]
        struct Table {
            #[expect(dead_code, reason = "it is refused")]
            cache: ByteSize,
        }
        for (value, shown) in [
            ("\"256\"", "256"),
            ("256", "256"),
            ("\" 1.5 \"", "1.5"),
            ("1.5", "1.5"),
        ] {
            let error = toml::from_str::<Table>(&format!("cache = {value}")).unwrap_err();
            let message = error.message().to_owned();
            let how = format!("`{shown}` has no unit; write `\"{shown} MiB\"`");
            assert!(message.contains(&how), "{message}");
        }
        assert_eq!("256 B".parse::<ByteSize>().unwrap().bytes(), 256);
    }

    #[test]
    fn a_token_is_one_part_of_a_subject() {
        assert!("digits-v1_b".parse::<SubjectToken>().is_ok());
        for bad in ["", "a.b", "a b", "a*", ">", "é", &"x".repeat(65)] {
            assert!(bad.parse::<SubjectToken>().is_err(), "{bad}");
        }
    }

    #[test]
    fn powers_are_finite_and_above_zero() {
        assert!(Watts::try_from(15.0).is_ok());
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Watts::try_from(bad).is_err(), "{bad}");
            assert!(Positive::try_from(bad).is_err(), "{bad}");
        }
        // Of several processes of a host, one states its idle power.
        assert!(IdleWatts::try_from(0.0).is_ok());
        for bad in [-1.0, f64::NAN, f64::INFINITY] {
            assert!(IdleWatts::try_from(bad).is_err(), "{bad}");
        }
    }
}
