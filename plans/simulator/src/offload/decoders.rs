//! The paper's machine and models (HybridServe KAIST §5.1), every figure stated.
//!
//! Dimensions are those of the published OPT checkpoints; the machine is the paper's, by its data sheets and by achieved
//! rates. Programs that print results based on them print [`assumptions`] too.

use crate::offload::{Assumption, Hardware, Shape};

/// An OPT of this many layers and such a hidden state; heads have their own keys and values, weights and cache are 16-bit floats.
fn opt(name: &str, layers: usize, width: usize) -> Shape {
    Shape {
        name: name.to_owned(),
        layers,
        width,
        kv_width: width,
        inner: 4 * width,
        gated: false,
        vocabulary: 50_272,
        context: 2_048,
        element_bytes: 2,
    }
}

/// The four models of the evaluation, smallest first.
pub fn opt_models() -> [Shape; 4] {
    [
        opt("opt-6.7b", 32, 4_096),
        opt("opt-13b", 40, 5_120),
        opt("opt-30b", 48, 7_168),
        opt("opt-66b", 64, 9_216),
    ]
}

/// The model of that name, if it is one of the four; letters may be large or small.
pub fn opt_named(name: &str) -> Option<Shape> {
    opt_models()
        .into_iter()
        .find(|shape| shape.name.eq_ignore_ascii_case(name))
}

/// The share of the tensor cores' rate that large products reach.
const REACHED: f64 = 0.85;

/// An NVIDIA RTX 4090 of 24 GB behind `PCIe` 4.0 x16, and 882 GB of host memory.
pub fn rtx_4090() -> Hardware {
    Hardware {
        name: "stated: NVIDIA RTX 4090 24 GB, PCIe 4.0 x16, 882 GB host".to_owned(),
        flops: REACHED * 165.2e12,
        memory_bytes_per_s: 900e9,
        device_bytes: 24_000_000_000,
        host_bytes: 882_000_000_000,
        link_bytes_per_s: 25e9,
        transfer_s: 1.5e-6,
        launch_s: 5e-6,
    }
}

/// Everything that was assumed of a machine, in words, for print beside results.
pub fn assumptions(hardware: &Hardware) -> Vec<Assumption> {
    let giga = |value: f64| value / 1e9;
    let micro = |seconds: f64| seconds * 1e6;
    let all = [
        (
            format!("the device computes {:.0} TFLOP/s in 16-bit products", hardware.flops / 1e12),
            "the data sheet of the RTX 4090 gives 165 with sums in 32 bits, as PyTorch has them; large products reach about 85 % of it",
        ),
        (
            format!(
                "it moves {:.0} GB/s in its own memory; a kernel takes {:.0} us to launch, a layer 12 of them and KV Gen 2",
                giga(hardware.memory_bytes_per_s),
                micro(hardware.launch_s)
            ),
            "1008 GB/s by the data sheet, of which streaming kernels reach nine tenths; launches as measured for eager PyTorch",
        ),
        (
            format!(
                "{:.0} GB of the device are for the engine",
                giga(hardware.device_bytes as f64)
            ),
            "24 GiB, less what CUDA's context and an allocator's slack take",
        ),
        (
            format!("{:.0} GB of host memory are for weights and blocks", giga(hardware.host_bytes as f64)),
            "the paper's host; what the operating system takes is not counted, and no load here comes near the end of it",
        ),
        (
            format!(
                "the link carries {:.0} GB/s each way, both at a time, and a transfer takes {:.1} us beside its bytes; each block of each layer is one",
                giga(hardware.link_bytes_per_s),
                micro(hardware.transfer_s)
            ),
            "PCIe 4.0 x16 has 31.5 GB/s, and copies from pinned memory reach about 25 of them; successive copies of one stream start about a \
             microsecond or two apart",
        ),
        (
            "whatever computes takes as long as its operations or its bytes, whichever is longer, and overlaps with the link without loss".to_owned(),
            "the paper publishes no times that would determine more; software that copies or computes worse is slower than this",
        ),
    ];
    all.into_iter()
        .map(|(what, why)| Assumption {
            what,
            why: why.to_owned(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_models_weigh_what_their_names_say() {
        for (shape, billions) in opt_models().iter().zip([6.7, 13.0, 30.0, 66.0]) {
            shape.check().unwrap();
            let off = shape.parameters() as f64 / (billions * 1e9) - 1.0;
            assert!(off.abs() < 0.02, "{}: {off}", shape.name);
            assert_eq!(opt_named(&shape.name.to_uppercase()).as_ref(), Some(shape));
        }
        assert_eq!(opt_named("opt-175b"), None);
    }

    #[test]
    fn the_cache_is_as_large_as_the_paper_says() {
        // §3.1: OPT-30B, 1024 tokens, a batch of 16 has 21 GB of keys and values, one of 128 has 168.
        let [_, _, opt_30b, _] = opt_models();
        for (requests, gigabytes) in [(16, 21.0), (128, 168.0)] {
            let bytes = requests * 1_024 * opt_30b.kv_bytes() * opt_30b.layers as u64;
            let off = bytes as f64 / (gigabytes * 1024.0_f64.powi(3)) - 1.0;
            assert!(off.abs() < 0.005, "{requests}: {off}");
        }
        assert_eq!(opt_30b.kv_bytes(), 2 * opt_30b.act_bytes());
    }

    #[test]
    fn every_stated_figure_is_said() {
        let message: String = assumptions(&rtx_4090())
            .iter()
            .map(|one| one.what.clone())
            .collect();
        for figure in [
            "140 TFLOP/s",
            "900 GB/s",
            "24 GB",
            "882 GB",
            "25 GB/s",
            "1.5 us",
            "5 us",
        ] {
            assert!(message.contains(figure), "{figure}: {message}");
        }
    }
}
