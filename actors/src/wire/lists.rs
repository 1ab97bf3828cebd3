//! Lists and maps of bounded length.
//!
//! The scan limits the number of values of a message, but an empty map is one byte and may decode to a struct of forty.
//! A limit on each list bounds the memory of the decoded message.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// Largest number of a request's `parameters`.
pub const MAX_PARAMETERS: usize = 64;

/// Deserializes a list of at most `N` elements.
pub(super) fn at_most<'de, D, T, const N: usize>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct AtMost<T, const N: usize>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>, const N: usize> Visitor<'de> for AtMost<T, N> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "an array of at most {N} elements")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
            let mut elements = Vec::with_capacity(list.size_hint().unwrap_or(0).min(N));
            while let Some(element) = list.next_element()? {
                if elements.len() == N {
                    return Err(de::Error::invalid_length(N + 1, &self));
                }
                elements.push(element);
            }
            Ok(elements)
        }
    }

    deserializer.deserialize_seq(AtMost::<T, N>(PhantomData))
}

/// Deserializes a map of names to texts. Numbers and booleans become text, as the protocol's `parameters` may contain
/// either. Null is an empty map, and null parameters are omitted: clients write fields that they do not set.
pub(super) fn parameters<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    struct Parameters;

    impl<'de> Visitor<'de> for Parameters {
        type Value = BTreeMap<String, String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(
                f,
                "a map of at most {MAX_PARAMETERS} names to texts, numbers or booleans"
            )
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut parameters = BTreeMap::new();
            while let Some((name, Scalar(value))) = map.next_entry()? {
                let Some(value) = value else { continue };
                parameters.insert(name, value);
                if parameters.len() > MAX_PARAMETERS {
                    return Err(de::Error::invalid_length(parameters.len(), &self));
                }
            }
            Ok(parameters)
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(BTreeMap::new())
        }
    }

    deserializer.deserialize_any(Parameters)
}

/// A scalar as text; null is `None`.
struct Scalar(Option<String>);

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ScalarVisitor;

        impl Visitor<'_> for ScalarVisitor {
            type Value = Scalar;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a number or a boolean")
            }

            fn visit_unit<E>(self) -> Result<Scalar, E> {
                Ok(Scalar(None))
            }

            fn visit_str<E>(self, value: &str) -> Result<Scalar, E> {
                Ok(Scalar(Some(value.to_owned())))
            }

            fn visit_bool<E>(self, value: bool) -> Result<Scalar, E> {
                Ok(Scalar(Some(value.to_string())))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Scalar, E> {
                Ok(Scalar(Some(value.to_string())))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Scalar, E> {
                Ok(Scalar(Some(value.to_string())))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Scalar, E> {
                Ok(Scalar(Some(value.to_string())))
            }
        }

        deserializer.deserialize_any(ScalarVisitor)
    }
}
