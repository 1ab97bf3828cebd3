//! Encodes and decodes weights, in the layout of safetensors files and of GGML blocks.

use half::{bf16, f16};

use super::WeightType;
use super::blocks::{BLOCK, Q4_0_BYTES, Q8_0_BYTES, read_q4_0, read_q8_0, write_q4_0, write_q8_0};

/// Encodes weights, little-endian; for a quantised type, their number must be a multiple of 32.
pub(crate) fn encode(values: &[f32], kind: WeightType) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(kind.bytes(values.len()));
    let (blocks, _) = values.as_chunks::<BLOCK>();
    match kind {
        WeightType::F32 => bytes.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        WeightType::Bf16 => bytes.extend(
            values
                .iter()
                .flat_map(|value| bf16::from_f32(*value).to_le_bytes()),
        ),
        WeightType::F16 => bytes.extend(
            values
                .iter()
                .flat_map(|value| f16::from_f32(*value).to_le_bytes()),
        ),
        WeightType::Q8_0 => blocks.iter().for_each(|block| write_q8_0(block, &mut bytes)),
        WeightType::Q4_0 => blocks.iter().for_each(|block| write_q4_0(block, &mut bytes)),
    }
    bytes
}

/// Decodes `out.len()` weights from bytes.
pub(crate) fn decode(bytes: &[u8], kind: WeightType, out: &mut [f32]) {
    match kind {
        WeightType::F32 => elements(bytes, out, f32::from_le_bytes),
        WeightType::Bf16 => elements(bytes, out, |bytes| bf16::from_le_bytes(bytes).to_f32()),
        WeightType::F16 => elements(bytes, out, |bytes| f16::from_le_bytes(bytes).to_f32()),
        WeightType::Q8_0 => {
            let (blocks, _) = bytes.as_chunks::<Q8_0_BYTES>();
            let slots = out.chunks_mut(BLOCK);
            blocks
                .iter()
                .zip(slots)
                .for_each(|(block, out)| read_q8_0(block, out));
        }
        WeightType::Q4_0 => {
            let (blocks, _) = bytes.as_chunks::<Q4_0_BYTES>();
            let slots = out.chunks_mut(BLOCK);
            blocks
                .iter()
                .zip(slots)
                .for_each(|(block, out)| read_q4_0(block, out));
        }
    }
}

fn elements<const N: usize>(bytes: &[u8], out: &mut [f32], read: impl Fn([u8; N]) -> f32) {
    let (elements, _) = bytes.as_chunks::<N>();
    for (slot, element) in out.iter_mut().zip(elements) {
        *slot = read(*element);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decoded(bytes: &[u8], kind: WeightType, count: usize) -> Vec<f32> {
        let mut out = vec![f32::NAN; count];
        decode(bytes, kind, &mut out);
        out
    }

    /// Generates weights of very different magnitudes, including zeros.
    fn weights() -> impl Strategy<Value = Vec<f32>> {
        let value =
            prop_oneof![4 => -1.0_f32..1.0, 1 => Just(0.0), 1 => -1e-6_f32..1e-6, 1 => -300.0_f32..300.0];
        let block = prop_oneof![
            6 => proptest::collection::vec(value, BLOCK),
            1 => Just(vec![0.0; BLOCK]),
            1 => Just(vec![-0.7; BLOCK])
        ];
        proptest::collection::vec(block, 1..5).prop_map(|blocks| blocks.concat())
    }

    /// Returns the maximum error of a weight of this block.
    fn bound(block: &[f32], kind: WeightType) -> f32 {
        let largest = block.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
        // The scale is rounded to f16, whose subnormal values are multiples of 2^-24.
        let rounded = |scale: f32| (scale * 2.0_f32.powi(-11)).max(2.0_f32.powi(-25));
        match kind {
            WeightType::F32 => 0.0,
            WeightType::Bf16 => largest * 2.0_f32.powi(-8),
            WeightType::F16 => rounded(largest),
            WeightType::Q8_0 => 0.501 * largest / 127.0 + 127.0 * rounded(largest / 127.0),
            // The positive end of the range has 7 steps only, so a value there can lose up to one step.
            WeightType::Q4_0 => 1.001 * largest / 8.0 + 8.0 * rounded(largest / 8.0),
        }
    }

    proptest! {
        #[test]
        fn weights_keep_within_the_error_of_their_type(values in weights()) {
            for kind in WeightType::ALL {
                let bytes = encode(&values, kind);
                prop_assert_eq!(bytes.len(), kind.bytes(values.len()));
                let back = decoded(&bytes, kind, values.len());
                for (block, back) in values.chunks(BLOCK).zip(back.chunks(BLOCK)) {
                    for (value, back) in block.iter().zip(back) {
                        let error = (value - back).abs();
                        prop_assert!(error <= bound(block, kind), "{kind}: {value} became {back}");
                    }
                }
            }
        }

        #[test]
        fn encoding_again_changes_no_byte(values in weights()) {
            for kind in WeightType::ALL {
                let bytes = encode(&values, kind);
                let again = encode(&decoded(&bytes, kind, values.len()), kind);
                // The sign of a zero scale may differ; the weights are zero in both cases.
                if bytes != again {
                    prop_assert_eq!(
                        decoded(&bytes, kind, values.len()),
                        decoded(&again, kind, values.len())
                    );
                }
            }
        }
    }

    /// Compares with blocks computed by hand from GGML's definition.
    #[test]
    fn blocks_have_the_layout_of_ggml() {
        let mut values = [0.0_f32; BLOCK];
        (values[0], values[1], values[16], values[31]) = (127.0, -63.6, 2.0, -127.0);
        let bytes = encode(&values, WeightType::Q8_0);
        assert_eq!(bytes[..2], f16::ONE.to_le_bytes());
        let numbers = [bytes[2], bytes[3], bytes[18], bytes[33]].map(u8::cast_signed);
        assert_eq!(numbers, [127, -64, 2, -127]);
        (values[0], values[1], values[16], values[31]) = (-8.0, 3.4, 7.6, -1.0);
        let bytes = encode(&values, WeightType::Q4_0);
        assert_eq!(bytes[..2], f16::ONE.to_le_bytes());
        // Lower nibbles are weights 0 to 15, upper nibbles 16 to 31; the number 8 is zero, and 7.6 is clamped to 7.
        assert_eq!([bytes[2], bytes[3], bytes[17]], [0xf0, 0x8b, 0x78]);
    }
}
