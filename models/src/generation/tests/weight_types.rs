//! Tests every family with every weight type.

use super::resident;
use crate::checkpoint::transposed;
use crate::decoder::registry;
use crate::generation::fixtures;
use crate::precision::WeightType;

#[test]
fn every_family_computes_with_converted_weights() {
    for &name in fixtures::DECODERS {
        let case = fixtures::cases(name).remove(0);
        let logits = |kind: WeightType| {
            let mut checkpoint = fixtures::checkpoint(name);
            checkpoint.weights.request(Some(kind));
            let decoder = registry::read_decoder(checkpoint).unwrap();
            let (width, mixed) = (decoder.model_config.width, decoder.model_config.routing.is_some());
            let rows = fixtures::score(&mut resident(&decoder), &case);
            (rows.concat(), (width, mixed))
        };
        let (exact, (width, mixed)) = logits(WeightType::F32);
        let range = exact.iter().fold(0.0_f32, |most, logit| most.max(logit.abs()));
        let kinds = [
            (WeightType::Bf16, 0.05),
            (WeightType::Q8_0, 0.2),
            (WeightType::Q4_0, 0.2),
        ];
        for (kind, most) in kinds {
            let (converted, _) = logits(kind);
            let pairs = converted.iter().zip(&exact);
            let mut differences: Vec<f32> = pairs.map(|(one, other)| (one - other).abs()).collect();
            differences.sort_by(f32::total_cmp);
            // Compares the median: a router may select another expert if two are almost equal, and four bits are
            // coarse.
            let at = if mixed || kind == WeightType::Q4_0 {
                differences.len() / 2
            } else {
                differences.len() - 1
            };
            let largest = differences[at];
            println!("{name} in {kind}: {}", largest / range);
            assert!(largest < most * range, "{name} in {kind}: {largest} of {range}");
            // Blocks have 32 weights, and other widths stay f32.
            assert!(
                largest > 0.0 || kind == WeightType::Bf16 || !width.is_multiple_of(32),
                "{name} is not converted"
            );
        }
    }
}

/// The scale of T5's outputs is not a power of two: a head that includes it would be rounded twice.
#[test]
fn a_tied_head_is_the_embedding_whatever_scales_its_input() {
    let decoder = registry::read_decoder(fixtures::checkpoint("t5")).unwrap();
    let (width, vocabulary) = (decoder.model_config.width, decoder.model_config.vocabulary);
    let tied = transposed(decoder.embedding.values(), width);
    assert_eq!(decoder.head.weight.len(), width * vocabulary);
    assert_eq!(decoder.head.weight, tied);
}
