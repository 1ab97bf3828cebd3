//! The paper's figures of each family (§VI, Tables III and V, Figures 4, 5 and 8).

/// The paper's figures of one family.
#[derive(Debug, Clone, Copy)]
pub(super) struct Paper {
    /// Share of requests that each model answers under AP (Table III).
    pub(super) ap: &'static [(&'static str, f64)],
    /// The same figures under EO.
    pub(super) eo: &'static [(&'static str, f64)],
    /// Accuracy of the largest model, of AP and of EO (Tables III and IV).
    pub(super) accuracy: [f64; 3],
    /// Factor by which AP and EO need less energy than the baseline (Table V and §VI-C).
    pub(super) energy: [f64; 2],
    /// Factor by which AP and EO have a lower average latency, if the paper prints it (§VI-B).
    pub(super) latency: Option<[f64; 2]>,
    /// Share by which the 99.9 % latency may exceed the baseline's (§VI-B).
    pub(super) tail: f64,
    /// Factor of the throughput over the baseline (Figure 5); the paper does not state the configuration.
    pub(super) throughput: f64,
    /// Time to construct and plan the dataflow, seconds (§VI-D).
    pub(super) planning_s: f64,
}

/// T5 on GLUE.
pub(super) const T5: Paper = Paper {
    ap: &[("T5-S", 0.0), ("T5-M", 0.248), ("T5-L", 0.282), ("T5-XL", 0.47)],
    eo: &[("T5-S", 0.40), ("T5-M", 0.423), ("T5-L", 0.092), ("T5-XL", 0.085)],
    accuracy: [0.905, 0.905, 0.898],
    energy: [9.0, 11.4],
    latency: None,
    tail: 0.02,
    throughput: 2.9,
    planning_s: 78.0,
};

/// GPT on LAMBADA. The saving of EO is from Table V: 130 over 31 mWh.
pub(super) const GPT: Paper = Paper {
    ap: &[
        ("GPT-XS", 0.0),
        ("GPT-S", 0.0),
        ("GPT-M", 0.198),
        ("GPT-L", 0.203),
        ("GPT-XL", 0.0),
        ("GPT-XXL", 0.599),
    ],
    eo: &[
        ("GPT-XS", 0.0),
        ("GPT-S", 0.195),
        ("GPT-M", 0.509),
        ("GPT-L", 0.129),
        ("GPT-XL", 0.001),
        ("GPT-XXL", 0.166),
    ],
    accuracy: [0.423, 0.423, 0.372],
    energy: [1.9, 4.2],
    latency: None,
    tail: 0.18,
    throughput: 1.7,
    planning_s: 45.0,
};

/// `ViT` on `ImageNet`. Average latencies are 3420, 610 and 385 ms.
pub(super) const VIT: Paper = Paper {
    ap: &[
        ("ViT-XS", 0.596),
        ("ViT-S", 0.051),
        ("ViT-M", 0.182),
        ("ViT-L", 0.171),
    ],
    eo: &[
        ("ViT-XS", 0.596),
        ("ViT-S", 0.31),
        ("ViT-M", 0.045),
        ("ViT-L", 0.049),
    ],
    accuracy: [0.823, 0.823, 0.817],
    energy: [14.0, 19.8],
    latency: Some([5.6, 8.9]),
    tail: 0.012,
    throughput: 8.9,
    planning_s: 437.0,
};

impl Paper {
    /// The share of requests that a model answers by Table III.
    pub(super) fn answered(shares: &[(&str, f64)], model: &str) -> f64 {
        let found = shares.iter().find(|(name, _)| *name == model);
        found.map_or(0.0, |(_, share)| *share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaskade_stated::families as stated;

    #[test]
    fn the_shares_are_of_the_familys_models_and_sum_to_one() {
        for (paper, family) in [(T5, stated::t5()), (GPT, stated::gpt()), (VIT, stated::vit())] {
            let names: Vec<&str> = family.models.iter().map(|model| model.name.as_str()).collect();
            for shares in [paper.ap, paper.eo] {
                let known: Vec<&str> = shares.iter().map(|(name, _)| *name).collect();
                assert_eq!(known, names);
                let sum: f64 = shares.iter().map(|(_, share)| share).sum();
                assert!((sum - 1.0).abs() < 0.002, "{sum}");
            }
        }
    }
}
