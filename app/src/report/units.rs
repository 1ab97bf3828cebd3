//! Numbers as people read them.

use std::fmt;

use kaskade_policy::profile::Profile;
use kaskade_policy::remote::price::{CostSource, written};

/// A share as a percentage: `98.61 %`.
pub fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

/// Joules with a prefix, or `unknown`: an unknown value is never written as zero.
pub fn joules(energy: Option<f64>) -> String {
    energy.map_or_else(|| "unknown".to_owned(), |energy| prefixed(energy, "J"))
}

/// Money in the currency of the app's prices, with three digits, or `unknown`.
pub fn money(amount: Option<f64>) -> String {
    amount.map_or_else(|| "unknown".to_owned(), written)
}

/// Money with the source of the amount.
pub fn money_with_source(amount: Option<f64>, source: Option<CostSource>) -> String {
    let source = source.map_or_else(String::new, |source| format!(" ({})", source.name()));
    money(amount) + &source
}

/// Bytes with a binary prefix: `1.5 MiB`.
pub fn bytes(bytes: u64) -> String {
    bytesize::ByteSize::b(bytes).display().iec().to_string()
}

/// Seconds with a prefix: `2.31 ms`.
pub fn seconds(time: f64) -> String {
    prefixed(time, "s")
}

/// A count with its thousands apart: `1 234 567`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let first = digits.len() % 3;
    let (head, tail) = digits.split_at(first);
    let groups = tail
        .as_bytes()
        .chunks(3)
        .map(|group| String::from_utf8_lossy(group).into_owned());
    Some(head.to_owned())
        .filter(|head| !head.is_empty())
        .into_iter()
        .chain(groups)
        .collect::<Vec<_>>()
        .join(" ")
}

/// A number of things: `1 gear`, `2 gears`.
pub fn count_of<N: Copy + fmt::Display + PartialEq + From<u8>>(n: N, one: &str, many: &str) -> String {
    let noun = if n == N::from(1) { one } else { many };
    format!("{n} {noun}")
}

/// A number of things with its thousands apart: `1 request`, `12 000 requests`.
pub fn count_with_separators(n: u64, one: &str, many: &str) -> String {
    let noun = if n == 1 { one } else { many };
    format!("{} {noun}", count(n))
}

/// A ratio: `6.2x`, or a dash if it is undefined.
pub fn times(ratio: Option<f64>) -> String {
    ratio.filter(|ratio| ratio.is_finite()).map_or_else(
        || "-".to_owned(),
        |ratio| {
            if ratio < 99.95 {
                format!("{ratio:.1}x")
            } else {
                format!("{ratio:.0}x")
            }
        },
    )
}

/// Three significant digits and an SI prefix.
pub fn prefixed(value: f64, unit: &str) -> String {
    const PREFIXES: [(f64, &str); 6] = [
        (1e3, "k"),
        (1.0, ""),
        (1e-3, "m"),
        (1e-6, "µ"),
        (1e-9, "n"),
        (1e-12, "p"),
    ];
    if value == 0.0 || !value.is_finite() {
        return format!("{value} {unit}");
    }
    // The factor just under one keeps 999.96 µs from being written as 1000 µs.
    let (scale, prefix) = PREFIXES
        .into_iter()
        .find(|(scale, _)| value.abs() >= scale * 0.9995)
        .unwrap_or((1e-12, "p"));
    let scaled = value / scale;
    let digits = if scaled.abs() >= 99.95 {
        0
    } else if scaled.abs() >= 9.995 {
        1
    } else {
        2
    };
    format!("{scaled:.digits$} {prefix}{unit}")
}

/// The sources of a family's costs in money, each once.
pub(crate) fn money_sources(profile: &Profile) -> String {
    let mut sources: Vec<CostSource> = profile
        .variants
        .iter()
        .filter_map(|one| Some(one.money?.source))
        .collect();
    sources.sort_unstable();
    sources.dedup();
    let names = sources.iter().map(|source| match source {
        CostSource::Priced => "priced",
        CostSource::Measured => "measured",
        CostSource::Modelled => "modelled",
    });
    names.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_is_singular() {
        assert_eq!(count_of(1_usize, "gear", "gears"), "1 gear");
        assert_eq!(count_of(0_u64, "gear", "gears"), "0 gears");
        assert_eq!(count_of(2_u32, "ingress", "ingresses"), "2 ingresses");
    }

    #[test]
    fn numbers_keep_three_digits_and_their_prefix() {
        for (value, text) in [
            (0.0, "0 s"),
            (1.0, "1.00 s"),
            (0.001_234, "1.23 ms"),
            (0.012_34, "12.3 ms"),
            (0.123_4, "123 ms"),
            (0.000_999_96, "1.00 ms"),
            (12e-9, "12.0 ns"),
            (4_200.0, "4.20 ks"),
        ] {
            assert_eq!(seconds(value), text);
        }
        assert_eq!(joules(None), "unknown");
        assert_eq!(joules(Some(0.25)), "250 mJ");
    }

    #[test]
    fn amounts_keep_three_digits_and_name_their_source() {
        for (amount, text) in [(0.0, "0"), (0.0018, "0.00180"), (1.5, "1.50"), (1234.0, "1234")] {
            assert_eq!(money(Some(amount)), text);
        }
        assert_eq!(
            money_with_source(Some(0.25), Some(CostSource::Priced)),
            "0.250 (priced)"
        );
        assert_eq!(money_with_source(None, None), "unknown");
    }

    #[test]
    fn counts_have_their_thousands_apart() {
        for (n, text) in [(0, "0"), (999, "999"), (1_000, "1 000"), (1_234_567, "1 234 567")] {
            assert_eq!(count(n), text);
        }
    }

    #[test]
    fn ratios_that_cannot_be_said_are_a_dash() {
        assert_eq!(times(Some(6.24)), "6.2x");
        assert_eq!(times(Some(2_829.8)), "2830x");
        assert_eq!(times(Some(f64::INFINITY)), "-");
        assert_eq!(times(None), "-");
    }
}
