//! Plans with a certified list.

use kaskade_policy::plan::{
    Certificate, CertifiedCascade, CertifiedList, Edge, ExpectedStage, Gear, Guarantee, Plan,
};

/// Samples on which the list of [`certified`] was proven.
const SAMPLES: u64 = 1_000;

/// Gives a cascade a certified list: the variant of its last stage alone, as the gear `alone`, and before it the whole cascade, as the
/// gear `cheap`, which the plan runs. Both answered a thousand samples alike, and the first stage deferred none.
///
/// # Panics
/// If the plan has no gear, or its gear no stage.
pub fn certified(mut plan: Plan) -> Plan {
    let mut cheap = plan.gears.remove(0);
    "cheap".clone_into(&mut cheap.name);
    let last = cheap.wiring.stages.last().expect("a cascade has stages").clone();
    let mut alone = cheap.clone();
    "alone".clone_into(&mut alone.name);
    alone.wiring.entry = Edge::to(last.name.as_str());
    alone.wiring.stages = vec![last.clone()];
    let certificate = Certificate {
        guarantee: Guarantee::MaxLoss {
            loss: 0.02,
            against: last.variant,
        },
        confidence: 0.95,
        samples: SAMPLES,
        right: 990,
        judge: None,
        lost: Some(0),
        gained: Some(0),
        p_value: 0.0,
    };
    let cascade = |gear: &Gear| CertifiedCascade {
        gear: gear.clone(),
        certificate: certificate.clone(),
        differs: Some(0),
        stages: expected(gear),
    };
    plan.certified = Some(CertifiedList {
        texts: None,
        samples: None,
        cascade_of_gear: vec![1],
        cascades: vec![cascade(&alone), cascade(&cheap)],
    });
    plan.gears = vec![cheap];
    plan
}

/// The stages of a gear whose first one answers every sample.
fn expected(gear: &Gear) -> Vec<ExpectedStage> {
    let counts = std::iter::once(SAMPLES).chain(std::iter::repeat(0));
    let stages = gear.wiring.stages.iter().zip(counts);
    stages
        .map(|(stage, samples)| ExpectedStage {
            stage: stage.name.clone(),
            samples,
            deferred: 0,
            edges: Vec::new(),
            exits: vec![samples],
        })
        .collect()
}
