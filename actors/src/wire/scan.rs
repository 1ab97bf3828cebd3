//! Scans untrusted bytes before they are decoded.
//!
//! A length in MessagePack is four bytes that cost the sender nothing, so five bytes can claim four billion elements.
//! The scan checks every length without allocating; afterwards a decoder may trust the lengths, the depth and the
//! number of values.

use rmp::Marker;

use super::codec_error::{CodecError, Limits};

/// Checks that `bytes` are exactly one complete MessagePack value within `limits`.
pub(super) fn messagepack(bytes: &[u8], limits: &Limits) -> Result<(), CodecError> {
    check_size(bytes, limits)?;
    let mut walk = Walk { bytes, offset: 0 };
    let mut items = 0;
    // Number of values still expected at each open level; the message itself is the one value of the outermost level.
    let mut open = Vec::with_capacity(limits.depth + 1);
    open.push(1_u64);
    while let Some(left) = open.last_mut() {
        let Some(rest) = left.checked_sub(1) else {
            open.pop();
            continue;
        };
        *left = rest;
        items += 1;
        if items > limits.items {
            return Err(CodecError::TooManyItems { limit: limits.items });
        }
        let start = walk.offset;
        let children = walk.step()?;
        if children == 0 {
            continue;
        }
        let bytes_left = walk.left();
        if children > bytes_left as u64 {
            return Err(CodecError::Truncated {
                offset: start,
                claimed: children,
                left: bytes_left,
            });
        }
        if open.len() > limits.depth {
            return Err(CodecError::TooDeep {
                limit: limits.depth,
                offset: start,
            });
        }
        open.push(children);
    }
    match walk.left() {
        0 => Ok(()),
        extra => Err(CodecError::Trailing {
            offset: walk.offset,
            extra,
        }),
    }
}

struct Walk<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl Walk<'_> {
    fn left(&self) -> usize {
        self.bytes.len() - self.offset
    }

    /// Skips one value without its children, and returns the number of children.
    fn step(&mut self) -> Result<u64, CodecError> {
        let start = self.offset;
        let [byte] = self.take::<1>()?;
        match Marker::from_u8(byte) {
            Marker::FixPos(_) | Marker::FixNeg(_) | Marker::Null | Marker::True | Marker::False => Ok(0),
            Marker::U8 | Marker::I8 => self.skip(1),
            // An extension has a type byte before its data.
            Marker::U16 | Marker::I16 | Marker::FixExt1 => self.skip(2),
            Marker::U32 | Marker::I32 | Marker::F32 => self.skip(4),
            Marker::U64 | Marker::I64 | Marker::F64 => self.skip(8),
            Marker::FixStr(length) => self.skip(length.into()),
            Marker::Str8 | Marker::Bin8 => self.skip_sized::<1>(),
            Marker::Str16 | Marker::Bin16 => self.skip_sized::<2>(),
            Marker::Str32 | Marker::Bin32 => self.skip_sized::<4>(),
            Marker::FixExt2 => self.skip(3),
            Marker::FixExt4 => self.skip(5),
            Marker::FixExt8 => self.skip(9),
            Marker::FixExt16 => self.skip(17),
            Marker::Ext8 => self.length::<1>().and_then(|length| self.skip(length + 1)),
            Marker::Ext16 => self.length::<2>().and_then(|length| self.skip(length + 1)),
            Marker::Ext32 => self.length::<4>().and_then(|length| self.skip(length + 1)),
            Marker::FixArray(count) => Ok(count.into()),
            Marker::Array16 => self.length::<2>(),
            Marker::Array32 => self.length::<4>(),
            Marker::FixMap(pairs) => Ok(2 * u64::from(pairs)),
            Marker::Map16 => Ok(2 * self.length::<2>()?),
            Marker::Map32 => Ok(2 * self.length::<4>()?),
            Marker::Reserved => Err(CodecError::Reserved { offset: start }),
        }
    }

    fn skip_sized<const N: usize>(&mut self) -> Result<u64, CodecError> {
        let length = self.length::<N>()?;
        self.skip(length)
    }

    fn skip(&mut self, length: u64) -> Result<u64, CodecError> {
        let left = self.left();
        match usize::try_from(length) {
            Ok(length) if length <= left => {
                self.offset += length;
                Ok(0)
            }
            _ => Err(self.truncated(length)),
        }
    }

    fn length<const N: usize>(&mut self) -> Result<u64, CodecError> {
        let bytes = self.take::<N>()?;
        Ok(bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], CodecError> {
        let taken = self.bytes.get(self.offset..).and_then(<[u8]>::first_chunk::<N>);
        let Some(taken) = taken else {
            return Err(self.truncated(N as u64));
        };
        self.offset += N;
        Ok(*taken)
    }

    fn truncated(&self, claimed: u64) -> CodecError {
        CodecError::Truncated {
            offset: self.offset,
            claimed,
            left: self.left(),
        }
    }
}

/// Checks that the nesting and the number of values in `bytes`, read as JSON, are within `limits`. The parser decides
/// whether the JSON is valid.
pub(super) fn json(bytes: &[u8], limits: &Limits) -> Result<(), CodecError> {
    check_size(bytes, limits)?;
    let mut depth = 0_usize;
    let mut items = 1;
    let mut in_text = false;
    let mut escaped = false;
    for (offset, byte) in bytes.iter().enumerate() {
        if in_text {
            in_text = escaped || *byte != b'"';
            escaped = !escaped && *byte == b'\\';
            continue;
        }
        match byte {
            b'"' => in_text = true,
            b'[' | b'{' => {
                depth += 1;
                items += 1;
                if depth > limits.depth {
                    return Err(CodecError::TooDeep {
                        limit: limits.depth,
                        offset,
                    });
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b',' | b':' => items += 1,
            _ => {}
        }
        if items > limits.items {
            return Err(CodecError::TooManyItems { limit: limits.items });
        }
    }
    Ok(())
}

fn check_size(bytes: &[u8], limits: &Limits) -> Result<(), CodecError> {
    if bytes.len() > limits.bytes {
        return Err(CodecError::TooLarge {
            size: bytes.len(),
            limit: limits.bytes,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn scan(bytes: &[u8]) -> Result<(), CodecError> {
        messagepack(bytes, &Limits::default())
    }

    #[test]
    fn five_bytes_that_claim_four_billion_elements_are_refused() {
        for marker in [0xdd, 0xdf, 0xdb, 0xc6, 0xc9] {
            let error = scan(&[marker, 0xff, 0xff, 0xff, 0xff]).unwrap_err();
            assert!(
                matches!(error, CodecError::Truncated { .. }),
                "{marker:#x}: {error}"
            );
        }
    }

    #[test]
    fn depth_is_counted_from_the_message_itself() {
        let limits = Limits {
            depth: 3,
            ..Limits::default()
        };
        let nested = |depth: usize| [vec![0x91; depth], vec![0xc0]].concat();
        assert_eq!(messagepack(&nested(3), &limits), Ok(()));
        assert_eq!(
            messagepack(&nested(4), &limits),
            Err(CodecError::TooDeep { limit: 3, offset: 3 })
        );
        assert_eq!(json(b"[[[1]]]", &limits), Ok(()));
        assert_eq!(
            json(b"[[[[1]]]]", &limits),
            Err(CodecError::TooDeep { limit: 3, offset: 3 })
        );
        assert_eq!(json(br#""[[[[\"[[[[""#, &limits), Ok(()));
    }

    #[test]
    fn a_hundred_thousand_levels_do_not_touch_the_stack() {
        let deep = vec![0x91; 100_000];
        assert!(matches!(scan(&deep), Err(CodecError::TooDeep { .. })));
        let json_deep = vec![b'['; 100_000];
        assert!(matches!(
            json(&json_deep, &Limits::default()),
            Err(CodecError::TooDeep { .. })
        ));
    }

    #[test]
    fn items_bytes_reserved_markers_and_trailing_bytes_have_their_errors() {
        let limits = Limits {
            items: 3,
            bytes: 8,
            ..Limits::default()
        };
        assert_eq!(messagepack(&[0x92, 1, 2], &limits), Ok(()));
        assert_eq!(
            messagepack(&[0x93, 1, 2, 3], &limits),
            Err(CodecError::TooManyItems { limit: 3 })
        );
        assert_eq!(
            json(b"[1,2,3]", &limits),
            Err(CodecError::TooManyItems { limit: 3 })
        );
        assert_eq!(
            messagepack(&[0; 9], &limits),
            Err(CodecError::TooLarge { size: 9, limit: 8 })
        );
        assert_eq!(scan(&[0xc1]), Err(CodecError::Reserved { offset: 0 }));
        assert_eq!(scan(&[1, 2]), Err(CodecError::Trailing { offset: 1, extra: 1 }));
        assert!(matches!(scan(&[]), Err(CodecError::Truncated { offset: 0, .. })));
    }

    proptest! {
        #[test]
        fn what_the_scan_passes_rmp_reads_to_its_end(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if scan(&bytes).is_ok() {
                let mut rest = bytes.as_slice();
                let read = <serde::de::IgnoredAny as serde::Deserialize>::deserialize(
                    &mut rmp_serde::Deserializer::new(&mut rest),
                );
                // The scan accepts text that is not UTF-8 as a value; the decoder of its field refuses it.
                if read.is_ok() {
                    prop_assert!(rest.is_empty());
                }
            }
        }

        #[test]
        fn json_never_panics(text in ".{0,200}") {
            let _ = json(text.as_bytes(), &Limits::default());
        }
    }
}
