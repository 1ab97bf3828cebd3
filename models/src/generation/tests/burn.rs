//! Tests of the engine on burn's back ends.

use burn::tensor::Device;

use kaskade_policy::hybrid_cache::{BlockCounts, Capacity, Shares};

use crate::decoder::registry;
use crate::generation::*;
use crate::ops::burn::Burn;
use crate::precision::WeightType;

fn decoder(name: &str, kind: WeightType) -> Result<Decoder, crate::checkpoint::LoadError> {
    let mut checkpoint = fixtures::checkpoint(name);
    checkpoint.weights.request(Some(kind));
    registry::read_decoder(checkpoint)
}

/// Returns burn's CPU back end, and wgpu if it is compiled in.
fn devices() -> Vec<Device> {
    vec![
        Device::flex(),
        #[cfg(feature = "wgpu")]
        Device::wgpu(burn::tensor::DeviceKind::DefaultDevice),
    ]
}

/// Checks that burn's CPU back end gives the results of the CPU kernels; a GPU runs the same code.
#[test]
fn logits_and_tokens_match_transformers_on_burn() {
    let pairs = fixtures::DECODERS
        .iter()
        .flat_map(|name| devices().into_iter().map(move |device| (*name, device)));
    for (name, device) in pairs {
        let decoder = decoder(name, WeightType::F32).unwrap();
        let config = EngineConfig::resident(&decoder, 512);
        let ops = Burn::new(device);
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

/// Checks that requests of different lengths decode together, with the cache on the device and in host memory.
#[test]
fn batches_match_transformers_on_burn() {
    for &name in fixtures::DECODERS {
        let decoder = decoder(name, WeightType::F32).unwrap();
        let resident = EngineConfig::resident(&decoder, 1024);
        let blocks = BlockCounts { act: 128, kv: 128 };
        let streamed = EngineConfig {
            caching: Caching::Hybrid,
            shares: Shares {
                act: 0.5,
                act_on_device: 0.3,
                kv_on_device: 0.3,
            },
            capacity: Capacity {
                device: BlockCounts { act: 8, kv: 8 },
                host: blocks,
            },
            resident_layers: 1,
            buffer: blocks,
            ..resident.clone()
        };
        let cases = fixtures::cases(name);
        let prompts: Vec<Vec<u32>> = cases.iter().map(|case| case.prompt.clone()).collect();
        let pairs = [resident, streamed].into_iter();
        for (config, device) in
            pairs.flat_map(|config| devices().into_iter().map(move |device| (config.clone(), device)))
        {
            let mut engine = Engine::new(Burn::new(device), decoder.clone(), None, config).unwrap();
            for (answer, case) in tests::generate(&mut engine, &prompts, 64).iter().zip(&cases) {
                assert_eq!(answer, &case.tokens, "{name}");
            }
        }
    }
}

/// Products with 16-bit weights round inputs and results too. Compares the median: a router may select another expert
/// if two are almost equal, and rounding accumulates in recurrent layers.
#[test]
fn weights_of_sixteen_bits_give_about_the_same_logits_on_burn() {
    for &name in fixtures::DECODERS {
        let case = fixtures::cases(name).remove(0);
        let logits = |kind| {
            let decoder = decoder(name, kind).unwrap();
            let config = EngineConfig::resident(&decoder, 512);
            let mut engine = Engine::new(Burn::new(Device::flex()), decoder, None, config).unwrap();
            let logits = fixtures::score(&mut engine, &case).concat();
            (logits, engine.device_memory().resident)
        };
        let (exact, whole) = logits(WeightType::F32);
        let range = exact.iter().fold(0.0_f32, |most, logit| most.max(logit.abs()));
        for (kind, most) in [(WeightType::Bf16, 0.015), (WeightType::F16, 0.003)] {
            let (converted, half) = logits(kind);
            let pairs = converted.iter().zip(&exact);
            let mut differences: Vec<f32> = pairs.map(|(one, other)| (one - other).abs()).collect();
            differences.sort_by(f32::total_cmp);
            let median = differences[differences.len() / 2];
            println!("{name} in {kind}: {}", median / range);
            assert!(
                median > 0.0 && median < most * range,
                "{name} in {kind}: {median} of {range}"
            );
            assert!(half < whole, "{name} in {kind}: {half} of {whole} bytes");
        }
    }
}
