//! The engine on burn's back ends.

use burn::tensor::Device;

use super::*;
use crate::decoder::registry;
use crate::ops::burn::Burn;

/// burn's CPU back end gives the results of the CPU kernels; a GPU runs the same code.
#[test]
fn logits_and_tokens_match_transformers_on_burn() {
    for name in fixtures::DECODERS {
        let decoder = registry::read_decoder(fixtures::checkpoint(name)).unwrap();
        let config = EngineConfig::resident(&decoder, 512);
        let ops = Burn {
            device: Device::flex(),
        };
        let mut engine = Engine::new(ops, decoder, None, config).unwrap();
        for case in fixtures::cases(name) {
            let logits = fixtures::score(&mut engine, &case);
            let last = logits.last().unwrap().iter().zip(&case.last_logits);
            let largest = last
                .map(|(actual, expected)| (actual - expected).abs())
                .fold(0.0, f32::max);
            assert!(largest < 1e-4, "{name}: logits differ by {largest}");
            let sampling = Sampling {
                max_tokens: 64,
                ignore_eos: true,
                ..Sampling::default()
            };
            engine.submit(0, case.prompt, sampling).unwrap();
            let mut answer = Vec::new();
            while !engine.is_idle() {
                let events = engine.step().unwrap().events;
                answer.extend(
                    events
                        .iter()
                        .filter_map(|event| event.sampled.map(|sampled| sampled.token)),
                );
            }
            assert_eq!(answer, case.tokens, "{name}");
        }
    }
}
