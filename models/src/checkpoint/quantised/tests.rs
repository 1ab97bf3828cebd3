use safetensors::Dtype;
use std::collections::HashMap;

use proptest::prelude::*;
use safetensors::tensor::{TensorView, serialize};
use serde_json::{Value, json};

use super::blocks::Blocks;
use super::stored::e4m3;
use super::stored::exponential;
use super::{Scheme, Stored, StoredTensor, beside, packed};
use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::precision::WeightType;

fn read(config: &Config) -> Result<Option<Box<dyn Scheme>>, LoadError> {
    super::read(config, None)
}

fn config(settings: &Value) -> Config {
    let json = json!({"quantization_config": settings}).to_string();
    Config::parse("config.json", json.as_bytes()).unwrap()
}

fn scheme(settings: &Value) -> Box<dyn Scheme> {
    read(&config(settings)).unwrap().unwrap()
}

/// Returns the settings of each scheme.
fn settings() -> [Value; 10] {
    let packed = json!({"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 8}, "targets": ["Linear"]}});
    let floats = json!({"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}, "targets": ["Linear"]}});
    [
        json!({"quant_method": "mxfp4"}),
        json!({"quant_method": "modelopt", "quant_algo": "NVFP4"}),
        json!({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "config_groups": floats}),
        json!({"quant_method": "fp8", "weight_block_size": [2, 2]}),
        json!({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": packed}),
        json!({"quant_method": "gptq", "bits": 4, "group_size": 8}),
        json!({"quant_method": "gptq", "bits": 3, "group_size": -1, "checkpoint_format": "gptq_v2"}),
        json!({"quant_method": "awq", "bits": 4, "group_size": 8}),
        json!({"quant_method": "bitsandbytes", "load_in_4bit": true}),
        json!({"quant_method": "kaskade", "dtype": "q8_0"}),
    ]
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

type Tensor<'a> = (&'a str, Dtype, &'a [usize], Vec<u8>);

fn checkpoint(settings: &Value, tensors: &[Tensor<'_>]) -> Checkpoint {
    let views = tensors
        .iter()
        .map(|(name, dtype, shape, data)| (*name, TensorView::new(*dtype, shape.to_vec(), data).unwrap()));
    let file = serialize(views, None::<HashMap<String, String>>).unwrap();
    let config = json!({"quantization_config": settings}).to_string();
    Checkpoint::from_bytes("dir", config.as_bytes(), file, None).unwrap()
}

fn error(settings: &Value, tensors: &[Tensor<'_>], name: &str, shape: &[usize]) -> String {
    let error = checkpoint(settings, tensors)
        .weights
        .take(name, shape)
        .unwrap_err();
    error.to_string()
}

#[test]
fn e4m3_has_the_values_of_its_definition() {
    for byte in 0..=u8::MAX {
        let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
        let magnitude = match exponent {
            0 => mantissa / 8.0 * 2.0_f32.powi(-6),
            _ => (1.0 + mantissa / 8.0) * 2.0_f32.powi(exponent - 7),
        };
        let expected = if byte < 128 { magnitude } else { -magnitude };
        match byte & 127 {
            127 => assert!(e4m3(byte).is_nan(), "{byte}"),
            _ => assert_eq!(e4m3(byte).to_bits(), expected.to_bits(), "{byte}"),
        }
    }
    assert_eq!(e4m3(0x7e).to_bits(), 448.0_f32.to_bits());
}

#[test]
fn scales_of_eight_bits_are_powers_of_two() {
    assert_eq!(
        [0, 1, 126, 127, 254].map(|byte| exponential(byte).to_bits()),
        [-127, -126, -1, 0, 127].map(|power| 2.0_f32.powi(power).to_bits())
    );
    assert!(exponential(255).is_nan());
}

#[test]
fn names_are_those_beside_a_weight() {
    assert_eq!(beside("a.weight", "qweight").as_deref(), Some("a.qweight"));
    assert_eq!(beside("weight", "qweight").as_deref(), Some("qweight"));
    assert_eq!(beside("a.bias", "qweight"), None);
    assert_eq!(beside("a.inweight", "qweight"), None);
}

#[test]
fn blocks_at_the_edges_are_smaller() {
    let mut codes = vec![1.0; 15];
    let blocks = Blocks::of(4, 3, 5, Some([2, 3])).unwrap();
    blocks
        .scale(&mut codes, [3, 5], &[1.0, 2.0, 3.0, 4.0], None)
        .unwrap();
    assert_eq!(
        codes,
        [
            1.0, 1.0, 1.0, 2.0, 2.0, 1.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 3.0, 4.0, 4.0
        ]
    );
    let rows = Blocks::of(3, 3, 5, None).unwrap();
    let mut codes = vec![2.0; 15];
    rows.scale(&mut codes, [3, 5], &[1.0, 2.0, 3.0], Some(&[1.0, 0.0, 3.0]))
        .unwrap();
    assert_eq!(codes[..5], [1.0; 5]);
    assert_eq!(codes[5..10], [4.0; 5]);
    assert_eq!(codes[10..], [-3.0; 5]);
    assert_eq!(Blocks::of(7, 3, 5, Some([2, 3])), None);
    assert!(rows.scale(&mut codes, [3, 5], &[1.0, 2.0], None).is_err());
}

/// Two experts of one output and 32 inputs: each byte has 2 in the lower half, -0.5 in the upper half.
#[test]
fn mxfp4_is_decoded_expert_by_expert_as_at_once() {
    let tensors = [
        (
            "up_blocks",
            Dtype::U8,
            &[2, 1, 1, 16][..],
            [vec![0x94; 16], vec![0x12; 16]].concat(),
        ),
        ("up_scales", Dtype::U8, &[2, 1, 1], vec![128, 126]),
        ("up_bias", Dtype::F32, &[1], floats(&[7.0])),
    ];
    let settings = json!({"quant_method": "mxfp4"});
    let mut whole = checkpoint(&settings, &tensors).weights;
    assert_eq!(whole.weight_type(), WeightType::Bf16);
    let values = whole.take("up", &[2, 32, 1]).unwrap();
    assert_eq!(
        (values.len(), &values[..2], &values[32..34]),
        (64, &[4.0, -1.0][..], &[0.5, 0.25][..])
    );
    let mut parts = checkpoint(&settings, &tensors).weights;
    let each = parts
        .take_each("up", &[2, 32, 1], |expert, values| (expert, values))
        .unwrap();
    assert_eq!(each, [(0, values[..32].to_vec()), (1, values[32..].to_vec())]);
    assert_eq!(parts.take("up_bias", &[1]).unwrap(), [7.0]);
    assert_eq!(parts.finish(&[]).unwrap().parameters, 65);
    let wrong = error(&settings, &tensors, "up", &[2, 64, 1]);
    assert!(
        wrong.contains(
            "`up` in `dir/model.safetensors` has shape [2, 32, 1]; the configuration needs [2, 64, 1]"
        ),
        "{wrong}"
    );
    let missing = error(&settings, &tensors[..1], "up", &[2, 32, 1]);
    assert!(
        missing.contains("the tensor `up_scales` is missing") && missing.contains("download"),
        "{missing}"
    );
    let invalid = [
        tensors[0].clone(),
        ("up_scales", Dtype::U8, &[2, 1, 1], vec![255, 126]),
    ];
    assert!(error(&settings, &invalid, "up", &[2, 32, 1]).contains("holds NaN"));
}

#[test]
fn every_missing_or_unexpected_tensor_is_named() {
    let gptq = json!({"quant_method": "gptq", "bits": 4, "group_size": 8});
    let indices = ("a.g_idx", Dtype::I32, &[8][..], words(&[0; 8]));
    let codes = ("a.qweight", Dtype::I32, &[1, 8][..], words(&[0; 8]));
    let scales = ("a.scales", Dtype::F32, &[1, 8][..], floats(&[1.0; 8]));
    let zeros = ("a.qzeros", Dtype::I32, &[1, 1][..], words(&[0x7777_7777]));
    let refusal = |tensors: &[Tensor<'_>]| error(&gptq, tensors, "a.weight", &[8, 8]);
    assert!(
        refusal(std::slice::from_ref(&indices))
            .contains("the tensor `a.qweight` is missing beside `a.g_idx`")
    );
    assert!(refusal(&[codes.clone(), zeros.clone()]).contains("the tensor `a.scales` is missing"));
    assert!(refusal(&[codes.clone(), scales.clone()]).contains("the tensor `a.qzeros` is missing"));
    assert!(refusal(&[]).contains("no tensor `a.weight`"));
    let foreign = ("a.g_idx", Dtype::I32, &[8][..], words(&[1; 8]));
    let refused = refusal(&[codes.clone(), scales.clone(), zeros.clone(), foreign]);
    assert!(
        refused.contains("`a.g_idx`") && refused.contains("groups below 1"),
        "{refused}"
    );
    let narrow = ("a.scales", Dtype::F32, &[1, 4][..], floats(&[1.0; 4]));
    assert!(
        refusal(&[codes.clone(), narrow, zeros.clone()])
            .contains("`a.scales` (F32, [1, 4]) should have the shape [1, 8]")
    );

    // A zero bias that the model lacks is ignored, a non-zero one is an error.
    for (bias, is_refused) in [(0.0, false), (0.5, true)] {
        let bias = ("a.bias", Dtype::F32, &[8][..], floats(&[bias; 8]));
        let all = [
            codes.clone(),
            scales.clone(),
            zeros.clone(),
            indices.clone(),
            bias,
        ];
        let mut weights = checkpoint(&gptq, &all).weights;
        assert_eq!(weights.take("a.weight", &[8, 8]).unwrap(), [-8.0; 64]);
        assert_eq!(weights.finish(&[]).is_err(), is_refused);
    }

    let fp8 = json!({"quant_method": "fp8"});
    let plain = ("a.weight", Dtype::F32, &[1, 2][..], floats(&[1.0, 2.0]));
    let scale = ("a.weight_scale", Dtype::F32, &[][..], floats(&[2.0]));
    let mut unquantised = checkpoint(&fp8, std::slice::from_ref(&plain)).weights;
    assert_eq!(unquantised.take("a.weight", &[1, 2]).unwrap(), [1.0, 2.0]);
    let refused = error(&fp8, &[plain, scale.clone()], "a.weight", &[1, 2]);
    assert!(
        refused.contains("`a.weight` (F32, [1, 2]) should be F8_E4M3"),
        "{refused}"
    );
    let codes = ("a.weight", Dtype::F8_E4M3, &[1, 2][..], vec![0x38, 0xb8]);
    let mut both = checkpoint(&fp8, &[codes.clone(), scale]).weights;
    assert_eq!(both.take("a.weight", &[1, 2]).unwrap(), [2.0, -2.0]);
    let refused = error(&fp8, std::slice::from_ref(&codes), "a.weight", &[1, 2]);
    assert!(refused.contains("`a.weight_scale_inv` is missing"), "{refused}");
    // Without settings, the type is not a weight type.
    let mut none = checkpoint(&Value::Null, &[codes]).weights;
    assert!(matches!(
        none.take("a.weight", &[1, 2]),
        Err(LoadError::WrongDtype { .. })
    ));
}

#[test]
fn what_is_not_read_is_refused_by_key() {
    let group = |weights: Value| json!({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": weights}}});
    for (settings, key, part) in [
        (json!({"quant_method": "hqq"}), "quant_method", "gptq, awq"),
        (
            json!({"quant_method": "gptq", "bits": 5, "group_size": 8}),
            "bits",
            "2, 3, 4 and 8",
        ),
        (
            json!({"quant_method": "gptq", "bits": 4, "group_size": 8, "checkpoint_format": "marlin"}),
            "checkpoint_format",
            "gptq and gptq_v2",
        ),
        (
            json!({"quant_method": "gptq", "bits": 4, "group_size": 0}),
            "group_size",
            "at least 1",
        ),
        (
            json!({"quant_method": "gptq", "bits": 4, "group_size": 8, "dynamic": {"+:.*": {"bits": 8}}}),
            "dynamic",
            "different settings",
        ),
        (
            json!({"quant_method": "awq", "bits": 8, "group_size": 8}),
            "bits",
            "4 is read",
        ),
        (
            json!({"quant_method": "awq", "bits": 4, "group_size": 8, "version": "gemv"}),
            "version",
            "gemm",
        ),
        (json!({"quant_method": "fp8", "fmt": "e5m2"}), "fmt", "e4m3"),
        (
            json!({"quant_method": "fp8", "weight_block_size": [0, 128]}),
            "weight_block_size",
            "at least 1",
        ),
        (
            json!({"quant_method": "compressed-tensors", "format": "mxfp6-pack-quantized", "config_groups": {}}),
            "format",
            "pack-quantized",
        ),
        (
            group(json!({"num_bits": 6, "type": "float"})),
            "config_groups",
            "float of 4 and 8 bits",
        ),
        (
            json!({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}),
            "quant_algo",
            "NVFP4 and FP8",
        ),
        (
            json!({"quant_method": "kaskade", "dtype": "bf16"}),
            "quantization_config",
            "q8_0",
        ),
        (json!("gptq"), "quantization_config", "map"),
    ] {
        let error = read(&config(&settings)).unwrap_err();
        let named = matches!(&error, LoadError::BadKey { key: named, .. } if named == key);
        assert!(named && error.to_string().contains(part), "{settings}: {error}");
    }
    let error = read(&config(&json!({"quant_method": "gptq", "group_size": 8}))).unwrap_err();
    assert!(
        matches!(&error, LoadError::MissingKey { key, .. } if key == "bits"),
        "{error}"
    );
    assert!(
        read(&Config::parse("config.json", b"{}").unwrap())
            .unwrap()
            .is_none()
    );
}

#[test]
fn the_type_before_is_that_of_the_configuration() {
    for (dtype, kind) in [
        ("float16", WeightType::F16),
        ("bfloat16", WeightType::Bf16),
        ("float32", WeightType::F32),
    ] {
        for key in ["dtype", "torch_dtype"] {
            let json = json!({key: dtype, "quantization_config": {"quant_method": "mxfp4"}}).to_string();
            let config = Config::parse("config.json", json.as_bytes()).unwrap();
            assert_eq!(read(&config).unwrap().unwrap().weight_type(), kind);
        }
    }
}

#[test]
fn offsets_are_read_and_nested_factors_decoded() {
    // Two blocks of two codes: code 15 is 3, code 0 is -1.
    let mut map = vec![0.0; 16];
    (map[0], map[15]) = (-1.0, 3.0);
    let mut nested = vec![0.0; 256];
    (nested[1], nested[255]) = (0.5, 1.0);
    let state =
        br#"{"quant_type":"nf4","blocksize":2,"shape":[2,2],"nested_blocksize":256,"nested_offset":0.25}"#;
    let tensors = [
        ("a.weight", Dtype::U8, &[2, 1][..], vec![0xf0, 0x0f]),
        ("a.weight.absmax", Dtype::U8, &[2], vec![255, 1]),
        ("a.weight.quant_map", Dtype::F32, &[16], floats(&map)),
        ("a.weight.nested_absmax", Dtype::F32, &[1], floats(&[2.0])),
        ("a.weight.nested_quant_map", Dtype::F32, &[256], floats(&nested)),
        (
            "a.weight.quant_state.bitsandbytes__nf4",
            Dtype::U8,
            &[state.len()],
            state.to_vec(),
        ),
    ];
    let settings = json!({"load_in_4bit": true});
    let mut weights = checkpoint(&settings, &tensors).weights;
    assert_eq!(
        weights.take("a.weight", &[2, 2]).unwrap(),
        [6.75, -2.25, -1.25, 3.75]
    );
    assert!(weights.finish(&[]).is_ok());
    let refused = error(&settings, &tensors[..5], "a.weight", &[2, 2]);
    assert!(
        refused.contains("`a.weight.quant_state.bitsandbytes__nf4` is missing"),
        "{refused}"
    );
}

#[test]
fn columns_of_compressed_tensors_belong_to_groups_in_any_order() {
    let weights = json!({"num_bits": 8, "type": "int", "group_size": 2});
    let settings =
        json!({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": weights}}});
    let indices = |groups: [u32; 4]| ("a.weight_g_idx", Dtype::I32, &[4][..], words(&groups));
    let tensors = [
        (
            "a.weight",
            Dtype::I8,
            &[2, 4][..],
            vec![10, 20, 30, 40, 1, 2, 3, 4],
        ),
        (
            "a.weight_scale",
            Dtype::F32,
            &[2, 2],
            floats(&[1.0, 2.0, 0.5, 1.0]),
        ),
        ("a.weight_zero_point", Dtype::I8, &[2, 2], vec![0, 10, 1, 2]),
    ];
    let values = |indices| {
        let tensors: Vec<Tensor<'_>> = tensors.iter().cloned().chain([indices]).collect();
        checkpoint(&settings, &tensors)
            .weights
            .take("a.weight", &[2, 4])
            .unwrap()
    };
    assert_eq!(
        values(indices([1, 0, 1, 0])),
        [0.0, 20.0, 40.0, 40.0, -1.0, 0.5, 1.0, 1.5]
    );
    // Group indices of -1 are unset: groups are consecutive columns.
    assert_eq!(
        values(indices([u32::MAX; 4])),
        [10.0, 20.0, 40.0, 60.0, 0.0, 0.5, 1.0, 2.0]
    );
    let foreign: Vec<Tensor<'_>> = tensors.iter().cloned().chain([indices([0, 1, 2, 0])]).collect();
    assert!(error(&settings, &foreign, "a.weight", &[2, 4]).contains("groups below 2"));
}

#[test]
fn blocks_of_compressed_tensors_have_the_stated_structure() {
    for structure in [json!([2, 1]), json!("2x1")] {
        let weights = json!({"num_bits": 8, "type": "float", "block_structure": structure});
        let settings =
            json!({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": weights}}});
        let tensors = [
            ("a.weight", Dtype::F8_E4M3, &[3, 2][..], vec![0x38; 6]),
            (
                "a.weight_scale",
                Dtype::BF16,
                &[2, 2],
                vec![0x80, 0x3f, 0, 0x40, 0x40, 0x40, 0x80, 0x40],
            ),
            ("self_attn.k_scale", Dtype::F32, &[1], floats(&[0.5])),
        ];
        let mut read = checkpoint(&settings, &tensors).weights;
        assert_eq!(
            read.take("a.weight", &[3, 2]).unwrap(),
            [1.0, 2.0, 1.0, 2.0, 3.0, 4.0]
        );
        assert!(read.finish(&[]).is_ok());
    }
}

/// Packs the codes of a row, bit by bit.
fn packed_row(codes: &[u32], bits: usize) -> Vec<u32> {
    let mut row = vec![0_u32; packed::words(codes.len(), bits).unwrap()];
    for (place, code) in codes.iter().enumerate() {
        for bit in 0..bits {
            let at = place * bits + bit;
            row[at / 32] |= (code >> bit & 1) << (at % 32);
        }
    }
    row
}

proptest! {
    #[test]
    fn codes_of_any_width_are_unpacked(bits in 1_usize..=8, seed in prop::collection::vec(any::<u32>(), 1..100)) {
        let codes: Vec<u32> = seed.iter().map(|code| code & ((1 << bits) - 1)).collect();
        let row = packed_row(&codes, bits);
        prop_assert_eq!(packed::row(&row, bits, codes.len()).collect::<Vec<_>>(), codes.clone());
        // The same codes along the rows of a matrix of two columns; the second column has their complements.
        let mask = (1_u32 << bits) - 1;
        let other = packed_row(&codes.iter().map(|code| code ^ mask).collect::<Vec<_>>(), bits);
        let lines: Vec<u32> = row.iter().zip(&other).flat_map(|(one, other)| [*one, *other]).collect();
        for (position, code) in codes.iter().enumerate() {
            let both: Vec<u32> = packed::across(&lines, 2, bits, position).collect();
            prop_assert_eq!(both, [*code, code ^ mask]);
        }
    }

    /// Checks that tensors of any type and shape are rejected or decoded to the requested number of values.
    #[test]
    fn no_tensors_panic(
        place in 0_usize..8,
        kinds in prop::collection::vec(0_usize..8, 12),
        shapes in prop::collection::vec(prop::collection::vec(0_usize..20, 0..4), 12),
        present in prop::collection::vec(any::<bool>(), 12),
        wanted in prop::collection::vec(0_usize..20, 0..4),
        fill in any::<u8>(),
    ) {
        let scheme = scheme(&settings()[place]);
        let mut stored = Stored::default();
        for (index, (role, name)) in scheme.tensors("a.weight").into_iter().enumerate() {
            let types = [
                Dtype::U8, Dtype::I8, Dtype::I32, Dtype::F32, Dtype::F16, Dtype::F8_E4M3, Dtype::I64, Dtype::BF16,
            ];
            let dtype = types[kinds[index % 12]];
            // Random shapes rarely fit, so some are set to the wanted shape.
            let shape = if kinds[index % 12] > 3 { wanted.clone() } else { shapes[index % 12].clone() };
            let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
            let tensor = StoredTensor { dtype, shape, bytes: vec![fill; bytes] };
            stored.parts.push((role, name, present[index % 12].then_some(tensor)));
        }
        if let Ok(values) = scheme.decode(&stored, &wanted) {
            prop_assert_eq!(values.len(), wanted.iter().product::<usize>());
        }
    }
}
